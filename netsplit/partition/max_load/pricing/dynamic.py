"""Pricing by dynamic programming: one device's groups decided one by one, with few nets open at a time.

Nearly every network is a chain with shortcuts: on the way along it, few nets have pins on both sides.
The part of a column that is decided can then be told by its load, its price and, for every open net,
whether none, all or some of the pins seen so far are in the column. A net is paid for when it turns to
"some". Of two parts alike in the open nets, one with more load and no more price is forgotten, and so
is one that cannot come to more than a floor: Lagrange's relaxation of the load limit, solved backwards
for several multipliers, bounds what the groups ahead can add.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from netsplit.partition.common.instance import Floats, Ints
from netsplit.partition.engines.compiled import compiled, inlined, inner
from netsplit.partition.max_load.model import Hypergraph

__all__ = ["DynamicPricing"]

_ROUNDING = 1e-9  # relative: what sums of loads may be off by
_STATES = 1 << 14  # of one step; beyond, pricing by a solver is faster
_SOME = 2
_FACTORS = (0.0, 0.3, 0.5, 0.65, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.5, 8.0)


class Moves(NamedTuple):
    """Moves m of step i are `starts[i]:starts[i + 1]`, by ascending target; its states from `first[i]` on."""

    starts: Ints  # [G + 1]
    first: Ints  # [G + 2] of the states before each step and after the last
    source: Ints  # [m] state before the step
    target: Ints  # [m] state after it
    inside: Ints  # [m] whether the group is in the column
    load: Floats  # [m] seconds that the move adds


class _Wanted(NamedTuple):
    """Which columns are looked for."""

    gain: Floats  # [m] price that the move adds
    limit: float  # of the load, seconds
    floor: float  # of the price
    multipliers: Floats  # [k] of the load limit
    ahead: Floats  # [k, states] Lagrange's bound on the price that is to come


class _Parts(NamedTuple):
    """The decided parts of columns, of all steps so far; for every state by ascending load and price."""

    seconds: Floats
    price: Floats
    parent: NDArray[np.int32]  # the part before the last step
    step: NDArray[np.int32]  # 2 i + whether the group of step i is in the column


class _PartsByState(NamedTuple):
    """Which parts belong to each state between two steps."""

    begin: Ints
    end: Ints


@dataclass(frozen=True)
class DynamicPricing:
    """What one device may be given, as an automaton that reads the groups in one order."""

    order: Ints  # [G]
    moves: Moves

    @classmethod
    def of(cls, model: Hypergraph, device: int, order: Ints, states: int = _STATES) -> DynamicPricing | None:
        """None where a step has more than so many states."""
        hop = model.hop[:, device]
        rank = np.empty(model.count, np.int64)
        rank[order] = np.arange(model.count)
        last = np.array([rank[model.pins[e]].max() for e in range(len(model.pins))], np.int64)
        layer: dict[tuple[int, ...], int] = {(): 0}
        open_: list[int] = []
        first, starts = [0, 1], [0]
        moves: list[tuple[int, int, int, float]] = []
        for i, g in enumerate(order.tolist()):
            nets = [e for e in model.nets_of[g].tolist() if hop[e] > 0]
            at = {e: k for k, e in enumerate(open_)}
            grown = open_ + [e for e in nets if e not in at]
            slots = [(grown.index(e), hop[e]) for e in nets]
            kept = [k for k, e in enumerate(grown) if last[e] > i]
            fresh = len(grown) - len(open_)
            larger: dict[tuple[int, ...], int] = {}
            step_moves: list[tuple[int, int, int, float]] = []
            for state, index in layer.items():
                for bit in (0, 1) if model.allowed[g, device] else (0,):
                    seconds = float(model.weight[g, device]) if bit else 0.0
                    told = [*state, *([bit] * fresh)]
                    for k, cost in slots:
                        if told[k] == 1 - bit:
                            told[k] = _SOME
                            seconds += cost
                    key = tuple(told[k] for k in kept)
                    step_moves.append((index, larger.setdefault(key, len(larger)), bit, seconds))
            if len(larger) > states:
                return None
            moves += sorted(step_moves, key=lambda move: move[1])
            open_, layer = [grown[k] for k in kept], larger
            first.append(first[-1] + len(layer))
            starts.append(len(moves))
        source, target, inside = np.array([move[:3] for move in moves], np.int64).reshape(-1, 3).T.copy()
        load = np.array([move[3] for move in moves])
        return cls(order, Moves(np.array(starts), np.array(first), source, target, inside, load))

    @property
    def states(self) -> int:
        """How many, before all steps and after the last."""
        return int(self.moves.first[-1])

    def most(
        self, prices: Floats, limit: float, floor: float, labels: int, many: int = 8
    ) -> tuple[float, list[Ints]]:
        """The most price [G] of a column with a load of at most `limit`.

        Args:
            floor: columns of no more price than this are not looked for.
            labels: how many parts to keep for one state; beyond, neighbours are taken together.
            many: columns to give back, at most.

        Returns:
            an upper bound (at least `floor`), and columns within the limit of more price than the floor, the
            dearest first. Where the bound is more than both, parts were taken together.
        """
        moves = self.moves
        gain = np.where(moves.inside == 1, prices[np.repeat(self.order, np.diff(moves.starts))], 0.0)
        multipliers = _multiplier(moves, gain, limit) * np.array(_FACTORS)
        ahead = _ahead(moves, gain, multipliers)
        wanted = _Wanted(gain, limit * (1 + _ROUNDING), float(floor), multipliers, ahead)
        picked, top = _forward(moves, wanted, labels, many)
        columns = []
        for row in picked:
            bits = np.zeros(len(self.order), np.bool_)
            bits[self.order[row]] = True
            if self.seconds(row) <= limit * (1 + _ROUNDING):
                columns.append(np.flatnonzero(bits))
        columns = [groups for groups in columns if prices[groups].sum() > floor]
        return max(top, floor), sorted(columns, key=lambda groups: -float(prices[groups].sum()))

    def seconds(self, chosen: NDArray[np.bool_]) -> float:
        """The load of a column, of [G] whether the group of each step is in it."""
        return float(_replayed(self.moves, chosen))


@compiled
def _replayed(moves: Moves, chosen: NDArray[np.bool_]) -> float:
    state, seconds = 0, 0.0
    for i in range(len(moves.starts) - 1):
        for m in range(moves.starts[i], moves.starts[i + 1]):
            if moves.source[m] == state and moves.inside[m] == chosen[i]:
                state = moves.target[m]
                seconds += moves.load[m]
                break
    return seconds


@compiled
def _ahead(moves: Moves, gain: Floats, multipliers: Floats) -> Floats:
    """[k, states] Lagrange's bound on the price that is to come."""
    ahead = np.empty((len(multipliers), moves.first[-1]))
    for k in range(len(multipliers)):
        ahead[k] = _backward(moves, gain, multipliers[k])[0]
    return ahead


@inner
def _backward(moves: Moves, gain: Floats, multiplier: float) -> tuple[Floats, Floats]:
    """[states] the most of price minus multiplier times load that is to come, and [states] its load."""
    value = np.full(moves.first[-1], -np.inf)
    seconds = np.zeros(moves.first[-1])
    value[-1] = 0.0
    for i in range(len(moves.starts) - 2, -1, -1):
        for m in range(moves.starts[i], moves.starts[i + 1]):
            s, t = moves.first[i] + moves.source[m], moves.first[i + 1] + moves.target[m]
            worth = value[t] + gain[m] - multiplier * moves.load[m]
            if worth > value[s]:
                value[s] = worth
                seconds[s] = seconds[t] + moves.load[m]
    return value, seconds


@compiled
def _multiplier(moves: Moves, gain: Floats, limit: float) -> float:
    """About the multiplier of the load limit for which Lagrange's bound is least."""
    low, high = 0.0, 1e-12
    for m in range(len(gain)):
        high += max(gain[m], 0.0)
    high /= limit
    while _backward(moves, gain, high)[1][0] > limit and high < 1e30:
        low = high
        high *= 4
    for _ in range(30):
        middle = 0.5 * (low + high)
        if _backward(moves, gain, middle)[1][0] > limit:
            low = middle
        else:
            high = middle
    return high


@compiled
def _forward(moves: Moves, wanted: _Wanted, labels: int, many: int) -> tuple[NDArray[np.bool_], float]:
    """[columns, G] whether the group of each step is in the column, the dearest first, and the most price.

    Step by step: 1. room for all parts that may come; 2. those parts. 3. What is left after the last step
    are columns.
    """
    room = 1 << 16
    seconds, price = np.empty(room), np.empty(room)
    parent, step = np.empty(room, np.int32), np.empty(room, np.int32)
    seconds[0], price[0], parent[0], step[0] = 0.0, 0.0, -1, -2
    used = 1
    layer = _PartsByState(np.zeros(1, np.int64), np.ones(1, np.int64))
    for i in range(len(moves.starts) - 1):
        # 1. room
        most = used
        for m in range(moves.starts[i], moves.starts[i + 1]):
            most += layer.end[moves.source[m]] - layer.begin[moves.source[m]]
        if most > room:
            room = 2 * most
            # one by one: each old array's memory is free for the next
            seconds = _longer(seconds, room)
            price = _longer(price, room)
            parent = _longer(parent, room)
            step = _longer(step, room)
        # 2. parts
        layer, used = _after(i, layer, _Parts(seconds, price, parent, step), used, moves, wanted, labels)
    # 3. columns
    parts = _Parts(seconds, price, parent, step)
    return _columns(parts, layer.begin[0], layer.end[0], len(moves.starts) - 1, many)


@inner
def _longer(values: NDArray[np.number], room: int) -> NDArray[np.number]:
    longer = np.empty(room, values.dtype)
    longer[: len(values)] = values
    return longer


@inner
def _after(
    i: int, before: _PartsByState, parts: _Parts, used: int, moves: Moves, wanted: _Wanted, labels: int
) -> tuple[_PartsByState, int]:
    """Append the parts of all states after step i; how many parts there are then.

    For every state: 1. the moves to it; 2. their parts merged, by ascending load, each with more price than
    all before it, where it may come to more than the floor; 3. thinned where they are too many.
    """
    seconds, price, parent, step = parts.seconds, parts.price, parts.parent, parts.step
    source, target, inside, load, gain = moves.source, moves.target, moves.inside, moves.load, wanted.gain
    limit, floor, multipliers, ahead = wanted.limit, wanted.floor, wanted.multipliers, wanted.ahead
    before_begin, before_end = before.begin, before.end
    width, stop = moves.first[i + 2] - moves.first[i + 1], moves.starts[i + 1]
    begin, end = np.empty(width, np.int64), np.empty(width, np.int64)
    head = np.empty(stop - moves.starts[i], np.int64)
    last = moves.starts[i]
    for t in range(width):
        # 1. moves
        first, state = last, moves.first[i + 1] + t
        while last < stop and target[last] == t:
            head[last - first] = before_begin[source[last]]
            last += 1
        # 2. merged
        begin[t] = used
        top = -np.inf
        while True:
            pick, least, worth = -1, np.inf, -np.inf
            for k in range(last - first):
                if head[k] < before_end[source[first + k]]:
                    x = seconds[head[k]] + load[first + k]
                    y = price[head[k]] + gain[first + k]
                    if x < least or (x == least and y > worth):
                        pick, least, worth = k, x, y
            if pick < 0 or least > limit:
                break
            part = head[pick]
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
            seconds[used], price[used], parent[used] = least, worth, part
            step[used] = 2 * i + inside[first + pick]
            used += 1
        # 3. thinned
        if used - begin[t] > labels:
            used = _thin(parts, begin[t], used, labels)
        end[t] = used
    return _PartsByState(begin, end), used


@inlined
def _thin(parts: _Parts, start: int, stop: int, labels: int) -> int:
    """Of parts within one slice of the load, one with the least load and the most price of them."""
    low = parts.seconds[start]
    slice_ = (parts.seconds[stop - 1] - low) / labels
    used = start
    last = -1
    for k in range(start, stop):
        at = int((parts.seconds[k] - low) / slice_) if slice_ > 0 else 0
        if at == last:
            parts.price[used - 1] = parts.price[k]
            continue
        last = at
        parts.seconds[used], parts.price[used] = parts.seconds[k], parts.price[k]
        parts.parent[used], parts.step[used] = parts.parent[k], parts.step[k]
        used += 1
    return used


@inner
def _columns(parts: _Parts, begin: int, end: int, steps: int, many: int) -> tuple[NDArray[np.bool_], float]:
    """The columns of some of the last parts, followed back to the first step, and the most price."""
    rows = min(end - begin, many)
    columns = np.zeros((rows, steps), np.bool_)
    for r in range(rows):
        part = end - 1 - (r * (end - begin - 1)) // max(rows - 1, 1)
        while part > 0:
            columns[r, parts.step[part] // 2] = parts.step[part] % 2 == 1
            part = parts.parent[part]
    return columns, parts.price[end - 1] if end > begin else -np.inf
