"""What every device does in a training step, as the compiler has it: a program in arrays.

    placement, order ──► 1. segments ──► 2. their nodes ──► 3. transfers ──► 4. tasks of every device

The same segments, transfers and order as `program.compile_program` makes for the schedule of `Arrays.turns`.
T variables are sent, each once for every device that reads it; T + t is the gradient of t. A transfer of
micro-batch i is message 2 T i + t. What lasts is sent with the first one, its gradient with the last.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from netsplit.compiled import inlined, inner
from netsplit.partition.common.instance import Floats, Ints, Packed
from netsplit.partition.engines.step.arrays import Arrays, Segments, cut, moving_s
from netsplit.partition.engines.step.order import FORWARD, computations
from netsplit.simulate.tasks import ProgramArrays

__all__ = ["Undisturbed", "lay_out"]


class Undisturbed(NamedTuple):
    """When all is done, where no device slows another and there are no NICs."""

    clock: Floats  # [D]
    link: Floats  # [D, D] when each is free
    arrived: Floats  # [messages]


class _SegmentWork(NamedTuple):
    """What the segments have to do."""

    of: Ints  # [n]
    home: Ints  # [segments]
    nodes: Packed  # [segments] -> nodes, ascending
    forward_s: Floats  # [segments]
    backward_s: Floats  # [segments]
    adding_s: Floats  # [segments]
    trained: NDArray[np.bool_]  # [segments] it has a backward
    held: Ints  # [D] bytes that the optimiser changes


class _Sending(NamedTuple):
    """What segments send. T transfers of variables."""

    sends: Ints  # [segments + 1] the first transfer of each
    reads: Packed  # [segments] -> transfers
    gradients: Packed  # [segments] -> transfers
    variable: Ints  # [2 T]
    source: Ints  # [2 T]
    target: Ints  # [2 T]
    readers: Ints  # [T] segments with a backward that read it
    gives: NDArray[np.bool_]  # [T] a gradient comes back


@inner
def lay_out(where: Ints, order: Ints, a: Arrays) -> tuple[ProgramArrays, Undisturbed]:
    """Lay out tasks from [n] devices of nodes and [n] nodes in a topological order."""
    # 1. segments
    segments = cut(where, order, a)
    # 2. nodes
    work = _work(where, segments, a)
    # 3. transfers
    sending = _sending(where, segments.transfers, work, a)
    if a.turns[1] > 1 and a.lasting.any():
        _add_sums(sending, work, a)
    # 4. tasks
    return _listed(work, sending, a)


@inner
def _work(where: Ints, segments: Segments, a: Arrays) -> _SegmentWork:
    of, count = segments.of, segments.closed
    home = np.zeros(count, np.int64)
    nodes = _nodes_by_segment(where, segments, home)
    forward_s, backward_s, adding_s = np.zeros(count), np.zeros(count), np.zeros(count)
    trained = np.zeros(count, np.bool_)
    held = np.zeros(a.forward_s.shape[1], np.int64)
    for v in range(len(where)):
        s, d = of[v], where[v]
        forward_s[s] += a.forward_s[v, d]
        backward_s[s] += a.backward_s[v, d]
        held[d] += a.trainable_bytes[v]
        trained[s] |= a.final[v] or _gives_back(v, of, a)
    if a.turns[1] > 1:
        _add_gradients(where, nodes, home, adding_s, a)
    return _SegmentWork(of, home, nodes, forward_s, backward_s, adding_s, trained, held)


@inner
def _add_gradients(where: Ints, nodes: Packed, home: Ints, adding_s: Floats, a: Arrays) -> None:
    """Fills `adding_s`: a parameter counts in every segment that uses it, not only to hand it on, once."""
    seen, handed = np.full(len(a.weight_bytes), -1), _handed(where, a)
    for s in range(len(home)):
        nbytes = 0
        for j in range(nodes[s], nodes[s + 1]):
            v = nodes[j]
            if handed[v]:
                continue
            for k in range(a.weights[v], a.weights[v + 1]):
                if seen[a.weights[k]] != s:
                    seen[a.weights[k]] = s
                    nbytes += a.weight_bytes[a.weights[k]]
        adding_s[s] = a.device.accumulate_per_byte[home[s]] * nbytes


@inner
def _handed(where: Ints, a: Arrays) -> NDArray[np.bool_]:
    """[n] all that reads what a node makes, or what is made of it alone, is sent it once."""
    handed = np.zeros(len(where), np.bool_)
    if not a.lasting.any():
        return handed
    for v in range(len(where) - 1, -1, -1):
        some, every = False, True
        for k in range(a.makes[v], a.makes[v + 1]):
            u = a.makes[k]
            for c in range(a.consumers[u], a.consumers[u + 1]):
                w = a.consumers[c]
                some = True
                every &= a.lasting[u] if where[w] != where[v] else handed[w]
        handed[v] = some and every
    return handed


@inner
def _add_sums(sending: _Sending, work: _SegmentWork, a: Arrays) -> None:
    """Into `adding_s`: gradients of what lasts, where the first segment that reads it is."""
    known = np.zeros(len(sending.gives), np.bool_)
    for s in range(len(work.home)):
        nbytes = 0
        for j in range(sending.reads[s], sending.reads[s + 1]):
            t = sending.reads[j]
            u = sending.variable[t]
            if a.lasting[u] and sending.gives[t] and not known[t]:
                known[t] = True
                nbytes += a.nbytes[u]
        work.adding_s[s] += a.device.accumulate_per_byte[work.home[s]] * nbytes


@inlined
def _gives_back(v: int, of: Ints, a: Arrays) -> bool:
    """Whether a gradient comes back to the node from outside its segment."""
    for k in range(a.makes[v], a.makes[v + 1]):
        u = a.makes[k]
        if a.requires_backward[u]:
            for c in range(a.consumers[u], a.consumers[u + 1]):
                if of[a.consumers[c]] != of[v]:
                    return True
    return False


@inner
def _nodes_by_segment(where: Ints, segments: Segments, home: Ints) -> Packed:
    """Ascending in each; fills the segments' devices."""
    count = segments.closed
    nodes = np.zeros(count + 1 + len(where), np.int64)
    nodes[0] = count + 1
    for s in segments.of:
        nodes[s + 1] += 1
    for s in range(count):
        nodes[s + 1] += nodes[s]
    place = nodes[:count].copy()
    for v in range(len(where)):
        s = segments.of[v]
        home[s] = where[v]
        nodes[place[s]] = v
        place[s] += 1
    return nodes


@inner
def _sending(where: Ints, sent: int, work: _SegmentWork, a: Arrays) -> _Sending:
    """Each segment: 1. notes what it reads; 2. sends what is read elsewhere. 3. What comes back."""
    reads, makes, producer = a.reads, a.makes, a.producer
    home, nodes = work.home, work.nodes
    count, tag = len(home), 0
    sending = _Sending(
        np.zeros(count + 1, np.int64), np.zeros(count + 1 + len(a.gives), np.int64),
        np.zeros(count + 1 + sent, np.int64), np.zeros(2 * sent, np.int64), np.zeros(2 * sent, np.int64),
        np.zeros(2 * sent, np.int64), np.zeros(sent, np.int64), np.zeros(sent, np.bool_),
    )  # fmt: skip
    packed, target = sending.reads, sending.target
    first = np.zeros(len(producer), np.int64)  # transfer of each variable; the others follow it
    last = np.full(sent, -1)  # segment that reads it
    reached = np.full(len(work.held), -1)  # the last variable that is read there
    targets = np.zeros(len(work.held), np.int64)
    taken = count + 1
    packed[0] = taken
    for s in range(count):
        d = home[s]
        # 1. read
        for j in range(nodes[s], nodes[s + 1]):
            v = nodes[j]
            for k in range(reads[v], reads[v + 1]):
                u = reads[k]
                if where[producer[u]] != d:
                    t = first[u]
                    while target[t] != d:
                        t += 1
                    sending.gives[t] |= a.gives[k - reads[0]]
                    if last[t] != s:
                        last[t] = s
                        sending.readers[t] += work.trained[s]
                        packed[taken] = t
                        taken += 1
        packed[s + 1] = taken
        # 2. send
        for j in range(nodes[s], nodes[s + 1]):
            v = nodes[j]
            for k in range(makes[v], makes[v + 1]):
                u = makes[k]
                first[u] = tag
                for j in range(_targets(u, d, where, reached, targets, a)):
                    sending.variable[tag], sending.source[tag], target[tag] = u, d, targets[j]
                    tag += 1
        sending.sends[s + 1] = tag
    # 3. back
    size, back = count + 1, sending.gradients
    for s in range(count):
        back[s] = size
        for t in range(sending.sends[s], sending.sends[s + 1]):
            u, d = sending.variable[t], sending.source[t]
            sending.variable[sent + t], sending.source[sent + t], target[sent + t] = u, target[t], d
            if sending.gives[t] and sending.readers[t] > 0:
                back[size] = sent + t
                size += 1
    back[count] = size
    return sending


@inlined
def _targets(u: int, d: int, where: Ints, reached: Ints, targets: Ints, a: Arrays) -> int:
    """How many devices but d read variable u: the first of `targets`, ascending."""
    size = 0
    for c in range(a.consumers[u], a.consumers[u + 1]):
        q = where[a.consumers[c]]
        if q == d or reached[q] == u:
            continue
        reached[q] = u
        at = size
        while at > 0 and targets[at - 1] > q:
            targets[at] = targets[at - 1]
            at -= 1
        targets[at] = q
        size += 1
    return size


@inner
def _listed(work: _SegmentWork, sending: _Sending, a: Arrays) -> tuple[ProgramArrays, Undisturbed]:
    """One walk over all computations, as `compile_program` does it: 1. forwards, with what they send;
    2. backwards, with the gradients that are complete; 3. steps.
    """
    home, trained, m = work.home, work.trained, a.turns[1]
    sends, reads, sent = sending.sends, sending.reads, len(sending.gives)
    lasting = np.zeros(sent, np.bool_)
    left = np.zeros((m, sent), np.int64)  # segments that read it whose backward is still to come
    for k in range(sent):
        lasting[k] = a.lasting[sending.variable[k]]
        left[:, k] = sending.readers[k] * (m if lasting[k] else 1)
    program = _program(_first_tasks(work, sending, lasting, a), sending, a)
    devices, messages = len(work.held), len(program.tag)
    times = Undisturbed(np.zeros(devices), np.zeros((devices, devices)), np.zeros(messages))
    place, size, tags = program.first[:-1].copy(), 0, 0
    turns = computations(work.of, work.nodes, home, trained, a)
    for turn in range(len(turns)):
        s, i = turns[turn, 1], turns[turn, 2]
        others = 2 * sent * i
        task = _next_task(home[s], a.device.instruction, -1, place, program, times)
        program.wait_from[task] = size
        if turns[turn, 0] == FORWARD:
            # 1. forward
            for k in range(reads[s], reads[s + 1]):
                program.waits[size] = reads[k] if lasting[reads[k]] else others + reads[k]
                size += 1
            program.wait_to[task] = size
            _compute(home[s], task, work.forward_s[s], program, times)
            for t in range(sends[s], sends[s + 1]):
                if i == 0 or not lasting[t]:
                    _send(t, others, tags, place, program, times, a)
                    tags += 1
            continue
        # 2. backward
        for k in range(sending.gradients[s], sending.gradients[s + 1]):
            t = sending.gradients[k]
            if i == m - 1 or not lasting[t - sent]:  # with whose gradients those of what lasts come
                program.waits[size] = others + t
                size += 1
        program.wait_to[task] = size
        _compute(home[s], task, work.backward_s[s] + (work.adding_s[s] if i > 0 else 0.0), program, times)
        for j in range(reads[s], reads[s + 1]):
            t = reads[j]
            row = 0 if lasting[t] else i
            left[row, t] -= 1
            if sending.gives[t] and left[row, t] == 0:
                _send(sent + t, others, tags, place, program, times, a)
                tags += 1
    # 3. steps
    for d in range(devices):
        if place[d] < program.first[d + 1]:
            task = _next_task(d, a.device.instruction, -1, place, program, times)
            _compute(d, task, work.held[d] * a.device.step_per_byte[d], program, times)
    return program, times


@inner
def _first_tasks(work: _SegmentWork, sending: _Sending, lasting: NDArray[np.bool_], a: Arrays) -> Ints:
    """[D + 1] the first task of each device: computations, messages at both ends, and a step."""
    m, first = a.turns[1], np.zeros(len(work.held) + 1, np.int64)
    stepping = np.zeros(len(work.held), np.bool_)
    for s in range(len(work.home)):
        first[work.home[s] + 1] += m * (1 + work.trained[s])
        stepping[work.home[s]] |= work.trained[s]
    for t in range(len(lasting)):
        times = (1 if lasting[t] else m) * (2 if sending.gives[t] and sending.readers[t] > 0 else 1)
        first[sending.source[t] + 1] += times
        first[sending.target[t] + 1] += times
    for d in range(len(work.held)):
        first[d + 1] += first[d] + stepping[d]
    return first


@inner
def _program(first: Ints, sending: _Sending, a: Arrays) -> ProgramArrays:
    """Room for so many tasks of each device, and the transfers."""
    rows, none = len(sending.source), np.zeros(0, np.int64)
    waits = a.turns[1] * (len(sending.reads) + len(sending.gradients))
    seconds, ints, moving = np.zeros((2, first[-1])), np.zeros((3, first[-1]), np.int64), np.empty((2, rows))
    for t in range(rows):
        u = sending.variable[t]
        moving[0, t], moving[1, t] = moving_s(u, sending.source[t], sending.target[t], a), a.nbytes[u]
    messages = a.turns[1] * rows
    return ProgramArrays(
        first, seconds[0], seconds[1], ints[0], np.empty(waits, np.int64), ints[1], ints[2],
        np.zeros(messages, np.int64), np.full(messages, 2), none, sending.source, sending.target, moving[0],
        moving[1], none, none,
    )  # fmt: skip


@inlined
def _next_task(
    d: int, overhead_s: Floats, meets: int, place: Ints, program: ProgramArrays, times: Undisturbed
) -> int:
    task = place[d]
    place[d] += 1
    program.overhead_s[task], program.meets[task] = overhead_s[d], meets
    times.clock[d] += overhead_s[d]
    return task


@inlined
def _compute(d: int, task: int, seconds: float, program: ProgramArrays, times: Undisturbed) -> None:
    """A computation as soon as all has arrived that it waits for."""
    now = times.clock[d]
    for k in range(program.wait_from[task], program.wait_to[task]):
        now = max(now, times.arrived[program.waits[k]])
    program.compute_s[task], times.clock[d] = seconds, now + seconds


@inlined
def _send(
    t: int, others: int, tag: int, place: Ints, program: ProgramArrays, times: Undisturbed, a: Arrays
) -> None:
    """Both ends of a transfer come to it, and it takes their link."""
    p, q = program.source[t], program.target[t]
    _next_task(p, a.device.message, others + t, place, program, times)
    _next_task(q, a.device.message, others + t, place, program, times)
    times.link[p, q] = max(times.clock[p], times.clock[q], times.link[p, q]) + program.moving_s[t]
    program.tag[others + t], times.arrived[others + t] = tag, times.link[p, q]
