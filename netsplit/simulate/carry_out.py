"""A program in time instead of tensors.

    device p   ──Send──► ┐                      ┌─► arrived ──► the computation that waits, on q
                         ├─► ready ──► link p→q ┤
    device q   ──Recv──► ┘   (a heap, by time)  └─► free for the next

A device does one computation at a time; sending and receiving do not occupy it. A transfer occupies its
directed link, and between hosts their NICs, one transfer at a time, for its bytes but not for the link's
latency. It is ready when both ends have reached it (rendezvous, as in gloo and NCCL) and its sender has what
it hands on. A link takes transfers in the order in which they become
ready, ties by tag. A transfer that waits for a NIC does not block others. A sum is ready when all its devices
have reached it, and occupies the links of its ring.

If computations are not slowed by one another or by transfers, a start determines its end, and every device
runs ahead until it waits. Otherwise every computation has a rate, which changes as
others begin and end (`Paces`):

    cpu:0   ──────────forward──────────            rate 1        alone on its host
    cpu:1            ──────backward─────────       rate 1/c      another device of the host computes too
    cpu:2               ──forward──                rate 2/3c     three compute, and there are two processors
    cpu:0→1             ▒▒▒send▒▒▒                 rate less s   copying takes the part s of both ends' time

An agenda has when computations begin and end and when copying changes; an end moves when the rate changes.
CPU devices of one host share its memory and processors (`DeviceCosts.slowdown`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from netsplit.compiled import Floats, Ints, compiled, inlined, inner
from netsplit.simulate.tasks import (
    COMPUTES,
    MOVES,
    WAITS,
    DeviceSeconds,
    Heap,
    Notes,
    ProgramArrays,
    heap_of,
    pop,
    push,
)

__all__ = ["CarriedOut", "carry_out", "carry_out_noted"]


_COPY_END, _COPY, _BEGIN = 1, 2, 3  # at one moment, after the ends of computations
_STANDS = 1e-9  # a slower computation stands still until a transfer ends
_LATER = 2**40  # more than any entry
_ENTRIES, _COPIES = range(2)


class CarriedOut(NamedTuple):
    """How far it has come."""

    clock: Floats  # [D]
    at: Ints  # [D] each device's next task
    stands: Ints  # [D] the message that it waits for; -1: none
    go: Ints  # [D] devices that may go on
    since: Floats  # [messages] the last of what each was missing
    missing: Ints  # [messages] as `ProgramArrays.missing`, counted down in place
    arrived: Floats  # [messages]; -1: not yet
    ready: Heap  # of messages, by tag
    free: Floats  # [D, D] when each link is
    nics: Floats  # [2, NICs] when each is: out, and in
    counts: Ints  # [2] of `go`, of notes


_GO, _NOTED = range(2)


@compiled
def carry_out_noted(
    work: ProgramArrays, device: DeviceSeconds, notes: Notes
) -> tuple[Floats, Ints, Floats, int]:
    """`CarriedOut.clock`, `at` and `arrived`, and the number of notes."""
    run = carry_out(work, device, notes)
    return run.clock, run.at, run.arrived, run.counts[_NOTED]


@inner
def carry_out(work: ProgramArrays, device: DeviceSeconds, notes: Notes) -> CarriedOut:
    """Until nothing happens: 1. a device goes on, as long as one can; 2. the message that became ready first
    has its links; or 3. what is next on the agenda happens, which is empty where no computation is slowed.
    Whatever becomes ready later does so through a message that ended later: none is overtaken."""
    devices, messages, slowed = len(work.first) - 1, len(work.tag), device.slowed
    run = CarriedOut(
        np.zeros(devices), work.first[:devices].copy(), np.full(devices, -1), np.arange(devices),
        np.zeros(messages), work.missing, np.full(messages, -1.0), heap_of(messages),
        np.zeros((devices, devices)), np.zeros(device.nic_per_byte.shape), np.zeros(2, np.int64),
    )  # fmt: skip
    pace = pace_of(devices, 2 * messages + len(work.groups) if slowed else 0)
    # unpacked once: each access would count references
    waiting, since, counts = run.ready.size, run.ready.time, run.counts
    counts[_GO], gone = devices, 0
    while True:
        # 1. device
        if gone < counts[_GO]:
            _advance(run.go[gone], work, run, pace, slowed, notes)
            gone += 1
            continue
        counts[_GO] = gone = 0
        happens, first = next_of(pace) if slowed else (np.inf, -1)
        if waiting[0] > 0 and since[0] < happens:
            # 2. links
            _carry(work, run, pace, device, notes)
        elif first == -1:
            return run
        elif happen(first, happens, pace, device):
            # 3. agenda
            d = first
            _note(COMPUTES, d, run.at[d] - 1, pace.started[d], happens, run, notes)
            run.clock[d] = happens
            _let_go(d, run)


@inlined
def _advance(d: int, work: ProgramArrays, run: CarriedOut, pace: Paces, slowed: bool, notes: Notes) -> None:
    """1. A device a. waits for what is not there, b. comes to its messages, or c. computes."""
    waits, arrived = work.waits, run.arrived
    clock, i, stop = run.clock[d], run.at[d], work.first[d + 1]
    stands = -1
    while i < stop:
        first, last, arrived_s = work.wait_from[i], work.wait_to[i], 0.0
        # a. wait
        for k in range(first, last):
            if arrived[waits[k]] < 0:
                stands = waits[k]
                break
            arrived_s = max(arrived_s, arrived[waits[k]])
        if stands >= 0:
            break
        clock += work.overhead_s[i]
        if arrived_s > clock:
            if len(notes.kind) > 0:
                _note_waits(d, clock, first, last, work, run, notes)
            clock = arrived_s
        message, seconds = work.meets[i], work.compute_s[i]
        i += 1
        if message >= 0:
            # b. come
            _less_missing(message, clock, work, run)
            continue
        # c. compute
        if slowed:
            begin_at(d, clock, seconds, pace)
            break
        _note(COMPUTES, d, i - 1, clock, clock + seconds, run, notes)
        clock += seconds
    run.clock[d], run.at[d], run.stands[d] = clock, i, stands


@inlined
def _note_waits(
    d: int, clock: float, first: int, last: int, work: ProgramArrays, run: CarriedOut, notes: Notes
) -> None:
    for k in range(first, last):
        end = run.arrived[work.waits[k]]
        if end > clock:
            _note(WAITS, d, work.waits[k], clock, end, run, notes)
            clock = end


@inlined
def _less_missing(message: int, time: float, work: ProgramArrays, run: CarriedOut) -> None:
    """Count a device that has reached the message, or a source that has arrived."""
    run.since[message] = max(run.since[message], time)
    run.missing[message] -= 1
    if run.missing[message] == 0:
        push(run.ready, run.since[message], work.tag[message], message)


@inlined
def _carry(work: ProgramArrays, run: CarriedOut, pace: Paces, device: DeviceSeconds, notes: Notes) -> None:
    """2. The first ready message takes its links and NICs, or waits until all are free."""
    when = run.ready.time[0]
    message = pop(run.ready)
    x = message % len(work.source)
    p, q, nbytes = work.source[x], work.target[x], work.nbytes[x]
    if p < 0:
        _carry_round(-1 - p, message, when, work, run, pace, device, notes)
        return
    start = max(when, run.free[p, q])
    if device.nic[p] != device.nic[q]:
        start = max(start, _nics_free_s(p, q, run, device))
        if start > when:
            push(run.ready, start, work.tag[message], message)
            return
        _hold_nics(p, q, start, nbytes, run, device)
    end = run.free[p, q] = start + work.moving_s[x]
    _note(MOVES, p, message, start, end, run, notes)
    copy(p, start, end, nbytes, pace, device)
    copy(q, start, end, nbytes, pace, device)
    _arrive(message, end, work, run)
    if run.stands[q] == message:
        _let_go(q, run)


@inlined
def _carry_round(
    g: int,
    message: int,
    when: float,
    work: ProgramArrays,
    run: CarriedOut,
    pace: Paces,
    device: DeviceSeconds,
    notes: Notes,
) -> None:
    """2. As `_carry`, for a sum: all links of a ring at once."""
    devices, rings, groups = len(run.clock), work.rings, work.groups
    x = message % len(work.source)
    start, outside = when, False
    for k in range(rings[g], rings[g + 1]):
        p, q = rings[k] // devices, rings[k] % devices
        start = max(start, run.free[p, q])
        if device.nic[p] != device.nic[q]:
            outside = True
            start = max(start, _nics_free_s(p, q, run, device))
    if outside and start > when:
        push(run.ready, start, work.tag[message], message)
        return
    end = start + work.moving_s[x]
    for k in range(rings[g], rings[g + 1]):
        p, q = rings[k] // devices, rings[k] % devices
        run.free[p, q] = end
        if device.nic[p] != device.nic[q]:
            _hold_nics(p, q, start, work.nbytes[x], run, device)
    _note(MOVES, groups[groups[g]], message, start, end, run, notes)
    for k in range(groups[g], groups[g + 1]):
        copy(groups[k], start, end, 2 * work.nbytes[x], pace, device)
    _arrive(message, end, work, run)
    for k in range(groups[g], groups[g + 1]):
        if run.stands[groups[k]] == message:
            _let_go(groups[k], run)


@inlined
def _nics_free_s(p: int, q: int, run: CarriedOut, device: DeviceSeconds) -> float:
    """When both NICs of the link are free."""
    leaves, enters = device.nic[p], device.nic[q]
    out_s = run.nics[0, leaves] if leaves >= 0 else 0.0
    return max(out_s, run.nics[1, enters]) if enters >= 0 else out_s


@inlined
def _hold_nics(p: int, q: int, start: float, nbytes: float, run: CarriedOut, device: DeviceSeconds) -> None:
    leaves, enters = device.nic[p], device.nic[q]
    if leaves >= 0:
        run.nics[0, leaves] = start + nbytes * device.nic_per_byte[0, leaves]
    if enters >= 0:
        run.nics[1, enters] = start + nbytes * device.nic_per_byte[1, enters]


@inlined
def _arrive(message: int, end: float, work: ProgramArrays, run: CarriedOut) -> None:
    run.arrived[message] = end
    handed = work.handed
    if len(handed) > 0:
        for k in range(handed[message], handed[message + 1]):
            _less_missing(handed[k], end, work, run)


@inlined
def _let_go(d: int, run: CarriedOut) -> None:
    run.go[run.counts[_GO]] = d
    run.counts[_GO] += 1


@inlined
def _note(kind: int, d: int, what: int, start: float, end: float, run: CarriedOut, notes: Notes) -> None:
    at = run.counts[_NOTED]
    if at < len(notes.kind):
        notes.kind[at], notes.device[at], notes.what[at] = kind, d, what
        notes.start_s[at], notes.end_s[at] = start, end
        run.counts[_NOTED] = at + 1


class Paces(NamedTuple):
    """The pace of each device's computation; [D] unless noted."""

    left: Floats  # seconds that it would take undisturbed
    since: Floats  # when that was noted
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
    copying_s = device.copy_per_byte[d] * nbytes
    if copying_s > 0 and end > start:
        what = pace.counts[_COPIES]
        pace.fractions[what] = min(copying_s / (end - start), 1.0)
        push(pace.copies, start, _COPY * _LATER + _number(pace), what * len(pace.end) + d)
        push(pace.copies, end, _COPY_END * _LATER + _number(pace), what * len(pace.end) + d)
        pace.counts[_COPIES] += 1


@inlined
def next_of(pace: Paces) -> tuple[float, int]:
    """The next event: d an end, D + d a start, 2 D a change of copying; -1 none."""
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
    """A computation ends or starts, or copying changes (see `next_of`); whether it was an end."""
    devices = len(pace.end)
    if first < devices:
        pace.end[first], pace.computes[first] = np.inf, 0
        _company(first, -1, now, pace, device)
        return True
    if first < 2 * devices:
        d = first - devices
        pace.begin[d], pace.computes[d], pace.since[d], pace.started[d] = np.inf, 1, now, now
        pace.rate[d] = 0.0  # the entry is outdated
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
    """Adjust the pace of a host's devices after one starts or ends computing."""
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
    """Count work done at the old rate, and reschedule the end at the new one."""
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
