"""The idle time of devices, for compiled functions: where a task fits in between others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from netsplit.partition.common.instance import Floats, Ints
from netsplit.partition.engines.compiled import compiled, inner

__all__ = ["Slots", "book_slot", "earliest_slot", "slots_of"]


class Slots(NamedTuple):
    """Of every device; all times in seconds from 0, ascending. Its last slot never ends."""

    idle: Ints  # [D] slots
    starts: Floats  # [D, most slots]
    ends: Floats  # [D, most slots]
    booked: Ints  # [D] of `borders`
    borders: Floats  # [D, most borders] starts and ends of what is booked


def slots_of(devices: int, tasks: int) -> Slots:
    """Idle throughout, with room for so many tasks on each."""
    starts, ends = np.empty((2, devices, tasks + 1))
    starts[:, 0], ends[:, 0] = 0.0, np.inf
    nothing = np.zeros(devices, np.int64)
    return Slots(nothing + 1, starts, ends, nothing, np.empty((devices, 2 * tasks)))


@compiled
def earliest_slot(slots: Slots, p: int, ready_s: float, seconds: float) -> float:
    """When a task that may begin at `ready_s` begins: in the first slot that is long enough for it.

    A task of 0 seconds also fits between two that follow one another without a pause.
    """
    i = _first_above(slots.ends, p, slots.idle[p], ready_s)
    if seconds == 0.0 and slots.starts[p, i] > ready_s:
        return float(slots.borders[p, _first_from(slots.borders, p, slots.booked[p], ready_s)])
    start = max(ready_s, slots.starts[p, i])
    while start + seconds > slots.ends[p, i]:
        i += 1
        start = slots.starts[p, i]
    return float(start)


@compiled
def book_slot(slots: Slots, p: int, start_s: float, seconds: float) -> float:
    """Occupy a span which `earliest_slot` gave; returns its end."""
    end_s = start_s + seconds
    if seconds == 0.0:
        return end_s
    for border in (start_s, end_s):
        _insert(
            slots.borders, p, _first_above(slots.borders, p, slots.booked[p], border), slots.booked, border
        )
    i = _first_above(slots.ends, p, slots.idle[p], start_s)
    begin, finish = slots.starts[p, i], slots.ends[p, i]
    assert begin <= start_s  # else the device is busy
    assert end_s <= finish
    before, behind = begin < start_s, end_s < finish
    if before and behind:
        slots.ends[p, i] = start_s
        _insert(slots.starts, p, i + 1, slots.idle, end_s)
        slots.idle[p] -= 1
        _insert(slots.ends, p, i + 1, slots.idle, finish)
    elif before:
        slots.ends[p, i] = start_s
    elif behind:
        slots.starts[p, i] = end_s
    else:
        slots.idle[p] -= 1
        for j in range(i, slots.idle[p]):
            slots.starts[p, j], slots.ends[p, j] = slots.starts[p, j + 1], slots.ends[p, j + 1]
    return end_s


@inner
def _insert(rows: Floats, p: int, i: int, count: Ints, value: float) -> None:
    """Before the i-th of the row, which has one more then."""
    for j in range(count[p], i, -1):
        rows[p, j] = rows[p, j - 1]
    rows[p, i] = value
    count[p] += 1


@inner
def _first_above(rows: Floats, p: int, count: int, value: float) -> int:
    """The first of the row's that is greater."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if value < rows[p, middle]:
            high = middle
        else:
            low = middle + 1
    return low


@inner
def _first_from(rows: Floats, p: int, count: int, value: float) -> int:
    """The first of the row's that is as great, or greater."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if rows[p, middle] < value:
            low = middle + 1
        else:
            high = middle
    return low
