# mypy: allow-untyped-defs, allow-untyped-calls
"""Blocks of one device within a load limit, found fast: columns for `bounds.excluded`. Imported lazily."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from netsplit.partition.common.instance import Floats, Ints
from netsplit.partition.max_load.annealing import LoadAnnealer
from netsplit.partition.max_load.model import Hypergraph

__all__ = ["BlockAnnealer", "Segments"]


@dataclass(frozen=True)
class BlockAnnealer:
    """Annealing of one device's block alone: the most price within a load limit."""

    annealer: LoadAnnealer
    device: int

    def run(
        self, prices: Floats, limit: float, inside: Ints, steps: int, seed: int, hot: float = 1.0
    ) -> tuple[Ints, float]:
        """The groups of the best block found with a load of at most `limit`, and their price [G]."""
        model = self.annealer.model
        chosen = np.zeros(model.count, np.int64)
        chosen[inside] = 1
        best, value = _fill(
            prices,
            model.weight[:, self.device] / limit,
            model.nets_of.starts,
            model.nets_of.items,
            model.pins.starts,
            model.pins.items,
            model.hop[:, self.device] / limit,
            model.allowed[:, self.device],
            self.annealer.level_of,
            self.annealer.starts,
            self.annealer.items,
            chosen,
            steps,
            seed % (1 << 31),
            hot,
        )
        return np.flatnonzero(best), value


@dataclass(frozen=True)
class Segments:
    """The blocks that are pieces of one linear order of the groups, with their loads on one device."""

    order: Ints  # [G]
    load: Floats  # [G + 1, G + 1] of the piece from i up to, but without, j; infinite where i >= j

    @classmethod
    def of(cls, model: Hypergraph, device: int, order: Ints) -> Segments:
        nets = model.nets_of
        load = _pieces(
            order,
            np.where(model.allowed[:, device], model.weight[:, device], np.inf),
            nets.starts,
            nets.items,
            np.diff(model.pins.starts),
            model.hop[:, device],
        )
        return cls(order, load)

    def best(self, prices: Floats, limit: float, many: int) -> list[Ints]:
        """The groups of the pieces of highest price, of different starts."""
        total = np.concatenate([[0.0], np.cumsum(prices[self.order])])
        worth = np.where(self.load <= limit, total[None, :] - total[:, None], -np.inf)
        end = worth.argmax(axis=1)
        value = worth[np.arange(len(end)), end]
        starts = np.argsort(-value, kind="stable")[:many]
        return [self.order[i : end[i]] for i in starts.tolist() if value[i] > 0]


@njit(cache=True, nogil=True)
def _pieces(order, weight, nstarts, nets, size, hop):
    count = len(order)
    load = np.full((count + 1, count + 1), np.inf)
    inside = np.zeros(count, np.int64)
    for i in range(count):
        cnt = np.zeros(len(size), np.int64)
        inside[:] = 0
        total = 0.0
        for j in range(i, count):
            total += _flip(order[j], inside, weight, nstarts, nets, size, hop, cnt)
            load[i, j + 1] = total
    return load


@njit(cache=True, nogil=True)
def _flip(g, inside, weight, nstarts, nets, size, hop, cnt):
    change = 0.0
    step = 1 if inside[g] == 0 else -1
    for i in range(nstarts[g], nstarts[g + 1]):
        e = nets[i]
        if 0 < cnt[e] < size[e]:
            change -= hop[e]
        cnt[e] += step
        if 0 < cnt[e] < size[e]:
            change += hop[e]
    inside[g] += step
    return change + step * weight[g]


@njit(cache=True, nogil=True)
def _fill(
    prices, weight, nstarts, nets, pstarts, pins, hop, allowed, level_of, cstarts, citems, inside, steps,
    seed, heat,
):  # fmt: skip
    np.random.seed(seed)
    count = len(prices)
    size = pstarts[1:] - pstarts[:-1]
    levels = level_of.shape[0]
    cnt = np.zeros(len(size), np.int64)
    load = 0.0
    price = 0.0
    for g in range(count):
        if inside[g] == 1:
            inside[g] = 0
            load += _flip(g, inside, weight, nstarts, nets, size, hop, cnt)
            price += prices[g]
    best = np.zeros(count, np.int64)
    best_price = 0.0
    if load <= 1.0 and price > 0:
        best_price = price
        best[:] = inside
    scale = np.abs(prices).max()
    hot, cold = heat * scale, 1e-3 * scale
    cooling = (cold / hot) ** (1.0 / max(steps, 1))
    tau = hot
    penalty = 4.0 * np.abs(prices).sum()
    moved = np.empty(count, np.int64)
    score = price - penalty * max(0.0, load - 1.0)
    for _ in range(steps):
        tau *= cooling
        g = np.random.randint(count)
        n = 0
        kind = np.random.random()
        fresh_load, fresh_price = load, price
        if kind < 0.4 and levels > 0:
            c = level_of[np.random.randint(levels), g]
            side = inside[g]
            room = True
            for i in range(cstarts[c], cstarts[c + 1]):
                v = citems[i]
                if inside[v] == side:
                    room = room and (side == 1 or allowed[v])
                    moved[n] = v
                    n += 1
            if not room:
                continue
        else:
            if inside[g] == 0 and not allowed[g]:
                continue
            if kind < 0.8 and nstarts[g + 1] > nstarts[g]:
                touching = False
                for i in range(nstarts[g], nstarts[g + 1]):
                    if 0 < cnt[nets[i]] < size[nets[i]]:
                        touching = True
                if not touching:
                    continue
            moved[0] = g
            n = 1
            if kind > 0.9:
                v = np.random.randint(count)
                if inside[v] != inside[g] and (inside[v] == 1 or allowed[v]):
                    moved[1] = v
                    n = 2
        for i in range(n):
            v = moved[i]
            fresh_price += prices[v] if inside[v] == 0 else -prices[v]
            fresh_load += _flip(v, inside, weight, nstarts, nets, size, hop, cnt)
        fresh = fresh_price - penalty * max(0.0, fresh_load - 1.0)
        if fresh >= score or fresh - score > tau * np.log(np.random.random()):
            load, price, score = fresh_load, fresh_price, fresh
            if load <= 1.0 and price > best_price:
                best_price = price
                best[:] = inside
        else:
            for i in range(n - 1, -1, -1):
                _flip(moved[i], inside, weight, nstarts, nets, size, hop, cnt)
    return best, best_price
