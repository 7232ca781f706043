"""Proofs that no placement has all loads within T: prices at which no columns of load <= T cover everything.

An answer with all loads <= T is a partition of the groups into one column a device: a set with a load
<= T. For any prices pi of groups the columns hold at most the sum over devices of
``P_d = max {pi(S): load_d(S) <= T}``. If that is less than pi of all groups, T cannot be had. The prices
are the duals of the covering by columns (Dantzig and Wolfe), found by column generation, and smoothed
towards the best ones so far (Wentges, ITOR 1997): prices of the covering alone jump.

Each column looks at one device, so there is no symmetry between devices to break: Archer et al., ICML
2024, section 5, bound the bottleneck's set for that reason; the prices make it hold for all at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from netsplit.partition.common.instance import Floats, Ints
from netsplit.partition.max_load.annealing import LoadAnnealer
from netsplit.partition.max_load.bounds import ColumnModel, quiet
from netsplit.partition.max_load.model import Hypergraph
from netsplit.partition.max_load.pricing.annealing import ColumnAnnealer, OrderPieces
from netsplit.partition.max_load.pricing.dynamic import DynamicPricing
from netsplit.partition.max_load.pricing.orders import narrowest

if TYPE_CHECKING:
    import highspy

__all__ = ["excluded"]

_INF = np.inf
_SMOOTHING = 0.9  # weight of the best prices so far
_SLACK = 0.1  # of the margin hoped for: columns that would cost less of it are not looked for
_LESS = (0.0025, 0.005, 0.01, 0.02, 0.04, 0.08)  # tried after a proof that was not found
_MANY = 16  # columns of one pricing
_FIRST_LABELS = 1e7
_LABELS = 1e6  # parts of columns in one pricing at first, and at most: a gigabyte is 4e7
_LABELS_MOST = 4e7
_PROVEN = 1e-6  # relative: sums of prices and the solver's bounds may be off by less


def excluded(
    model: Hypergraph,
    below: float,
    deadline: float,
    known: list[tuple[int, Ints]],
    orders: list[Ints],
    prices: Floats | None = None,
    stop: Callable[[], bool] = lambda: False,
    log: Callable[[str], None] = lambda line: None,
) -> tuple[float, list[tuple[int, Ints]], Floats]:
    """How much of `below` seconds can be proven to be too little for the largest load of any placement.

    Args:
        model: contracted for answers below the limit, at most.
        known: columns of load <= `below` that are likely to be of use: class of devices, groups.
        orders: linear orders [G] of the groups; pieces of them are likely columns.
        prices: [G] that were good for another limit.
        stop: asked between the steps; True gives up.

    Returns:
        seconds that every placement exceeds (`below`, or 0 or more where the proof was not found), all
        columns found, and the best prices [G].
    """
    if not model.allowed.any(axis=1).all():
        return below, [], np.zeros(model.count)
    proof = _ColumnProof(model, below, orders)
    if prices is not None and prices.any():
        proof.centre = prices
    for c, groups in known:
        proof.master.add(groups, c)

    now = time.perf_counter()
    until = now + 0.85 * (deadline - now)

    def over() -> bool:
        return stop() or time.perf_counter() > until

    if proof.run(until, over, log):
        return below, proof.master.columns, proof.centre
    return 0.0 if stop() else proof.less(deadline), proof.master.columns, proof.centre


@dataclass
class _ColumnProof:
    model: Hypergraph
    below: float
    orders: list[Ints]

    def __post_init__(self) -> None:
        model = self.model
        first = [same[0] for same in model.classes]
        self.sizes = [len(same) for same in model.classes]
        least = np.where(model.allowed, model.weight, np.inf).min(axis=1)
        total = max(float(least.sum()), 1e-300)
        self.value = np.maximum(least, 1e-6 * total / model.count) / total
        self.master = _Covering(model, self.value, self.sizes)
        self.pricers = [_pricer(model, d, self.orders) for d in first]
        self.labels = _LABELS
        self.record, self.centre = -np.inf, self.value

    def run(self, deadline: float, over: Callable[[], bool], log: Callable[[str], None]) -> bool:
        prices = self.centre
        turn = 0
        while not over():
            turn += 1
            fine = self.labels
            if turn == 1:
                self.labels = _FIRST_LABELS
            fresh = False
            for at in (_SMOOTHING * self.centre + (1 - _SMOOTHING) * prices, prices):
                margin, doubt, new = self._margin(at, deadline, over)
                if margin > _PROVEN * float(np.abs(at).sum()):
                    self.centre = at
                    return True
                if margin > self.record:
                    self.record, self.centre = margin, at
                fresh = fresh or new
                if fresh or over():
                    break
            if doubt > 0 and (not fresh or doubt > 0.3 * -margin):
                if not fresh and self.labels >= _LABELS_MOST:
                    return False
                self.labels = min(2 * self.labels, _LABELS_MOST)
            elif not fresh:
                return False
            if turn == 1:
                self.labels = fine
            uncovered, prices = self.master.solve()
            log(f"{turn} margin {margin:.6f} -{doubt:.6f} best {self.record:.6f} uncovered {uncovered:.6f}")
            if uncovered < _PROVEN:
                return False
        return False

    def less(self, deadline: float) -> float:
        """The largest of a few smaller limits that the best prices exclude; 0 where they exclude none."""
        total = float(np.abs(self.centre).sum())
        for fraction in _LESS:
            limit = self.below * (1 - fraction)
            margin = float(self.centre.sum())
            for size, pricer in zip(self.sizes, self.pricers, strict=True):
                if time.perf_counter() > deadline:
                    return 0.0
                margin -= size * pricer.most(self.centre, limit, 0.0, self.labels, deadline)[0]
            if margin > _PROVEN * total:
                return limit
        return 0.0

    def _margin(self, at: Floats, deadline: float, over: Callable[[], bool]) -> tuple[float, float, bool]:
        """By how much columns fall short of the prices, how much is rounding, whether some are new."""
        margin, doubt, fresh = float(at.sum()), 0.0, False
        floors = [self.master.best(c, at) for c in range(len(self.sizes))]
        hope = margin - float(np.dot(self.sizes, floors))
        known = np.isfinite(self.record)
        slack = max(0.0, _SLACK * (hope - max(self.record, -hope)) / sum(self.sizes)) if known else 0.0
        for c, (pricer, floor) in enumerate(zip(self.pricers, floors, strict=True)):
            if over():
                return -np.inf, 0.0, fresh
            top, columns = pricer.most(at, self.below, floor + slack, self.labels, deadline)
            for groups in columns:
                fresh = self.master.add(groups, c) or fresh
            margin -= self.sizes[c] * top
            reached = max([floor + slack, *(float(at[groups].sum()) for groups in columns[:1])])
            doubt += self.sizes[c] * max(0.0, top - reached - 1e-12)
        return margin, doubt, fresh


class _Pricer(Protocol):
    def most(
        self, prices: Floats, limit: float, floor: float, labels: float, deadline: float
    ) -> tuple[float, list[Ints]]:
        """An upper bound of a column's price (at least `floor`), and columns of more, the dearest first."""


@dataclass
class _Exact:
    pricing: DynamicPricing

    def most(
        self, prices: Floats, limit: float, floor: float, labels: float, deadline: float
    ) -> tuple[float, list[Ints]]:
        each = max(16, int(labels / self.pricing.states))
        return self.pricing.most(prices, limit, floor, each, _MANY)


@dataclass
class _BySolver:
    """Columns by annealing and from pieces of orders, as long as there are any; else by HiGHS."""

    model: Hypergraph
    device: int
    orders: list[Ints]

    def __post_init__(self) -> None:
        self._column = ColumnModel(self.model, self.device, integral=True)
        self._annealer = ColumnAnnealer(LoadAnnealer.of(self.model), self.device)
        self._pieces = [OrderPieces.of(self.model, self.device, order) for order in self.orders]
        self._last: list[Ints] = []
        self._turn = 0

    def most(
        self, prices: Floats, limit: float, floor: float, labels: float, deadline: float
    ) -> tuple[float, list[Ints]]:
        self._turn += 1
        within = limit * (1 - 1e-9)
        columns = [groups for s in self._pieces for groups in s.best(prices, within, 6)]
        for k, start in enumerate([np.zeros(0, np.int64), *self._last[:2], *columns[:2]]):
            hot = 1.0 if k == 0 else (0.3, 0.05, 0.01)[self._turn % 3]
            columns.append(self._annealer.run(prices, within, start, 30_000, 7 * self._turn + k, hot)[0])
        columns = self._better(columns, prices, floor)
        if columns and self._turn % 8:
            self._last = columns
            return float(np.maximum(prices, 0).sum()), columns
        self._column.limit(limit)
        top, chosen = self._column.most(prices, deadline - time.perf_counter(), 1e-4)
        if chosen is not None:
            columns = self._better([*columns, chosen], prices, floor)
        return max(top, floor), columns

    def _better(self, columns: list[Ints], prices: Floats, floor: float) -> list[Ints]:
        worth = [(float(prices[groups].sum()), k) for k, groups in enumerate(columns)]
        return [columns[k] for price, k in sorted(worth, reverse=True) if price > floor + 1e-9]


def _pricer(model: Hypergraph, device: int, orders: list[Ints]) -> _Pricer:
    if orders:
        pricing = DynamicPricing.of(model, device, narrowest(model, device, orders))
        if pricing is not None:
            return _Exact(pricing)
    return _BySolver(model, device, orders)


@dataclass
class _Covering:
    """The master: cover every group by columns, at most as many as a class has devices; duals are prices."""

    model: Hypergraph
    value: Floats  # [G] what a group is worth where it is left out, or there twice
    sizes: list[int]
    highs: highspy.Highs = field(init=False)

    def __post_init__(self) -> None:
        g = self.model.count
        self.highs = quiet()
        self.highs.addVars(2 * g, np.zeros(2 * g), np.full(2 * g, _INF))
        self.highs.changeColsCost(
            2 * g, np.arange(2 * g, dtype=np.int32), np.concatenate([self.value, self.value])
        )
        for v in range(g):
            self.highs.addRow(1.0, 1.0, 2, np.array([v, g + v], np.int32), np.array([1.0, -1.0]))
        for size in self.sizes:
            self.highs.addRow(-_INF, float(size), 0, np.zeros(0, np.int32), np.zeros(0))
        self._known: set[tuple[int, bytes]] = set()
        self._columns: list[list[Ints]] = [[] for _ in self.sizes]

    @property
    def columns(self) -> list[tuple[int, Ints]]:
        return [(c, groups) for c, own in enumerate(self._columns) for groups in own]

    def add(self, groups: Ints, c: int) -> bool:
        """Whether the column is new."""
        key = (c, groups.tobytes())
        if key in self._known or not len(groups):
            return False
        self._known.add(key)
        self._columns[c].append(groups)
        index = np.append(groups, self.model.count + c).astype(np.int32)
        self.highs.addCol(0.0, 0.0, _INF, len(index), index, np.ones(len(index)))
        return True

    def best(self, c: int, prices: Floats) -> float:
        """The highest price of a known column of a class; nothing is one, too."""
        own = self._columns[c]
        if not own:
            return 0.0
        starts = np.cumsum([0, *(len(groups) for groups in own[:-1])])
        return max(0.0, float(np.add.reduceat(prices[np.concatenate(own)], starts).max()))

    def solve(self) -> tuple[float, Floats]:
        """What is left uncovered, and the prices of groups."""
        self.highs.run()
        duals = np.array(self.highs.getSolution().row_dual)
        return float(self.highs.getInfo().objective_function_value), duals[: self.model.count]
