"""Seconds of moving a tensor between all of some layouts and all of others, compiled.

For two layouts: [devices of one, devices of the other] bytes and boxes ──► links, NICs, cutting and adding.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from netsplit.compiled import compiled, inner

__all__ = ["PASSES", "Packed", "seconds_of_layouts"]

PASSES = 3.0  # of an addition over its bytes, as `DeviceCosts.accumulate_s_per_byte` has them

Numbers: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Packed: TypeAlias = tuple[Numbers, Numbers, Numbers, Numbers, Numbers, Numbers, Numbers, Numbers, Numbers]
"""Of layouts: where the devices, the pieces by dimension and the runs of each begin; of all devices their
numbers, [devices, dimensions] pieces, [runs, 2] ends, and of all devices regions, elements, and pairs of
region and host."""


@inner
def _common(runs: Numbers, a0: int, a1: int, other: Numbers, b0: int, b1: int) -> tuple[int, int]:
    """Elements that two pieces have in common along a dimension, and in how many runs."""
    same, length = a1 - a0 == b1 - b0, 0
    for x in range(a0, a1):
        length += runs[x, 1] - runs[x, 0]
        same = same and (runs[x, 0] == other[b0 + x - a0, 0] and runs[x, 1] == other[b0 + x - a0, 1])
    if same:
        return length, 1
    length, count = 0, 0
    for x in range(a0, a1):
        for y in range(b0, b1):
            n = min(runs[x, 1], other[y, 1]) - max(runs[x, 0], other[y, 0])
            if n > 0:
                length += n
                count += 1
    return length, count


@inner
def _overlaps(a: Packed, m: int, b: Packed, n: int, itemsize: int, nbytes: Numbers, boxes: Numbers) -> None:
    """[devices of one, devices of the other] bytes that both have, and in how many boxes."""
    p0, p1, q0, q1 = a[0][m], a[0][m + 1], b[0][n], b[0][n + 1]
    dimensions, length, count = a[4].shape[1], itemsize, 1
    for d in range(dimensions):  # that neither cuts
        x, y = a[1][m * dimensions + d], b[1][n * dimensions + d]
        if a[1][m * dimensions + d + 1] - x == 1 and b[1][n * dimensions + d + 1] - y == 1:
            own, runs = _common(a[5], a[2][x], a[2][x + 1], b[5], b[2][y], b[2][y + 1])
            length *= own
            count *= runs
    nbytes[: p1 - p0, : q1 - q0] = length
    boxes[: p1 - p0, : q1 - q0] = count
    for d in range(dimensions):
        x0, x1 = a[1][m * dimensions + d], a[1][m * dimensions + d + 1]
        y0, y1 = b[1][n * dimensions + d], b[1][n * dimensions + d + 1]
        if x1 - x0 == 1 and y1 - y0 == 1:
            continue
        lengths, counts = np.empty((2, x1 - x0, y1 - y0), np.int64)
        for x in range(x0, x1):
            for y in range(y0, y1):
                both = _common(a[5], a[2][x], a[2][x + 1], b[5], b[2][y], b[2][y + 1])
                lengths[x - x0, y - y0], counts[x - x0, y - y0] = both
        for i in range(p1 - p0):
            x = a[4][p0 + i, d]
            for j in range(q1 - q0):
                y = b[4][q0 + j, d]
                nbytes[i, j] *= lengths[x, y]
                boxes[i, j] *= counts[x, y]


@inner
def _nearest(p: Numbers, region: Numbers, q: Numbers, host: Numbers, nbytes: Numbers) -> None:
    """Of devices with the same piece each reader takes the nearest, and not all the same one."""
    regions = region.max() + 1
    best, least = np.empty(regions, np.int64), np.empty(regions, np.int64)
    for j in range(len(q)):
        least[:] = 3 * len(p)
        begin = j % len(p)
        for i in range(len(p)):
            near = 0 if p[i] == q[j] else 1 if host[p[i]] == host[q[j]] else 2
            cost = near * len(p) + i - begin + (len(p) if i < begin else 0)
            if cost < least[region[i]]:
                least[region[i]], best[region[i]] = cost, i
        for i in range(len(p)):
            if best[region[i]] != i:
                nbytes[i, j] = 0


@compiled
def seconds_of_layouts(
    a: Packed,
    partial: NDArray[np.bool_],
    b: Packed,
    itemsize: int,
    host: Numbers,
    latency: Floats,
    pace: Floats,
    rates: Floats,
    there: Floats,
    back: Floats,
) -> None:
    """Cutting, links and NICs at once, and then adding or putting together on each device.

    Of a gradient: as much moves, and where several readers had one piece, theirs are added. Of hosts: each
    region comes once into each host, and is handed on there.

    Args:
        a, b: layouts.
        partial: of `a`, whether it is terms, which are added where they are wanted.
        host: of each device.
        latency, pace: [devices, devices] seconds, and seconds per byte.
        rates: [devices, 6] seconds per byte of adding, of a launch, a message, an instruction, and per byte
            out of a NIC and into it.
        there, back: [a, b] seconds; written.
    """
    hosts, devices = host.max() + 1, len(host)
    busy, out, into = np.empty(devices), np.empty(hosts), np.empty(hosts)
    needed, boxes, first = np.empty((3, devices, devices), np.int64)
    readers, amount, most = np.empty((3, devices), np.int64)
    count, several = np.empty((2, devices), np.int64)
    for m in range(len(a[0]) - 1):
        p = a[3][a[0][m] : a[0][m + 1]]
        region, held = a[6][a[0][m] : a[0][m + 1]], a[7][a[0][m] : a[0][m + 1]]
        for n in range(len(b[0]) - 1):
            q, group = b[3][b[0][n] : b[0][n + 1]], b[8][b[0][n] : b[0][n + 1]]
            _overlaps(a, m, b, n, itemsize, needed, boxes)
            if not partial[m]:
                _nearest(p, region, q, host, needed)
            busy[:], out[:], into[:] = 0, 0, 0
            first[: len(p), : len(q)] = -1
            readers[: len(p)], amount[: len(q)], most[: len(q)], count[: len(q)] = 0, 0, 0, 0
            longest, handed, wait, cut, cut_back, far = 0.0, 0.0, 0.0, 0.0, 0.0, False
            for i in range(len(p)):
                s, is_cut = p[i], False
                for j in range(len(q)):
                    nbytes = needed[i, j]
                    if not nbytes:
                        continue
                    t, number = q[j], boxes[i, j]
                    is_cut = is_cut or nbytes < held[i] * itemsize
                    readers[region[i]] += 1
                    count[j] += number
                    amount[j] += nbytes
                    most[j] = max(most[j], nbytes)
                    if s == t:
                        continue
                    if host[s] != host[t]:
                        far = True
                        own = first[region[i], group[j]]
                        if own >= 0:
                            if own != t:
                                seconds = latency[own, t] + nbytes * pace[own, t] + 2 * rates[t, 2]
                                handed = max(handed, seconds)
                            continue
                        first[region[i], group[j]] = t
                        out[host[s]] += nbytes * rates[s, 4]
                        into[host[t]] += nbytes * rates[t, 5]
                        wait = max(wait, latency[s, t])
                    longest = max(longest, number * latency[s, t] + nbytes * pace[s, t])
                    busy[s] += number
                    busy[t] += number
                if is_cut:
                    cut = max(cut, rates[s, 1])
                    cut_back = max(cut_back, rates[s, 1] + PASSES * rates[s, 0] * held[i] * itemsize)
            if far:
                longest = max(longest, wait + max(out.max(), into.max()))
            messages = 0.0
            for t in range(devices):
                messages = max(messages, busy[t] * rates[t, 2])
            longest += handed + messages
            several[: len(q)] = 0
            if not partial[m]:
                for i in range(len(p)):
                    if readers[region[i]] > 1:
                        for j in range(len(q)):
                            several[j] += needed[i, j]
            ends, ends_back = 0.0, 0.0
            for j in range(len(q)):
                t = q[j]
                if partial[m]:
                    launches = max(count[j] - 1, 0) * (rates[t, 1] + rates[t, 3])
                    added = (amount[j] - most[j]) * PASSES * rates[t, 0] if count[j] > 1 else 0.0
                    ends, ends_back = max(ends, launches + added), max(ends_back, launches)
                else:
                    joined = rates[t, 1] + 2 * rates[t, 0] * amount[j] if count[j] > 1 else 0.0
                    ends = max(ends, joined)
                    ends_back = max(ends_back, joined + PASSES * rates[t, 0] * several[j])
            there[m, n] = longest + cut + ends
            back[m, n] = longest + cut_back + ends_back
