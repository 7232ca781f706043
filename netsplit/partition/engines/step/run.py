"""The seconds of a step's computations and transfers: what `simulate` says of them, without names and events.

`simulate.run` and `simulate.contention` say what is so and why; the result is the same to the last bit.
Where no device slows another and none shares a NIC, one pass is enough: every link has its transfers in the
order in which both of its devices come to them, which is the one order of all.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from netsplit.partition.common.instance import Floats, Ints, Packed
from netsplit.partition.engines.compiled import inlined, inner
from netsplit.partition.engines.step.arrays import Arrays, DeviceSeconds, moving_s
from netsplit.partition.engines.step.lists import BACKWARD, FORWARD, MESSAGE, STEP, Lists

__all__ = ["seconds_of"]


class Heap(NamedTuple):
    """The least time first, then the least key."""

    size: Ints  # [1]
    time: Floats
    key: Ints
    what: Ints


@inner
def heap_of(size: int) -> Heap:
    return Heap(np.zeros(1, np.int64), np.zeros(size), np.zeros(size, np.int64), np.zeros(size, np.int64))


@inlined
def push(heap: Heap, time: float, key: int, what: int) -> None:
    i = heap.size[0]
    heap.size[0] = i + 1
    while i > 0:
        up = (i - 1) // 2
        if not (time < heap.time[up] or (time == heap.time[up] and key < heap.key[up])):
            break
        heap.time[i], heap.key[i], heap.what[i] = heap.time[up], heap.key[up], heap.what[up]
        i = up
    heap.time[i], heap.key[i], heap.what[i] = time, key, what


@inlined
def pop(heap: Heap) -> int:
    top, size = heap.what[0], heap.size[0] - 1
    heap.size[0] = size
    time, key, what = heap.time[size], heap.key[size], heap.what[size]
    i = 0
    while 2 * i + 1 < size:
        low = 2 * i + 1
        if low + 1 < size and (
            heap.time[low + 1] < heap.time[low]
            or (heap.time[low + 1] == heap.time[low] and heap.key[low + 1] < heap.key[low])
        ):
            low += 1
        if time < heap.time[low] or (time == heap.time[low] and key < heap.key[low]):
            break
        heap.time[i], heap.key[i], heap.what[i] = heap.time[low], heap.key[low], heap.what[low]
        i = low
    if size > 0:
        heap.time[i], heap.key[i], heap.what[i] = time, key, what
    return top


_COPY_END, _COPY = 1, 2  # of what happens at one moment: after ends of computations, before beginnings
_STANDS = 1e-9  # a slower computation stands still until a transfer ends
_LATER = 2**40  # more than there are notes


_LEFT, _SINCE, _RATE, _COPYING, _BEGIN, _END = range(6)  # rows of `pace`: seconds, times, fractions
_BEGINS, _ENDS, _COMPUTES = range(3)  # rows of `number`: of the last note of each; 1 while it computes


class _Transfers(NamedTuple):
    """All [places], of transfers and micro-batches."""

    came: Floats  # the first of its two ends
    arrived: Floats
    awaited: NDArray[np.bool_]


class _Happened(NamedTuple):
    """How far a step has come."""

    turns: Packed  # [D] -> places in the lists, a transfer's on both of its devices
    clock: Floats  # [D]
    at: Ints  # [D] the place of each device's next turn
    missing: Ints  # [D] transfers that it waits for
    moves: _Transfers
    ready: Heap  # places of transfers whose ends are both there, by tag
    free: Floats  # [D, D] when each link is
    nics: Floats  # [2, NICs] when each is: out, and in
    copies: Heap  # changes of copying to come
    fractions: Floats  # [copies] of a device's rate
    pace: Floats  # [6, D]
    number: Ints  # [3, D]
    busy: Ints  # [D] devices of each host that compute
    counts: Ints  # [2] notes and copies so far


_NOTES, _COPIES = range(2)


@inner
def seconds_of(lists: Lists, a: Arrays) -> float:
    """When the last device and the last transfer end.

        device p  [ n0 n1 ]        [ n4 ]
                          │send ──────►    the link is one transfer's at a time
        device q               recv[ n2 n3 ]

    1. A device goes on until it computes, or waits for a transfer. 2. A transfer begins when both of its
    devices have come to it and the link is free. 3. Where devices slow one another, by computing on one
    host or by copying, an agenda has what begins and ends.
    """
    slowed = _slowed(a.device)
    return _queued_s(lists, a, slowed) if slowed or a.nics.s_per_byte.size > 0 else _undisturbed_s(lists, a)


@inner
def _undisturbed_s(lists: Lists, a: Arrays) -> float:
    """One pass, in the order of all instructions: phases 1 and 2."""
    source, target, variable = lists.source, lists.target, lists.variable
    kinds, whats, microbatch, home, instruction, message = (
        lists.kind, lists.what, lists.microbatch, lists.home, a.device.instruction, a.device.message,
    )  # fmt: skip
    forward_s, backward_s, adding_s = lists.forward_s, lists.backward_s, lists.adding_s
    reads, gradients, lasting = lists.reads, lists.gradients, lists.lasting
    devices = len(instruction)
    clock, link = np.zeros(devices), np.zeros((devices, devices))
    arrived, last = np.zeros(len(lists.tag)), 0.0
    for i in range(len(kinds)):
        x, others = whats[i], microbatch[i] * len(source)
        if kinds[i] == MESSAGE:
            # 2. link
            p, q = source[x], target[x]
            clock[p] += message[p]
            clock[q] += message[q]
            link[p, q] = max(clock[p], clock[q], link[p, q]) + moving_s(variable[x], p, q, a)
            arrived[others + x] = link[p, q]
            last = max(last, link[p, q])
        elif kinds[i] == STEP:
            # 1. device
            clock[x] += instruction[x]
            clock[x] += lists.step_s[x]
        else:
            d = home[x]
            now = clock[d] + instruction[d]
            if kinds[i] == FORWARD:
                for k in range(reads[x], reads[x + 1]):
                    now = max(now, arrived[reads[k] if lasting[reads[k]] else others + reads[k]])
                clock[d] = now + forward_s[x]
            else:
                for k in range(gradients[x], gradients[x + 1]):
                    now = max(now, arrived[others + gradients[k]])
                clock[d] = now + (backward_s[x] + adding_s[x] if microbatch[i] > 0 else backward_s[x])
    return max(last, clock.max())


@inner
def _queued_s(lists: Lists, a: Arrays, slowed: bool) -> float:
    """Until nothing happens: 1. a device goes on, as long as one can; 2. the transfer that became ready first
    has its link; or 3. what is next on the agenda happens, which is empty where no computation is slowed.
    Both may let a device go on."""
    devices, places = len(lists.step_s), len(lists.tag)
    turns, changes = _by_device(lists, devices), 2 * places if slowed else 0
    run = _Happened(
        turns, np.zeros(devices), turns[:devices].copy(), np.zeros(devices, np.int64),
        _Transfers(np.full(places, -1.0), np.full(places, -1.0), np.zeros(places, np.bool_)), heap_of(places),
        np.zeros((devices, devices)), np.zeros(a.nics.s_per_byte.shape), heap_of(2 * changes),
        np.zeros(changes), np.zeros((6, devices)), np.zeros((3, devices), np.int64),
        np.zeros(devices, np.int64), np.zeros(2, np.int64),
    )  # fmt: skip
    run.pace[_BEGIN:] = np.inf
    # taken out of their tuples once: each time would count references
    device, waiting, since = a.device, run.ready.size, run.ready.time
    goes, starting = 0, True  # the device that may go on; at first one after another
    while True:
        # 1. device
        if goes >= 0:
            _advance(goes, lists, run, device, slowed)
            starting = starting and goes + 1 < devices
            goes = goes + 1 if starting else -1
            continue
        happens, first = _next(run) if slowed else (np.inf, -1)
        if waiting[0] > 0 and since[0] < happens:
            # 2. link
            goes = _carry(lists, run, a)
        elif first == -1:
            break
        else:
            # 3. agenda
            goes = _happen(first, happens, run, device)
    for place in range(places):
        p = lists.source[place % len(lists.source)]
        run.clock[p] = max(run.clock[p], run.moves.arrived[place])
    return run.clock.max()


@inlined
def _carry(lists: Lists, run: _Happened, a: Arrays) -> int:
    """2. The first transfer that is ready has its link, and both devices copy meanwhile; the device that
    waited for it alone, or -1. Between hosts it has the NICs too, or is ready again when all are free.
    """
    when = run.ready.time[0]
    place = pop(run.ready)
    x = place % len(lists.source)
    p, q, u = lists.source[x], lists.target[x], lists.variable[x]
    start = max(when, run.free[p, q])
    leaves, enters = a.nics.of[p], a.nics.of[q]
    if leaves != enters:
        if leaves >= 0:
            start = max(start, run.nics[0, leaves])
        if enters >= 0:
            start = max(start, run.nics[1, enters])
        if start > when:
            push(run.ready, start, lists.tag[place], place)
            return -1
        if leaves >= 0:
            run.nics[0, leaves] = start + a.nbytes[u] * a.nics.s_per_byte[0, leaves]
        if enters >= 0:
            run.nics[1, enters] = start + a.nbytes[u] * a.nics.s_per_byte[1, enters]
    end = start + moving_s(u, p, q, a)
    run.free[p, q] = end
    run.moves.arrived[place] = end
    if end > start:
        for d in (p, q):
            copying_s = a.device.copy_per_byte[d] * a.nbytes[u]
            if copying_s > 0:
                noted, key = run.counts[_COPIES], run.counts[_NOTES]
                run.fractions[noted] = min(copying_s / (end - start), 1.0)
                push(run.copies, start, _COPY * _LATER + key + 1, noted * len(run.clock) + d)
                push(run.copies, end, _COPY_END * _LATER + key + 2, noted * len(run.clock) + d)
                run.counts[_NOTES] = key + 2
                run.counts[_COPIES] = noted + 1
    if run.moves.awaited[place]:
        run.missing[q] -= 1
        if run.missing[q] == 0:
            return q
    return -1


@inlined
def _happen(first: int, now: float, run: _Happened, device: DeviceSeconds) -> int:
    """3. A computation ends or begins, or copying changes (see `_next`); the device that goes on, or -1."""
    devices, pace, number = len(run.clock), run.pace, run.number
    if first < devices:
        pace[_END, first], number[_COMPUTES, first] = np.inf, 0
        run.clock[first] = now
        _company(first, -1, now, run, device)
        return first
    if first < 2 * devices:
        d = first - devices
        pace[_BEGIN, d], number[_COMPUTES, d], pace[_SINCE, d] = np.inf, 1, now
        pace[_RATE, d] = 0.0  # whatever it was, it is another now
        _company(d, 1, now, run, device)
        return -1
    stops = run.copies.key[0] < _COPY * _LATER
    noting = pop(run.copies)
    d, fraction = noting % devices, run.fractions[noting // devices]
    pace[_COPYING, d] += -fraction if stops else fraction
    _change(d, now, run, device)
    return -1


@inner
def _by_device(lists: Lists, devices: int) -> Packed:
    """`_Happened.turns`."""
    turns = np.zeros(devices + 1 + len(lists.kind) + len(lists.tag), np.int64)
    turns[0] = devices + 1
    for i in range(len(lists.kind)):
        p, q = _ends(i, lists)
        turns[p + 1] += 1
        turns[q + 1] += p != q
    for d in range(devices):
        turns[d + 1] += turns[d]
    place = turns[:devices].copy()
    for i in range(len(lists.kind)):
        p, q = _ends(i, lists)
        turns[place[p]] = i
        place[p] += 1
        if p != q:
            turns[place[q]] = i
            place[q] += 1
    return turns


@inlined
def _ends(i: int, lists: Lists) -> tuple[int, int]:
    """The devices of what stands at this place."""
    x = lists.what[i]
    if lists.kind[i] == MESSAGE:
        return lists.source[x], lists.target[x]
    d = x if lists.kind[i] == STEP else lists.home[x]
    return d, d


@inner
def _slowed(device: DeviceSeconds) -> bool:
    """As `simulate.contention.contends`."""
    last = device.slowdown.shape[1] - 1
    for d in range(len(device.host)):
        if device.copy_per_byte[d] > 0 or device.slowdown[d, last] != 1.0:
            return True
    return False


@inlined
def _advance(d: int, lists: Lists, run: _Happened, device: DeviceSeconds, slowed: bool) -> None:
    """1. A device a. meets the other end of its transfers, b. waits for those that are not there, or
    c. begins to compute: where nothing is slowed, its end is known at once.
    """
    kinds, whats, came, arrived = lists.kind, lists.what, run.moves.came, run.moves.arrived
    turns, pace, number, counts = run.turns, run.pace, run.number, run.counts
    clock, instruction_s, message_s = run.clock[d], device.instruction[d], device.message[d]
    microbatch, width = lists.microbatch, len(lists.source)
    i, stop = run.at[d], turns[d + 1]
    while i < stop:
        kind, x, others = kinds[turns[i]], whats[turns[i]], microbatch[turns[i]] * width
        if kind == MESSAGE:
            # a. meet
            clock += message_s
            i += 1
            place = others + x
            if came[place] < 0:
                came[place] = clock
            else:
                push(run.ready, max(clock, came[place]), lists.tag[place], place)
            continue
        # b. wait
        if kind == STEP:
            clock += instruction_s
            seconds = lists.step_s[x]
        else:
            waits = lists.reads if kind == FORWARD else lists.gradients
            first, last = waits[x], waits[x + 1]
            absent = 0
            for k in range(first, last):
                place = _awaited(kind, waits[k], others, lists)
                if place >= 0 and arrived[place] < 0:
                    run.moves.awaited[place] = True
                    absent += 1
            if absent > 0:
                run.missing[d] = absent
                break
            clock += instruction_s
            for k in range(first, last):
                place = _awaited(kind, waits[k], others, lists)
                if place >= 0:
                    clock = max(clock, arrived[place])
            seconds = lists.backward_s[x] if kind == BACKWARD else lists.forward_s[x]
            if kind == BACKWARD and microbatch[turns[i]] > 0:
                seconds += lists.adding_s[x]
        i += 1
        # c. compute
        if not slowed:
            clock += seconds
            continue
        counts[_NOTES] += 1
        pace[_LEFT, d], pace[_BEGIN, d], number[_BEGINS, d] = seconds, clock, counts[_NOTES]
        break
    run.clock[d], run.at[d] = clock, i


@inlined
def _awaited(kind: int, x: int, others: int, lists: Lists) -> int:
    """The place of a transfer that a computation waits for; -1: it comes with a later micro-batch."""
    if not lists.lasting[x]:
        return others + x
    if kind == FORWARD:
        return x
    return others + x if others + len(lists.source) == len(lists.tag) else -1


@inlined
def _next(run: _Happened) -> tuple[float, int]:
    """When what happens next: d an end, D + d a beginning, 2 D a change of copying; -1 nothing."""
    pace, number, copies = run.pace, run.number, run.copies
    devices = pace.shape[1]
    time, first, key = np.inf, -1, 0
    if copies.size[0] > 0:
        time, first, key = copies.time[0], 2 * devices, copies.key[0]
    for d in range(devices):
        end, begin = pace[_END, d], pace[_BEGIN, d]
        if end < time or (end == time and end < np.inf and number[_ENDS, d] < key):
            time, first, key = end, d, number[_ENDS, d]
        if begin < time or (
            begin == time and begin < np.inf and number[_BEGINS, d] + (_COPY + 1) * _LATER < key
        ):
            time, first, key = begin, devices + d, number[_BEGINS, d] + (_COPY + 1) * _LATER
    return time, first


@inlined
def _company(d: int, change: int, t: float, run: _Happened, device: DeviceSeconds) -> None:
    """A device of a host begins or ends to compute, which may change the pace of others there."""
    host = device.host
    if host[d] >= 0:
        run.busy[host[d]] += change
    if change > 0:
        _change(d, t, run, device)
    if host[d] >= 0:
        for other in range(len(host)):
            if other != d and host[other] == host[d]:
                _change(other, t, run, device)


@inlined
def _change(d: int, t: float, run: _Happened, device: DeviceSeconds) -> None:
    """Count what was done at the old rate, and plan the end at the new one."""
    pace, number = run.pace, run.number
    if number[_COMPUTES, d] == 0:
        return
    rate = min(max(1.0 - pace[_COPYING, d], 0.0), 1.0)
    host = device.host[d]
    if host >= 0:
        rate = rate / device.slowdown[d, run.busy[host]]
    if rate != pace[_RATE, d]:
        left = max(pace[_LEFT, d] - pace[_RATE, d] * (t - pace[_SINCE, d]), 0.0)
        pace[_LEFT, d], pace[_SINCE, d], pace[_RATE, d] = left, t, rate
        run.counts[_NOTES] += 1
        number[_ENDS, d] = run.counts[_NOTES]
        pace[_END, d] = np.inf if rate < _STANDS else t + (left if rate == 1.0 else left / rate)
