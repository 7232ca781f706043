"""What every device does in a training step, as the compiler has it: instruction lists in arrays.

    placement, order ──► 1. segments ──► 2. their nodes ──► 3. transfers ──► 4. lists of instructions

The same segments, transfers and order as `program.compile_program` makes for the schedule of `Arrays.turns`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from netsplit.compiled import inlined, inner
from netsplit.partition.common.instance import Floats, Ints, Packed
from netsplit.partition.engines.step.arrays import Arrays, Segments, cut
from netsplit.partition.engines.step.order import BACKWARD, FORWARD, computations

__all__ = ["BACKWARD", "FORWARD", "MESSAGE", "STEP", "Lists", "lay_out"]

MESSAGE, STEP = BACKWARD + 1, BACKWARD + 2


class Lists(NamedTuple):
    """All computations and transfers in one order that every device keeps.

    T variables are sent, each once for every device that reads it; T + t is the gradient of t. A transfer of
    micro-batch i has place 2 T i + t. What lasts is sent with the first one, its gradient with the last.
    """

    kind: Ints  # [I]
    what: Ints  # [I] segment, transfer or device
    microbatch: Ints  # [I]
    tag: Ints  # [places] its number among all
    home: Ints  # [segments]
    forward_s: Floats  # [segments]
    backward_s: Floats  # [segments]
    adding_s: Floats  # [segments] to the gradients of earlier micro-batches
    reads: Packed  # [segments] -> transfers that its forward waits for
    gradients: Packed  # [segments] -> transfers that its backward waits for
    variable: Ints  # [2 T]
    source: Ints  # [2 T]
    target: Ints  # [2 T]
    lasting: NDArray[np.bool_]  # [2 T]
    step_s: Floats  # [D]


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
def lay_out(where: Ints, order: Ints, a: Arrays) -> Lists:
    """Lay out tasks from [n] devices of nodes and [n] nodes in a topological order."""
    # 1. segments
    segments = cut(where, order, a)
    # 2. nodes
    work = _work(where, segments, a)
    # 3. transfers
    sending = _sending(where, segments.transfers, work, a)
    if a.turns[1] > 1 and a.lasting.any():
        _add_sums(sending, work, a)
    # 4. lists
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
    _send_back(sending)
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


@inlined
def _send_back(sending: _Sending) -> None:
    """The gradients' transfers, and which of them each segment waits for."""
    packed, sends, sent = sending.gradients, sending.sends, len(sending.gives)
    variable, source, target = sending.variable, sending.source, sending.target
    size = len(sends)
    packed[0] = size
    for s in range(len(sends) - 1):
        for t in range(sends[s], sends[s + 1]):
            variable[sent + t], source[sent + t], target[sent + t] = variable[t], target[t], source[t]
            if sending.gives[t] and sending.readers[t] > 0:
                packed[size] = sent + t
                size += 1
        packed[s + 1] = size


@inner
def _listed(work: _SegmentWork, sending: _Sending, a: Arrays) -> Lists:
    """One walk over all computations, as `compile_program` does it: 1. forwards, with what they send;
    2. backwards, with the gradients that are complete; 3. steps.
    """
    home, trained = work.home, work.trained
    sends, reads, sent = sending.sends, sending.reads, len(sending.gives)
    m, devices = a.turns[1], len(work.held)
    turns = computations(work.of, work.nodes, home, trained, a)
    longest = len(turns) + 2 * m * sent + devices
    kind, what = np.zeros(longest, np.int64), np.zeros(longest, np.int64)
    microbatch, tag = np.zeros(longest, np.int64), np.zeros(2 * m * sent, np.int64)
    lasting = np.zeros(2 * sent, np.bool_)
    for t in range(2 * sent):
        lasting[t] = a.lasting[sending.variable[t]]
    left = np.zeros((m, sent), np.int64)  # segments that read it whose backward is still to come
    for i in range(m):
        for k in range(sent):
            left[i, k] = sending.readers[k] * (m if lasting[k] else 1)
    size, tags = 0, 0
    for turn in range(len(turns)):
        s, i = turns[turn, 1], turns[turn, 2]
        kind[size], what[size], microbatch[size] = turns[turn, 0], s, i
        size += 1
        if turns[turn, 0] == FORWARD:
            # 1. forward
            for t in range(sends[s], sends[s + 1]):
                if lasting[t] and i > 0:
                    continue
                kind[size], what[size], microbatch[size], tag[2 * sent * i + t] = MESSAGE, t, i, tags
                size += 1
                tags += 1
            continue
        # 2. backward
        for j in range(reads[s], reads[s + 1]):
            t = reads[j]
            place = 0 if lasting[t] else i
            left[place, t] -= 1
            if sending.gives[t] and left[place, t] == 0:
                t += sent
                kind[size], what[size], microbatch[size], tag[2 * sent * i + t] = MESSAGE, t, i, tags
                size += 1
                tags += 1
    # 3. steps
    stepping = np.zeros(devices, np.bool_)
    for s in range(len(home)):
        stepping[home[s]] |= trained[s]
    for d in range(devices):
        if stepping[d]:
            kind[size], what[size] = STEP, d
            size += 1
    return Lists(
        kind[:size], what[:size], microbatch[:size], tag, home, work.forward_s, work.backward_s,
        work.adding_s, reads, sending.gradients, sending.variable, sending.source, sending.target, lasting,
        work.held * a.device.step_per_byte,
    )  # fmt: skip
