"""Compiled inner loops: the single-batch step of a placement, and the list schedule that orders it.

Imported lazily: numba takes a second to load. The step is the one the simulator has for a program
under ``single_batch`` (segments cut at every transfer), node by node, so that a search may try
thousands of placements a second on what it will be measured by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from netsplit.partition.instance import Floats, Instance, Ints

__all__ = ["Step", "StepTimes"]


@dataclass(frozen=True, eq=False)
class StepTimes:
    """Seconds since the step began. A node without a backward has equal times in both columns."""

    makespan_s: float
    forward: Floats  # [n, 2] start and end
    backward: Floats  # [n, 2]


class Step:
    """The single-batch training step of an instance, for many placements and orders."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        i = instance
        self.arrays: tuple[Any, ...] = (
            i.forward_s, i.backward_s, i.trained, i.producer, i.carrying,
            i.consumers.starts, i.consumers.items, i.reads.starts, i.reads.items,
            i.makes.starts, i.makes.items, i.transfer_s, i.step_s, i.instruction_s,
        )  # fmt: skip
        self.blocks = _blocks(instance)

    def makespan_s(self, where: Ints, order: Ints) -> float:
        """Seconds of the step: [n] device of each node, [n] nodes in the order they are taken."""
        return float(_makespan(where, order, *self.arrays, _NOTHING, _NOTHING))

    def times(self, where: Ints, order: Ints) -> StepTimes:
        forward, backward = np.zeros((self.instance.n, 2)), np.zeros((self.instance.n, 2))
        makespan = float(_makespan(where, order, *self.arrays, forward, backward))
        return StepTimes(makespan, forward, backward)

    def rank(self, where: Ints) -> Floats:
        """[n] seconds from each node's start to the end of the forward pass and the way back to it.

        HEFT's upward rank (Topcuoglu et al. 2002, equation (8)) for a given placement, backward
        seconds and the gradient's way back included.
        """
        return np.asarray(_rank(where, *self.arrays))

    def list_schedule(self, where: Ints, rank: Floats | None = None) -> Ints:
        """[n] an order: on each device the node of highest rank among those that could start first.

        Sorted by end: a receive is then posted before any computation that runs while it arrives.
        """
        rank = self.rank(where) if rank is None else rank
        ends = _list_schedule(where, rank, *self.blocks, *self.arrays)
        return np.lexsort((np.arange(self.instance.n), self.depth, ends))

    @property
    def depth(self) -> Ints:
        """[n] a topological position, for nodes that take no time."""
        return np.arange(self.instance.n)


_NOTHING = np.zeros((0, 2))


def _blocks(instance: Instance) -> tuple[Ints, Ints, Ints]:
    """[n] block of each node, and the nodes of each block as rows: units run in one piece."""
    unit = instance.unit_of
    members = np.argsort(unit, kind="stable").astype(np.int64)
    starts = np.searchsorted(unit[members], np.arange(int(unit.max(initial=-1)) + 2)).astype(np.int64)
    return unit, starts, members


@njit(cache=True)
def _makespan(
    where, order, forward_s, backward_s, trained, producer, carrying, c_starts, c_items, r_starts, r_items,
    m_starts, m_items, transfer_s, step_s, overhead, f_times, b_times,
):  # type: ignore[no-untyped-def]  # fmt: skip
    devices = forward_s.shape[1]
    m = len(producer)
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
        for k in range(r_starts[v], r_starts[v + 1]):
            u = r_items[k]
            if where[producer[u]] != d:
                remote = True
                begin = max(begin, arrive[u, d])
        if remote or not opened[d]:
            if opened[d]:
                closing[current[d]] = tick
                tick += 1
            current[d] = segments
            segments += 1
            posted[d] = clock[d]
            clock[d] += overhead[d]
            begin = max(begin, clock[d])
            opened[d] = True
        segment[v] = current[d]
        end = begin + forward_s[v, d]
        clock[d] = end
        if record:
            f_times[v, 0] = begin
            f_times[v, 1] = end
        sends = False
        for k in range(m_starts[v], m_starts[v + 1]):
            u = m_items[k]
            dest[:] = False
            for c in range(c_starts[u], c_starts[u + 1]):
                dest[where[c_items[c]]] = True
            for q in range(devices):
                if dest[q] and q != d:
                    sends = True
                    clock[d] += overhead[d]
                    ready = max(clock[d], posted[q] if opened[q] else clock[q])
                    start = max(ready, link[d, q])
                    link[d, q] = start + transfer_s[u, d, q]
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
        if carrying[u]:
            for c in range(c_starts[u], c_starts[u + 1]):
                w = c_items[c]
                if trained[w]:
                    waiting[u, where[w]] += 1
    gradient = np.full((m, devices), -1.0)
    previous = -1
    for i in range(n - 1, -1, -1):
        v = by_segment[i]
        d = where[v]
        if record:
            b_times[v] = f_times[v]
        if not trained[v]:
            continue
        if segment[v] != previous:
            clock[d] += overhead[d]
            previous = segment[v]
        begin = clock[d]
        for k in range(m_starts[v], m_starts[v + 1]):
            u = m_items[k]
            for q in range(devices):
                begin = max(begin, gradient[u, q])
        end = begin + backward_s[v, d]
        clock[d] = end
        if record:
            b_times[v, 0] = begin
            b_times[v, 1] = end
        for k in range(r_starts[v], r_starts[v + 1]):
            u = r_items[k]
            p = where[producer[u]]
            if carrying[u]:
                waiting[u, d] -= 1
                if p != d and waiting[u, d] == 0:
                    clock[d] += overhead[d]
                    start = max(clock[d], clock[p], link[d, p])
                    link[d, p] = start + transfer_s[u, d, p]
                    gradient[u, d] = link[d, p]
                    last = max(last, link[d, p])
    steps = np.zeros(devices)
    stepping = np.zeros(devices, np.bool_)
    for v in range(len(order)):
        steps[where[v]] += step_s[v, where[v]]
        stepping[where[v]] |= trained[v]
    for d in range(devices):
        last = max(last, clock[d] + (steps[d] + overhead[d] if stepping[d] else 0.0))
    return last


@njit(cache=True)
def _rank(
    where, forward_s, backward_s, trained, producer, carrying, c_starts, c_items, r_starts, r_items,
    m_starts, m_items, transfer_s, step_s, overhead,
):  # type: ignore[no-untyped-def]  # fmt: skip
    n = len(forward_s)
    rank = np.zeros(n)
    for v in range(n - 1, -1, -1):
        p = where[v]
        tail = 0.0
        for k in range(m_starts[v], m_starts[v + 1]):
            u = m_items[k]
            for c in range(c_starts[u], c_starts[u + 1]):
                w = c_items[c]
                q = where[w]
                way = transfer_s[u, p, q]
                if carrying[u]:
                    way += transfer_s[u, q, p]
                tail = max(tail, rank[w] + way)
        rank[v] = tail + forward_s[v, p] + backward_s[v, p]
    return rank


@njit(cache=True)
def _list_schedule(
    where, rank, block_of, b_starts, b_items, forward_s, backward_s, trained, producer, carrying, c_starts,
    c_items, r_starts, r_items, m_starts, m_items, transfer_s, step_s, overhead,
):  # type: ignore[no-untyped-def]  # fmt: skip
    """Ends of the nodes' forwards when every device takes, of what could start first, the highest rank."""
    n, devices = forward_s.shape
    blocks = len(b_starts) - 1
    m = len(producer)
    missing = np.zeros(blocks, np.int64)
    for v in range(n):
        for k in range(r_starts[v], r_starts[v + 1]):
            if block_of[producer[r_items[k]]] != block_of[v]:
                missing[block_of[v]] += 1
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
    while count > 0:
        best, best_start, best_rank = -1, np.inf, -1.0
        for k in range(count):
            b = ready[k]
            v = b_items[b_starts[b]]
            start = max(clock[where[v]], ready_at[b])
            if start < best_start or (start == best_start and rank[v] > best_rank):
                best, best_start, best_rank = k, start, rank[v]
        b = ready[best]
        count -= 1
        ready[best] = ready[count]
        now = best_start
        for j in range(b_starts[b], b_starts[b + 1]):
            v = b_items[j]
            d = where[v]
            now += forward_s[v, d]
            ends[v] = now
            for k in range(m_starts[v], m_starts[v + 1]):
                u = m_items[k]
                sent[:] = False
                for c in range(c_starts[u], c_starts[u + 1]):
                    w = c_items[c]
                    q = where[w]
                    if q != d and not sent[q]:
                        link[d, q] = max(link[d, q], now) + transfer_s[u, d, q]
                        arrive[u, q] = link[d, q]
                        sent[q] = True
                    elif q == d:
                        arrive[u, q] = now
                    other = block_of[w]
                    if other != b:
                        ready_at[other] = max(ready_at[other], arrive[u, q])
                        missing[other] -= 1
                        if missing[other] == 0:
                            ready[count] = other
                            count += 1
        clock[where[b_items[b_starts[b]]]] = now
    return ends
