"""Computations that slow one another: every one has a rate, which changes as others begin and end.

    cpu:0   ──────────forward──────────            rate 1        alone on its host
    cpu:1            ──────backward─────────       rate 1/c      another device of the host computes too
    cpu:2               ──forward──                rate 2/3c     three compute, and there are two processors
    cpu:0→1             ▒▒▒send▒▒▒                 rate less s   copying takes the part s of both ends' time

An agenda has when computations begin and end and when copying changes; an end moves when the rate changes.
CPU devices of one host share its memory and take turns on its processors (`DeviceCosts.slowdown`); a device
whose host is not said shares nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from netsplit.compiled import Floats, Ints, inlined, inner
from netsplit.simulate.engine.arrays import DeviceSeconds, Heap, heap_of, pop, push

__all__ = ["Paces", "begin_at", "copy", "happen", "next_of", "pace_of"]

_COPY_END, _COPY, _BEGIN = 1, 2, 3  # of what happens at one moment: after the ends of computations
_STANDS = 1e-9  # a slower computation stands still until a transfer ends
_LATER = 2**40  # more than there are entries
_ENTRIES, _COPIES = range(2)


class Paces(NamedTuple):
    """How the devices' computations go: [D] where nothing else is said."""

    left: Floats  # seconds that it would take undisturbed
    since: Floats  # when they were left
    rate: Floats
    copying: Floats  # fraction of the device's time that transfers take
    started: Floats
    begin: Floats  # when it begins, on the agenda; infinite: it does not
    end: Floats
    begin_number: Ints  # of its last entry on the agenda
    end_number: Ints
    computes: Ints  # 1 while it does
    busy: Ints  # devices of each host that compute
    copies: Heap  # changes of copying to come
    fractions: Floats  # [copies]
    counts: Ints  # [2] entries and copies so far


@inner
def pace_of(devices: int, copies: int) -> Paces:
    floats, ints = np.zeros((5, devices)), np.zeros((4, devices), np.int64)
    never = np.full((2, devices), np.inf)
    return Paces(
        floats[0], floats[1], floats[2], floats[3], floats[4], never[0],
        never[1], ints[0], ints[1], ints[2], ints[3], heap_of(2 * copies), np.empty(copies),
        np.zeros(2, np.int64),
    )  # fmt: skip


@inlined
def begin_at(d: int, time: float, seconds: float, pace: Paces) -> None:
    pace.left[d], pace.begin[d], pace.begin_number[d] = seconds, time, _number(pace)


@inlined
def copy(d: int, start: float, end: float, nbytes: float, pace: Paces, device: DeviceSeconds) -> None:
    """On the agenda, that a device copies between these times."""
    copying_s = device.copy_per_byte[d] * nbytes
    if copying_s > 0 and end > start:
        what = pace.counts[_COPIES]
        pace.fractions[what] = min(copying_s / (end - start), 1.0)
        push(pace.copies, start, _COPY * _LATER + _number(pace), what * len(pace.end) + d)
        push(pace.copies, end, _COPY_END * _LATER + _number(pace), what * len(pace.end) + d)
        pace.counts[_COPIES] += 1


@inlined
def next_of(pace: Paces) -> tuple[float, int]:
    """When what happens next: d an end, D + d a beginning, 2 D a change of copying; -1 nothing."""
    copies, devices = pace.copies, len(pace.end)
    time, first, key = np.inf, -1, 0
    if copies.size[0] > 0:
        time, first, key = copies.time[0], 2 * devices, copies.key[0]
    for d in range(devices):
        end, begin = pace.end[d], pace.begin[d]
        if end < time or (end == time and end < np.inf and pace.end_number[d] < key):
            time, first, key = end, d, pace.end_number[d]
        later = pace.begin_number[d] + _BEGIN * _LATER
        if begin < time or (begin == time and begin < np.inf and later < key):
            time, first, key = begin, devices + d, later
    return time, first


@inlined
def happen(first: int, now: float, pace: Paces, device: DeviceSeconds) -> bool:
    """A computation ends or begins, or copying changes (see `next_of`); whether it was an end."""
    devices = len(pace.end)
    if first < devices:
        pace.end[first], pace.computes[first] = np.inf, 0
        _company(first, -1, now, pace, device)
        return True
    if first < 2 * devices:
        d = first - devices
        pace.begin[d], pace.computes[d], pace.since[d], pace.started[d] = np.inf, 1, now, now
        pace.rate[d] = 0.0  # whatever it was, it is another now
        _company(d, 1, now, pace, device)
        return False
    stops = pace.copies.key[0] < _COPY * _LATER
    what = pop(pace.copies)
    d, fraction = what % devices, pace.fractions[what // devices]
    pace.copying[d] += -fraction if stops else fraction
    _change(d, now, pace, device)
    return False


@inlined
def _number(pace: Paces) -> int:
    pace.counts[_ENTRIES] += 1
    return pace.counts[_ENTRIES]


@inlined
def _company(d: int, change: int, t: float, pace: Paces, device: DeviceSeconds) -> None:
    """A device of a host begins or ends to compute, which may change the pace of others there."""
    host = device.host
    if host[d] >= 0:
        pace.busy[host[d]] += change
    if change > 0:
        _change(d, t, pace, device)
    if host[d] >= 0:
        for other in range(len(host)):
            if other != d and host[other] == host[d]:
                _change(other, t, pace, device)


@inlined
def _change(d: int, t: float, pace: Paces, device: DeviceSeconds) -> None:
    """Count what was done at the old rate, and plan the end at the new one."""
    if pace.computes[d] == 0:
        return
    rate = min(max(1.0 - pace.copying[d], 0.0), 1.0)
    host = device.host[d]
    if host >= 0:
        rate = rate / device.slowdown[d, pace.busy[host]]
    if rate != pace.rate[d]:
        left = max(pace.left[d] - pace.rate[d] * (t - pace.since[d]), 0.0)
        pace.left[d], pace.since[d], pace.rate[d] = left, t, rate
        pace.end_number[d] = _number(pace)
        pace.end[d] = np.inf if rate < _STANDS else t + (left if rate == 1.0 else left / rate)
