"""The seconds of a step's lists: what `simulate` says of them, without names and events.

Where no device slows another and none shares a NIC, one pass is enough: every link has its transfers in the
order in which both of its devices come to them, which is the one order of all. The result is the same to the
last bit.
"""

from __future__ import annotations

import numpy as np

from netsplit.compiled import inlined, inner
from netsplit.partition.engines.step.arrays import Arrays, moving_s
from netsplit.partition.engines.step.lists import BACKWARD, FORWARD, MESSAGE, STEP, Lists
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
    if not a.device.slowed and a.nics.s_per_byte.size == 0:
        return _one_pass_s(lists, a)
    none, never = np.zeros(0, np.int64), np.zeros(0)
    run = carry_out(_work(lists, a), a.device, a.nics, Notes(none, none, none, never, never))
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
def _work(lists: Lists, a: Arrays) -> ProgramArrays:
    """The lists for each device by itself."""
    devices, messages, rows = len(lists.step_s), len(lists.tag), len(lists.source)
    first = np.zeros(devices + 1, np.int64)
    for i in range(len(lists.kind)):
        p, q = _ends(i, lists)
        first[p + 1] += 1
        first[q + 1] += p != q
    for d in range(devices):
        first[d + 1] += first[d]
    tasks, next_of = first[devices], first[:devices].copy()
    compute_s, overhead_s, meets = np.zeros(tasks), np.zeros(tasks), np.full(tasks, -1)
    wait_from, wait_to = np.zeros(tasks, np.int64), np.zeros(tasks, np.int64)
    waits = np.zeros(a.turns[1] * (len(lists.reads) + len(lists.gradients)), np.int64)
    size = 0
    for i in range(len(lists.kind)):
        kind, x, others = lists.kind[i], lists.what[i], lists.microbatch[i] * rows
        p, q = _ends(i, lists)
        for end in range(2 if kind == MESSAGE else 1):
            d = p if end == 0 else q
            t = next_of[d]
            next_of[d] += 1
            wait_from[t] = wait_to[t] = size
            overhead_s[t] = a.device.message[d] if kind == MESSAGE else a.device.instruction[d]
            if kind == MESSAGE:
                meets[t] = others + x
            elif kind == STEP:
                compute_s[t] = lists.step_s[x]
            else:
                reads = lists.reads if kind == FORWARD else lists.gradients
                for k in range(reads[x], reads[x + 1]):
                    message = _awaited(kind, reads[k], others, lists)
                    if message >= 0:
                        waits[size] = message
                        size += 1
                wait_to[t] = size
                compute_s[t] = lists.backward_s[x] if kind == BACKWARD else lists.forward_s[x]
                if kind == BACKWARD and lists.microbatch[i] > 0:
                    compute_s[t] += lists.adding_s[x]
    moving, nbytes = np.zeros(rows), np.zeros(rows)
    for x in range(rows):
        u = lists.variable[x]
        moving[x], nbytes[x] = moving_s(u, lists.source[x], lists.target[x], a), a.nbytes[u]
    none = np.zeros(0, np.int64)
    return ProgramArrays(
        first, overhead_s, compute_s, meets, waits, wait_from, wait_to, lists.tag, np.full(messages, 2), none,
        lists.source, lists.target, moving, nbytes, none, none,
    )  # fmt: skip


@inlined
def _ends(i: int, lists: Lists) -> tuple[int, int]:
    """The devices of what stands at this place."""
    x = lists.what[i]
    if lists.kind[i] == MESSAGE:
        return lists.source[x], lists.target[x]
    d = x if lists.kind[i] == STEP else lists.home[x]
    return d, d


@inlined
def _awaited(kind: int, x: int, others: int, lists: Lists) -> int:
    """The place of a transfer that a computation waits for; -1: it comes with a later micro-batch."""
    if not lists.lasting[x]:
        return others + x
    if kind == FORWARD:
        return x
    return others + x if others + len(lists.source) == len(lists.tag) else -1
