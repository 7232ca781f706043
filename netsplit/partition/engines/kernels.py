"""Compiled inner loops: the single-batch step of a placement, and the list schedule that orders it.

The step is the one the simulator has for a program
under ``single_batch`` (segments cut at every transfer), node by node, so that a search may try
thousands of placements a second on what it will be measured by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from netsplit.partition.common.instance import Csr, Floats, Instance, Ints, Packed
from netsplit.partition.engines.compiled import compiled, inlined, inner

__all__ = ["NOTHING", "Arrays", "SingleBatchStep", "StepTimes", "list_schedule", "makespan", "upward_rank"]


class Arrays(NamedTuple):
    """An instance for compiled functions."""

    forward_s: Floats  # [n, D]
    backward_s: Floats  # [n, D]
    trained: NDArray[np.bool_]  # [n]
    producer: Ints  # [m]
    requires_backward: NDArray[np.bool_]  # [m]
    consumers: Packed  # [m] -> nodes
    reads: Packed  # [n] -> variables
    makes: Packed  # [n] -> variables
    transfer_s: Floats  # [m, D, D]
    step_s: Floats  # [n, D]
    overhead: Floats  # [D] of every instruction
    block_of: Ints  # [n] nodes of a unit are one block
    blocks: Packed  # -> nodes


class _Devices(NamedTuple):
    """What the step's two passes hand on."""

    clock: Floats  # [D] until when the device is busy
    link: Floats  # [D, D] until when the link is busy
    segment: Ints  # [n] of each node
    closing: Ints  # [segments] the place of each segment in the order in which they were closed; -1: open
    current: Ints  # [D] the device's open segment
    opened: NDArray[np.bool_]  # [D] whether it has one
    posted: Floats  # [D] when the device came to its open segment: receives met since are posted
    reached: NDArray[np.bool_]  # [D] whether a variable is read there
    arrive: Floats  # [m, D] of a variable
    waiting: Ints  # [m, D] nodes on the device that have still to give the variable a gradient
    gradient: Floats  # [m, D] when the device's gradient arrives


@dataclass(frozen=True, eq=False)
class StepTimes:
    """Seconds since the step began. A node without a backward has equal times in both columns."""

    makespan_s: float
    forward: Floats  # [n, 2] start and end
    backward: Floats  # [n, 2]


class SingleBatchStep:
    """The single-batch training step of an instance, for many placements and orders."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        i = instance
        self.arrays = Arrays(
            i.forward_s, i.backward_s, i.trained, i.producer, i.requires_backward,
            i.consumers.packed, i.reads.packed, i.makes.packed, i.transfer_s, i.step_s,
            i.instruction_s, i.unit_of, _blocks(i),
        )  # fmt: skip

    def makespan_s(self, where: Ints, order: Ints) -> float:
        """Seconds of the step: [n] device of each node, [n] nodes in the order they are taken."""
        return float(makespan(where, order, self.arrays, NOTHING, NOTHING))

    def times(self, where: Ints, order: Ints) -> StepTimes:
        forward, backward = np.zeros((self.instance.n, 2)), np.zeros((self.instance.n, 2))
        seconds = float(makespan(where, order, self.arrays, forward, backward))
        return StepTimes(seconds, forward, backward)

    def rank(self, where: Ints) -> Floats:
        """[n] seconds from each node's start to the end of the forward pass and the way back to it.

        HEFT's upward rank (Topcuoglu et al. 2002, equation (8)) for a given placement, backward
        seconds and the gradient's way back included.
        """
        return np.asarray(upward_rank(where, self.arrays))

    def list_schedule(self, where: Ints, rank: Floats | None = None) -> Ints:
        """[n] an order: on each device the node of highest rank among those that could start first.

        Sorted by end: a receive is then posted before any computation that runs while it arrives.
        """
        rank = self.rank(where) if rank is None else rank
        order = np.zeros(self.instance.n, np.int64)
        ends = list_schedule(where, rank, self.arrays, order)
        return order[np.argsort(ends[order], kind="stable")]


NOTHING = np.zeros((0, 2))


def _blocks(instance: Instance) -> Packed:
    """The nodes of each block: units run in one piece."""
    unit = instance.unit_of
    members = np.argsort(unit, kind="stable").astype(np.int64)
    starts = np.searchsorted(unit[members], np.arange(int(unit.max(initial=-1)) + 2)).astype(np.int64)
    return Csr(starts, members).packed


@compiled
def makespan(where: Ints, order: Ints, a: Arrays, f_times: Floats, b_times: Floats) -> float:
    """Seconds of the step; `f_times`, `b_times` [n, 2] are filled with starts and ends unless empty.

        device p  [ n0 n1 ]send [ n4 ]                     [ n4 ] recv[ n1 n0 ] step
                            └──►                                     ▲
        device q           recv[ n2 n3 ]            [ n3 n2 ]send────┘          step
                  ───── 1. forwards ─────  2. order  ─────── 3. backwards ───── 4. optimiser

    1. Forwards node by node; a segment of a device ends where it sends or receives.
    2. The segments in the order in which they were closed.
    3. Backwards of whole segments, the one that was closed last first; gradients take the way back.
    4. Each device's optimiser steps, when all its gradients are there.
    """
    n, m, devices = len(order), len(a.producer), a.forward_s.shape[1]
    run = _Devices(
        np.zeros(devices), np.zeros((devices, devices)), np.zeros(n, np.int64), np.full(n, -1),
        np.zeros(devices, np.int64), np.zeros(devices, np.bool_), np.zeros(devices),
        np.zeros(devices, np.bool_), np.zeros((m, devices)), np.zeros((m, devices), np.int64),
        np.full((m, devices), -1.0),
    )  # fmt: skip
    # 1. forwards
    last = _forwards(where, order, a, run, f_times)
    # 2. order
    sizes = np.zeros(n + 1, np.int64)
    for v in order:
        sizes[run.closing[run.segment[v]] + 1] += 1
    place = np.cumsum(sizes)
    nodes = np.zeros(n, np.int64)
    for v in order:
        nodes[place[run.closing[run.segment[v]]]] = v
        place[run.closing[run.segment[v]]] += 1
    # 3. backwards
    last = max(last, _backwards(where, nodes, a, run, f_times, b_times))
    # 4. optimiser
    steps, stepping = np.zeros(devices), np.zeros(devices, np.bool_)
    for v in range(n):
        steps[where[v]] += a.step_s[v, where[v]]
        stepping[where[v]] |= a.trained[v]
    for d in range(devices):
        last = max(last, run.clock[d] + (steps[d] + a.overhead[d] if stepping[d] else 0.0))
    return last


@inlined
def _forwards(where: Ints, order: Ints, a: Arrays, run: _Devices, times: Floats) -> float:
    """When the last variable arrives; fills `run`.

    Each node: 1. waits for what it reads; 2. opens a segment, where none is open or it has received;
    3. runs; 4. sends what others read, and then its segment is closed. 5. At the end, all are closed.
    """
    clock, link = run.clock, run.link
    segment, closing, overhead, producer = run.segment, run.closing, a.overhead, a.producer
    reads, makes, consumers, forward_s, transfer_s = a.reads, a.makes, a.consumers, a.forward_s, a.transfer_s
    current, opened, posted, reached, arrive = run.current, run.opened, run.posted, run.reached, run.arrive
    devices = len(clock)
    last, segments, closed = 0.0, 0, 0
    for v in order:
        d = where[v]
        # 1. wait
        begin = clock[d]
        remote = False
        for k in range(reads[v], reads[v + 1]):
            u = reads[k]
            if where[producer[u]] != d:
                remote = True
                begin = max(begin, arrive[u, d])
        # 2. open
        if remote or not opened[d]:
            if opened[d]:
                closing[current[d]] = closed
                closed += 1
            current[d] = segments
            segments += 1
            posted[d] = clock[d]
            clock[d] += overhead[d]
            begin = max(begin, clock[d])
            opened[d] = True
        segment[v] = current[d]
        # 3. run
        end = begin + forward_s[v, d]
        clock[d] = end
        if len(times) > 0:
            times[v, 0] = begin
            times[v, 1] = end
        # 4. send
        sends = False
        for k in range(makes[v], makes[v + 1]):
            u = makes[k]
            reached[:] = False
            for c in range(consumers[u], consumers[u + 1]):
                reached[where[consumers[c]]] = True
            for q in range(devices):
                if reached[q] and q != d:
                    sends = True
                    clock[d] += overhead[d]
                    ready = max(clock[d], posted[q] if opened[q] else clock[q])
                    link[d, q] = max(ready, link[d, q]) + transfer_s[u, d, q]
                    arrive[u, q] = link[d, q]
                    last = max(last, link[d, q])
        if sends:
            opened[d] = False
            closing[current[d]] = closed
            closed += 1
    # 5. close
    for s in range(segments):
        if closing[s] < 0:
            closing[s] = closed
            closed += 1
    return last


@inlined
def _backwards(where: Ints, nodes: Ints, a: Arrays, run: _Devices, f_times: Floats, b_times: Floats) -> float:
    """When the last gradient arrives, of backwards in the reverse order of `nodes`.

    1. How many nodes on each device give a gradient to each variable. Each node: 2. waits for the
    gradients of what it makes; 3. runs; 4. sends the gradients that are complete.
    """
    clock, link = run.clock, run.link
    segment, overhead, producer, trained, requires_backward = (
        run.segment, a.overhead, a.producer, a.trained, a.requires_backward,
    )  # fmt: skip
    reads, makes, consumers, backward_s, transfer_s = (
        a.reads,
        a.makes,
        a.consumers,
        a.backward_s,
        a.transfer_s,
    )
    waiting, gradient = run.waiting, run.gradient
    devices = len(clock)
    # 1. count
    for u in range(len(producer)):
        if requires_backward[u]:
            for c in range(consumers[u], consumers[u + 1]):
                w = consumers[c]
                if trained[w]:
                    waiting[u, where[w]] += 1
    last, previous = 0.0, -1
    for i in range(len(nodes) - 1, -1, -1):
        v = nodes[i]
        d = where[v]
        if len(f_times) > 0:
            b_times[v, 0] = f_times[v, 0]
            b_times[v, 1] = f_times[v, 1]
        if not trained[v]:
            continue
        # 2. wait
        if segment[v] != previous:
            clock[d] += overhead[d]
            previous = segment[v]
        begin = clock[d]
        for k in range(makes[v], makes[v + 1]):
            u = makes[k]
            for q in range(devices):
                begin = max(begin, gradient[u, q])
        # 3. run
        end = begin + backward_s[v, d]
        clock[d] = end
        if len(f_times) > 0:
            b_times[v, 0] = begin
            b_times[v, 1] = end
        # 4. send
        for k in range(reads[v], reads[v + 1]):
            u = reads[k]
            p = where[producer[u]]
            if requires_backward[u]:
                waiting[u, d] -= 1
                if p != d and waiting[u, d] == 0:
                    clock[d] += overhead[d]
                    start = max(clock[d], clock[p], link[d, p])
                    link[d, p] = start + transfer_s[u, d, p]
                    gradient[u, d] = link[d, p]
                    last = max(last, link[d, p])
    return last


@compiled
def upward_rank(where: Ints, a: Arrays) -> Floats:
    makes, consumers, transfer_s, requires_backward = a.makes, a.consumers, a.transfer_s, a.requires_backward
    n = len(a.forward_s)
    rank = np.zeros(n)
    for v in range(n - 1, -1, -1):
        p = where[v]
        tail = 0.0
        for k in range(makes[v], makes[v + 1]):
            u = makes[k]
            for c in range(consumers[u], consumers[u + 1]):
                w = consumers[c]
                q = where[w]
                way = transfer_s[u, p, q]
                if requires_backward[u]:
                    way += transfer_s[u, q, p]
                tail = max(tail, rank[w] + way)
        rank[v] = tail + a.forward_s[v, p] + a.backward_s[v, p]
    return rank


@compiled
def list_schedule(where: Ints, rank: Floats, a: Arrays, order: Ints) -> Floats:
    """Ends of the nodes' forwards when every device takes, of what could start first, the highest rank.

    `order` is filled with the nodes as they were taken.

    1. Blocks that wait for no other are ready. Then, until none is: 2. one is taken; 3. its nodes run;
    4. what they make is sent, and blocks that waited for it alone are ready.
    """
    makes, consumers, blocks, block_of = a.makes, a.consumers, a.blocks, a.block_of
    forward_s, transfer_s = a.forward_s, a.transfer_s
    n, devices = forward_s.shape
    # 1. ready
    missing = _missing(a)
    ready_at, ready, count = np.zeros(len(missing)), np.zeros(len(missing), np.int64), 0
    for b in range(len(missing)):
        if missing[b] == 0:
            ready[count] = b
            count += 1
    clock, link = np.zeros(devices), np.zeros((devices, devices))
    arrive = np.zeros((len(a.producer), devices))
    ends = np.zeros(n)
    sent = np.zeros(devices, np.bool_)
    taken = 0
    while count > 0:
        # 2. take
        best, now, best_rank = -1, np.inf, -1.0
        for k in range(count):
            v = blocks[blocks[ready[k]]]
            start = max(clock[where[v]], ready_at[ready[k]])
            if start < now or (start == now and rank[v] > best_rank):
                best, now, best_rank = k, start, rank[v]
        b = ready[best]
        count -= 1
        ready[best] = ready[count]
        for j in range(blocks[b], blocks[b + 1]):
            # 3. run
            v = blocks[j]
            d = where[v]
            now += forward_s[v, d]
            ends[v] = now
            order[taken] = v
            taken += 1
            # 4. send
            for k in range(makes[v], makes[v + 1]):
                u = makes[k]
                sent[:] = False
                for c in range(consumers[u], consumers[u + 1]):
                    w = consumers[c]
                    q = where[w]
                    if q != d and not sent[q]:
                        link[d, q] = max(link[d, q], now) + transfer_s[u, d, q]
                        arrive[u, q] = link[d, q]
                        sent[q] = True
                    elif q == d:
                        arrive[u, q] = now
                    other = block_of[w]
                    if other != b:
                        ready_at[other] = max(ready_at[other], arrive[u, q])
                        missing[other] -= 1
                        if missing[other] == 0:
                            ready[count] = other
                            count += 1
        clock[where[blocks[blocks[b]]]] = now
    return ends


@inner
def _missing(a: Arrays) -> Ints:
    """[blocks] how many reads of each block's nodes are of variables that other blocks make."""
    missing = np.zeros(a.blocks[0] - 1, np.int64)
    for v in range(len(a.block_of)):
        for k in range(a.reads[v], a.reads[v + 1]):
            if a.block_of[a.producer[a.reads[k]]] != a.block_of[v]:
                missing[a.block_of[v]] += 1
    return missing
