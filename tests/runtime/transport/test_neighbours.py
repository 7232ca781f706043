"""Processes of one host that read from one another's memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from netsplit.runtime.transport import neighbours as module
from netsplit.runtime.transport.handle import TransportLost, TransportTimeout
from netsplit.runtime.transport.neighbours import Neighbours
from netsplit.runtime.transport.process import ProcessTransport
from netsplit.runtime.workers.messages import Worker
from tests.workers import Pools

pytestmark = pytest.mark.skipif(
    not (module.may_be_read() and module._place()), reason="this system has no process_vm_readv"
)

LIMIT_S = 30.0


def _met(worker: Worker, work: Callable[[int, Neighbours], Any]) -> Any:
    """Neighbours of its own for every test, so that none is left what another began."""
    own = Neighbours.meet(worker.rank)
    answer = work(worker.rank, own)
    dist.barrier()
    return answer


def _tensor(source: int, target: int, tag: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(10_000 * source + 1_000 * target + tag)
    size = int(torch.randint(0, 40_000, (1,), generator=draw))
    return torch.randn(size, generator=draw, dtype=torch.float64)


def _everything_to_everybody(rank: int, own: Neighbours) -> list[bool]:
    """Sends first, then receives in another order; twice, with the same tags."""
    others = [q for q in range(3) if q != rank]
    equal = []
    for _ in range(2):
        sent = [own.send(_tensor(rank, q, tag), q, tag) for tag in range(20) for q in others]
        for tag in reversed(range(20)):
            for q in others:
                expected = _tensor(q, rank, tag)
                equal.append(own.receive(torch.empty_like(expected), q, tag).wait(LIMIT_S).equal(expected))
        for each in sent:
            each.wait(LIMIT_S)
        equal.append(all(each.done() for each in sent))
    return equal


def test_what_is_offered_arrives_whatever_is_asked_for_first(pools: Pools) -> None:
    for equal in pools(3).call(_met, _everything_to_everybody):
        assert len(equal) == 82
        assert all(equal)


MANY = 5_000


def _more_than_the_socket_holds(rank: int, own: Neighbours) -> list[float]:
    """Both offer all they have before either takes anything."""
    other = 1 - rank
    values = [torch.full((3,), float(tag + rank)) for tag in range(MANY)]
    sent = [own.send(value, other, tag) for tag, value in enumerate(values)]
    came = [own.receive(torch.empty(3), other, tag).wait(LIMIT_S)[0].item() for tag in range(MANY)]
    for each in sent:
        each.wait(LIMIT_S)
    return came


def test_more_offers_than_a_socket_holds_lock_nobody_up(pools: Pools) -> None:
    for rank, came in enumerate(pools(2).call(_met, _more_than_the_socket_holds)):
        assert came == [float(tag + 1 - rank) for tag in range(MANY)]


def _deserted(rank: int, own: Neighbours) -> str:
    if rank == 0:
        dist.barrier()
        for wire in own.wires.values():
            wire.socket.close()
        return ""
    try:
        own.receive(torch.empty(4), 0, 0).wait(0.2)
    except TransportTimeout:
        dist.barrier()
    begin = time.monotonic()
    try:
        own.receive(torch.empty(4), 0, 1).wait(LIMIT_S)
    except TransportLost:
        return "lost" if time.monotonic() - begin < LIMIT_S / 2 else "lost late"
    return "came from nowhere"


def test_a_late_peer_is_waited_for_so_long_and_one_that_is_gone_no_longer(pools: Pools) -> None:
    assert pools(2).call(_met, _deserted) == ["", "lost"]


def _kinds(rank: int, own: Neighbours) -> list[bool]:
    devices = {"a": torch.device("cpu"), "b": torch.device("cpu")}
    transport = ProcessTransport(devices, "ab"[rank], LIMIT_S, own)
    values = [
        torch.arange(12.0).reshape(3, 4).t(),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j, 3 - 1j]).conj(),
        torch.tensor([1 + 2j]).conj().imag,
        torch.tensor(2.5, dtype=torch.bfloat16),
        torch.empty(0, 3),
    ]
    if rank == 0:
        for tag, value in enumerate(values):
            transport.send(value, "b", tag, watched=True).wait(LIMIT_S)
        return []
    buffers = [torch.empty(value.shape, dtype=value.dtype) for value in values]
    return [
        transport.receive(buffer, "a", tag).wait(LIMIT_S).equal(values[tag])
        for tag, buffer in enumerate(buffers)
    ]


def test_strides_dtypes_and_what_torch_puts_off_arrive_as_they_look(pools: Pools) -> None:
    assert pools(2).call(_met, _kinds)[1] == [True] * 6


def _far(worker: Worker) -> list[int]:
    return _with(worker, "_place", lambda: f"host {worker.rank % 2}")


def _closed(worker: Worker) -> list[int]:
    def refuse(*_: object) -> None:
        raise PermissionError

    return _with(worker, "_read", refuse if worker.rank == 1 else module._read)


def _with(worker: Worker, name: str, instead: Callable[..., Any]) -> list[int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, instead)
        return sorted(Neighbours.meet(worker.rank).wires)


@pytest.mark.parametrize("work", [_far, _closed])
def test_hosts_apart_and_memory_that_may_not_be_read_are_left_to_gloo(
    pools: Pools, work: Callable[[Worker], list[int]]
) -> None:
    assert pools(3).call(work) == [[2], [], [0]]
