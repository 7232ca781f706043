"""Workers are forked from their agent where all are CPUs, and spawned where CUDA may begin in it.

Whichever way, all of them listen on the loopback alone.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest
import torch

from netsplit.cluster.cluster import Device
from netsplit.cluster.local import ClusterSpec
from netsplit.runtime.workers import launch
from netsplit.runtime.workers.pool import WorkerPool
from tests.workers import cpu_workers


def what_is_there(_: object) -> tuple[int, bool, bool, str]:
    return (
        os.getppid(),
        "torch._dynamo" in sys.modules,
        torch.cuda.is_initialized(),
        os.environ["OMP_NUM_THREADS"],
    )


def listening_at(*processes: psutil.Process) -> set[str]:
    return {
        connection.laddr.ip
        for process in processes
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    }


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_answer_and_end_however_they_are_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(launch, "_start_method", lambda _: method)
    with WorkerPool(cpu_workers(2), tmp_path) as pool:
        agent = pool._launcher.process.pid  # type: ignore[union-attr]
        workers = [psutil.Process(hello.pid) for hello in pool.hellos]
        assert pool.call(what_is_there) == [(agent, True, False, "1")] * 2
        assert listening_at(psutil.Process(), psutil.Process(agent), *workers) == {"127.0.0.1"}
    _, alive = psutil.wait_procs(workers, timeout=5)
    assert alive == []


def test_workers_of_gpus_are_spawned() -> None:
    def spec(*torch_devices: str) -> ClusterSpec:
        devices = tuple(
            Device(f"d{rank}", "kind", 1, torch_device) for rank, torch_device in enumerate(torch_devices)
        )
        return ClusterSpec("own", devices, timeout_s=30, port=0)

    assert launch._start_method(spec("cpu", "cpu")) == "fork"
    assert launch._start_method(spec("cpu", "cuda:0")) == "spawn"
