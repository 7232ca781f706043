# mypy: allow-untyped-defs, allow-untyped-calls
"""Simulated annealing on a hypergraph's groups, compiled. Imported lazily: numba takes a second to load.

The energy is the p-norm of the device loads, p = 16: close to the largest, yet with a slope on the
others. A move takes one group, a swap of two, or a cluster of groups to another device; clusters are
the components of the graph at several least net costs, so that dear nets need not be cut on the way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from netsplit.partition.common.atoms import DisjointSets
from netsplit.partition.common.instance import Csr, Floats, Ints
from netsplit.partition.max_load.model import Hypergraph

__all__ = ["LoadAnnealer"]

_LEVELS = 12
_PENALTY = 1e3  # energy of one capacity's worth of bytes too many, in units of the largest load's own


@dataclass(frozen=True)
class LoadAnnealer:
    """The arrays of one model, prepared once for many runs."""

    model: Hypergraph
    level_of: Ints  # [L, G] cluster of each group
    starts: Ints  # [clusters + 1]
    items: Ints

    @classmethod
    def of(cls, model: Hypergraph) -> LoadAnnealer:
        levels: list[Ints] = []
        rows: list[list[int]] = []
        for threshold in _thresholds(model):
            sets = DisjointSets(model.count)
            for e in np.flatnonzero(model.hop.max(axis=1, initial=0.0) >= threshold).tolist():
                first, *rest = model.pins[e].tolist()
                for g in rest:
                    sets.merge(first, g)
            label = np.zeros(model.count, np.int64)
            for members in sets.sets():
                label[members] = len(rows)
                rows.append(members)
            levels.append(label)
        csr = Csr.of(rows)
        return cls(model, np.array(levels, np.int64).reshape(len(levels), model.count), csr.starts, csr.items)

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
        sets = model.sets_of
        nets = model.nets_of
        best, value = _anneal(
            where.astype(np.int64),
            model.weight / unit,
            nets.starts,
            nets.items,
            model.pins.starts,
            model.pins.items,
            model.hop / unit,
            model.allowed,
            model.state.astype(np.float64),
            sets.starts,
            sets.items,
            model.counts(where, model.pins),
            model.counts(where, model.held),
            model.held_bytes.astype(np.float64),
            model.capacity.astype(np.float64),
            model.loads(where) / unit,
            model.used_bytes(where).astype(np.float64) if model.has_memory else np.zeros(model.devices),
            self.level_of,
            self.starts,
            self.items,
            steps,
            seed % (1 << 31),
            hot,
            cold,
            np.zeros(1, np.int64) if halt is None else halt,
        )
        return best, value * unit


def _thresholds(model: Hypergraph) -> Floats:
    hops = np.unique(model.hop.max(axis=1, initial=0.0))
    hops = hops[hops > 0]
    if not len(hops):
        return np.zeros(0)
    picked = np.unique(np.linspace(0, len(hops) - 1, _LEVELS).round().astype(int))
    return np.asarray(hops[picked])


@njit(cache=True, nogil=True)
def _shift(
    g, q, where, weight, nstarts, nets, size, hop, state, sstarts, sets, cnt, hcnt, held_bytes, load, used
):
    p = where[g]
    for i in range(nstarts[g], nstarts[g + 1]):
        e = nets[i]
        s = size[e]
        before = cnt[e, p]
        if before == s:
            load[p] += hop[e, p]
        if before == 1:
            load[p] -= hop[e, p]
        cnt[e, p] = before - 1
        before = cnt[e, q]
        if before == 0:
            load[q] += hop[e, q]
        if before == s - 1:
            load[q] -= hop[e, q]
        cnt[e, q] = before + 1
    for i in range(sstarts[g], sstarts[g + 1]):
        h = sets[i]
        hcnt[h, p] -= 1
        if hcnt[h, p] == 0:
            used[p] -= held_bytes[h]
        if hcnt[h, q] == 0:
            used[q] += held_bytes[h]
        hcnt[h, q] += 1
    load[p] -= weight[g, p]
    load[q] += weight[g, q]
    used[p] -= state[g]
    used[q] += state[g]
    where[g] = q


@njit(cache=True, nogil=True)
def _power(x):
    x = x * x
    x = x * x
    x = x * x
    return x * x


@njit(cache=True, nogil=True)
def _energy(load, used, capacity):
    total = 0.0
    for d in range(len(load)):
        total += _power(max(load[d], 0.0))
        if used[d] > capacity[d]:
            total += _PENALTY * (used[d] - capacity[d]) / max(capacity[d], 1.0) + _PENALTY
    return total


@njit(cache=True, nogil=True)
def _anneal(
    where, weight, nstarts, nets, pstarts, pins, hop, allowed, state, sstarts, sets, cnt, hcnt, held_bytes,
    capacity, load, used, level_of, cstarts, citems, steps, seed, hot, cold,
    halt,
):  # fmt: skip
    np.random.seed(seed)
    count, devices = weight.shape
    size = pstarts[1:] - pstarts[:-1]
    levels = level_of.shape[0]
    best = where.copy()
    best_max = np.inf
    energy = _energy(load, used, capacity)
    over = False
    for d in range(devices):
        over = over or used[d] > capacity[d]
    if not over:
        best_max = load.max()
    moved = np.empty(count, np.int64)
    home = np.empty(count, np.int64)
    cooling = (cold / hot) ** (1.0 / max(steps, 1))
    tau = hot
    drift = 0
    for turn in range(steps):
        if turn & 0xFFFF == 0 and halt[0]:
            break
        tau *= cooling
        n = 0
        g = np.random.randint(count)
        p = where[g]
        kind = np.random.random()
        q = np.random.randint(devices)
        if kind < 0.75 and nstarts[g + 1] > nstarts[g]:
            e = nets[np.random.randint(nstarts[g], nstarts[g + 1])]
            if cnt[e, p] < size[e]:
                v = pins[np.random.randint(pstarts[e], pstarts[e + 1])]
                q = where[v]
            elif kind < 0.6:
                continue
        if q == p or not allowed[g, q]:
            continue
        if levels > 0 and 0.4 < kind < 0.85:
            c = level_of[np.random.randint(levels), g]
            whole = kind < 0.5
            room = True
            for i in range(cstarts[c], cstarts[c + 1]):
                v = citems[i]
                if where[v] != q and (whole or where[v] == p):
                    if not allowed[v, q]:
                        room = False
                        break
                    moved[n] = v
                    home[n] = where[v]
                    n += 1
            if not room or n == count:
                continue
        else:
            moved[0] = g
            home[0] = p
            n = 1
            if kind > 0.93 or kind < 0.2:
                for _ in range(8):
                    v = np.random.randint(count)
                    if where[v] == q and allowed[v, p]:
                        moved[1] = v
                        home[1] = q
                        n = 2
                        break
        for i in range(n):
            target = q if home[i] != q else p
            _shift(
                moved[i], target, where, weight, nstarts, nets, size, hop, state, sstarts, sets, cnt, hcnt,
                held_bytes, load, used,
            )  # fmt: skip
        fresh = _energy(load, used, capacity)
        if fresh <= energy or np.log(fresh / energy) < -16.0 * tau * np.log(np.random.random()):
            energy = fresh
            largest = load.max()
            if largest < best_max * (1 - 1e-12):
                over = False
                for d in range(devices):
                    over = over or used[d] > capacity[d]
                if not over:
                    best_max = largest
                    best[:] = where
        else:
            for i in range(n - 1, -1, -1):
                _shift(
                    moved[i], home[i], where, weight, nstarts, nets, size, hop, state, sstarts, sets, cnt,
                    hcnt, held_bytes, load, used,
                )  # fmt: skip
        drift += 1
        if drift == 1 << 16:  # additions and subtractions leave rounding behind
            drift = 0
            for d in range(devices):
                load[d] = 0.0
            for v in range(count):
                load[where[v]] += weight[v, where[v]]
            for e in range(len(size)):
                for d in range(devices):
                    if 0 < cnt[e, d] < size[e]:
                        load[d] += hop[e, d]
            energy = _energy(load, used, capacity)
    return best, best_max
