"""The seconds of a step's lists: what `simulate` says of them, without names and events.

Where no device slows another and none shares a NIC, one pass is enough: every link has its transfers in the
order in which both of its devices come to them, which is the one order of all. The result is the same to the
last bit.
"""

from __future__ import annotations

import numpy as np

from netsplit.compiled import Ints, inlined, inner
from netsplit.partition.engines.step.arrays import Arrays, moving_s
from netsplit.partition.engines.step.lists import FORWARD, MESSAGE, STEP, Lists
from netsplit.simulate.engine.arrays import Notes, ProgramArrays
from netsplit.simulate.engine.carry_out import carry_out

__all__ = ["seconds_of"]


@inner
def seconds_of(lists: Lists, a: Arrays) -> float:
    """When the last device and the last transfer end.

    device p  [ n0 n1 ]        [ n4 ]
                      │send ──────►    the link is one transfer's at a time
    device q               recv[ n2 n3 ]
    """
    if not a.device.slowed and a.device.nic_per_byte.size == 0:
        return _one_pass_s(lists, a)
    none, never = np.zeros(0, np.int64), np.zeros(0)
    run = carry_out(_arrays(lists, a), a.device, Notes(none, none, none, never, never))
    last = run.arrived.max() if len(run.arrived) > 0 else 0.0
    return max(last, run.clock.max())


@inner
def _one_pass_s(lists: Lists, a: Arrays) -> float:
    """Every instruction in the one order of all: 1. a device computes, or 2. a link is a transfer's."""
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
def _arrays(lists: Lists, a: Arrays) -> ProgramArrays:
    """The lists for each device by itself."""
    devices, messages, rows = len(lists.step_s), len(lists.tag), len(lists.source)
    none = np.zeros(0, np.int64)
    first = np.zeros(devices + 1, np.int64)
    _count_tasks(lists, first)
    tasks, waits = first[devices], a.turns[1] * (len(lists.reads) + len(lists.gradients))
    seconds, ints, moving = np.empty((2, tasks)), np.empty((3, tasks), np.int64), np.empty((2, rows))
    arrays = ProgramArrays(
        first, seconds[0], seconds[1], ints[0], np.empty(waits, np.int64), ints[1], ints[2], lists.tag,
        np.full(messages, 2), none, lists.source, lists.target, moving[0], moving[1], none, none,
    )  # fmt: skip
    _fill(arrays, first[:devices].copy(), lists, a)
    return arrays


@inlined
def _count_tasks(lists: Lists, first: Ints) -> None:
    for i in range(len(lists.kind)):
        p, q = _ends(i, lists)
        first[p + 1] += 1
        first[q + 1] += p != q
    for d in range(len(first) - 1):
        first[d + 1] += first[d]


@inlined
def _fill(arrays: ProgramArrays, place: Ints, lists: Lists, a: Arrays) -> None:
    """Of each device the `place` of its next task."""
    size, rows = 0, len(lists.source)
    for i in range(len(lists.kind)):
        kind, x, others = lists.kind[i], lists.what[i], lists.microbatch[i] * rows
        p, q = _ends(i, lists)
        t = place[p]
        place[p] += 1
        arrays.wait_from[t] = size
        if kind == MESSAGE:
            arrays.overhead_s[t], arrays.meets[t], arrays.wait_to[t] = a.device.message[p], others + x, size
            t = place[q]
            place[q] += 1
            arrays.overhead_s[t], arrays.meets[t] = a.device.message[q], others + x
            arrays.wait_from[t], arrays.wait_to[t] = size, size
            continue
        arrays.overhead_s[t], arrays.meets[t] = a.device.instruction[p], -1
        if kind == STEP:
            arrays.compute_s[t] = lists.step_s[x]
        elif kind == FORWARD:
            arrays.compute_s[t] = lists.forward_s[x]
            for k in range(lists.reads[x], lists.reads[x + 1]):
                message = lists.reads[k]
                arrays.waits[size] = message if lists.lasting[message] else others + message
                size += 1
        else:
            arrays.compute_s[t] = lists.backward_s[x]
            if lists.microbatch[i] > 0:
                arrays.compute_s[t] += lists.adding_s[x]
            last = others + rows == len(lists.tag)  # with whose gradients those of what lasts come
            for k in range(lists.gradients[x], lists.gradients[x + 1]):
                message = lists.gradients[k]
                if last or not lists.lasting[message]:
                    arrays.waits[size] = others + message
                    size += 1
        arrays.wait_to[t] = size
    for x in range(rows):
        u = lists.variable[x]
        arrays.moving_s[x] = moving_s(u, lists.source[x], lists.target[x], a)
        arrays.nbytes[x] = a.nbytes[u]


@inlined
def _ends(i: int, lists: Lists) -> tuple[int, int]:
    """The devices of what stands at this place."""
    x = lists.what[i]
    if lists.kind[i] == MESSAGE:
        return lists.source[x], lists.target[x]
    d = x if lists.kind[i] == STEP else lists.home[x]
    return d, d
