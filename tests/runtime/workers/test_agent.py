"""Workers are forked from their agent where all are CPUs, and spawned where CUDA may begin in it.

Whichever way, all of them listen on the loopback alone.
"""

from __future__ import annotations

import os
import queue
import random
import secrets
import sys
import types
from importlib import import_module
from pathlib import Path

import psutil
import pytest
import torch

from netsplit.cluster.cluster import Device
from netsplit.cluster.local import ClusterSpec
from netsplit.files import shadowing
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


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
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


def files_of(_: object, *names: str) -> list[str]:
    return [str(import_module(name).__file__) for name in names]


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_import_what_the_controller_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Files where they start hide nothing."""
    names = ("queue", "random", "secrets", "types")
    for name in names:
        (tmp_path / f"{name}.py").write_text("LAYERS = 3")
    own = tmp_path / "own"
    own.mkdir()
    (own / "doubling.py").write_text("def doubled(worker, number): return 2 * number")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(own)
    monkeypatch.setattr(launch, "_start_method", lambda _: method)
    doubling = import_module("doubling")
    with WorkerPool(cpu_workers(1), tmp_path) as pool:
        assert pool.call(doubling.doubled, 4) == [8]
        assert pool.call(files_of, *names) == [files_of(None, *names)]
    assert files_of(None, *names) == [m.__file__ for m in (queue, random, secrets, types)]
    assert shadowing([str(tmp_path), *sys.path]).keys() == set(names)
