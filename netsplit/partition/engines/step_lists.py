"""What every device does in a single-batch step, as the compiler has it: instruction lists in arrays.

    placement, order ──► 1. segments ──► 2. their nodes and transfers ──► 3. lists of instructions

The same segments, transfers and order as `program.compile_program` makes for ``single_batch``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from netsplit.partition.common.instance import Floats, Ints, Packed
from netsplit.partition.engines.compiled import inlined, inner

__all__ = ["BACKWARD", "FORWARD", "MESSAGE", "STEP", "Arrays", "DeviceSeconds", "Lists", "lay_out"]

FORWARD, BACKWARD, MESSAGE, STEP = range(4)


class DeviceSeconds(NamedTuple):
    """`DeviceCosts` without its nodes, for compiled functions; all [D]."""

    instruction: Floats
    message: Floats
    contention: Floats
    host: Ints  # whose memory the device shares with others; -1: it has its own
    copy_per_byte: Floats
    step_per_byte: Floats


class Arrays(NamedTuple):
    """An instance for compiled functions."""

    forward_s: Floats  # [n, D]
    backward_s: Floats  # [n, D]
    trained: NDArray[np.bool_]  # [n]
    final: NDArray[np.bool_]  # [n] makes an output of the graph that a gradient comes back from
    producer: Ints  # [m]
    requires_backward: NDArray[np.bool_]  # [m]
    consumers: Packed  # [m] -> nodes
    reads: Packed  # [n] -> variables
    gives: NDArray[np.bool_]  # [reads] a gradient comes back from this node
    makes: Packed  # [n] -> variables
    nbytes: Ints  # [m]
    transfer_s: Floats  # [m, D, D]
    trainable_bytes: Ints  # [n]
    device: DeviceSeconds
    unit_of: Ints  # [n] as the instance has it; a node that is in none of the graph's is one alone
    units: Packed  # -> nodes


class Lists(NamedTuple):
    """All computations and transfers in one order that every device keeps; gradients have the last tags."""

    kind: Ints  # [I]
    what: Ints  # [I] segment, tag or device
    home: Ints  # [segments]
    forward_s: Floats  # [segments]
    backward_s: Floats  # [segments]
    reads: Packed  # [segments] -> tags that its forward waits for
    gradients: Packed  # [segments] -> tags that its backward waits for
    variable: Ints  # [tags]
    source: Ints  # [tags]
    target: Ints  # [tags]
    step_s: Floats  # [D]


class _Segments(NamedTuple):
    closed: int
    of: Ints  # [n]
    transfers: int  # of variables: one for each and device that reads it elsewhere


class _Cutting(NamedTuple):
    """What is open while segments are cut. U units."""

    done: NDArray[np.bool_]  # [U]
    late: Ints  # [n] units that wait, in their order
    current: Ints  # [D] the last segment, by when it was opened
    opened: NDArray[np.bool_]  # [D] it is open still
    opening: Ints  # [n] segment, by when it was opened
    seen: Ints  # [D] the last variable that is read there


class _SegmentWork(NamedTuple):
    """What the segments have to do."""

    home: Ints  # [segments]
    nodes: Packed  # [segments] -> nodes, ascending
    forward_s: Floats  # [segments]
    backward_s: Floats  # [segments]
    trained: NDArray[np.bool_]  # [segments] it has a backward
    held: Ints  # [D] bytes that the optimiser changes


@inner
def lay_out(where: Ints, order: Ints, a: Arrays) -> Lists:
    """Of [n] the device of each node and [n] nodes in the order they are taken, a topological one."""
    # 1. segments
    cut = _cut(where, order, a)
    # 2. nodes and transfers
    home = np.zeros(cut.closed, np.int64)
    nodes = _nodes_by_segment(where, cut, home)
    forward_s, backward_s = np.zeros(cut.closed), np.zeros(cut.closed)
    trained = np.zeros(cut.closed, np.bool_)
    held = np.zeros(a.forward_s.shape[1], np.int64)
    for v in range(len(where)):
        s, d = cut.of[v], where[v]
        forward_s[s] += a.forward_s[v, d]
        backward_s[s] += a.backward_s[v, d]
        held[d] += a.trainable_bytes[v]
        trained[s] |= a.final[v] or _gives_back(v, cut, a)
    # 3. lists
    work = _SegmentWork(home, nodes, forward_s, backward_s, trained, held)
    return _listed(where, cut.transfers, work, a)


@inlined
def _gives_back(v: int, cut: _Segments, a: Arrays) -> bool:
    """Whether a gradient comes back to the node from outside its segment."""
    for k in range(a.makes[v], a.makes[v + 1]):
        u = a.makes[k]
        if a.requires_backward[u]:
            for c in range(a.consumers[u], a.consumers[u + 1]):
                if cut.of[a.consumers[c]] != cut.of[v]:
                    return True
    return False


@inner
def _cut(where: Ints, order: Ints, a: Arrays) -> _Segments:
    """Segments by the order in which they are closed (`cut_segments`, with fine cuts).

    Each unit: 1. waits until all it reads is made; 2. opens a segment, where none is open or it
    receives; 3. closes it, where it sends. 4. At the end all are closed.
    """
    n, devices = len(order), a.forward_s.shape[1]
    cutting = _Cutting(
        np.zeros(a.units[0] - 1, np.bool_), np.zeros(n, np.int64), np.zeros(devices, np.int64),
        np.zeros(devices, np.bool_), np.zeros(n, np.int64), np.full(devices, -1),
    )  # fmt: skip
    current, opened, opening, done = cutting.current, cutting.opened, cutting.opening, cutting.done
    units = a.units
    closing, of = np.zeros(n + 1, np.int64), np.zeros(n, np.int64)
    segments, closed, transfers, waiting, at = 0, 0, 0, 0, 0
    while at < n or waiting > 0:
        # 1. wait
        unit, at, waiting = _taken(order, at, waiting, cutting, a)
        if unit < 0:
            continue
        done[unit] = True
        # 2. open
        d = where[units[units[unit]]]
        receives = _receives(unit, d, where, a)
        if receives or not opened[d]:
            if opened[d]:
                closing[current[d]] = closed
                closed += 1
            current[d] = segments
            segments += 1
            opened[d] = True
        # 3. close
        sends = _sends(unit, d, where, cutting, a)
        transfers += sends
        if sends > 0:
            opened[d] = False
            closing[current[d]] = closed
            closed += 1
    # 4. all
    for s in range(segments):
        for d in range(devices):
            if opened[d] and current[d] == s:
                closing[s] = closed
                closed += 1
    for v in range(n):
        of[v] = closing[opening[v]]
    return _Segments(segments, of, transfers)


@inlined
def _taken(order: Ints, at: int, waiting: int, cutting: _Cutting, a: Arrays) -> tuple[int, int, int]:
    """The unit that is next (-1: not this time), the place in the order, and how many wait.

    What waits comes first as soon as it is ready, the earliest in the order before others.
    """
    late, done = cutting.late, cutting.done
    for i in range(waiting):
        if _ready(late[i], done, a):
            unit = late[i]
            for j in range(i, waiting - 1):
                late[j] = late[j + 1]
            return unit, at, waiting - 1
    unit = a.unit_of[order[at]]
    at += 1
    if done[unit]:
        return -1, at, waiting
    if a.units[unit + 1] - a.units[unit] > 1 or waiting > 0:
        for i in range(waiting):
            if late[i] == unit:
                return -1, at, waiting
        if not _ready(unit, done, a):
            late[waiting] = unit
            return -1, at, waiting + 1
    return unit, at, waiting


@inlined
def _receives(unit: int, d: int, where: Ints, a: Arrays) -> bool:
    """Whether the unit on this device reads what is made elsewhere."""
    for j in range(a.units[unit], a.units[unit + 1]):
        v = a.units[j]
        for k in range(a.reads[v], a.reads[v + 1]):
            if where[a.producer[a.reads[k]]] != d:
                return True
    return False


@inlined
def _sends(unit: int, d: int, where: Ints, cutting: _Cutting, a: Arrays) -> int:
    """Transfers of what the unit makes, whose nodes are of the device's open segment."""
    transfers = 0
    for j in range(a.units[unit], a.units[unit + 1]):
        v = a.units[j]
        cutting.opening[v] = cutting.current[d]
        for k in range(a.makes[v], a.makes[v + 1]):
            u = a.makes[k]
            for c in range(a.consumers[u], a.consumers[u + 1]):
                q = where[a.consumers[c]]
                if q != d and cutting.seen[q] != u:
                    cutting.seen[q] = u
                    transfers += 1
    return transfers


@inlined
def _ready(unit: int, done: NDArray[np.bool_], a: Arrays) -> bool:
    for j in range(a.units[unit], a.units[unit + 1]):
        v = a.units[j]
        for k in range(a.reads[v], a.reads[v + 1]):
            other = a.unit_of[a.producer[a.reads[k]]]
            if other != unit and not done[other]:
                return False
    return True


@inner
def _nodes_by_segment(where: Ints, cut: _Segments, home: Ints) -> Packed:
    """Ascending in each; fills the segments' devices."""
    count = cut.closed
    nodes = np.zeros(count + 1 + len(where), np.int64)
    nodes[0] = count + 1
    for s in cut.of:
        nodes[s + 1] += 1
    for s in range(count):
        nodes[s + 1] += nodes[s]
    place = nodes[:count].copy()
    for v in range(len(where)):
        s = cut.of[v]
        home[s] = where[v]
        nodes[place[s]] = v
        place[s] += 1
    return nodes


class _ListWalk(NamedTuple):
    """What the walk over all computations hands on; transfers of variables have the first tags."""

    home: Ints  # [segments]
    trained: NDArray[np.bool_]  # [segments] it has a backward
    first: Ints  # [m] tag of each variable's first transfer; the others follow it
    read_by: Ints  # [transfers] the last segment that reads what is sent
    left: Ints  # [transfers] segments that read it whose backward is still to come
    gives: NDArray[np.bool_]  # [transfers] a gradient comes back
    back: Ints  # [transfers] its tag; -1: there is none
    reached: NDArray[np.bool_]  # [D] a variable is read there


@inner
def _listed(where: Ints, sent: int, work: _SegmentWork, a: Arrays) -> Lists:
    """One walk over all computations, as `compile_program` does it: 1. forwards, with what they send;
    2. backwards, the last segment first, with the gradients that are complete; 3. steps.
    """
    home, trained = work.home, work.trained
    count, devices = len(home), len(work.held)
    longest = 2 * count + 2 * sent + devices
    lists = Lists(
        np.zeros(longest, np.int64), np.zeros(longest, np.int64), home, work.forward_s, work.backward_s,
        np.zeros(count + 1 + len(a.gives), np.int64), np.zeros(count + 1 + sent, np.int64),
        np.zeros(2 * sent, np.int64), np.zeros(2 * sent, np.int64), np.zeros(2 * sent, np.int64),
        work.held * a.device.step_per_byte,
    )  # fmt: skip
    walk = _ListWalk(
        home, trained, np.zeros(len(a.producer), np.int64), np.full(sent, -1), np.zeros(sent, np.int64),
        np.zeros(sent, np.bool_), np.full(sent, -1), np.zeros(devices, np.bool_),
    )  # fmt: skip
    # 1. forwards
    size = _forwards(where, work.nodes, walk, lists, a)
    # 2. backwards
    size, tags = _backwards(size, sent, walk, lists)
    _gradients(work.nodes, walk, lists, a)
    # 3. steps
    stepping = np.zeros(devices, np.bool_)
    for s in range(count):
        stepping[home[s]] |= trained[s]
    for d in range(devices):
        if stepping[d]:
            lists.kind[size], lists.what[size] = STEP, d
            size += 1
    return Lists(
        lists.kind[:size], lists.what[:size], home, work.forward_s, work.backward_s, lists.reads,
        lists.gradients, lists.variable[:tags], lists.source[:tags], lists.target[:tags], lists.step_s,
    )  # fmt: skip


@inlined
def _forwards(where: Ints, nodes: Packed, walk: _ListWalk, lists: Lists, a: Arrays) -> int:
    """Each segment: 1. notes which transfers it reads; 2. sends what is read elsewhere."""
    kind, what, home, target, packed = lists.kind, lists.what, walk.home, lists.target, lists.reads
    reads, makes, consumers, producer = a.reads, a.makes, a.consumers, a.producer
    count, size, tag = len(home), 0, 0
    taken = count + 1
    packed[0] = taken
    for s in range(count):
        d = home[s]
        kind[size], what[size] = FORWARD, s
        size += 1
        # 1. read
        for j in range(nodes[s], nodes[s + 1]):
            v = nodes[j]
            for k in range(reads[v], reads[v + 1]):
                u = reads[k]
                if where[producer[u]] != d:
                    t = walk.first[u]
                    while target[t] != d:
                        t += 1
                    walk.gives[t] |= a.gives[k - reads[0]]
                    if walk.read_by[t] != s:
                        walk.read_by[t] = s
                        walk.left[t] += walk.trained[s]
                        packed[taken] = t
                        taken += 1
        packed[s + 1] = taken
        # 2. send
        for j in range(nodes[s], nodes[s + 1]):
            v = nodes[j]
            for k in range(makes[v], makes[v + 1]):
                u = makes[k]
                walk.first[u] = tag
                walk.reached[:] = False
                for c in range(consumers[u], consumers[u + 1]):
                    walk.reached[where[consumers[c]]] = True
                for q in range(len(walk.reached)):
                    if walk.reached[q] and q != d:
                        lists.variable[tag], lists.source[tag], target[tag] = u, d, q
                        kind[size], what[size] = MESSAGE, tag
                        size += 1
                        tag += 1
    return size


@inlined
def _backwards(size: int, tag: int, walk: _ListWalk, lists: Lists) -> tuple[int, int]:
    """Instructions and tags in all, with the backwards and the gradients that they complete."""
    kind, what, source, target = lists.kind, lists.what, lists.source, lists.target
    reads = lists.reads
    for s in range(len(walk.home) - 1, -1, -1):
        if not walk.trained[s]:
            continue
        kind[size], what[size] = BACKWARD, s
        size += 1
        for j in range(reads[s], reads[s + 1]):
            t = reads[j]
            walk.left[t] -= 1
            if walk.gives[t] and walk.left[t] == 0:
                walk.back[t] = tag
                lists.variable[tag], source[tag], target[tag] = lists.variable[t], walk.home[s], source[t]
                kind[size], what[size] = MESSAGE, tag
                size += 1
                tag += 1
    return size, tag


@inlined
def _gradients(nodes: Packed, walk: _ListWalk, lists: Lists, a: Arrays) -> None:
    """Of each segment the tags of the gradients that come from elsewhere for what it makes."""
    packed, makes, sent = lists.gradients, a.makes, len(walk.back)
    size = len(walk.home) + 1
    packed[0] = size
    for s in range(len(walk.home)):
        for j in range(nodes[s], nodes[s + 1]):
            v = nodes[j]
            for k in range(makes[v], makes[v + 1]):
                t = walk.first[makes[k]]
                while t < sent and lists.variable[t] == makes[k]:
                    if walk.back[t] >= 0:
                        packed[size] = walk.back[t]
                        size += 1
                    t += 1
        packed[s + 1] = size
