"""The inner loop of `latency_chain`: all labels by all steps. Imported lazily for numba's sake.

A label's key: device (3 bits), whether in a run (1 bit), then 11 bits for each device's buckets plus two.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from netsplit.partition.compiled import compiled

__all__ = ["advance"]


@compiled
def advance(
    keys: Any, seconds: Any, starts: Any, target: Any, pure: Any, counts: Any, going: int, fresh: int,
    cost: Any, ahead: Any, room: Any, everything: int, most_s: float, limit: int,
) -> Any:  # fmt: skip
    """The labels after a block, the least seconds of each; and whether they are at most `limit`.

    Steps lie by device of their source, each ascending in cost + ahead: [D + 1] starts; [S] target, pure,
    cost; [S, D] counts. A pure step adds `going` to a run, `fresh` where one begins.
    """
    devices = len(room)
    size = 1024
    while size < 2 * limit + 2:
        size *= 2
    table = np.full(size, -1, np.int64)
    value = np.empty(size)
    slots = np.empty(limit + 1, np.int64)
    found = 0
    mask = size - 1
    for i in range(len(keys)):
        key = keys[i]
        at = key & 7
        run = (key >> 3) & 1
        for s in range(starts[at], starts[at + 1]):
            end = seconds[i] + cost[s]
            q = target[s]
            if end + ahead[q] >= most_s:
                break
            new = q
            total = 0
            fits = True
            for d in range(devices):
                c = ((key >> (4 + 11 * d)) & 2047) - 2
                if pure[s] < 0:
                    c += counts[s, d]
                elif pure[s] == d:
                    c += going if run == 1 else fresh
                if c > room[d]:
                    fits = False
                    break
                total += max(c, 0)
                new |= (c + 2) << (4 + 11 * d)
            if not fits or total > everything:
                continue
            if pure[s] >= 0:
                new |= 8
            h = (new * 0x9E3779B97F4A7C1 >> 20) & mask
            while table[h] >= 0 and table[h] != new:
                h = (h + 1) & mask
            if table[h] < 0:
                if found >= limit:
                    return keys, seconds, False
                table[h] = new
                value[h] = end
                slots[found] = h
                found += 1
            elif end < value[h]:
                value[h] = end
    rows = slots[:found]
    return table[rows], value[rows], True
