"""Workers that the user starts: two torchrun agents on one machine, as on two; who does not fit is refused.

this test = controller ◄── torchrun agent 0 ── worker 0
                       ◄── torchrun agent 1 ── worker 1
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import torch

from netsplit.cluster.local import ClusterSpec, LocalDevice, local_cluster
from netsplit.errors import WorkerError
from netsplit.graph import capture, initial_values
from netsplit.program import GPipe
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.workers.launch import external_command
from netsplit.runtime.workers.pool import WorkerPool
from tests.builders import compile_placed, cpus
from tests.nets import CASES, SGD, TOLERANCE, plain_training
from tests.runtime.workers.test_faults import SOON_S, survivors

CASE = CASES["chain"]
ROOT = Path(__file__).resolve().parents[3]
TIMEOUT_S = 5.0
KEY = "a secret of this test"

FAKE = """
import sys
{change}
from netsplit.runtime.worker_process import main
sys.argv[0] = "worker"
main()
"""


@dataclass
class Agents:
    """What the user starts on each machine; everything is ended after the test."""

    spec: ClusterSpec
    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        own = {"NETSPLIT_KEY": KEY, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        return {**os.environ, **own, "PYTHONPATH": str(ROOT)}

    @property
    def command(self) -> list[str]:
        """The printed command, for one of two machines with a device each."""
        told = external_command(self.spec, self.spec.host, self.spec.port + 1)
        quoted = re.search(r"'(torchrun .*)' with NETSPLIT_KEY set", told)
        assert quoted is not None
        words = shlex.split(quoted[1].replace("nnodes=...", "nnodes=2").replace("node=...", "node=1"))
        return [sys.executable, "-m", "torch.distributed.run", *words[1:]]

    def start(self) -> subprocess.Popen[str]:
        return self._start(self.command, self.environment)

    def worker(self, change: str = "", world_size: int = 2, **environment: str) -> subprocess.Popen[str]:
        """A lone worker of rank 0 with something changed: its code, its arguments, its environment."""
        arguments = self.command[self.command.index("netsplit.runtime.worker_process") + 1 :]
        given = {"RANK": "0", "WORLD_SIZE": str(world_size)}
        command = [sys.executable, "-c", FAKE.format(change=change), *arguments]
        return self._start(command, {**self.environment, **given, **environment})

    def _start(self, command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
        with (self.folder / f"agent{len(self.started)}.log").open("w") as output:
            agent = subprocess.Popen(
                command, env=environment, stdout=output, stderr=output, text=True, cwd=ROOT,
                start_new_session=True,
            )  # fmt: skip
        self.started.append(agent)
        return agent

    def said(self, index: int) -> str:
        return (self.folder / f"agent{index}.log").read_text()


def free_ports() -> int:
    """A port that is free, and the next one too."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return int(port)


@pytest.fixture
def agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agents]:
    monkeypatch.setenv("NETSPLIT_KEY", KEY)
    devices = [LocalDevice("cpu:0"), LocalDevice("cpu:1")]
    spec = local_cluster("two", devices, timeout_s=TIMEOUT_S, port=free_ports(), external=True)
    launched = Agents(spec, tmp_path)
    yield launched
    for agent in launched.started:
        if agent.poll() is None:
            os.killpg(agent.pid, signal.SIGKILL)
        agent.wait()


def opening(agents: Agents) -> Future[WorkerPool]:
    """The controller, which waits for workers."""
    executor = ThreadPoolExecutor(1)
    future = executor.submit(WorkerPool, agents.spec, agents.folder / "controller")
    executor.shutdown(wait=False)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and not future.done():
        try:
            socket.create_connection((agents.spec.host, agents.spec.port + 1), timeout=1).close()
            break  # a stranger who says nothing and goes: nobody minds
        except OSError:
            time.sleep(0.05)
    return future


def deployed(pool: WorkerPool) -> DistributedRuntime:
    graph = capture(CASE.fresh(), CASE.loss, CASE.batch(4))
    device_of = {name: f"cpu:{2 * i // len(graph)}" for i, name in enumerate(graph.nodes)}
    for group in graph.colocated:
        device_of.update(dict.fromkeys(group, device_of[group[0]]))
    program = compile_placed(graph, device_of, graph.position, cpus(2), GPipe(2))
    return DistributedRuntime(program, pool, initial_values(CASE.fresh(), graph), SGD)


def train_for_ever(runtime: DistributedRuntime) -> None:
    while True:
        runtime.train_batch(CASE.inputs, CASE.targets)


def family(agents: Agents) -> list[psutil.Process]:
    roots = [psutil.Process(agent.pid) for agent in agents.started]
    return [each for root in roots for each in (root, *root.children(recursive=True))]


def test_two_agents_train_what_the_plain_loop_trains_and_end_well(agents: Agents) -> None:
    future = opening(agents)
    for _ in range(2):
        agents.start()
    with future.result(60) as pool:
        processes = family(agents)
        assert len(processes) == 4
        runtime = deployed(pool)
        losses = [runtime.train_batch(CASE.inputs, CASE.targets) for _ in range(3)]
        state = runtime.state()
    plain_losses, plain = plain_training(CASE, 2)
    assert losses == pytest.approx(plain_losses, rel=TOLERANCE)
    assert set(state) == set(plain)
    for key, tensor in state.items():
        torch.testing.assert_close(tensor, plain[key], rtol=TOLERANCE, atol=TOLERANCE)
    assert [agent.wait(10) for agent in agents.started] == [0, 0]
    assert survivors(processes) == []


@pytest.mark.slow
@pytest.mark.parametrize("how", ["agent killed", "worker stopped"])
def test_the_failure_of_one_agent_is_named_and_ends_both(agents: Agents, how: str) -> None:
    future = opening(agents)
    for _ in range(2):
        agents.start()
    pool = future.result(60)
    processes = family(agents)
    runtime = deployed(pool)
    runtime.train_batch(CASE.inputs, CASE.targets)
    hello = pool.hellos[1]
    victim = (hello.agent, signal.SIGKILL) if how == "agent killed" else (hello.pid, signal.SIGSTOP)
    threading.Timer(0.2, os.kill, victim).start()
    start = time.monotonic()
    with pytest.raises(WorkerError) as e:
        train_for_ever(runtime)
    assert time.monotonic() - start < SOON_S
    message = str(e.value)
    assert message.startswith(f"worker cpu:1 (rank 1, process {hello.pid} on {socket.gethostname()})")
    expected = {
        "agent killed": "died",
        "worker stopped": "does not answer",
    }
    assert expected[how] in message
    assert survivors(processes, within_s=10.0) == []
    surviving = next(i for i, agent in enumerate(agents.started) if agent.pid != hello.agent)
    assert agents.started[surviving].wait(10) != 0
    assert f"netsplit: {message}" in agents.said(surviving)


MISFITS = {
    "torch": (
        "from importlib import metadata; metadata.version = lambda name: '9.9.1+cu999'",
        "has torch 9.9.1 but the controller has",
    ),
    "cluster": ("sys.argv[-1] = '0000000000'", "was started for another configuration of cluster 'two'"),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_a_worker_that_does_not_fit_is_refused_in_one_sentence(agents: Agents, misfit: str) -> None:
    change, expected = MISFITS[misfit]
    future = opening(agents)
    worker = agents.worker(change)
    assert_refused(agents, future, worker, expected)


def test_another_key_is_refused(agents: Agents) -> None:
    future = opening(agents)
    worker = agents.worker(NETSPLIT_KEY="something else")
    with pytest.raises(
        WorkerError, match=r"^a worker at 127.0.0.1 and the controller have different NETSPLIT_KEY"
    ):
        future.result(20)
    assert worker.wait(10) == 1
    assert "has a different NETSPLIT_KEY: set the same on all machines" in agents.said(0)


def assert_refused(
    agents: Agents, future: Future[WorkerPool], worker: subprocess.Popen[str], expected: str
) -> None:
    with pytest.raises(WorkerError) as e:
        future.result(20)
    assert expected in str(e.value)
    assert "\n" not in str(e.value)
    assert worker.wait(10) == 1
    assert agents.said(0).splitlines()[-1] == f"netsplit: {e.value}"
