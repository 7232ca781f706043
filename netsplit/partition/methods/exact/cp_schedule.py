"""The schedule that a placement and a total order have under `single_batch`: when everything starts.

    order ──► forwards, device by device ──► reverse order ──► backwards ──► optimiser steps
                   │ values, once per destination        │ gradients, once per destination
                   ▼                                     ▼
              directed link p→q: one transfer at a time, in the order in which they become ready

Every device works off its nodes in the one total order, then the backwards of its trained nodes in the
reverse of it. Because a sender's transfers become ready as its computations end, a link serves them in
that order too; where one computation makes several ready, the variable with the lower index goes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from netsplit.partition.common.instance import Floats, Instance, Ints

__all__ = ["Durations", "StartTimes", "latency_of", "schedule", "trained_readers"]

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Durations:
    """How long everything takes, in seconds or in whole ticks. Letters as in `Instance`."""

    forward: Array  # [n, D]
    backward: Array  # [n, D]
    transfer: Array  # [m, D, D]
    step: Array  # [n, D]

    @classmethod
    def seconds(cls, instance: Instance) -> Durations:
        return cls(instance.forward_s, instance.backward_s, instance.transfer_s, instance.step_s)

    @classmethod
    def ticks(cls, instance: Instance, tick_s: float) -> Durations:
        """Rounded down, so that no schedule is longer in ticks than it is in seconds."""

        def whole(seconds: Floats) -> Ints:
            return np.floor(np.minimum(seconds / tick_s, 2.0**40)).astype(np.int64)

        s = cls.seconds(instance)
        return cls(whole(s.forward), whole(s.backward), whole(s.transfer), whole(s.step))


@dataclass(eq=False)
class StartTimes:
    """Starts of everything, in the unit of the durations; `end` is the iteration."""

    end: float = 0
    forward: dict[int, float] = field(default_factory=dict)  # node ->
    backward: dict[int, float] = field(default_factory=dict)  # trained node ->
    sent: dict[tuple[int, int], float] = field(default_factory=dict)  # (variable, destination) ->
    returned: dict[tuple[int, int], float] = field(
        default_factory=dict
    )  # (variable, device it comes from) ->


def trained_readers(instance: Instance, u: int) -> list[int]:
    """Nodes that send back a gradient of variable u."""
    return (
        [int(c) for c in instance.consumers[u] if instance.trained[c]]
        if instance.requires_backward[u]
        else []
    )


def schedule(
    instance: Instance, where: Sequence[int] | Ints, order: Sequence[int] | Ints, d: Durations | None = None
) -> StartTimes:
    """The earliest schedule of a placement [n] and a topological order [n] (node indices, first to last)."""
    d = d or Durations.seconds(instance)
    where = [int(p) for p in where]
    order = [int(v) for v in order]
    times = StartTimes()
    clock: list[float] = [0] * len(instance.devices)
    link: dict[tuple[int, int], float] = {}
    arrived: dict[tuple[int, int], float] = {}

    def send(ready: float, u: int, p: int, q: int) -> float:
        start = max(ready, link.get((p, q), 0))
        link[p, q] = start + d.transfer[u, p, q]
        times.end = max(times.end, link[p, q])
        return start

    for v in order:
        p = where[v]
        start = max([clock[p], *(arrived[int(u), p] for u in instance.reads[v] if (int(u), p) in arrived)])
        times.forward[v] = start
        clock[p] = start + d.forward[v, p]
        for u in sorted(int(u) for u in instance.makes[v]):
            for q in sorted({where[c] for c in instance.consumers[u]} - {p}):
                times.sent[u, q] = send(clock[p], u, p, q)
                arrived[u, q] = link[p, q]

    left: dict[tuple[int, int], int] = {}
    for u in range(len(instance.variables)):
        for c in trained_readers(instance, u):
            left[u, where[c]] = left.get((u, where[c]), 0) + 1
    back: dict[int, float] = {}  # node -> when the last gradient of its outputs is there
    for v in reversed(order):
        if not instance.trained[v]:
            continue
        p = where[v]
        start = max(clock[p], back.get(v, 0))
        times.backward[v] = start
        clock[p] = start + d.backward[v, p]
        for u in sorted(int(u) for u in instance.reads[v] if instance.requires_backward[u]):
            left[u, p] -= 1
            maker = int(instance.producer[u])
            q = where[maker]
            if left[u, p] == 0 and q != p:
                times.returned[u, p] = send(clock[p], u, p, q)
                back[maker] = max(back.get(maker, 0), link[p, q])
    stepping = {where[v] for v in times.backward}
    for v, p in enumerate(where):
        if p in stepping:
            clock[p] += d.step[v, p]
    times.end = max(times.end, *clock)
    return times


def latency_of(instance: Instance, where: Sequence[int] | Ints, order: Sequence[int] | Ints) -> float:
    """Seconds of one iteration."""
    return float(schedule(instance, where, order).end)
