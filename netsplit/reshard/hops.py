"""How a slice reaches its receivers: strategies, as messages from device to device (AlpaComm, section 3.1).

A hosts of B receivers each, t seconds for the slice between two hosts, K chunks; inside a host takes no time:

    send_receive       the sender to one receiver after another                              A B t
    local_allgather    a B-th of it to every device of a host, which hand on what they got   A t
    global_allgather   an (A B)-th of it to every receiver, then around a ring               2 t - t / (A B)
    broadcast          chunks along a chain of all receivers, passed on as they come         t + (A - 1) t / K

The paper has 2 t for the third. On one host (A = 1) its ring passes no NIC: t.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from netsplit.layout import DeviceName

__all__ = ["STRATEGIES", "Hop", "Strategy", "times_sent"]

Groups = Sequence[Sequence[DeviceName]]


@dataclass(frozen=True, slots=True)
class Hop:
    """One message: elements of a unit task's slice, from one device to another.

    Args:
        task: the index of the unit task in its plan.
        start, stop: of the slice's elements in row-major order; never empty.
        after: indices of earlier hops of the plan that must have ended. The first brought these elements to
            the source, if it did not have them. A hop of `global_allgather` names a second one, as a
            collective begins for all at once; who cannot see that one may begin earlier.
    """

    task: int
    source: DeviceName
    destination: DeviceName
    start: int
    stop: int
    after: tuple[int, ...] = ()


class Strategy(Protocol):
    """Hops of one unit task: `elements` from its first `sender` to its receivers, those of one host together.

    Args:
        chunks: K; used by `broadcast`.
        first: the index of the first hop in the plan.
    """

    def __call__(
        self, task: int, elements: int, sender: DeviceName, groups: Groups, chunks: int, first: int
    ) -> list[Hop]: ...


def send_receive(
    task: int, elements: int, sender: DeviceName, groups: Groups, chunks: int, first: int
) -> list[Hop]:
    return [Hop(task, sender, device, 0, elements) for group in groups for device in group]


def local_allgather(
    task: int, elements: int, sender: DeviceName, groups: Groups, chunks: int, first: int
) -> list[Hop]:
    """Each host has one copy sent to it, in parts, which its devices send one another."""
    hops: list[Hop] = []
    for group in groups:
        parts = _parts(elements, len(group))
        own = {q: first + len(hops) + i for i, q in enumerate(q for q, part in enumerate(parts) if part)}
        for q in own:
            hops.append(Hop(task, sender, group[q], *_ends(parts[q])))
        for shift in range(1, len(group)):
            for q, brought in own.items():
                other = group[(q + shift) % len(group)]
                hops.append(Hop(task, group[q], other, *_ends(parts[q]), (brought,)))
    return hops


def global_allgather(
    task: int, elements: int, sender: DeviceName, groups: Groups, chunks: int, first: int
) -> list[Hop]:
    """Scattered over all receivers, then around a ring of them: step s sends what came in step s - 1."""
    ring = [device for group in groups for device in group]
    n = len(ring)
    parts = _parts(elements, n)
    hops: list[Hop] = []
    brought: dict[int, int] = {}  # position in the ring -> the hop that brought what it sends next
    for q, part in enumerate(parts):
        if part:
            brought[q] = first + len(hops)
            hops.append(Hop(task, sender, ring[q], *_ends(part)))
    scattered = first + len(hops) - 1
    for step in range(1, n):
        came: dict[int, int] = {}
        for q, index in brought.items():
            after = tuple(dict.fromkeys((index, scattered))) if step == 1 else (index,)
            came[(q + 1) % n] = first + len(hops)
            part = parts[(q - step + 1) % n]
            hops.append(Hop(task, ring[q], ring[(q + 1) % n], *_ends(part), after))
        brought = came
    return hops


def broadcast_chain(
    task: int, elements: int, sender: DeviceName, groups: Groups, chunks: int, first: int
) -> list[Hop]:
    """Along a chain, host by host; in one chunk to a single receiver, which passes nothing on."""
    chain = [sender, *(device for group in groups for device in group)]
    parts = _parts(elements, chunks if len(chain) > 2 else 1)
    hops: list[Hop] = []
    for part in filter(None, parts):
        for q, (source, target) in enumerate(pairwise(chain)):
            after = (first + len(hops) - 1,) if q else ()
            hops.append(Hop(task, source, target, *_ends(part), after))
    return hops


STRATEGIES: dict[str, Strategy] = {
    "broadcast": broadcast_chain,
    "local_allgather": local_allgather,
    "send_receive": send_receive,
    "global_allgather": global_allgather,
}


def times_sent(strategy: str, hosts: int, receivers: int) -> float:
    """Times the slice's own seconds for which a strategy holds the NICs: the table above, for large K."""
    match strategy:
        case "send_receive":
            return float(receivers)
        case "local_allgather":
            return float(hosts)
        case "global_allgather":
            return 2.0 - 1.0 / receivers if hosts > 1 else 1.0
        case _:
            return 1.0


def _parts(elements: int, n: int) -> list[range]:
    """Parts as even as possible; some are empty where there are fewer elements."""
    return [range(elements * i // n, elements * (i + 1) // n) for i in range(n)]


def _ends(part: range) -> tuple[int, int]:
    return part.start, part.stop
