"""What goes wrong in a worker is said in one sentence: who, at which instruction, waiting for what."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from netsplit.cluster.local import LocalDevice, local_cluster
from netsplit.errors import WorkerError
from netsplit.graph import capture, initial_values
from netsplit.program import GPipe
from netsplit.program.instructions import Forward, Recv, Reduce, Step
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.workers.diagnosis import Findings, Standing, diagnose
from netsplit.runtime.workers.messages import Reply, Worker
from netsplit.runtime.workers.pool import WorkerPool
from tests.builders import compile_placed, cpus
from tests.messages import tells
from tests.nets import CASES, SGD

CASE = CASES["chain"]
TIMEOUT_S = 4.0
SOON_S = 60.0  # not for ever: the timeout twice, the peers' grace, the stop, on a machine however busy


def family(pool: WorkerPool) -> list[psutil.Process]:
    """torchrun and its workers."""
    assert pool._launcher is not None
    torchrun = psutil.Process(pool._launcher.process.pid)
    return [torchrun, *torchrun.children(recursive=True)]


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it ended between the two questions
        return False


def survivors(processes: list[psutil.Process], within_s: float = 5.0) -> list[psutil.Process]:
    deadline = time.monotonic() + within_s
    while alive := list(filter(lives, processes)):
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return alive


def workers(folder: Path, count: int) -> Iterator[WorkerPool]:
    devices = [LocalDevice(f"cpu:{rank}") for rank in range(count)]
    with WorkerPool(local_cluster(f"cpu{count}", devices, timeout_s=TIMEOUT_S), folder) as pool:
        processes = family(pool)
        assert len(processes) == 1 + count
        yield pool
    assert survivors(processes) == []


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[WorkerPool]:
    yield from workers(tmp_path, 2)


def deployed(pool: WorkerPool, replicated: bool = False) -> DistributedRuntime:
    """The chain, cut in as many pieces as there are workers or replicated on them; some iterations done."""
    count = len(pool.spec.devices)
    graph = capture(CASE.fresh(), CASE.loss, CASE.batch(4))
    pieces = 1 if replicated else count
    device_of = {name: f"cpu:{pieces * i // len(graph)}" for i, name in enumerate(graph.nodes)}
    for group in graph.colocated:
        device_of.update(dict.fromkeys(group, device_of[group[0]]))
    replicas = {"cpu:0": tuple(f"cpu:{rank}" for rank in range(count))} if replicated else None
    cluster = cpus(count)
    program = compile_placed(graph, device_of, graph.position, cluster, GPipe(2), replicas=replicas)
    runtime = DistributedRuntime(program, pool, initial_values(CASE.fresh(), graph), SGD)
    for _ in range(4):
        runtime.train_batch(CASE.inputs, CASE.targets)
    return runtime


def failure(runtime: DistributedRuntime) -> str:
    """The sentence with which the next iteration ends, soon."""
    start = time.monotonic()
    with pytest.raises(WorkerError) as e:
        runtime.train_batch(CASE.inputs, CASE.targets)
    assert time.monotonic() - start < SOON_S
    assert runtime.pool.failed
    message = str(e.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message


def named(pool: WorkerPool, rank: int) -> str:
    hello = pool.hellos[rank]
    return f"worker cpu:{rank} (rank {rank}, process {hello.pid} on {socket.gethostname()})"


def _before_forward(worker: Worker, hook: Callable[..., object]) -> None:
    for executor in worker.memory["programs"].values():
        piece = next(iter(executor.pieces.whole.values()))
        piece.usual = partial(_after, hook, piece.usual)


def _after(hook: Callable[..., object], compute: Callable[..., Any], *inputs: torch.Tensor) -> Any:
    hook()
    return compute(*inputs)


def _stall(worker: Worker, seconds: float) -> None:
    """Make the worker's next forwards hang, as an operator that never returns would."""
    _before_forward(worker, lambda *_: time.sleep(seconds))


def _break_step(worker: Worker) -> None:
    def explode(*_: object) -> None:
        raise RuntimeError("out of luck\nException raised from here (most recent call first)")

    worker.memory["share"].optimizer.register_step_pre_hook(explode)


def _nothing(worker: Worker, *_: object) -> None:
    pass


def test_a_killed_worker_is_named_with_its_instruction_and_what_its_peer_waited_for(pool: WorkerPool) -> None:
    runtime = deployed(pool)
    pool.call_one(1, _stall, 60.0)
    killer = threading.Timer(0.5, os.kill, (pool.hellos[1].pid, signal.SIGKILL))
    killer.start()
    message = failure(runtime)
    assert message.startswith(f"{named(pool, 1)} died of SIGKILL")
    assert tells(message, "memory", "forward of segment 1, micro-batch 0")
    assert tells(message, "cpu:0 lost cpu:1", "backward of segment 0, micro-batch 0", "gradient", "'view'")


def test_a_hung_worker_is_named_within_the_timeout_with_variable_and_instruction(pool: WorkerPool) -> None:
    runtime = deployed(pool)
    os.kill(pool.hellos[1].pid, signal.SIGSTOP)
    message = failure(runtime)
    assert message.startswith(f"{named(pool, 1)} does not answer")
    at = "backward of segment 0, micro-batch 0"
    assert tells(message, f"cpu:0 waited {TIMEOUT_S:g} s", at, "gradient", "'view'", "micro-batch 0", "cpu:1")


def test_a_worker_that_raises_in_its_step_ends_the_run_as_others_may_have_stepped(pool: WorkerPool) -> None:
    runtime = deployed(pool)
    pool.call_one(0, _break_step)
    runtime.train_batch(CASE.inputs, CASE.targets)  # which does not wait for the step
    message = failure(runtime)
    assert message.startswith(f"{named(pool, 0)} raised RuntimeError: out of luck")
    assert tells(message, "at its optimiser step")
    assert "out of luck" in (pool.folder / "failure.log").read_text()


def test_the_end_of_torchrun_is_said(pool: WorkerPool) -> None:
    os.kill(pool.hellos[0].agent, signal.SIGKILL)
    time.sleep(1.5)
    with pytest.raises(WorkerError, match=rf"its torchrun agent \(process {pool.hellos[0].agent}\) is gone"):
        pool.call(_nothing)


CONTROLLER = """
import os, signal, sys, time
from tests.runtime.workers.test_faults import family, local_cluster, LocalDevice, WorkerPool
devices = [LocalDevice("cpu:0"), LocalDevice("cpu:1")]
pool = WorkerPool(local_cluster("cpu2", devices, timeout_s=60), sys.argv[1])
os.kill(pool.hellos[1].pid, signal.SIGSTOP)
print(*(process.pid for process in family(pool)), flush=True)
time.sleep(600)
"""


def test_a_killed_controller_leaves_no_process_behind_not_even_a_stopped_worker(tmp_path: Path) -> None:
    """Its agent does not wait for the stopped worker, which ends with it."""
    root = Path(__file__).resolve().parents[3]
    controller = subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=root
    )
    try:
        assert controller.stdout is not None
        processes = [psutil.Process(int(pid)) for pid in controller.stdout.readline().split()]
        assert len(processes) == 3
    finally:
        controller.kill()
        controller.wait()
    assert survivors(processes[:1], within_s=1.5) == []
    assert survivors(processes, within_s=10.0) == []


def test_a_port_in_use_is_refused_before_anything_is_spawned(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        spec = local_cluster("cpu1", [LocalDevice("cpu:0")], port=port)
        with pytest.raises(WorkerError, match=f"port {port} on 127.0.0.1 is in use"):
            WorkerPool(spec, tmp_path)
    assert not (tmp_path / "workers.log").exists()


COMPUTING = Standing(Forward(1, 0), None)
WAITING = Standing(Forward(2, 0), Recv("k@c", "k", 0, "b", False, 7))
SUMMING = Standing(Step(), Reduce(("a", "b"), 9, kind="gradients"))
TIMED_OUT = Reply(error="device a waited 2 s", known=True, waited=True)


def sentence(**facts: object) -> str:
    given = {"asked": [0, 1, 2], "dead": {}, "replies": {}, "quiet": [], "standings": {}}
    return diagnose(Findings(**given | facts), "abc".__getitem__, "train")  # type: ignore[arg-type]


def test_who_computes_while_others_wait_is_the_cause() -> None:
    said = sentence(replies={0: TIMED_OUT}, standings={0: SUMMING, 1: COMPUTING, 2: WAITING})
    assert said.startswith("worker b hangs")
    assert tells(said, "forward of segment 1, micro-batch 0", "device a waited 2 s", "c was at")
    assert tells(
        said, "forward of segment 2, micro-batch 0", "'k'", "micro-batch 0 from b", "cluster.timeout_s"
    )
