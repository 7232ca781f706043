"""Compiled inner loops: the training step of a placement, and the list schedule that orders it.

The step is the one that the simulator has for a program under the schedule, with all that costs say of
devices, so that a search may try thousands of placements a second on what it will be measured by.
"""

from __future__ import annotations

import numpy as np

from netsplit.compiled import compiled, inlined, inner
from netsplit.partition.common.instance import Csr, Floats, Instance, Ints
from netsplit.partition.engines.step.arrays import KINDS, SINGLE_BATCH, Arrays, moving_s
from netsplit.partition.engines.step.lists import FORWARD, MESSAGE, STEP, Lists, lay_out
from netsplit.simulate.carry_out import carry_out
from netsplit.simulate.simulator import ONE_BATCH, Turns
from netsplit.simulate.tasks import Notes, ProgramArrays

__all__ = ["Arrays", "CompiledStep", "evaluate", "list_schedule", "makespan", "seconds_of", "upward_rank"]


class CompiledStep:
    """The training step of an instance under a schedule, for many placements and orders.

    Without `turns` it is a step of a single batch.
    """

    def __init__(self, instance: Instance, turns: Turns = ONE_BATCH) -> None:
        self.instance = instance
        i, same = instance, instance.unchanging
        self.arrays = Arrays(
            i.forward_s, i.backward_s, i.trained, i.final, i.producer, i.requires_backward,
            i.consumers.packed, i.reads.packed, i.gives, i.makes.packed, i.nbytes, i.latency_s,
            i.seconds_per_byte, i.trainable_bytes, i.device, i.unit_of, Csr.members(i.unit_of).packed,
            i.weights.packed, i.weight_bytes, np.array([k in same for k in i.variables], bool),
            np.array([KINDS[turns.schedule], turns.microbatches]),
        )  # fmt: skip

    def makespan_s(self, where: Ints, order: Ints) -> float:
        """Seconds of the step: [n] device of each node, [n] nodes in the order they are taken."""
        return float(makespan(where, order, self.arrays))

    def evaluate(self, where: Ints) -> tuple[float, Ints]:
        """Seconds of the step in the order of its list schedule, and that order [n]."""
        order = np.zeros(self.instance.n, np.int64)
        return float(evaluate(where, order, self.arrays)), order


@compiled
def makespan(where: Ints, order: Ints, a: Arrays) -> float:
    """Seconds of the step: [n] device of each node, [n] nodes in the order they are taken.

        device p  [ n0 n1 ]send [ n4 ]                     [ n4 ] recv[ n1 n0 ] step
                            └──►                                     ▲
        device q           recv[ n2 n3 ]            [ n3 n2 ]send────┘          step

    1. The instructions of every device. 2. When the last of them ends.
    """
    lists = lay_out(where, order, a)
    return seconds_of(lists, a)


@compiled
def upward_rank(where: Ints, a: Arrays) -> Floats:
    """[n] seconds from each node's start to the end of the forward pass and the way back to it.

    HEFT's upward rank (Topcuoglu et al. 2002, equation (8)) for a given placement, backward seconds and the
    gradient's way back included, from the last node to the first.

        v [ forward ]──way──►[ w ─ ─ ─ rank ─ ─ ─ ]──way──►[ backward ] v

    1. Behind a node lies the reader with the longest way there, rank and way back. 2. With the node's own
    seconds that is its rank.
    """
    makes, consumers, requires_backward = a.makes, a.consumers, a.requires_backward
    n = len(a.forward_s)
    rank = np.zeros(n)
    for v in range(n - 1, -1, -1):
        p = where[v]
        # 1. behind
        tail = 0.0
        for k in range(makes[v], makes[v + 1]):
            u = makes[k]
            for c in range(consumers[u], consumers[u + 1]):
                w = consumers[c]
                q = where[w]
                way = moving_s(u, p, q, a)
                if requires_backward[u]:
                    way += moving_s(u, q, p, a)
                tail = max(tail, rank[w] + way)
        # 2. rank
        rank[v] = tail + a.forward_s[v, p] + a.backward_s[v, p]
    return rank


@compiled
def list_schedule(where: Ints, rank: Floats, a: Arrays, order: Ints) -> Floats:
    """Ends of the nodes' forwards when every device takes, of what could start first, the highest rank.

    `order` is filled with the nodes as they were taken.

    1. Units that wait for no other are ready. Then, until none is: 2. one is taken; 3. its nodes run;
    4. what they make is sent, and units that waited for it alone are ready.
    """
    makes, consumers, units, unit_of = a.makes, a.consumers, a.units, a.unit_of
    forward_s = a.forward_s
    n, devices = forward_s.shape
    # 1. ready
    missing = _missing(a)
    ready_at, ready, count = np.zeros(len(missing)), np.zeros(len(missing), np.int64), 0
    for unit in range(len(missing)):
        if missing[unit] == 0:
            ready[count] = unit
            count += 1
    clock, link = np.zeros(devices), np.zeros((devices, devices))
    arrive = np.zeros(devices)  # of the variable that is sent
    ends = np.zeros(n)
    sent = np.full(devices, -1)  # the last variable that was
    taken = 0
    while count > 0:
        # 2. take
        best, now, best_rank = -1, np.inf, -1.0
        for k in range(count):
            v = units[units[ready[k]]]
            start = max(clock[where[v]], ready_at[ready[k]])
            if start < now or (start == now and rank[v] > best_rank):
                best, now, best_rank = k, start, rank[v]
        unit = ready[best]
        count -= 1
        ready[best] = ready[count]
        for j in range(units[unit], units[unit + 1]):
            # 3. run
            v = units[j]
            d = where[v]
            now += forward_s[v, d]
            ends[v] = now
            order[taken] = v
            taken += 1
            # 4. send
            for k in range(makes[v], makes[v + 1]):
                u = makes[k]
                for c in range(consumers[u], consumers[u + 1]):
                    w = consumers[c]
                    q = where[w]
                    if q != d and sent[q] != u:
                        link[d, q] = max(link[d, q], now) + moving_s(u, d, q, a)
                        arrive[q] = link[d, q]
                        sent[q] = u
                    elif q == d:
                        arrive[q] = now
                    other = unit_of[w]
                    if other != unit:
                        ready_at[other] = max(ready_at[other], arrive[q])
                        missing[other] -= 1
                        if missing[other] == 0:
                            ready[count] = other
                            count += 1
        clock[where[units[units[unit]]]] = now
    return ends


@inner
def _missing(a: Arrays) -> Ints:
    """[units] how many reads of each unit's nodes are of variables that other units make."""
    missing = np.zeros(a.units[0] - 1, np.int64)
    for v in range(len(a.unit_of)):
        for k in range(a.reads[v], a.reads[v + 1]):
            if a.unit_of[a.producer[a.reads[k]]] != a.unit_of[v]:
                missing[a.unit_of[v]] += 1
    return missing


@compiled
def evaluate(where: Ints, order: Ints, a: Arrays) -> float:
    """Fills `order` with the list schedule, by end: a receive is then posted when its tensor is made.

    With several micro-batches, or as captured where that is shorter: fewer segments make a shorter pipeline.
    """
    ends = list_schedule(where, upward_rank(where, a), a, order)
    # nearly sorted already, and nodes without duration must keep their places: an insertion sort
    for i in range(1, len(order)):
        v = order[i]
        j = i - 1
        while j >= 0 and ends[order[j]] > ends[v]:
            order[j + 1] = order[j]
            j -= 1
        order[j + 1] = v
    value = makespan(where, order, a)
    if a.turns[0] != SINGLE_BATCH:
        captured = np.arange(len(order))
        other = makespan(where, captured, a)
        if other < value:
            for i in range(len(order)):
                order[i] = i
            value = other
    return value


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
    """Fill in the `place` of each device's next task."""
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
