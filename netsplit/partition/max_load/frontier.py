# mypy: allow-untyped-defs, allow-untyped-calls
"""Blocks of one device priced exactly: the groups decided one by one, with few nets open at a time.

Nearly every network is a chain with shortcuts: on the way along it, few nets have pins on both sides.
The part of a block that is decided can then be told by its load, its price and, for every open net,
whether none, all or some of the pins seen so far are in the block. A net is paid for when it turns to
"some". Of two parts alike in the open nets, one with more load and no more price is forgotten, and so
is one that cannot come to more than a floor: Lagrange's relaxation of the load limit, solved backwards
for several multipliers, bounds what the groups ahead can add. Imported lazily.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from netsplit.partition.common.instance import Floats, Ints
from netsplit.partition.engines.compiled import compiled
from netsplit.partition.max_load.model import Hypergraph

__all__ = ["Frontier", "narrowest"]

_ROUNDING = 1e-9  # relative: what sums of loads may be off by
_STATES = 1 << 14  # of one step; beyond, pricing by a solver is faster
_SOME = 2
_FACTORS = (0.0, 0.3, 0.5, 0.65, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.5, 8.0)


@dataclass(frozen=True)
class Frontier:
    """What one device may be given, as an automaton that reads the groups in one order.

    Moves m of step i are `starts[i]:starts[i + 1]`, by ascending target.
    """

    order: Ints  # [G]
    width: Ints  # [G + 1] states before each step; the last is 1
    starts: Ints  # [G + 1]
    source: Ints  # [m] state before the step
    target: Ints  # [m] state after it
    inside: Ints  # [m] whether the group is in the block
    load: Floats  # [m] seconds that the move adds

    @classmethod
    def of(cls, model: Hypergraph, device: int, order: Ints, states: int = _STATES) -> Frontier | None:
        """None where a step has more than so many states."""
        hop = model.hop[:, device]
        rank = np.empty(model.count, np.int64)
        rank[order] = np.arange(model.count)
        last = np.array([rank[model.pins[e]].max() for e in range(len(model.pins))], np.int64)
        layer: dict[tuple[int, ...], int] = {(): 0}
        open_: list[int] = []
        width, starts = [1], [0]
        moves: list[tuple[int, int, int, float]] = []
        for i, g in enumerate(order.tolist()):
            nets = [e for e in model.nets_of[g].tolist() if hop[e] > 0]
            at = {e: k for k, e in enumerate(open_)}
            grown = open_ + [e for e in nets if e not in at]
            slots = [(grown.index(e), hop[e]) for e in nets]
            kept = [k for k, e in enumerate(grown) if last[e] > i]
            fresh = len(grown) - len(open_)
            larger: dict[tuple[int, ...], int] = {}
            found: list[tuple[int, int, int, float]] = []
            for state, index in layer.items():
                for bit in (0, 1) if model.allowed[g, device] else (0,):
                    seconds = float(model.weight[g, device]) if bit else 0.0
                    told = [*state, *([bit] * fresh)]
                    for k, cost in slots:
                        if told[k] == 1 - bit:
                            told[k] = _SOME
                            seconds += cost
                    key = tuple(told[k] for k in kept)
                    found.append((index, larger.setdefault(key, len(larger)), bit, seconds))
            if len(larger) > states:
                return None
            moves += sorted(found, key=lambda move: move[1])
            open_, layer = [grown[k] for k in kept], larger
            width.append(len(layer))
            starts.append(len(moves))
        source, target, inside = np.array([move[:3] for move in moves], np.int64).reshape(-1, 3).T.copy()
        load = np.array([move[3] for move in moves])
        return cls(order, np.array(width), np.array(starts), source, target, inside, load)

    def most(
        self, prices: Floats, limit: float, floor: float, labels: int, many: int = 8
    ) -> tuple[float, list[Ints]]:
        """The most price [G] of a block with a load of at most `limit`.

        Args:
            floor: blocks of no more price than this are not looked for.
            labels: how many parts to keep for one state; beyond, neighbours are taken together.
            many: blocks to give back, at most.

        Returns:
            an upper bound (at least `floor`), and blocks within the limit of more price than the floor, the
            dearest first. Where the bound is more than both, parts were taken together.
        """
        gain = np.where(self.inside == 1, prices[np.repeat(self.order, np.diff(self.starts))], 0.0)
        moves = (self.starts, self.source, self.target, self.load, gain)
        first = np.concatenate([[0], np.cumsum(self.width)])
        multipliers = _multiplier(*moves, first, limit) * np.array(_FACTORS)
        ahead = np.array([_backward(*moves, first, m)[0] for m in multipliers])
        picked, top = _forward(
            self.starts, self.source, self.target, self.inside, self.load, gain, first,
            limit * (1 + _ROUNDING), floor, multipliers, ahead, labels, many,
        )  # fmt: skip
        found = []
        for row in picked:
            bits = np.zeros(len(self.order), np.bool_)
            bits[self.order[row]] = True
            if self.seconds(row) <= limit * (1 + _ROUNDING):
                found.append(np.flatnonzero(bits))
        found = [groups for groups in found if prices[groups].sum() > floor]
        return max(top, floor), sorted(found, key=lambda groups: -float(prices[groups].sum()))

    def seconds(self, chosen: NDArray[np.bool_]) -> float:
        """The load of a block, of [G] whether the group of each step is in it."""
        return float(_replayed(self.starts, self.source, self.target, self.inside, self.load, chosen))


def narrowest(model: Hypergraph, device: int, orders: list[Ints]) -> Ints:
    """The order [G] on whose way the fewest nets are open, states counted as two for each."""
    nets = np.flatnonzero(model.hop[:, device] > 0).tolist()

    def states(order: Ints) -> float:
        rank = np.empty(model.count, np.int64)
        rank[order] = np.arange(model.count)
        change = np.zeros(model.count + 1)
        for e in nets:
            at = rank[model.pins[e]]
            change[at.min()] += 1
            change[at.max()] -= 1
        return float(np.exp2(np.minimum(np.cumsum(change), 1000.0)).sum())

    return min(orders, key=states)


@compiled
def _replayed(starts, source, target, inside, load, chosen):
    state, seconds = 0, 0.0
    for i in range(len(starts) - 1):
        for m in range(starts[i], starts[i + 1]):
            if source[m] == state and inside[m] == chosen[i]:
                state = target[m]
                seconds += load[m]
                break
    return seconds


@compiled
def _backward(starts, source, target, load, gain, first, multiplier):
    """[states] the most of price minus multiplier times load that is to come, and [states] its load."""
    value = np.full(first[-1], -np.inf)
    seconds = np.zeros(first[-1])
    value[-1] = 0.0
    for i in range(len(starts) - 2, -1, -1):
        for m in range(starts[i], starts[i + 1]):
            s, t = first[i] + source[m], first[i + 1] + target[m]
            worth = value[t] + gain[m] - multiplier * load[m]
            if worth > value[s]:
                value[s] = worth
                seconds[s] = seconds[t] + load[m]
    return value, seconds


@compiled
def _multiplier(starts, source, target, load, gain, first, limit):
    """About the multiplier of the load limit for which Lagrange's bound is least."""
    low, high = 0.0, 1e-12
    for m in range(len(gain)):
        high += max(gain[m], 0.0)
    high /= limit
    while _backward(starts, source, target, load, gain, first, high)[1][0] > limit and high < 1e30:
        low = high
        high *= 4
    for _ in range(30):
        middle = 0.5 * (low + high)
        if _backward(starts, source, target, load, gain, first, middle)[1][0] > limit:
            low = middle
        else:
            high = middle
    return high


@compiled
def _longer(values, room):
    longer = np.empty(room, values.dtype)
    longer[: len(values)] = values
    return longer


@compiled
def _forward(
    starts, source, target, inside, load, gain, first, limit, floor, multipliers, ahead, labels, many
):  # fmt: skip
    room = 1 << 16
    seconds = np.empty(room)
    price = np.empty(room)
    parent = np.empty(room, np.int32)
    step = np.empty(room, np.int32)  # 2 i + whether the group of step i is in the block
    seconds[0], price[0], parent[0], step[0] = 0.0, 0.0, -1, -2
    used = 1
    begin = np.zeros(1, np.int64)
    end = np.ones(1, np.int64)
    for i in range(len(starts) - 1):
        width = first[i + 2] - first[i + 1]
        nbegin = np.empty(width, np.int64)
        nend = np.empty(width, np.int64)
        m = starts[i]
        for t in range(width):
            m0 = m
            most = 0
            while m < starts[i + 1] and target[m] == t:
                most += end[source[m]] - begin[source[m]]
                m += 1
            moves = m - m0
            head = np.empty(moves, np.int64)
            for k in range(moves):
                head[k] = begin[source[m0 + k]]
            if used + most > room:
                room = 2 * (used + most)
                seconds = _longer(seconds, room)
                price = _longer(price, room)
                parent = _longer(parent, room)
                step = _longer(step, room)
            nbegin[t] = used
            top = -np.inf
            state = first[i + 1] + t
            while True:
                pick, least, worth = -1, np.inf, -np.inf
                for k in range(moves):
                    if head[k] < end[source[m0 + k]]:
                        x = seconds[head[k]] + load[m0 + k]
                        y = price[head[k]] + gain[m0 + k]
                        if x < least or (x == least and y > worth):
                            pick, least, worth = k, x, y
                if pick < 0 or least > limit:
                    break
                label = head[pick]
                head[pick] += 1
                if worth <= top:
                    continue
                hope = True
                for j in range(len(multipliers)):
                    if worth + ahead[j, state] + multipliers[j] * (limit - least) <= floor:
                        hope = False
                        break
                if not hope:
                    continue
                top = worth
                seconds[used], price[used], parent[used] = least, worth, label
                step[used] = 2 * i + inside[m0 + pick]
                used += 1
            if used - nbegin[t] > labels:
                used = _thin(seconds, price, parent, step, nbegin[t], used, labels)
            nend[t] = used
        begin, end = nbegin, nend
    found = end[0] - begin[0]
    top = price[end[0] - 1] if found else -np.inf
    rows = min(found, many)
    blocks = np.zeros((rows, len(starts) - 1), np.bool_)
    for r in range(rows):
        label = end[0] - 1 - (r * (found - 1)) // max(rows - 1, 1)
        while label > 0:
            blocks[r, step[label] // 2] = step[label] % 2 == 1
            label = parent[label]
    return blocks, top


@compiled
def _thin(seconds, price, parent, step, start, stop, labels):
    """Of labels within one slice of the load, one with the least load and the most price of them."""
    low = seconds[start]
    slice_ = (seconds[stop - 1] - low) / labels
    used = start
    last = -1
    for k in range(start, stop):
        at = int((seconds[k] - low) / slice_) if slice_ > 0 else 0
        if at == last:
            price[used - 1] = price[k]
            continue
        last = at
        seconds[used], price[used], parent[used], step[used] = seconds[k], price[k], parent[k], step[k]
        used += 1
    return used
