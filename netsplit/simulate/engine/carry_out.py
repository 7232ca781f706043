"""A program in time instead of tensors.

    device p   ──Send──► ┐                      ┌─► arrived ──► the computation that waits, on q
                         ├─► ready ──► link p→q ┤
    device q   ──Recv──► ┘   (a heap, by time)  └─► free for the next

A device does one computation at a time; sending and receiving do not occupy it. A transfer occupies its
directed link, and between hosts their NICs, one transfer at a time: for its bytes, not for the link's
latency. It is ready when both ends have come to it (rendezvous, as gloo and NCCL have it), and what it hands
on has come to its sender; where it goes in chunks, each is a transfer of its own. A link takes transfers in
the order in which they become ready, ties by tag. One that waits for a NIC keeps no other from those that are
free. A sum over devices is ready when all of them have come to it, and occupies the links of its ring.

Where computations neither slow one another nor are slowed by transfers, an end is known as soon as its
beginning is, and every device runs ahead until it waits. Otherwise see `pace`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from netsplit.compiled import Floats, Ints, compiled, inlined, inner
from netsplit.simulate.engine.arrays import (
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
from netsplit.simulate.engine.pace import Paces, begin_at, copy, happen, next_of, pace_of

__all__ = ["CarriedOut", "carry_out", "carry_out_noted"]


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
    """`CarriedOut.clock`, `at` and `arrived`, and how many notes were taken."""
    run = carry_out(work, device, notes)
    return run.clock, run.at, run.arrived, run.counts[_NOTED]


@inner
def carry_out(work: ProgramArrays, device: DeviceSeconds, notes: Notes) -> CarriedOut:
    """Until nothing happens: 1. a device goes on, as long as one can; 2. the message that became ready first
    has its links; or 3. what is next on the agenda happens, which is empty where no computation is slowed.
    Both may let devices go on.

    Whatever becomes ready later does so through a message that ended later: none is overtaken by one that
    the heap does not know yet.
    """
    devices, messages, slowed = len(work.first) - 1, len(work.tag), device.slowed
    run = CarriedOut(
        np.zeros(devices), work.first[:devices].copy(), np.full(devices, -1), np.arange(devices),
        np.zeros(messages), work.missing, np.full(messages, -1.0), heap_of(messages),
        np.zeros((devices, devices)), np.zeros(device.nic_per_byte.shape), np.zeros(2, np.int64),
    )  # fmt: skip
    pace = pace_of(devices, 2 * messages + len(work.groups) if slowed else 0)
    # taken out of their tuples once: each time would count references
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
    """1. A device a. waits for what is not there, b. comes to its messages, or c. computes: where nothing is
    slowed, the end is known at once.
    """
    waits, arrived = work.waits, run.arrived
    clock, i, stop = run.clock[d], run.at[d], work.first[d + 1]
    stands = -1
    while i < stop:
        first, last, there = work.wait_from[i], work.wait_to[i], 0.0
        # a. wait
        for k in range(first, last):
            if arrived[waits[k]] < 0:
                stands = waits[k]
                break
            there = max(there, arrived[waits[k]])
        if stands >= 0:
            break
        clock += work.overhead_s[i]
        if there > clock:
            if len(notes.kind) > 0:
                _note_waits(d, clock, first, last, work, run, notes)
            clock = there
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
    """One of its devices has come to it, or something that it hands on has arrived."""
    run.since[message] = max(run.since[message], time)
    run.missing[message] -= 1
    if run.missing[message] == 0:
        push(run.ready, run.since[message], work.tag[message], message)


@inlined
def _carry(work: ProgramArrays, run: CarriedOut, pace: Paces, device: DeviceSeconds, notes: Notes) -> None:
    """2. The first message that is ready has its links, and its devices copy meanwhile. Between hosts it has
    the NICs too, or is ready again when all are free.
    """
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
    """2. As `_carry`, of a sum: the links of a ring, all at once."""
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
    """When both NICs are free that the link goes through, or the one."""
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
