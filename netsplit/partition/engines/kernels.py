"""Compiled inner loops: the single-batch step of a placement, and the list schedule that orders it.

Imported lazily: numba takes a second to load. The step is the one the simulator has for a program
under ``single_batch`` (segments cut at every transfer), node by node, so that a search may try
thousands of placements a second on what it will be measured by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from netsplit.partition.common.instance import Floats, Instance, Ints
from netsplit.partition.engines.compiled import compiled

__all__ = ["NOTHING", "Arrays", "SingleBatchStep", "StepTimes", "list_schedule", "makespan", "upward_rank"]


class Arrays(NamedTuple):
    """An instance for compiled functions; rows of c, r, m, b: consumers, reads, makes, blocks."""

    forward_s: Floats  # [n, D]
    backward_s: Floats  # [n, D]
    trained: NDArray[np.bool_]  # [n]
    producer: Ints  # [m]
    requires_backward: NDArray[np.bool_]  # [m]
    c_starts: Ints
    c_items: Ints
    r_starts: Ints
    r_items: Ints
    m_starts: Ints
    m_items: Ints
    transfer_s: Floats  # [m, D, D]
    step_s: Floats  # [n, D]
    overhead: Floats  # [D] of every instruction
    block_of: Ints  # [n] nodes of a unit are one block
    b_starts: Ints
    b_items: Ints


@dataclass(frozen=True, eq=False)
class StepTimes:
    """Seconds since the step began. A node without a backward has equal times in both columns."""

    makespan_s: float
    forward: Floats  # [n, 2] start and end
    backward: Floats  # [n, 2]


class SingleBatchStep:
    """The single-batch training step of an instance, for many placements and orders."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        i = instance
        self.arrays = Arrays(
            i.forward_s, i.backward_s, i.trained, i.producer, i.requires_backward,
            i.consumers.starts, i.consumers.items, i.reads.starts, i.reads.items,
            i.makes.starts, i.makes.items, i.transfer_s, i.step_s, i.instruction_s, *_blocks(i),
        )  # fmt: skip

    def makespan_s(self, where: Ints, order: Ints) -> float:
        """Seconds of the step: [n] device of each node, [n] nodes in the order they are taken."""
        return float(makespan(where, order, self.arrays, NOTHING, NOTHING))

    def times(self, where: Ints, order: Ints) -> StepTimes:
        forward, backward = np.zeros((self.instance.n, 2)), np.zeros((self.instance.n, 2))
        seconds = float(makespan(where, order, self.arrays, forward, backward))
        return StepTimes(seconds, forward, backward)

    def rank(self, where: Ints) -> Floats:
        """[n] seconds from each node's start to the end of the forward pass and the way back to it.

        HEFT's upward rank (Topcuoglu et al. 2002, equation (8)) for a given placement, backward
        seconds and the gradient's way back included.
        """
        return np.asarray(upward_rank(where, self.arrays))

    def list_schedule(self, where: Ints, rank: Floats | None = None) -> Ints:
        """[n] an order: on each device the node of highest rank among those that could start first.

        Sorted by end: a receive is then posted before any computation that runs while it arrives.
        """
        rank = self.rank(where) if rank is None else rank
        order = np.zeros(self.instance.n, np.int64)
        ends = list_schedule(where, rank, self.arrays, order)
        return order[np.argsort(ends[order], kind="stable")]


NOTHING = np.zeros((0, 2))


def _blocks(instance: Instance) -> tuple[Ints, Ints, Ints]:
    """[n] block of each node, and the nodes of each block as rows: units run in one piece."""
    unit = instance.unit_of
    members = np.argsort(unit, kind="stable").astype(np.int64)
    starts = np.searchsorted(unit[members], np.arange(int(unit.max(initial=-1)) + 2)).astype(np.int64)
    return unit, starts, members


@compiled
def makespan(where: Ints, order: Ints, a: Arrays, f_times: Floats, b_times: Floats) -> float:
    """Seconds of the step; `f_times`, `b_times` [n, 2] are filled with starts and ends unless empty."""
    devices = a.forward_s.shape[1]
    m = len(a.producer)
    clock = np.zeros(devices)
    posted = np.zeros(devices)  # when the device came to its open segment: receives met since are posted
    opened = np.zeros(devices, np.bool_)
    link = np.zeros((devices, devices))
    arrive = np.zeros((m, devices))
    last = 0.0
    record = len(f_times) > 0
    dest = np.zeros(devices, np.bool_)
    n = len(order)
    segment = np.zeros(n, np.int64)
    current = np.zeros(devices, np.int64)  # the device's open segment
    closing = np.zeros(n + 1, np.int64)  # when each segment is closed
    segments = 0
    tick = 0
    for v in order:
        d = where[v]
        begin = clock[d]
        remote = False
        for k in range(a.r_starts[v], a.r_starts[v + 1]):
            u = a.r_items[k]
            if where[a.producer[u]] != d:
                remote = True
                begin = max(begin, arrive[u, d])
        if remote or not opened[d]:
            if opened[d]:
                closing[current[d]] = tick
                tick += 1
            current[d] = segments
            segments += 1
            posted[d] = clock[d]
            clock[d] += a.overhead[d]
            begin = max(begin, clock[d])
            opened[d] = True
        segment[v] = current[d]
        end = begin + a.forward_s[v, d]
        clock[d] = end
        if record:
            f_times[v, 0] = begin
            f_times[v, 1] = end
        sends = False
        for k in range(a.m_starts[v], a.m_starts[v + 1]):
            u = a.m_items[k]
            dest[:] = False
            for c in range(a.c_starts[u], a.c_starts[u + 1]):
                dest[where[a.c_items[c]]] = True
            for q in range(devices):
                if dest[q] and q != d:
                    sends = True
                    clock[d] += a.overhead[d]
                    ready = max(clock[d], posted[q] if opened[q] else clock[q])
                    start = max(ready, link[d, q])
                    link[d, q] = start + a.transfer_s[u, d, q]
                    arrive[u, q] = link[d, q]
                    last = max(last, link[d, q])
        if sends:
            opened[d] = False
            closing[current[d]] = tick
            tick += 1
    left = np.where(opened)[0]
    for d in left[np.argsort(current[left])]:
        closing[current[d]] = tick
        tick += 1
    sizes = np.zeros(tick + 1, np.int64)
    for v in order:
        sizes[closing[segment[v]] + 1] += 1
    place = np.cumsum(sizes)
    by_segment = np.zeros(n, np.int64)
    for v in order:
        by_segment[place[closing[segment[v]]]] = v
        place[closing[segment[v]]] += 1
    # backward: whole segments, the last that was closed first
    waiting = np.zeros((m, devices), np.int64)
    for u in range(m):
        if a.requires_backward[u]:
            for c in range(a.c_starts[u], a.c_starts[u + 1]):
                w = a.c_items[c]
                if a.trained[w]:
                    waiting[u, where[w]] += 1
    gradient = np.full((m, devices), -1.0)
    previous = -1
    for i in range(n - 1, -1, -1):
        v = by_segment[i]
        d = where[v]
        if record:
            b_times[v] = f_times[v]
        if not a.trained[v]:
            continue
        if segment[v] != previous:
            clock[d] += a.overhead[d]
            previous = segment[v]
        begin = clock[d]
        for k in range(a.m_starts[v], a.m_starts[v + 1]):
            u = a.m_items[k]
            for q in range(devices):
                begin = max(begin, gradient[u, q])
        end = begin + a.backward_s[v, d]
        clock[d] = end
        if record:
            b_times[v, 0] = begin
            b_times[v, 1] = end
        for k in range(a.r_starts[v], a.r_starts[v + 1]):
            u = a.r_items[k]
            p = where[a.producer[u]]
            if a.requires_backward[u]:
                waiting[u, d] -= 1
                if p != d and waiting[u, d] == 0:
                    clock[d] += a.overhead[d]
                    start = max(clock[d], clock[p], link[d, p])
                    link[d, p] = start + a.transfer_s[u, d, p]
                    gradient[u, d] = link[d, p]
                    last = max(last, link[d, p])
    steps = np.zeros(devices)
    stepping = np.zeros(devices, np.bool_)
    for v in range(len(order)):
        steps[where[v]] += a.step_s[v, where[v]]
        stepping[where[v]] |= a.trained[v]
    for d in range(devices):
        last = max(last, clock[d] + (steps[d] + a.overhead[d] if stepping[d] else 0.0))
    return last


@compiled
def upward_rank(where: Ints, a: Arrays) -> Floats:
    n = len(a.forward_s)
    rank = np.zeros(n)
    for v in range(n - 1, -1, -1):
        p = where[v]
        tail = 0.0
        for k in range(a.m_starts[v], a.m_starts[v + 1]):
            u = a.m_items[k]
            for c in range(a.c_starts[u], a.c_starts[u + 1]):
                w = a.c_items[c]
                q = where[w]
                way = a.transfer_s[u, p, q]
                if a.requires_backward[u]:
                    way += a.transfer_s[u, q, p]
                tail = max(tail, rank[w] + way)
        rank[v] = tail + a.forward_s[v, p] + a.backward_s[v, p]
    return rank


@compiled
def list_schedule(where: Ints, rank: Floats, a: Arrays, order: Ints) -> Floats:
    """Ends of the nodes' forwards when every device takes, of what could start first, the highest rank.

    `order` is filled with the nodes as they were taken.
    """
    n, devices = a.forward_s.shape
    blocks = len(a.b_starts) - 1
    m = len(a.producer)
    missing = np.zeros(blocks, np.int64)
    for v in range(n):
        for k in range(a.r_starts[v], a.r_starts[v + 1]):
            if a.block_of[a.producer[a.r_items[k]]] != a.block_of[v]:
                missing[a.block_of[v]] += 1
    ready_at = np.zeros(blocks)
    ready = np.zeros(blocks, np.int64)
    count = 0
    for b in range(blocks):
        if missing[b] == 0:
            ready[count] = b
            count += 1
    clock = np.zeros(devices)
    link = np.zeros((devices, devices))
    arrive = np.zeros((m, devices))
    ends = np.zeros(n)
    sent = np.zeros(devices, np.bool_)
    taken = 0
    while count > 0:
        best, best_start, best_rank = -1, np.inf, -1.0
        for k in range(count):
            b = ready[k]
            v = a.b_items[a.b_starts[b]]
            start = max(clock[where[v]], ready_at[b])
            if start < best_start or (start == best_start and rank[v] > best_rank):
                best, best_start, best_rank = k, start, rank[v]
        b = ready[best]
        count -= 1
        ready[best] = ready[count]
        now = best_start
        for j in range(a.b_starts[b], a.b_starts[b + 1]):
            v = a.b_items[j]
            d = where[v]
            now += a.forward_s[v, d]
            ends[v] = now
            order[taken] = v
            taken += 1
            for k in range(a.m_starts[v], a.m_starts[v + 1]):
                u = a.m_items[k]
                sent[:] = False
                for c in range(a.c_starts[u], a.c_starts[u + 1]):
                    w = a.c_items[c]
                    q = where[w]
                    if q != d and not sent[q]:
                        link[d, q] = max(link[d, q], now) + a.transfer_s[u, d, q]
                        arrive[u, q] = link[d, q]
                        sent[q] = True
                    elif q == d:
                        arrive[u, q] = now
                    other = a.block_of[w]
                    if other != b:
                        ready_at[other] = max(ready_at[other], arrive[u, q])
                        missing[other] -= 1
                        if missing[other] == 0:
                            ready[count] = other
                            count += 1
        clock[where[a.b_items[a.b_starts[b]]]] = now
    return ends
