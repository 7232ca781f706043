"""What every device does in a single-batch step, as the compiler has it: instruction lists in arrays.

    placement, order ──► 1. segments ──► 2. their nodes and transfers ──► 3. lists of instructions

The same segments, transfers and order as `program.compile_program` makes for ``single_batch``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from netsplit.partition.common.instance import CsrArrays, Floats, Ints
from netsplit.partition.engines.compiled import inner

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
    consumers: CsrArrays  # [m] -> nodes
    reads: CsrArrays  # [n] -> variables
    gives: NDArray[np.bool_]  # [reads] a gradient comes back from this node
    makes: CsrArrays  # [n] -> variables
    nbytes: Ints  # [m]
    transfer_s: Floats  # [m, D, D]
    trainable_bytes: Ints  # [n]
    device: DeviceSeconds
    block_of: Ints  # [n] nodes of a unit are one block
    blocks: CsrArrays  # -> nodes


class Lists(NamedTuple):
    """All computations and transfers in one order that every device keeps; gradients have the last tags."""

    kind: Ints  # [I]
    what: Ints  # [I] segment, tag or device
    home: Ints  # [segments]
    forward_s: Floats  # [segments]
    backward_s: Floats  # [segments]
    reads: CsrArrays  # [segments] -> tags that its forward waits for
    gradients: CsrArrays  # [segments] -> tags that its backward waits for
    variable: Ints  # [tags]
    source: Ints  # [tags]
    target: Ints  # [tags]
    step_s: Floats  # [D]


class _Segments(NamedTuple):
    closed: int
    of: Ints  # [n]
    transfers: int  # of variables: one for each and device that reads it elsewhere


@inner
def lay_out(where: Ints, order: Ints, a: Arrays) -> Lists:
    """Of [n] the device of each node and [n] nodes in the order they are taken, a topological one."""
    # 1. segments
    cut = _cut(where, order, a)
    home = np.zeros(cut.closed, np.int64)
    nodes = _nodes_by_segment(where, cut, home)
    # 2. nodes and transfers
    devices, n = a.forward_s.shape[1], len(where)
    forward_s, backward_s = np.zeros(cut.closed), np.zeros(cut.closed)
    trained = np.zeros(cut.closed, np.bool_)
    held = np.zeros(devices, np.int64)
    for v in range(n):
        s, d = cut.of[v], where[v]
        forward_s[s] += a.forward_s[v, d]
        backward_s[s] += a.backward_s[v, d]
        held[d] += a.trainable_bytes[v]
        trained[s] |= a.final[v] or _gives_back(v, cut, a)
    # 3. lists
    return _listed(where, cut, home, nodes, trained, held, forward_s, backward_s, a)


@inner
def _gives_back(v: int, cut: _Segments, a: Arrays) -> bool:
    """Whether a gradient comes back to the node from outside its segment."""
    for k in range(a.makes.starts[v], a.makes.starts[v + 1]):
        u = a.makes.items[k]
        if a.requires_backward[u]:
            for c in range(a.consumers.starts[u], a.consumers.starts[u + 1]):
                if cut.of[a.consumers.items[c]] != cut.of[v]:
                    return True
    return False


@inner
def _cut(where: Ints, order: Ints, a: Arrays) -> _Segments:
    """Segments by the order in which they are closed (`cut_segments`, with fine cuts).

    Each block: 1. waits until all it reads is made; 2. opens a segment, where none is open or it
    receives; 3. closes it, where it sends. 4. At the end all are closed.
    """
    n, devices = len(order), a.forward_s.shape[1]
    block_of, starts, items, producer = a.block_of, a.blocks.starts, a.blocks.items, a.producer
    reads, makes, consumers = a.reads, a.makes, a.consumers
    read_starts, read_items, make_starts, make_items = reads.starts, reads.items, makes.starts, makes.items
    consumer_starts, consumer_items = consumers.starts, consumers.items
    opening, of = np.zeros(n, np.int64), np.zeros(n, np.int64)  # a segment by when it was opened; closed
    done, late = np.zeros(len(a.blocks.starts) - 1, np.bool_), np.zeros(n, np.int64)
    current, opened = np.zeros(devices, np.int64), np.zeros(devices, np.bool_)
    closing = np.zeros(n + 1, np.int64)
    seen = np.full(devices, -1)
    segments, closed, transfers, waiting, at = 0, 0, 0, 0, 0
    while at < n or waiting > 0:
        # 1. wait: what waits comes first as soon as it is ready, the earliest in the order before others
        b = -1
        for i in range(waiting):
            if _ready(late[i], done, a):
                b = late[i]
                waiting -= 1
                for j in range(i, waiting):
                    late[j] = late[j + 1]
                break
        if b < 0:
            b = block_of[order[at]]
            at += 1
            if done[b]:
                continue
            if starts[b + 1] - starts[b] > 1 or waiting > 0:
                listed = False
                for i in range(waiting):
                    listed |= late[i] == b
                if listed:
                    continue
                if not _ready(b, done, a):
                    late[waiting] = b
                    waiting += 1
                    continue
        done[b] = True
        # 2. open
        d = where[items[starts[b]]]
        receives, sends = False, False
        for j in range(starts[b], starts[b + 1]):
            v = items[j]
            for k in range(read_starts[v], read_starts[v + 1]):
                receives |= where[producer[read_items[k]]] != d
        if receives or not opened[d]:
            if opened[d]:
                closing[current[d]] = closed
                closed += 1
            current[d] = segments
            segments += 1
            opened[d] = True
        for j in range(starts[b], starts[b + 1]):
            v = items[j]
            opening[v] = current[d]
            for k in range(make_starts[v], make_starts[v + 1]):
                u = make_items[k]
                for c in range(consumer_starts[u], consumer_starts[u + 1]):
                    q = where[consumer_items[c]]
                    if q != d and seen[q] != u:
                        seen[q] = u
                        sends = True
                        transfers += 1
        # 3. close
        if sends:
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


@inner
def _ready(b: int, done: NDArray[np.bool_], a: Arrays) -> bool:
    for j in range(a.blocks.starts[b], a.blocks.starts[b + 1]):
        v = a.blocks.items[j]
        for k in range(a.reads.starts[v], a.reads.starts[v + 1]):
            other = a.block_of[a.producer[a.reads.items[k]]]
            if other != b and not done[other]:
                return False
    return True


@inner
def _nodes_by_segment(where: Ints, cut: _Segments, home: Ints) -> CsrArrays:
    """Ascending in each; fills the segments' devices."""
    starts = np.zeros(cut.closed + 1, np.int64)
    for s in cut.of:
        starts[s + 1] += 1
    starts = np.cumsum(starts)
    place, items = starts.copy(), np.zeros(len(where), np.int64)
    for v in range(len(where)):
        s = cut.of[v]
        home[s] = where[v]
        items[place[s]] = v
        place[s] += 1
    return CsrArrays(starts, items)


@inner
def _listed(
    where: Ints, cut: _Segments, home: Ints, nodes: CsrArrays, trained: NDArray[np.bool_], held: Ints,
    forward_s: Floats, backward_s: Floats, a: Arrays,
) -> Lists:  # fmt: skip
    """One walk over all computations, as `compile_program` does it: 1. forwards, with what they send;
    2. backwards, the last segment first, with the gradients that are complete; 3. steps.
    """
    devices, m = a.forward_s.shape[1], len(a.producer)
    producer, gives_back = a.producer, a.gives
    read_starts, read_items, make_starts, make_items = (
        a.reads.starts,
        a.reads.items,
        a.makes.starts,
        a.makes.items,
    )
    consumer_starts, consumer_items = a.consumers.starts, a.consumers.items
    node_starts, node_items = nodes.starts, nodes.items
    tags = 2 * cut.transfers
    variable, source, target = np.zeros(tags, np.int64), np.zeros(tags, np.int64), np.zeros(tags, np.int64)
    kind, what = (
        np.zeros(2 * cut.closed + tags + devices, np.int64),
        np.zeros(2 * cut.closed + tags + devices, np.int64),
    )
    size, tag = 0, 0
    first = np.zeros(m, np.int64)  # tag of each variable's first transfer; the others follow it
    dest = np.zeros(devices, np.bool_)
    tag_starts, tag_items = np.zeros(cut.closed + 1, np.int64), np.zeros(len(read_items), np.int64)
    gives, left = np.zeros(cut.transfers, np.bool_), np.zeros(cut.transfers, np.int64)
    stamp = np.full(cut.transfers, -1)
    taken = 0
    # 1. forwards
    for s in range(cut.closed):
        d = home[s]
        kind[size], what[size] = FORWARD, s
        size += 1
        for j in range(node_starts[s], node_starts[s + 1]):
            v = node_items[j]
            for k in range(read_starts[v], read_starts[v + 1]):
                u = read_items[k]
                if where[producer[u]] != d:
                    t = first[u]
                    while target[t] != d:
                        t += 1
                    gives[t] |= gives_back[k]
                    if stamp[t] != s:
                        stamp[t] = s
                        left[t] += trained[s]
                        tag_items[taken] = t
                        taken += 1
        tag_starts[s + 1] = taken
        for j in range(node_starts[s], node_starts[s + 1]):
            v = node_items[j]
            for k in range(make_starts[v], make_starts[v + 1]):
                u = make_items[k]
                first[u] = tag
                dest[:] = False
                for c in range(consumer_starts[u], consumer_starts[u + 1]):
                    dest[where[consumer_items[c]]] = True
                for q in range(devices):
                    if dest[q] and q != d:
                        variable[tag], source[tag], target[tag] = u, d, q
                        kind[size], what[size] = MESSAGE, tag
                        size += 1
                        tag += 1
    # 2. backwards
    back = np.full(cut.transfers, -1)  # tag of the gradient
    stepping = np.zeros(devices, np.bool_)
    for s in range(cut.closed - 1, -1, -1):
        if not trained[s]:
            continue
        d = home[s]
        stepping[d] = True
        kind[size], what[size] = BACKWARD, s
        size += 1
        for j in range(tag_starts[s], tag_starts[s + 1]):
            t = tag_items[j]
            left[t] -= 1
            if gives[t] and left[t] == 0:
                back[t] = tag
                variable[tag], source[tag], target[tag] = variable[t], d, source[t]
                kind[size], what[size] = MESSAGE, tag
                size += 1
                tag += 1
    # 3. steps
    for d in range(devices):
        if stepping[d]:
            kind[size], what[size] = STEP, d
            size += 1
    gradients = _gradients(cut, nodes, first, back, variable, a)
    return Lists(
        kind[:size], what[:size], home, forward_s, backward_s, CsrArrays(tag_starts, tag_items[:taken]),
        gradients, variable[:tag], source[:tag], target[:tag], held * a.device.step_per_byte,
    )  # fmt: skip


@inner
def _gradients(
    cut: _Segments, nodes: CsrArrays, first: Ints, back: Ints, variable: Ints, a: Arrays
) -> CsrArrays:
    """Of each segment the tags of the gradients that come from elsewhere for what it makes."""
    starts, items, size = np.zeros(cut.closed + 1, np.int64), np.zeros(cut.transfers, np.int64), 0
    for s in range(cut.closed):
        for j in range(nodes.starts[s], nodes.starts[s + 1]):
            v = nodes.items[j]
            for k in range(a.makes.starts[v], a.makes.starts[v + 1]):
                u = a.makes.items[k]
                t = first[u]
                while t < cut.transfers and variable[t] == u:
                    if back[t] >= 0:
                        items[size] = back[t]
                        size += 1
                    t += 1
        starts[s + 1] = size
    return CsrArrays(starts, items[:size])
