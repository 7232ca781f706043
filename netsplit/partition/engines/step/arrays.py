"""A problem, a schedule and segments (`program.cut_segments`) for compiled functions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from netsplit.compiled import Floats, Ints, Packed, inlined, inner
from netsplit.simulate.tasks import DeviceSeconds

__all__ = [
    "EAGER_1F1B",
    "GPIPE",
    "KINDS",
    "ONE_F_ONE_B",
    "SINGLE_BATCH",
    "Arrays",
    "Segments",
    "cut",
    "moving_s",
]

SINGLE_BATCH, GPIPE, ONE_F_ONE_B, EAGER_1F1B = range(4)
KINDS = {"single_batch": SINGLE_BATCH, "gpipe": GPIPE, "1f1b": ONE_F_ONE_B, "eager_1f1b": EAGER_1F1B}
"""Kinds of schedules, in `Arrays.turns`."""


class Arrays(NamedTuple):
    """An instance for compiled functions."""

    forward_s: Floats  # [n, D]
    backward_s: Floats  # [n, D]
    trained: NDArray[np.bool_]  # [n]
    final: NDArray[np.bool_]  # [n] makes an output of the graph that a gradient comes back from
    producer: Ints  # [m]
    requires_backward: NDArray[np.bool_]  # [m]
    consumers: Packed  # [m] -> nodes
    reads: Packed  # [n] -> variables
    gives: NDArray[np.bool_]  # [reads] a gradient comes back from this node
    makes: Packed  # [n] -> variables
    nbytes: Ints  # [m]
    latency_s: Floats  # [D, D]
    seconds_per_byte: Floats  # [D, D]
    trainable_bytes: Ints  # [n]
    device: DeviceSeconds
    unit_of: Ints  # [n] as the instance has it; a node that is in none of the graph's is one alone
    units: Packed  # -> nodes
    weights: Packed  # [n] -> parameters that the optimiser changes
    weight_bytes: Ints  # [parameters]
    lasting: NDArray[np.bool_]  # [m] sent once for all micro-batches (`Program.lasting`)
    turns: Ints  # [2] kind of schedule, micro-batches


@inlined
def moving_s(u: int, p: int, q: int, a: Arrays) -> float:
    """Seconds of a variable's transfer from p to q."""
    return a.latency_s[p, q] + a.nbytes[u] * a.seconds_per_byte[p, q]


class Segments(NamedTuple):
    closed: int
    of: Ints  # [n]
    transfers: int  # of variables: one for each and device that reads it elsewhere


class _Cutting(NamedTuple):
    """What is open while segments are cut; they have numbers by when they were opened. U units."""

    done: NDArray[np.bool_]  # [U]
    late: Ints  # [n] units that wait, in their order
    current: Ints  # [D] the last segment
    open: NDArray[np.bool_]  # [D] it is open still
    segment: Ints  # [n]
    home: Ints  # [segments] device
    opened: Ints  # [segments] when
    closed: Ints  # [segments] when; 0: it is open still
    clock: Ints  # [1]
    seen: Ints  # [D] the last variable that is read there


@inner
def cut(where: Ints, order: Ints, a: Arrays) -> Segments:
    """Segments by the order in which they are closed; fine ones, where there is one micro-batch.

    Each unit: 1. waits until all it reads is made; 2. opens a segment, where none is open or it
    receives; 3. closes it, where it sends, if cuts are fine. 4. At the end all are closed.
    """
    n, devices = len(order), a.forward_s.shape[1]
    fine = a.turns[0] == SINGLE_BATCH
    cutting = _Cutting(
        np.zeros(a.units[0] - 1, np.bool_), np.zeros(n, np.int64), np.zeros(devices, np.int64),
        np.zeros(devices, np.bool_), np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64),
        np.zeros(n, np.int64), np.zeros(1, np.int64), np.full(devices, -1),
    )  # fmt: skip
    current, is_open, done, units = cutting.current, cutting.open, cutting.done, a.units
    segments, transfers, waiting, at = 0, 0, 0, 0
    while at < n or waiting > 0:
        # 1. wait
        unit, at, waiting = _taken(order, at, waiting, cutting, a)
        if unit < 0:
            continue
        done[unit] = True
        # 2. open
        d = where[units[units[unit]]]
        fed = _fed(unit, d, where, cutting, a)
        if is_open[d] and fed > (0 if fine else cutting.opened[current[d]]):
            _close(d, cutting)
        if not is_open[d]:
            cutting.clock[0] += 1
            current[d], is_open[d], cutting.opened[segments] = segments, True, cutting.clock[0]
            cutting.home[segments] = d
            segments += 1
        # 3. close
        sends = _sends(unit, d, where, cutting, a)
        transfers += sends
        if fine and sends > 0:
            _close(d, cutting)
    # 4. all
    for s in range(segments):
        d = cutting.home[s]
        if is_open[d] and current[d] == s:
            _close(d, cutting)
    return Segments(segments, _by_closing(segments, cutting), transfers)


@inner
def _by_closing(segments: int, cutting: _Cutting) -> Ints:
    """[n] segment, by when it was closed."""
    number = np.zeros(cutting.clock[0] + 1, np.int64)
    for s in range(segments):
        number[cutting.closed[s]] = 1
    closed = 0
    for t in range(len(number)):
        closed += number[t]
        number[t] = closed - 1
    for v in range(len(cutting.segment)):
        cutting.segment[v] = number[cutting.closed[cutting.segment[v]]]
    return cutting.segment


@inlined
def _close(d: int, cutting: _Cutting) -> None:
    cutting.clock[0] += 1
    cutting.closed[cutting.current[d]] = cutting.clock[0]
    cutting.open[d] = False


@inlined
def _taken(order: Ints, at: int, waiting: int, cutting: _Cutting, a: Arrays) -> tuple[int, int, int]:
    """The unit that is next (-1: not this time), the place in the order, and how many wait. What waits comes
    first as soon as it is ready, the earliest in the order before others."""
    late, done = cutting.late, cutting.done
    for i in range(waiting):
        if _ready(late[i], done, a):
            unit = late[i]
            for j in range(i, waiting - 1):
                late[j] = late[j + 1]
            return unit, at, waiting - 1
    unit = a.unit_of[order[at]]
    at += 1
    if done[unit]:
        return -1, at, waiting
    if a.units[unit + 1] - a.units[unit] > 1 or waiting > 0:
        for i in range(waiting):
            if late[i] == unit:
                return -1, at, waiting
        if not _ready(unit, done, a):
            late[waiting] = unit
            return -1, at, waiting + 1
    return unit, at, waiting


@inlined
def _fed(unit: int, d: int, where: Ints, cutting: _Cutting, a: Arrays) -> int:
    """When the last segment that the unit reads from was closed, on other devices; 0: it reads from none.
    Those still open are closed."""
    last = 0
    for j in range(a.units[unit], a.units[unit + 1]):
        v = a.units[j]
        for k in range(a.reads[v], a.reads[v + 1]):
            u = a.producer[a.reads[k]]
            if where[u] != d:
                if cutting.closed[cutting.segment[u]] == 0:
                    _close(where[u], cutting)
                last = max(last, cutting.closed[cutting.segment[u]])
    return last


@inlined
def _sends(unit: int, d: int, where: Ints, cutting: _Cutting, a: Arrays) -> int:
    """Transfers of what the unit makes, whose nodes are of the device's open segment."""
    transfers = 0
    for j in range(a.units[unit], a.units[unit + 1]):
        v = a.units[j]
        cutting.segment[v] = cutting.current[d]
        for k in range(a.makes[v], a.makes[v + 1]):
            u = a.makes[k]
            for c in range(a.consumers[u], a.consumers[u + 1]):
                q = where[a.consumers[c]]
                if q != d and cutting.seen[q] != u:
                    cutting.seen[q] = u
                    transfers += 1
    return transfers


@inlined
def _ready(unit: int, done: NDArray[np.bool_], a: Arrays) -> bool:
    for j in range(a.units[unit], a.units[unit + 1]):
        v = a.units[j]
        for k in range(a.reads[v], a.reads[v + 1]):
            other = a.unit_of[a.producer[a.reads[k]]]
            if other != unit and not done[other]:
                return False
    return True
