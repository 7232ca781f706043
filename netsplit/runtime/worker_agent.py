"""The torchrun agent of workers that NetSplit starts itself: they are forked from it, with torch loaded once.

Loading torch and `torch._dynamo` takes some five seconds. GPU workers are spawned, as forked processes cannot
use CUDA once it is initialised.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

# Loaded here so that forked workers have it.
import torch._dynamo  # noqa: F401
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.rendezvous import (
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from netsplit.runtime import worker_calls, worker_process  # noqa: F401
from netsplit.runtime.workers.launch import LOOK_S, STOP_S

__all__ = ["main"]

_BACKEND = "netsplit"


class _OneHost(StaticTCPRendezvous):
    """torchrun's rendezvous for one host, listening only at the given address."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        host, port = parse_rendezvous_endpoint(parameters.endpoint, default_port=0)
        super().__init__(host, port, rank=0, world_size=1, run_id=parameters.run_id, timeout=600)

    def get_backend(self) -> str:
        return _BACKEND

    def next_rendezvous(self) -> RendezvousInfo:
        if self._store is None:
            door = socket.create_server((self.master_addr, self.master_port))
            self.master_port = door.getsockname()[1]
            self._store = TCPStore(
                self.master_addr,
                self.master_port,
                is_master=True,
                timeout=self.timeout,
                master_listen_fd=door.detach(),
            )
        store_info = RendezvousStoreInfo(self.master_addr, self.master_port)
        return RendezvousInfo(PrefixStore(self.run_id, self._store), self.rank, self.world_size, store_info)


def _work(controller: str) -> None:
    """A worker; spawning imports what this module imports."""
    worker_process.work(controller)


def main(workers: int, controller: str, rendezvous: str, logs: str, start_method: str) -> None:
    """Run `workers` processes; `controller` and `rendezvous` are HOST:PORT, `logs` is a folder."""
    rendezvous_handler_registry.register(_BACKEND, _OneHost)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=workers,
        max_restarts=0,
        monitor_interval=LOOK_S,
        start_method=start_method,
        run_id="netsplit",
        rdzv_backend=_BACKEND,
        rdzv_endpoint=rendezvous,
        logs_specs=DefaultLogsSpecs(log_dir=logs),
    )
    if hasattr(config, "shutdown_timeout"):  # from torch 2.13 on
        config.shutdown_timeout = STOP_S
    with suppress(SignalException):  # the controller's, which has released its workers
        elastic_launch(config, _work)(controller)
    os._exit(0)  # an orderly exit of torch takes a second
