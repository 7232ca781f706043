"""Simulated annealing on a hypergraph's groups, compiled.

The energy is the p-norm of the device loads, p = 16: close to the largest, yet with a slope on the
others. A move takes one group, a swap of two, or a cluster of groups to another device: what heavy edges join
(`clusters_of`), so that dear nets need not be cut on the way.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from netsplit.compiled import compiled, inlined
from netsplit.partition.common.instance import Floats, Instance, Ints, Packed
from netsplit.partition.engines.anneal import clusters_of
from netsplit.partition.max_load.model import Hypergraph, HypergraphArrays

__all__ = ["LoadAnnealer"]

_PENALTY = 1e3  # energy of one capacity's worth of bytes too many, in units of the largest load's own


class _LoadState(NamedTuple):
    """A placement under change, and what follows from it."""

    where: Ints  # [G]
    pins: Ints  # [E, D] how many of the net are on the device
    held: Ints  # [h, D] how many groups of the set are on the device
    load: Floats  # [D]
    used: Ints  # [D] bytes


class _GroupMove(NamedTuple):
    """Groups that change their devices, as many as `_draw` says."""

    group: Ints  # [G]
    home: Ints  # [G]
    target: Ints  # [G]


class LoadAnnealer:
    """What many runs need; `model` is of the instance's atoms."""

    def __init__(self, instance: Instance, model: Hypergraph) -> None:
        self.model, self.clusters = model, clusters_of(instance).packed  # -> groups

    def run(
        self,
        where: Ints,
        steps: int,
        seed: int,
        hot: float = 0.02,
        cold: float = 1e-5,
        halt: Ints | None = None,
    ) -> tuple[Ints, float]:
        """The best placement on the way and its largest load; infinite where none met the memory.

        Args:
            where: [G] where to start, every group on a device it is allowed on.
            steps: moves tried. The temperature falls from `hot` to `cold` (relative to the energy).
            halt: [1] not zero: end early (another thread may set it).
        """
        model = self.model
        unit = max(float(model.loads(where).max(initial=0.0)), 1e-300)
        loads = _LoadState(
            where.astype(np.int64),
            model.counts(where, model.pins),
            model.counts(where, model.held),
            model.loads(where) / unit,
            model.used_bytes(where) if model.has_memory else np.zeros(model.devices, np.int64),
        )
        arrays = model.arrays(list(range(model.devices)), unit)
        halt = np.zeros(1, np.int64) if halt is None else halt
        best, value = _anneal(loads, arrays, self.clusters, steps, seed % (1 << 31), hot, cold, halt)
        return best, value * unit


@inlined
def _shift(g: int, q: int, s: _LoadState, m: HypergraphArrays) -> None:
    """Take group g to device q."""
    p = s.where[g]
    for i in range(m.nets[g], m.nets[g + 1]):
        e = m.nets[i]
        size = m.size[e]
        before = s.pins[e, p]
        if before == size:
            s.load[p] += m.hop[e, p]
        if before == 1:
            s.load[p] -= m.hop[e, p]
        s.pins[e, p] = before - 1
        before = s.pins[e, q]
        if before == 0:
            s.load[q] += m.hop[e, q]
        if before == size - 1:
            s.load[q] -= m.hop[e, q]
        s.pins[e, q] = before + 1
    for i in range(m.sets[g], m.sets[g + 1]):
        h = m.sets[i]
        s.held[h, p] -= 1
        if s.held[h, p] == 0:
            s.used[p] -= m.held_bytes[h]
        if s.held[h, q] == 0:
            s.used[q] += m.held_bytes[h]
        s.held[h, q] += 1
    s.load[p] -= m.weight[g, p]
    s.load[q] += m.weight[g, q]
    s.used[p] -= m.state[g]
    s.used[q] += m.state[g]
    s.where[g] = q


@inlined
def _energy(s: _LoadState, m: HypergraphArrays) -> float:
    total = 0.0
    for d in range(len(s.load)):
        x = max(s.load[d], 0.0)
        for _ in range(4):  # to the power of 16
            x = x * x
        total += x
        if s.used[d] > m.capacity[d]:
            total += _PENALTY * (s.used[d] - m.capacity[d]) / max(m.capacity[d], 1.0) + _PENALTY
    return total


@inlined
def _fits(s: _LoadState, m: HypergraphArrays) -> bool:
    over = False
    for d in range(len(s.used)):
        over = over or s.used[d] > m.capacity[d]
    return not over


@inlined
def _draw(move: _GroupMove, s: _LoadState, m: HypergraphArrays, clusters: Packed) -> int:
    """Fill a move, and answer how many groups it takes; 0: what was drawn is none.

    1. A group, or one of a cluster, and the device of a group beside it, or any.
    2. The cluster, whole or what of it is on the group's device.
    3. Or the group alone; often one from there comes back for it.
    """
    count, devices = m.weight.shape
    # 1. where to
    kind, c = np.random.random(), np.random.randint(clusters[0] - 1)
    g = np.random.randint(count)
    if 0.4 < kind < 0.85:
        g = clusters[np.random.randint(clusters[c], clusters[c + 1])]
    p = s.where[g]
    q = np.random.randint(devices)
    if kind < 0.75 and m.nets[g + 1] > m.nets[g]:
        e = m.nets[np.random.randint(m.nets[g], m.nets[g + 1])]
        if s.pins[e, p] < m.size[e]:
            q = s.where[m.pins[np.random.randint(m.pins[e], m.pins[e + 1])]]
        elif kind < 0.6:
            return 0
    if q == p or not m.allowed[g, q]:
        return 0
    # 2. a cluster
    if 0.4 < kind < 0.85:
        n, whole = 0, kind < 0.5
        for i in range(clusters[c], clusters[c + 1]):
            v = clusters[i]
            if s.where[v] != q and (whole or s.where[v] == p):
                if not m.allowed[v, q]:
                    return 0
                move.group[n], move.home[n], move.target[n] = v, s.where[v], q
                n += 1
        return 0 if n == count else n
    # 3. one group, or two
    move.group[0], move.home[0], move.target[0] = g, p, q
    if kind > 0.93 or kind < 0.2:
        for _ in range(8):
            v = np.random.randint(count)
            if s.where[v] == q and m.allowed[v, p]:
                move.group[1], move.home[1], move.target[1] = v, q, p
                return 2
    return 1


@inlined
def _add_up(s: _LoadState, m: HypergraphArrays) -> None:
    """The loads anew: additions and subtractions leave rounding behind."""
    s.load[:] = 0.0
    for v in range(len(s.where)):
        s.load[s.where[v]] += m.weight[v, s.where[v]]
    for e in range(len(m.size)):
        for d in range(len(s.load)):
            if 0 < s.pins[e, d] < m.size[e]:
                s.load[d] += m.hop[e, d]


@compiled
def _anneal(
    s: _LoadState,
    m: HypergraphArrays,
    clusters: Packed,
    steps: int,
    seed: int,
    hot: float,
    cold: float,
    halt: Ints,
) -> tuple[Ints, float]:
    """The best placement seen that meets the memory, and its largest load; infinite where none did. Each
    step: 1. draw a move; 2. make it; 3. keep it, if energy and temperature say so, or 4. undo it."""
    np.random.seed(seed)
    count = len(m.weight)
    best, least = s.where.copy(), np.inf
    energy = _energy(s, m)
    if _fits(s, m):
        least = s.load.max()
    move = _GroupMove(np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64))
    cooling = (cold / hot) ** (1.0 / max(steps, 1))
    temperature = hot
    drift = 0
    for turn in range(steps):
        if turn & 0xFFFF == 0 and halt[0]:
            break
        temperature *= cooling
        # 1. draw
        n = _draw(move, s, m, clusters)
        if n == 0:
            continue
        # 2. move
        for i in range(n):
            _shift(move.group[i], move.target[i], s, m)
        fresh = _energy(s, m)
        if fresh <= energy or np.log(fresh / energy) < -16.0 * temperature * np.log(np.random.random()):
            # 3. keep
            energy = fresh
            largest = s.load.max()
            if largest < least * (1 - 1e-12) and _fits(s, m):
                least = largest
                best[:] = s.where
        else:
            # 4. undo
            for i in range(n - 1, -1, -1):
                _shift(move.group[i], move.home[i], s, m)
        drift += 1
        if drift == 1 << 16:
            drift = 0
            _add_up(s, m)
            energy = _energy(s, m)
    return best, least
