"""Compiled inner loops: the training step of a placement, and the list schedule that orders it.

The step is the one that the simulator has for a program under the schedule, with all that costs say of
devices, so that a search may try thousands of placements a second on what it will be measured by.
"""

from __future__ import annotations

import numpy as np

from netsplit.compiled import compiled, inner
from netsplit.partition.common.instance import Csr, Floats, Instance, Ints
from netsplit.partition.engines.step.arrays import KINDS, SINGLE_BATCH, Arrays, moving_s
from netsplit.partition.engines.step.lists import lay_out
from netsplit.simulate.carry_out import carry_out
from netsplit.simulate.simulator import ONE_BATCH, Turns
from netsplit.simulate.tasks import Notes

__all__ = ["Arrays", "CompiledStep", "evaluate", "list_schedule", "makespan", "upward_rank"]


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

    1. The instructions of every device. 2. When the last of them, and the last transfer, ends.
    """
    program, times = lay_out(where, order, a)
    clock, arrived = times.clock, times.arrived
    if a.device.slowed or a.device.nic_per_byte.size > 0:
        none, never = np.zeros(0, np.int64), np.zeros(0)
        run = carry_out(program, a.device, Notes(none, none, none, never, never))
        clock, arrived = run.clock, run.arrived
    return max(arrived.max() if len(arrived) > 0 else 0.0, clock.max())


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
