"""Pricing by annealing, and by pieces of orders: columns of one device within a load limit, found fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from netsplit.partition.common.instance import Floats, Ints, Packed
from netsplit.partition.engines.compiled import compiled, inlined
from netsplit.partition.max_load.annealing import ClusterArrays, LoadAnnealer
from netsplit.partition.max_load.model import Hypergraph

__all__ = ["ColumnAnnealer", "OrderPieces"]


class _DeviceArrays(NamedTuple):
    """`Hypergraph` as one device has it, for compiled functions."""

    weight: Floats  # [G]
    allowed: NDArray[np.bool_]  # [G]
    nets: Packed  # [G] -> nets with the group as a pin
    size: Ints  # [E] how many pins
    hop: Floats  # [E]

    @classmethod
    def of(cls, model: Hypergraph, device: int, unit_s: float = 1.0) -> _DeviceArrays:
        return cls(
            model.weight[:, device] / unit_s,
            np.ascontiguousarray(model.allowed[:, device]),
            model.nets_of.packed,
            np.diff(model.pins.starts),
            model.hop[:, device] / unit_s,
        )


class _Inside(NamedTuple):
    """A column under change."""

    groups: Ints  # [G] 1: in the column
    pins: Ints  # [E] how many are in the column


@dataclass(frozen=True)
class ColumnAnnealer:
    """Annealing of one device's column alone: the most price within a load limit."""

    annealer: LoadAnnealer
    device: int

    def run(
        self, prices: Floats, limit: float, inside: Ints, steps: int, seed: int, hot: float = 1.0
    ) -> tuple[Ints, float]:
        """The groups of the best column found with a load of at most `limit`, and their price [G]."""
        model = self.annealer.model
        chosen = np.zeros(model.count, np.int64)
        chosen[inside] = 1
        arrays = _DeviceArrays.of(model, self.device, limit)
        best, value = _fill(prices, arrays, self.annealer.clusters, chosen, steps, seed % (1 << 31), hot)
        return np.flatnonzero(best), value


@dataclass(frozen=True)
class OrderPieces:
    """The columns that are pieces of one linear order of the groups, with their loads on one device."""

    order: Ints  # [G]
    load: Floats  # [G + 1, G + 1] of the piece from i up to, but without, j; infinite where i >= j

    @classmethod
    def of(cls, model: Hypergraph, device: int, order: Ints) -> OrderPieces:
        arrays = _DeviceArrays.of(model, device)
        arrays = arrays._replace(weight=np.where(arrays.allowed, arrays.weight, np.inf))
        return cls(order, _pieces(order, arrays))

    def best(self, prices: Floats, limit: float, many: int) -> list[Ints]:
        """The groups of the pieces of highest price, of different starts."""
        total = np.concatenate([[0.0], np.cumsum(prices[self.order])])
        worth = np.where(self.load <= limit, total[None, :] - total[:, None], -np.inf)
        end = worth.argmax(axis=1)
        value = worth[np.arange(len(end)), end]
        starts = np.argsort(-value, kind="stable")[:many]
        return [self.order[i : end[i]] for i in starts.tolist() if value[i] > 0]


@compiled
def _pieces(order: Ints, m: _DeviceArrays) -> Floats:
    count = len(order)
    load = np.full((count + 1, count + 1), np.inf)
    inside = _Inside(np.zeros(count, np.int64), np.zeros(len(m.size), np.int64))
    for i in range(count):
        inside.groups[:] = 0
        inside.pins[:] = 0
        total = 0.0
        for j in range(i, count):
            total += _flip(order[j], inside, m)
            load[i, j + 1] = total
    return load


@inlined
def _flip(g: int, inside: _Inside, m: _DeviceArrays) -> float:
    """Take a group into the column, or out of it; by how much the load grows."""
    change = 0.0
    step = 1 if inside.groups[g] == 0 else -1
    for i in range(m.nets[g], m.nets[g + 1]):
        e = m.nets[i]
        if 0 < inside.pins[e] < m.size[e]:
            change -= m.hop[e]
        inside.pins[e] += step
        if 0 < inside.pins[e] < m.size[e]:
            change += m.hop[e]
    inside.groups[g] += step
    return change + step * m.weight[g]


@inlined
def _draw(moved: Ints, inside: _Inside, m: _DeviceArrays, clusters: ClusterArrays) -> int:
    """Fill which groups change sides, and answer how many; 0: what was drawn is no move.

    1. What of a group's cluster, at some level, is on the group's side.
    2. Or the group alone; of four in five only where a net of it is cut. Sometimes one for another.
    """
    count, levels = len(m.weight), len(clusters.level_of)
    g = np.random.randint(count)
    kind = np.random.random()
    # 1. a cluster
    if kind < 0.4 and levels > 0:
        n = 0
        c = clusters.level_of[np.random.randint(levels), g]
        for i in range(clusters.members[c], clusters.members[c + 1]):
            v = clusters.members[i]
            if inside.groups[v] == inside.groups[g]:
                if inside.groups[g] == 0 and not m.allowed[v]:
                    return 0
                moved[n] = v
                n += 1
        return n
    # 2. one group, or two
    if inside.groups[g] == 0 and not m.allowed[g]:
        return 0
    if kind < 0.8 and m.nets[g + 1] > m.nets[g]:
        touching = False
        for i in range(m.nets[g], m.nets[g + 1]):
            e = m.nets[i]
            touching = touching or 0 < inside.pins[e] < m.size[e]
        if not touching:
            return 0
    moved[0] = g
    if kind > 0.9:
        v = np.random.randint(count)
        if inside.groups[v] != inside.groups[g] and (inside.groups[v] == 1 or m.allowed[v]):
            moved[1] = v
            return 2
    return 1


@compiled
def _fill(
    prices: Floats,
    m: _DeviceArrays,
    clusters: ClusterArrays,
    chosen: Ints,
    steps: int,
    seed: int,
    heat: float,
) -> tuple[Ints, float]:
    """The column of most price seen with a load of at most 1, as [G] bits, and its price.

    1. The chosen groups go in.

    Each step: 2. draw groups that change sides; 3. flip them; 4. keep that, if price, load and temperature
    say so, or 5. flip them back.
    """
    np.random.seed(seed)
    count = len(prices)
    inside = _Inside(np.zeros(count, np.int64), np.zeros(len(m.size), np.int64))
    load, price = 0.0, 0.0
    # 1. start
    for g in range(count):
        if chosen[g] == 1:
            load += _flip(g, inside, m)
            price += prices[g]
    best, best_price = np.zeros(count, np.int64), 0.0
    if load <= 1.0 and price > 0:
        best_price = price
        best[:] = inside.groups
    scale = np.abs(prices).max()
    hot, cold = heat * scale, 1e-3 * scale
    cooling = (cold / hot) ** (1.0 / max(steps, 1))
    temperature = hot
    penalty = 4.0 * np.abs(prices).sum()
    moved = np.empty(count, np.int64)
    score = price - penalty * max(0.0, load - 1.0)
    for _ in range(steps):
        temperature *= cooling
        # 2. draw
        n = _draw(moved, inside, m, clusters)
        if n == 0:
            continue
        # 3. flip
        fresh_load, fresh_price = load, price
        for i in range(n):
            v = moved[i]
            fresh_price += prices[v] if inside.groups[v] == 0 else -prices[v]
            fresh_load += _flip(v, inside, m)
        fresh = fresh_price - penalty * max(0.0, fresh_load - 1.0)
        if fresh >= score or fresh - score > temperature * np.log(np.random.random()):
            # 4. keep
            load, price, score = fresh_load, fresh_price, fresh
            if load <= 1.0 and price > best_price:
                best_price = price
                best[:] = inside.groups
        else:
            # 5. back
            for i in range(n - 1, -1, -1):
                _flip(moved[i], inside, m)
    return best, best_price
