"""The inner loop of `latency_chain`: all labels by all steps.

A label's key: device (3 bits), whether in a run (1 bit), then 11 bits for each device's buckets plus two.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from netsplit.partition.common.instance import Floats, Ints
from netsplit.partition.engines.compiled import compiled, inlined

__all__ = ["Labels", "Limits", "StepArrays", "advance", "undominated"]


class StepArrays(NamedTuple):
    """Steps through a section. S steps, D devices."""

    source: Ints  # [S] device
    target: Ints  # [S]
    pure: Ints  # [S] the one device used, for the bytes of the section's nodes alone; or -1
    counts: Ints  # [S, D] buckets
    cost: Floats  # [S] seconds

    def take(self, rows: Ints | NDArray[np.bool_]) -> StepArrays:
        integers = (self.source[rows], self.target[rows], self.pure[rows], self.counts[rows])
        return StepArrays(*integers, self.cost[rows])


class Limits(NamedTuple):
    """What labels after a section must keep to."""

    ahead: Floats  # [D] least seconds that follow
    room: Ints  # [D] buckets
    everything: int  # buckets of all devices together
    most_s: float
    labels: int
    trials: int


class Labels(NamedTuple):
    """All different."""

    keys: Ints  # [L]
    seconds: Floats  # [L]


class _LabelTable(NamedTuple):
    """A hash table of labels, open addressing. A power of two of slots; -1: free."""

    keys: Ints
    seconds: Floats


@compiled
def advance(
    before: Labels, steps: StepArrays, starts: Ints, going: int, fresh: int, limits: Limits
) -> tuple[Labels, bool]:
    """The labels after a section, the least seconds of each; false where over the limits' labels or trials.

    Args:
        steps: by source, each ascending in cost + ahead.
        starts: [D + 1] of each source's steps.
        going: buckets that a pure step adds to a run.
        fresh: the same where one begins.

    1. Every label by every step that could be in time; 2. the buckets that it leads to; 3. the label of
    these is new, or sooner than it was. 4. Labels that another one dominates go.
    """
    devices = len(limits.room)
    size = 1024
    while size < 2 * limits.labels + 2:
        size *= 2
    table = _LabelTable(np.full(size, -1, np.int64), np.empty(size))
    slots = np.empty(limits.labels + 1, np.int64)
    count = 0
    tried = 0
    for i in range(len(before.keys)):
        if tried > limits.trials:
            return before, False
        # 1. steps
        key = before.keys[i]
        at = key & 7
        for s in range(starts[at], starts[at + 1]):
            end = before.seconds[i] + steps.cost[s]
            if end + limits.ahead[steps.target[s]] >= limits.most_s:
                break
            tried += 1
            # 2. buckets
            label = _after(key, s, steps, going, fresh, limits)
            if label < 0:
                continue
            # 3. label
            slot = _slot(label, table)
            if table.keys[slot] < 0:
                if count >= limits.labels:
                    return before, False
                table.keys[slot] = label
                table.seconds[slot] = end
                slots[count] = slot
                count += 1
            elif end < table.seconds[slot]:
                table.seconds[slot] = end
    # 4. dominated
    kept = np.ones(count, np.bool_)
    for i in range(count):
        kept[i] = not _dominated(slots[i], devices, table)
    rows = slots[:count][kept]
    return Labels(table.keys[rows], table.seconds[rows]), True


@inlined
def _after(key: int, s: int, steps: StepArrays, going: int, fresh: int, limits: Limits) -> int:
    """The key after step s; -1 where devices have too many buckets."""
    at = key & 7
    run = (key >> 3) & 1
    pure = steps.pure[s]
    label = steps.target[s]
    total = 0
    joins = pure >= 0
    for d in range(len(limits.room)):
        c = ((key >> (4 + 11 * d)) & 2047) - 2
        if pure == d and run == 1 and at == d:  # the same run goes on
            c += going
        elif pure == d and c + fresh >= -2:
            c += fresh
        else:
            c += steps.counts[s, d]
            joins = joins and pure != d
        if c > limits.room[d]:
            return -1
        total += max(c, 0)
        label |= (c + 2) << (4 + 11 * d)
    if total > limits.everything:
        return -1
    return label | 8 if joins else label


@inlined
def _slot(key: int, table: _LabelTable) -> int:
    """Where the key is, or would be."""
    mask = len(table.keys) - 1
    slot = (key * 0x9E3779B97F4A7C1 >> 20) & mask
    while table.keys[slot] >= 0 and table.keys[slot] != key:
        slot = (slot + 1) & mask
    return slot


@inlined
def _dominated(slot: int, devices: int, table: _LabelTable) -> bool:
    """Whether the same label without the run, or with a bucket less, is no later."""
    key = table.keys[slot]
    for d in range(devices + 1):
        if d == devices:
            if (key >> 3) & 1 == 0:
                return False
            less = key - 8
        elif ((key >> (4 + 11 * d)) & 2047) == 0:
            continue
        else:
            less = key - (1 << (4 + 11 * d))
        other = _slot(less, table)
        if table.keys[other] >= 0 and table.seconds[other] <= table.seconds[slot]:
            return True
    return False


@compiled
def undominated(steps: StepArrays) -> NDArray[np.bool_]:
    """[S] whether no other step between the same devices has as few buckets and seconds; pure ones stay.

    Steps ascend in cost.
    """
    kept = np.ones(len(steps.cost), np.bool_)
    for i in range(len(kept)):
        if steps.pure[i] >= 0:
            continue
        for j in range(i):
            same = kept[j] and steps.pure[j] < 0
            same = same and steps.source[j] == steps.source[i] and steps.target[j] == steps.target[i]
            if same and (steps.counts[j] <= steps.counts[i]).all():
                kept[i] = False
                break
    return kept
