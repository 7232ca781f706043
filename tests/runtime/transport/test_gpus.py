"""What transport does for GPUs, as far as it shows without one: groups, order, limits, and who waits."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from netsplit.graph import capture, initial_values
from netsplit.program import GPipe
from netsplit.runtime.executor import Executor
from netsplit.runtime.faults import is_fatal, is_of_connection
from netsplit.runtime.share import Share
from netsplit.runtime.transport.handle import LocalTransport, Ordered, TransportTimeout, moved
from netsplit.runtime.transport.process import ProcessTransport, _PendingWork
from tests.builders import compile_placed, cpus
from tests.nets import CASES, SGD

GPUS = {"a": torch.device("cuda:0"), "b": torch.device("cuda:1"), "c": torch.device("cpu")}


class Moved:
    """A tensor that remembers how it was moved."""

    def to(self, device: torch.device, non_blocking: bool) -> tuple[str, bool]:
        return device.type, non_blocking


def test_a_copy_to_the_host_is_over_when_it_is_handed_on() -> None:
    tensor: Any = Moved()
    assert moved(tensor, torch.device("cpu")) == ("cpu", False)
    assert moved(tensor, torch.device("cuda:0")) == ("cuda", True)


@dataclass
class Group:
    ranks: list[int]
    timeout: timedelta
    backend: str


class Work:
    def wait(self) -> None:
        return


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What is asked of `torch.distributed`, in its order."""
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(dist, "ProcessGroup", Group)
    monkeypatch.setattr(dist, "new_group", Group)
    monkeypatch.setattr(ProcessTransport, "_first", lambda self: torch.zeros(1))
    for name in ("isend", "irecv"):
        monkeypatch.setattr(
            dist, name, lambda tensor, peer, group, name=name: calls.append((name, peer, group)) or Work()
        )
    return calls


def test_pairs_of_gpus_are_connected_in_one_order_before_anything_is_sent(
    asked: list[tuple[Any, ...]],
) -> None:
    links = [(p, q) for p in GPUS for q in GPUS if p != q]
    orders = []
    for name in ("a", "b"):
        asked.clear()
        transport = ProcessTransport(GPUS, name)
        transport.connect(links)
        transport.connect(links)  # once
        orders.append([(what, peer) for what, peer, _ in asked])
        assert sorted(transport.pairs) == [("a", "b"), ("b", "a")]
        assert {group.backend for group in transport.pairs.values()} == {"nccl"}
    assert orders == [[("isend", 1), ("irecv", 1)], [("irecv", 0), ("isend", 0)]]


class Late:
    """A message of which the stream, not the host, waits for the end."""

    def __init__(self, looks: float) -> None:
        self.looks = looks

    def wait(self, timeout_s: float) -> torch.Tensor:
        return torch.zeros(1)

    def done(self) -> bool:
        self.looks -= 1
        return self.looks < 0


def executor_of_a_gpu(timeout_s: float) -> Executor:
    case = CASES["chain"]
    graph = capture(case.fresh(), case.loss, case.batch(4))
    device_of = {v: f"cpu:{2 * i // len(graph)}" for i, v in enumerate(graph.nodes)}
    program = compile_placed(graph, device_of, graph.position, cpus(2), GPipe(2))
    values = initial_values(case.fresh(), graph)
    share = Share.of({k: values[k] for k in program.held["cpu:1"]}, torch.device("cpu"), SGD)
    transport = LocalTransport(dict.fromkeys(("cpu:0", "cpu:1"), torch.device("cpu")))
    executor = Executor(program, "cpu:1", share, transport, torch.device("cpu"), timeout_s)
    executor.torch_device, executor.on_cuda = torch.device("cuda:0"), True
    return executor


def test_what_nccl_failed_to_move_is_not_over() -> None:
    """torch says that it is completed."""
    error = dist.DistBackendError("NCCL error: remote process exited")
    work: Any = SimpleNamespace(is_completed=lambda: True, exception=lambda: error)
    tensor: Any = SimpleNamespace(is_cuda=True, device=torch.device("cuda:0"))
    with pytest.raises(dist.DistBackendError, match="remote process exited"):
        _PendingWork(work, tensor).done()
    assert is_fatal(error)
    assert is_of_connection(error)


def test_before_the_host_reads_a_value_all_messages_are_there() -> None:
    executor = executor_of_a_gpu(30.0)
    recv = next(ins for ins in executor.instructions if type(ins).__name__ == "Recv")
    once, part = Late(3), Late(5)
    executor.wait(recv, recv, once)
    executor.wait(recv, recv, Ordered(part, (0,)))
    assert once.looks >= 0
    assert part.looks >= 0
    executor.settle()
    assert once.looks < 0
    assert part.looks < 0
    assert not executor.state.unfinished


@pytest.mark.parametrize("over", [True, False])
def test_a_sum_that_the_host_reads_is_over_before_it_is_copied_or_late(over: bool) -> None:
    copied: list[Any] = []
    work: Any = SimpleNamespace(wait=lambda: None, is_completed=lambda: over, exception=lambda: None)
    tensor: Any = SimpleNamespace(is_cuda=True, to=lambda device, non_blocking: copied.append(device))
    pending = _PendingWork(work, tensor, torch.device("cpu"))
    if over:
        pending.wait(0.05)
        assert copied == [torch.device("cpu")]
        return
    with pytest.raises(TransportTimeout):
        pending.wait(0.05)
    assert not copied
