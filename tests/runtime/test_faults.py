"""What goes wrong in a worker is said in one sentence: who, at which instruction, waiting for what."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from netsplit.cluster.local import LocalDevice, local_cluster
from netsplit.errors import WorkerError
from netsplit.graph import capture, initial_values
from netsplit.program import GPipe, compile_program
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.pool import WorkerPool
from netsplit.runtime.worker import Worker
from tests.nets import CASES, SGD, cluster_of

CASE = CASES["chain"]
TIMEOUT_S = 3.0


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[WorkerPool]:
    spec = local_cluster("cpu2", [LocalDevice("cpu:0"), LocalDevice("cpu:1")], timeout_s=TIMEOUT_S)
    with WorkerPool(spec, tmp_path) as found:
        yield found
    for hello in found.hellos:
        assert not psutil.pid_exists(hello.pid) or psutil.Process(hello.pid).status() == psutil.STATUS_ZOMBIE


def deployed(pool: WorkerPool) -> DistributedRuntime:
    """The chain, cut in two; one iteration done."""
    graph = capture(CASE.fresh(), CASE.loss, CASE.batch(4))
    device_of = {name: f"cpu:{int(2 * i >= len(graph))}" for i, name in enumerate(graph.nodes)}
    for group in graph.colocated:
        device_of.update(dict.fromkeys(group, device_of[group[0]]))
    program = compile_program(graph, device_of, graph.position, cluster_of(2), GPipe(2))
    runtime = DistributedRuntime(program, pool, initial_values(CASE.fresh(), graph), SGD)
    runtime.train_batch(CASE.inputs, CASE.targets)
    return runtime


def test_a_killed_worker_is_named_with_what_its_peer_waited_for(pool: WorkerPool) -> None:
    runtime = deployed(pool)
    os.kill(pool.hellos[1].pid, signal.SIGKILL)
    with pytest.raises(WorkerError) as e:
        runtime.train_batch(CASE.inputs, CASE.targets)
    message = str(e.value)
    assert f"worker cpu:1 (rank 1, process {pool.hellos[1].pid}" in message
    assert "died" in message
    assert "\n" not in message


def test_a_hung_worker_is_named_within_the_timeout_with_variable_and_instruction(pool: WorkerPool) -> None:
    runtime = deployed(pool)
    os.kill(pool.hellos[1].pid, signal.SIGSTOP)
    start = time.monotonic()
    with pytest.raises(WorkerError) as e:
        runtime.train_batch(CASE.inputs, CASE.targets)
    message = str(e.value)
    assert time.monotonic() - start < 5 * TIMEOUT_S
    assert "worker cpu:1" in message
    assert "does not answer" in message
    assert f"device cpu:0 waited {TIMEOUT_S:g} s at the" in message
    assert "the gradient of variable" in message
    assert "from cpu:1" in message


def _stall(worker: Worker, seconds: float) -> None:
    """Make the worker's next forward hang, as an operator that never returns would."""
    executor = worker.memory["train"]
    module = executor.modules[next(iter(executor.modules))]
    module.register_forward_pre_hook(lambda *_: time.sleep(seconds))


def test_an_operator_that_never_returns_is_found_at_its_instruction(pool: WorkerPool) -> None:
    runtime = deployed(pool)
    pool.call_one(1, _stall, 600.0)
    with pytest.raises(WorkerError) as e:
        runtime.train_batch(CASE.inputs, CASE.targets)
    message = str(e.value)
    assert "worker cpu:1" in message
    assert "at its forward of segment 1, micro-batch 0" in message
    assert "device cpu:0 waited" in message


def _nothing(worker: Worker, *_: object) -> None:
    pass


def test_a_worker_stopped_outside_a_program_is_found_too(pool: WorkerPool) -> None:
    pool.call(_nothing)
    os.kill(pool.hellos[1].pid, signal.SIGSTOP)
    with pytest.raises(WorkerError, match=r"worker cpu:1 .* does not answer during 'nothing'"):
        pool.call(_nothing)
    assert pool.failed


def _take_long(worker: Worker) -> str:
    time.sleep(2 * TIMEOUT_S)
    return "done"


def test_a_long_call_outside_a_program_is_no_fault(pool: WorkerPool) -> None:
    assert pool.call_one(0, _take_long) == "done"


class _Unloadable:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (__import__, ("no_such_module_anywhere",))


def test_what_a_worker_cannot_load_is_said_instead_of_waited_for(pool: WorkerPool) -> None:
    with pytest.raises(WorkerError, match="No module named 'no_such_module_anywhere'"):
        pool.call(_nothing, _Unloadable())


def test_a_slow_worker_is_waited_for(pool: WorkerPool) -> None:
    runtime = deployed(pool)
    pool.call_one(1, _stall, TIMEOUT_S / 3)
    assert runtime.train_batch(CASE.inputs, CASE.targets) > 0


def _break(worker: Worker) -> None:
    def explode(*_: object) -> None:
        raise RuntimeError("out of luck")

    executor = worker.memory["train"]
    executor.modules[next(iter(executor.modules))].register_forward_pre_hook(explode)


def test_a_raising_worker_is_the_root_cause_not_its_waiting_peer(pool: WorkerPool) -> None:
    runtime = deployed(pool)
    pool.call_one(0, _break)
    with pytest.raises(WorkerError) as e:
        runtime.train_batch(CASE.inputs, CASE.targets)
    assert str(e.value).startswith("worker cpu:0 (rank 0")
    assert "raised RuntimeError: out of luck at its forward of segment 0, micro-batch 0" in str(e.value)
    assert "out of luck" in (pool.folder / "failure.log").read_text()


def test_a_port_in_use_is_refused_before_anything_is_spawned(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        spec = local_cluster("cpu1", [LocalDevice("cpu:0")], port=port)
        with pytest.raises(WorkerError, match=f"port {port} on 127.0.0.1 is in use"):
            WorkerPool(spec, tmp_path)
    assert not (tmp_path / "workers.log").exists()


def test_a_free_port_may_be_chosen(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    spec = local_cluster("cpu1", [LocalDevice("cpu:0")], port=port)
    with WorkerPool(spec, tmp_path) as pool:
        assert pool.call(_threads) == [1]


def _threads(worker: Worker) -> int:
    return torch.get_num_threads()
