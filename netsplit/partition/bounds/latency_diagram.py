"""A lower bound on latency by a relaxed decision diagram over the nodes in topological order.

A state says on which device each variable lies that is still to be read; its label holds, as far as the
nodes decided so far go, the end of each such variable's producer, the time from the start of its producer's
backward to the end of the iteration, and the bytes on each device. Where a layer has more labels than
its width, labels of one state which use about the same bytes are merged by taking the least of everything:
the result stays a bound, and becomes exact for R (see `latency_bounds`) as the width grows.

Source: Bergman, Cire, van Hoeve, Hooker, Decision Diagrams for Optimization, 2016, chapter 4 (relaxed
diagrams by merging); the label is that of resource-constrained shortest paths.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from netsplit.graph.order import chosen_order
from netsplit.graph.quotient import successors
from netsplit.partition.common.instance import Floats, Ints
from netsplit.partition.common.step_graph import StepGraph

__all__ = ["OutOfTime", "check_clock", "diagram_bound", "narrow_order", "node_order"]

_DEVICES = 59  # devices as bits of one integer


class OutOfTime(Exception):
    """A bound could not be prepared in its time; its caller keeps the bound that it has."""


def check_clock(deadline: float) -> None:
    """Raises OutOfTime after `deadline` on ``time.perf_counter``."""
    if time.perf_counter() > deadline:
        raise OutOfTime


@dataclass(eq=False)
class _Layer:
    """Labels L; live variables K in the order of `live`."""

    live: list[int]
    device: NDArray[np.int8]  # [L, K] of the producer
    present: NDArray[np.int64]  # [L, K] devices that hold the variable, as bits
    ended: Floats  # [L, K] end of the producer's forward
    rest: Floats  # [L, K] from the start of the producer's backward to the end of the iteration
    used: Floats  # [L, D] bytes
    total: Floats  # [L] bytes on all devices
    least: Floats  # [L] what the iteration takes at least

    def take(self, rows: Any) -> _Layer:
        return _Layer(
            self.live,
            self.device[rows],
            self.present[rows],
            self.ended[rows],
            self.rest[rows],
            self.used[rows],
            self.total[rows],
            self.least[rows],
        )


class _Bytes:
    """What a node adds to the device it is put on: state, own unread outputs, inputs of the graph once."""

    def __init__(self, graph: StepGraph) -> None:
        instance = graph.instance
        u_of = {k: u for u, k in enumerate(instance.variables)}
        self.own = instance.state_bytes.astype(float)
        self.variable = np.zeros(len(instance.variables))
        for h, k in enumerate(instance.problem.graph.variables):
            if k in u_of:
                self.variable[u_of[k]] = instance.held_bytes[h]
            elif len(instance.holders[h]):
                self.own[instance.holders[h][0]] += instance.held_bytes[h]
        need = self.own.copy()
        np.add.at(need, instance.producer, self.variable)
        self.need = need  # [n] bytes that the node surely adds to the total


def narrow_order(
    reads: Sequence[Collection[int]],
    left: list[int],
    makes: Sequence[int],
    before: Sequence[Collection[int]],
    deadline: float = math.inf,
) -> list[int]:
    """A topological order with few values open at once: always the node that closes the most.

    Args:
        reads: [n] values that a node reads.
        left: how many nodes read each value; counted down here.
        makes: [n] how many values a node opens.
        before: [n] the nodes that a node waits for.

    Raises:
        OutOfTime: after the deadline.
    """
    after = successors(len(before), ((u, v) for v, feeders in enumerate(before) for u in feeders))
    made: dict[int, int] = {}

    def gain(v: int) -> tuple[int, int, int]:
        latest = max([made[u] for u in before[v]], default=-1)
        return sum(left[k] == 1 for k in reads[v]) - makes[v], latest, -v

    def narrowest(ready: list[int]) -> int:
        check_clock(deadline)
        v = max(ready, key=gain)
        made[v] = len(made)
        for k in reads[v]:
            left[k] -= 1
        return v

    return chosen_order(after, narrowest)


def node_order(graph: StepGraph, deadline: float = math.inf) -> list[int]:
    """The nodes in a topological order with few variables open at once; raises as `narrow_order`."""
    instance, nodes = graph.instance, range(graph.n)
    return narrow_order(
        [instance.reads[v].tolist() for v in nodes],
        np.diff(instance.consumers.starts).tolist(),
        [len(instance.makes[v]) for v in nodes],
        [instance.predecessors[v].tolist() for v in nodes],
        deadline,
    )


def diagram_bound(graph: StepGraph, most_s: float, width: int, deadline: float) -> float | None:
    """Seconds that no answer beats, or `most_s` where no answer is better than that.

    None where the time is over, where so many variables are open at once that the states alone exceed
    the width 16 times, or with more devices than an integer has bits.
    """
    if len(graph.instance.devices) > _DEVICES:
        return None
    try:
        return _bound(graph, most_s, width, deadline)
    except OutOfTime:
        return None


def _bound(graph: StepGraph, most_s: float, width: int, deadline: float) -> float | None:
    instance, n = graph.instance, graph.n
    devices = len(instance.devices)
    order = node_order(graph, deadline)
    sizes = _Bytes(graph)
    coming = float(sizes.need.sum())
    reads_left = np.diff(instance.consumers.starts).copy()
    layer = _Layer(
        [],
        np.zeros((1, 0), np.int8),
        np.zeros((1, 0), np.int64),
        np.zeros((1, 0)),
        np.zeros((1, 0)),
        np.zeros((1, devices)),
        np.zeros(1),
        np.zeros(1),
    )
    atom_left = np.bincount(instance.atom_of)
    for v in order:
        atom_left[instance.atom_of[v]] -= 1
        parts = []
        for d in range(devices):
            check_clock(deadline)
            parts.append(_expand(graph, layer, sizes, v, d))
        layer = _concatenate(parts)
        coming -= float(sizes.need[v])
        room = float(instance.capacity.sum()) - coming
        fine = (layer.used <= instance.capacity).all(axis=1) & (layer.total <= room)
        fine &= layer.least < most_s
        layer = layer.take(fine)
        for u in instance.reads[v]:
            reads_left[u] -= 1
        _retire(layer, [u for u in layer.live if reads_left[u] > 0])
        layer = _merge(layer, instance.capacity, width)
        if not len(layer.least):
            return most_s
        if len(layer.least) > 16 * width:
            return None
    return float(layer.least.min()) if n else 0.0


def _expand(graph: StepGraph, old: _Layer, sizes: _Bytes, v: int, d: int) -> _Layer:
    """All labels with node v on device d."""
    i, n = graph.instance, graph.n
    count = len(old.least)
    ended, rest = np.zeros(count), np.zeros(count)
    used, total, present = old.used.copy(), old.total.copy(), old.present.copy()
    added = np.full(count, sizes.own[v])
    for u in i.reads[v].tolist():
        k = old.live.index(u)
        at = old.device[:, k]
        ended = np.maximum(ended, old.ended[:, k] + i.transfer_s[u, at, d])
        if i.requires_backward[u] and i.trained[v]:
            rest = np.maximum(rest, old.rest[:, k] + i.transfer_s[u, d, at])
        added += sizes.variable[u] * ((present[:, k] >> d) & 1 == 0)
        present[:, k] |= 1 << d
    ended = ended + i.forward_s[v, d]
    rest = rest + i.backward_s[v, d]
    made = i.makes[v].tolist()
    added += sizes.variable[made].sum()
    used[:, d] += added
    total += added
    least = np.maximum(old.least, ended + graph.tail[v])
    if i.trained[v]:
        inside = graph.there_and_back[v] - graph.fastest[v] - graph.fastest[n + v]
        least = np.maximum(least, ended + rest + inside)
    columns = len(made)

    def beside(old_columns: Any, new: Any) -> Any:
        return np.concatenate([old_columns, np.repeat(new[:, None], columns, axis=1)], axis=1)

    return _Layer(
        old.live + made,
        beside(old.device, np.full(count, d, np.int8)),
        beside(present, np.full(count, 1 << d, np.int64)),
        beside(old.ended, ended),
        beside(old.rest, rest),
        used,
        total,
        least,
    )


def _concatenate(parts: list[_Layer]) -> _Layer:
    def column(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in parts])

    names = ("device", "present", "ended", "rest", "used", "total", "least")
    return _Layer(parts[0].live, *(column(name) for name in names))


def _retire(layer: _Layer, still: list[int]) -> None:
    """Forget the variables that nobody will read any more."""
    keep = [layer.live.index(u) for u in still]
    layer.live = still
    layer.device, layer.present = layer.device[:, keep], layer.present[:, keep]
    layer.ended, layer.rest = layer.ended[:, keep], layer.rest[:, keep]


def _merge(layer: _Layer, capacity: Ints, width: int) -> _Layer:
    """At most about `width` labels: those of a state in one cell of a grid of bytes and time become one."""
    if len(layer.least) <= 1:
        return layer
    state = np.concatenate([layer.device, layer.present], axis=1).astype(np.int64)
    _, key = np.unique(state, axis=0, return_inverse=True)
    key = key.reshape(-1).astype(np.int64)
    low, high = float(layer.least.min()), float(layer.least.max())
    filled = layer.used / np.maximum(capacity, 1)
    times = (layer.least - low) / ((high - low) or 1.0)
    cells, cell = 4096.0, None
    while True:
        code = key.copy()
        for axis, scale in [*((filled[:, d], cells) for d in range(filled.shape[1])), (times, cells)]:
            code = code * (int(scale) + 2) + (axis * scale).astype(np.int64)
            _, code = np.unique(code, return_inverse=True)
            code = code.reshape(-1).astype(np.int64)
        cell = code
        if int(cell.max()) + 1 <= width or cells < 1:
            break
        cells /= 1.5
    if int(cell.max()) + 1 == len(cell):
        return layer
    order = np.argsort(cell, kind="stable")
    starts = np.flatnonzero(np.diff(cell[order], prepend=-1))
    merged = layer.take(order[starts])
    for name in ("ended", "rest", "used", "total", "least"):
        values = getattr(layer, name)[order]
        if values.ndim == 1 or values.shape[1]:
            setattr(merged, name, np.minimum.reduceat(values, starts, axis=0))
    return merged
