"""The order in which a schedule computes the segments of a step, as `program.schedules` has it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from netsplit.compiled import inlined, inner
from netsplit.partition.common.instance import Ints, Packed
from netsplit.partition.engines.step.arrays import EAGER_1F1B, GPIPE, SINGLE_BATCH, Arrays

__all__ = ["BACKWARD", "FORWARD", "computations"]

FORWARD, BACKWARD = range(2)
_UNITS = (10, 20)  # of time, for a list schedule: forward, backward
_LATE = 2**40  # later than all


@inner
def computations(of: Ints, nodes: Packed, home: Ints, trained: NDArray[np.bool_], a: Arrays) -> Ints:
    """[computations, 3] phase, segment, micro-batch.

    Args:
        of: [n] segment of each node.
        nodes: [segments] -> nodes.
        home: [segments] device.
        trained: [segments] it has a backward.
    """
    kind, m, count = a.turns[0], a.turns[1], len(home)
    backwards = trained.sum()
    order = np.zeros((m * (count + backwards), 3), np.int64)
    if kind == SINGLE_BATCH:
        for s in range(count):
            order[s, 1] = s
        order[count:, 0] = BACKWARD
        at = count
        for s in range(count - 1, -1, -1):
            if trained[s]:
                order[at, 1] = s
                at += 1
        return order
    feeders = _feeders(of, nodes, a)
    before, behind = _levels(feeders)
    if kind == GPIPE:
        _by_tick(FORWARD, before, np.ones(count, np.bool_), m, order[: m * count])
        _by_tick(BACKWARD, behind, trained, m, order[m * count :])
    else:
        limit = 2 * behind + 1 if kind == EAGER_1F1B else behind + 1
        _one_f_one_b(feeders, home, trained, limit, order, a)
    return order


@inner
def _feeders(of: Ints, nodes: Packed, a: Arrays) -> Packed:
    """[segments] -> segments that each reads from, once."""
    count = nodes[0] - 1
    feeders = np.zeros(count + 1 + len(a.gives), np.int64)
    seen = np.full(count, -1)
    size = count + 1
    feeders[0] = size
    for s in range(count):
        for j in range(nodes[s], nodes[s + 1]):
            v = nodes[j]
            for k in range(a.reads[v], a.reads[v + 1]):
                f = of[a.producer[a.reads[k]]]
                if f != s and seen[f] != s:
                    seen[f] = s
                    feeders[size] = f
                    size += 1
        feeders[s + 1] = size
    return feeders[:size]


@inner
def _levels(feeders: Packed) -> tuple[Ints, Ints]:
    """[segments] how many are on the longest path before each, and behind it."""
    count = feeders[0] - 1
    before, behind = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for s in range(count):
        for k in range(feeders[s], feeders[s + 1]):
            before[s] = max(before[s], before[feeders[k]] + 1)
    for s in range(count - 1, -1, -1):
        for k in range(feeders[s], feeders[s + 1]):
            behind[feeders[k]] = max(behind[feeders[k]], behind[s] + 1)
    return before, behind


@inner
def _by_tick(phase: int, level: Ints, wanted: NDArray[np.bool_], m: int, order: Ints) -> None:
    """GPipe's: in tick t the segments of level t - i compute micro-batch i, low levels first."""
    levels = level.max() + 1 if len(level) > 0 else 0
    rows = np.zeros(levels + 1 + len(level), np.int64)
    rows[0] = levels + 1
    for s in range(len(level)):
        if wanted[s]:
            rows[level[s] + 1] += 1
    for x in range(levels):
        rows[x + 1] += rows[x]
    place = rows[:levels].copy()
    for s in range(len(level)):
        if wanted[s]:
            rows[place[level[s]]] = s
            place[level[s]] += 1
    at = 0
    for tick in range(levels + m):
        for x in range(max(0, tick - m + 1), min(tick, levels - 1) + 1):
            for k in range(rows[x], rows[x + 1]):
                order[at, 0], order[at, 1], order[at, 2] = phase, rows[k], tick - x
                at += 1


class _Listing(NamedTuple):
    """How far a list schedule has come. Tasks are numbered x * m + i, where x is phase * segments + s. One of
    each x at most is ready, as its micro-batches follow one another."""

    missing: Ints  # [tasks] how many each waits for
    ready: Ints  # [2 segments] the micro-batch that waits for nothing; -1: none
    first: Ints  # [D] segment; -1: none
    following: Ints  # [segments] the next on the same device; -1: none
    running: Ints  # [D] task; -1: the device is idle
    ends: Ints  # [D]
    open: Ints  # [segments] forwards without backward


@inner
def _one_f_one_b(
    feeders: Packed, home: Ints, trained: NDArray[np.bool_], limit: Ints, order: Ints, a: Arrays
) -> None:
    """1F1B's list schedule (`program.schedules.order`, with the urgency `backward_first`).

    1. What waits for nothing is ready. Then: 2. every idle device begins the most urgent of what it may;
    3. where none may and none runs, the earliest micro-batch begins nevertheless; 4. what ends first ends.
    """
    count, devices, m = len(home), len(a.device.instruction), a.turns[1]
    readers = _transposed(feeders)
    listing = _Listing(
        _waits(feeders, readers, trained, m), np.full(2 * count, -1), np.full(devices, -1),
        np.full(count, -1), np.full(devices, -1), np.zeros(devices, np.int64), np.zeros(count, np.int64),
    )  # fmt: skip
    # 1. ready
    for s in range(count - 1, -1, -1):
        listing.following[s], listing.first[home[s]] = listing.first[home[s]], s
        if listing.missing[s * m] == 0:
            listing.ready[s] = 0
    names = home[listing.first[home] == np.arange(count)]  # devices, by their first segments
    begun, now = 0, 0
    for _ in range(2 * len(order) + 2):
        # 2. begin
        before = begun
        for d in names:
            if listing.running[d] < 0:
                x = _most_urgent(d, m, trained, limit, listing)
                if x >= 0:
                    _begin(d, x, now, m, trained, listing, order[begun])
                    begun += 1
        busy = False
        for d in names:
            busy |= listing.running[d] >= 0
        if begun == before and not busy:
            if begun == len(order):
                break
            # 3. nevertheless
            s = _earliest(listing)
            _begin(home[s], s, now, m, trained, listing, order[begun])
            begun += 1
        # 4. end
        now = _LATE
        for d in names:
            if listing.running[d] >= 0:
                now = min(now, listing.ends[d])
        for d in names:
            if listing.running[d] >= 0 and listing.ends[d] == now:
                _end(d, m, feeders, readers, trained, listing)


@inner
def _transposed(feeders: Packed) -> Packed:
    count = feeders[0] - 1
    readers = np.zeros(len(feeders), np.int64)
    readers[0] = count + 1
    for k in range(count + 1, len(feeders)):
        readers[feeders[k] + 1] += 1
    for s in range(count):
        readers[s + 1] += readers[s]
    place = readers[:count].copy()
    for s in range(count):
        for k in range(feeders[s], feeders[s + 1]):
            readers[place[feeders[k]]] = s
            place[feeders[k]] += 1
    return readers


@inner
def _waits(feeders: Packed, readers: Packed, trained: NDArray[np.bool_], m: int) -> Ints:
    """`_Listing.missing`."""
    count = feeders[0] - 1
    missing = np.zeros(2 * count * m, np.int64)
    for s in range(count):
        behind = 1
        for k in range(readers[s], readers[s + 1]):
            behind += trained[readers[k]]
        for i in range(m):
            missing[s * m + i] = feeders[s + 1] - feeders[s] + (i > 0)
            missing[(count + s) * m + i] = behind + (i > 0)
    return missing


@inlined
def _most_urgent(d: int, m: int, trained: NDArray[np.bool_], limit: Ints, listing: _Listing) -> int:
    """The x of what an idle device may begin, backwards of early micro-batches first, then forwards of late
    segments; -1: none."""
    count, best, least, s = len(trained), -1, _LATE, listing.first[d]
    while s >= 0:
        i = listing.ready[count + s]
        if i >= 0 and i * count + s < least:
            best, least = count + s, i * count + s
        i = listing.ready[s]
        if i >= 0 and (not trained[s] or listing.open[s] < limit[s]):
            key = (m + i) * count + count - 1 - s
            if key < least:
                best, least = s, key
        s = listing.following[s]
    return best


@inlined
def _earliest(listing: _Listing) -> int:
    """The segment whose forward is ready, of the earliest micro-batch."""
    first = -1
    for s in range(len(listing.open)):
        if listing.ready[s] >= 0 and (first < 0 or listing.ready[s] < listing.ready[first]):
            first = s
    return first


@inlined
def _begin(
    d: int, x: int, now: int, m: int, trained: NDArray[np.bool_], listing: _Listing, computation: Ints
) -> None:
    phase, s = x // len(trained), x % len(trained)
    computation[0], computation[1], computation[2] = phase, s, listing.ready[x]
    listing.running[d] = x * m + listing.ready[x]
    listing.ready[x] = -1
    listing.ends[d] = now + _UNITS[phase]
    if phase == FORWARD and trained[s]:
        listing.open[s] += 1


@inlined
def _end(
    d: int, m: int, feeders: Packed, readers: Packed, trained: NDArray[np.bool_], listing: _Listing
) -> None:
    task, count = listing.running[d], len(trained)
    listing.running[d] = -1
    x, i = task // m, task % m
    s = x % count
    if i + 1 < m:
        _done(task + 1, m, listing)
    if x < count:
        for k in range(readers[s], readers[s + 1]):
            _done(readers[k] * m + i, m, listing)
        if trained[s]:
            _done((count + s) * m + i, m, listing)
        return
    listing.open[s] -= 1
    for k in range(feeders[s], feeders[s + 1]):
        if trained[feeders[k]]:
            _done((count + feeders[k]) * m + i, m, listing)


@inlined
def _done(task: int, m: int, listing: _Listing) -> None:
    """One of those that the task waits for is done."""
    listing.missing[task] -= 1
    if listing.missing[task] == 0:
        listing.ready[task // m] = task % m
