"""The inner loop of `latency_chain`: all labels by all steps. Imported lazily for numba's sake.

A label's key: device (3 bits), whether in a run (1 bit), then 11 bits for each device's buckets plus two.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from netsplit.partition.engines.compiled import compiled

__all__ = ["advance", "undominated"]


@compiled
def advance(
    keys: Any, seconds: Any, starts: Any, target: Any, pure: Any, counts: Any, going: int, fresh: int,
    cost: Any, ahead: Any, room: Any, everything: int, most_s: float, limit: int, budget: int,
) -> Any:  # fmt: skip
    """The labels after a block, the least seconds of each; false where over `limit`, or `budget` trials.

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
    tried = 0
    for i in range(len(keys)):
        if tried > budget:
            return keys, seconds, False
        key = keys[i]
        at = key & 7
        run = (key >> 3) & 1
        for s in range(starts[at], starts[at + 1]):
            end = seconds[i] + cost[s]
            q = target[s]
            if end + ahead[q] >= most_s:
                break
            tried += 1
            new = q
            total = 0
            joins = pure[s] >= 0
            fits = True
            for d in range(devices):
                c = ((key >> (4 + 11 * d)) & 2047) - 2
                if pure[s] == d and run == 1 and at == d:  # the same run goes on
                    c += going
                elif pure[s] == d and c + fresh >= -2:
                    c += fresh
                else:
                    c += counts[s, d]
                    joins = joins and pure[s] != d
                if c > room[d]:
                    fits = False
                    break
                total += max(c, 0)
                new |= (c + 2) << (4 + 11 * d)
            if not fits or total > everything:
                continue
            if joins:
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
    kept = np.ones(found, np.bool_)
    for i in range(found):
        key = table[slots[i]]
        for d in range(devices + 1):  # the same without the run, or with a bucket less: is it no later?
            less = key
            if d == devices:
                if (key >> 3) & 1 == 0:
                    continue
                less = key - 8
            elif ((key >> (4 + 11 * d)) & 2047) == 0:
                continue
            else:
                less = key - (1 << (4 + 11 * d))
            h = (less * 0x9E3779B97F4A7C1 >> 20) & mask
            while table[h] >= 0 and table[h] != less:
                h = (h + 1) & mask
            if table[h] >= 0 and value[h] <= value[slots[i]]:
                kept[i] = False
                break
    rows = slots[:found][kept]
    return table[rows], value[rows], True


@compiled
def undominated(source: Any, target: Any, pure: Any, counts: Any, cost: Any) -> Any:
    """[S] whether no other step between the same devices has as few buckets and seconds; pure ones stay.

    Steps ascend in cost.
    """
    kept = np.ones(len(cost), np.bool_)
    for i in range(len(cost)):
        if pure[i] >= 0:
            continue
        for j in range(i):
            same = kept[j] and pure[j] < 0 and source[j] == source[i] and target[j] == target[i]
            if same and (counts[j] <= counts[i]).all():
                kept[i] = False
                break
    return kept
