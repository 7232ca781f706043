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
"""Layouts: where the devices, the pieces by dimension and the runs of each begin; numbers of all devices,
[devices, dimensions] pieces, [runs, 2] ends, and of all devices regions, elements, and pairs of region and
host."""


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
def _overlaps(a: Packed, m: int, b: Packed, n: int, lengths: Numbers, counts: Numbers) -> tuple[int, int]:
    """Elements that both have [dimension that is cut, pieces of one, pieces of the other], and in how many
    boxes; and those of the dimensions that neither cuts."""
    dimensions, length, count = a[4].shape[1], 1, 1
    for d in range(dimensions):
        x0, x1 = a[1][m * dimensions + d], a[1][m * dimensions + d + 1]
        y0, y1 = b[1][n * dimensions + d], b[1][n * dimensions + d + 1]
        for x in range(x0, x1):
            for y in range(y0, y1):
                own, boxes = _common(a[5], a[2][x], a[2][x + 1], b[5], b[2][y], b[2][y + 1])
                if x1 - x0 == 1 and y1 - y0 == 1:
                    length, count = length * own, count * boxes
                else:
                    lengths[d, x - x0, y - y0], counts[d, x - x0, y - y0] = own, boxes
    return length, count


@inner
def _nearest(p: Numbers, holders: Numbers, t: int, j: int, host: Numbers) -> int:
    """The nearest device with a piece that a reader wants, and not for all the same one."""
    best, least, begin = -1, 3 * len(p), j % len(p)
    for i in holders:
        near = 0 if p[i] == t else 1 if host[p[i]] == host[t] else 2
        cost = near * len(p) + i - begin + (len(p) if i < begin else 0)
        if cost < least:
            best, least = i, cost
    return best


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
    hosts, devices, dimensions = host.max() + 1, len(host), a[4].shape[1]
    busy, out, into = np.empty(devices), np.empty(hosts), np.empty(hosts)
    needed, first = np.empty((2, devices, devices), np.int64)
    lengths, counts = np.empty((2, dimensions, devices, devices), np.int64)
    amount, most, several, count = np.empty((4, devices), np.int64)
    cuts = np.empty(dimensions, np.int64)
    for m in range(len(a[0]) - 1):
        own = slice(a[0][m], a[0][m + 1])
        p, at, region, held = a[3][own], a[4][own], a[6][own], a[7][own]
        order = np.argsort(region, kind="mergesort")
        begins = np.searchsorted(region[order], np.arange(region.max() + 2))
        sources = len(p) if partial[m] else len(begins) - 1
        for n in range(len(b[0]) - 1):
            other = slice(b[0][n], b[0][n + 1])
            q, to, group = b[3][other], b[4][other], b[8][other]
            each, each_count = _overlaps(a, m, b, n, lengths, counts)
            cut_here = 0
            for d in range(dimensions):
                x, y = m * dimensions + d, n * dimensions + d
                if a[1][x + 1] - a[1][x] > 1 or b[1][y + 1] - b[1][y] > 1:
                    cuts[cut_here] = d
                    cut_here += 1
            busy[:], out[:], into[:] = 0, 0, 0
            amount[: len(q)], most[: len(q)], several[: len(q)], count[: len(q)] = 0, 0, 0, 0
            first[: len(begins), : len(q)] = -1
            longest, handed, wait, cut, cut_back, far = 0.0, 0.0, 0.0, 0.0, 0.0, False
            for source in range(sources):
                i = source if partial[m] else order[begins[source]]
                r, readers = region[i], 0
                holders = order[begins[r] : begins[r + 1]]
                for j in range(len(q)):
                    nbytes, number = each * itemsize, each_count
                    for c in range(cut_here):
                        d = cuts[c]
                        nbytes *= lengths[d, at[i, d], to[j, d]]
                        number *= counts[d, at[i, d], to[j, d]]
                    needed[source, j] = nbytes
                    if not nbytes:
                        continue
                    t = q[j]
                    if not partial[m] and len(holders) > 1:
                        i = _nearest(p, holders, t, j, host)
                    s = p[i]
                    if nbytes < held[i] * itemsize:
                        cut = max(cut, rates[s, 1])
                        cut_back = max(cut_back, rates[s, 1] + PASSES * rates[s, 0] * held[i] * itemsize)
                    readers += 1
                    count[j] += number
                    amount[j] += nbytes
                    most[j] = max(most[j], nbytes)
                    if s == t:
                        continue
                    if host[s] != host[t]:
                        far = True
                        there_first = first[r, group[j]]
                        if there_first >= 0:
                            if there_first != t:
                                seconds = latency[there_first, t] + nbytes * pace[there_first, t]
                                handed = max(handed, seconds + 2 * rates[t, 2])
                            continue
                        first[r, group[j]] = t
                        out[host[s]] += nbytes * rates[s, 4]
                        into[host[t]] += nbytes * rates[t, 5]
                        wait = max(wait, latency[s, t])
                    longest = max(longest, number * latency[s, t] + nbytes * pace[s, t])
                    busy[s] += number
                    busy[t] += number
                if readers > 1 and not partial[m]:
                    for j in range(len(q)):
                        several[j] += needed[source, j]
            if far:
                longest = max(longest, wait + max(out.max(), into.max()))
            messages = 0.0
            for t in range(devices):
                messages = max(messages, busy[t] * rates[t, 2])
            longest += handed + messages
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
