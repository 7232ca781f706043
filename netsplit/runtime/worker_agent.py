"""The torchrun agent of workers that NetSplit starts itself: they are forked from it, with torch loaded once.

    python -m netsplit.runtime.worker_agent --workers N --controller HOST:PORT --rendezvous HOST:PORT …

A worker of its own interpreter loads torch and, with its first optimiser, `torch._dynamo`: some five seconds
of a processor each. CUDA cannot be used in a forked process once it was begun before, so that workers of
GPUs are spawned.
"""

from __future__ import annotations

import argparse
import os
from contextlib import suppress

# What workers need, so that it is there before they are forked.
import torch._dynamo  # noqa: F401
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from netsplit.runtime import worker_calls, worker_process  # noqa: F401
from netsplit.runtime.workers.launch import LOOK_S, STOP_S

__all__ = ["main"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="netsplit.runtime.worker_agent", description=__doc__)
    parser.add_argument("--workers", type=int, required=True, help="how many")
    parser.add_argument("--controller", required=True, help="HOST:PORT where the workers find it")
    parser.add_argument("--rendezvous", required=True, help="HOST:PORT where they find each other")
    parser.add_argument("--logs", required=True, help="folder for torchelastic's files")
    parser.add_argument("--start-method", choices=("fork", "spawn"), default="fork")
    asked = parser.parse_args()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=asked.workers,
        max_restarts=0,
        monitor_interval=LOOK_S,
        shutdown_timeout=STOP_S,
        start_method=asked.start_method,
        run_id="netsplit",
        rdzv_backend="c10d",
        rdzv_endpoint=asked.rendezvous,
        logs_specs=DefaultLogsSpecs(log_dir=asked.logs),
    )
    with suppress(SignalException):  # the controller's, which has let its workers go
        elastic_launch(config, worker_process.work)(asked.controller)
    os._exit(0)  # an interpreter that takes torch down in good order needs a second for it


if __name__ == "__main__":
    main()
