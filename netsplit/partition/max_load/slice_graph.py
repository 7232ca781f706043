"""Contiguous stages where there are too many ideals: cuts of one topological order after another."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

from netsplit.partition.common.instance import Instance, Ints
from netsplit.partition.max_load.ideals import Ideals, Order
from netsplit.partition.max_load.model import Hypergraph
from netsplit.partition.max_load.stages import best_chain

__all__ = ["SliceGraph", "linear_split"]


_PART = 0.3  # of the time that orders after the first may take


def linear_split(instance: Instance, seed: int, deadline: float, orders: int = 4) -> Ints | None:
    """[n] the best contiguous split of a few topological orders, a quick start for other searches."""
    search = SliceGraph(instance, seed)
    search.steps(orders, deadline)
    return search.where


@dataclass
class SliceGraph:
    """SliceGraph (Archer et al., ICML 2024, section 4): the best cuts of an order, and better orders.

    An order that keeps the stages of the best answer, and is drawn anew inside them, has cuts at
    least as good; every other one lets groups near a cut change places.
    """

    instance: Instance
    seed: int

    def __post_init__(self) -> None:
        self.model, self.order = Order.acyclic(self.instance, Hypergraph.of(self.instance))
        self.where: Ints | None = None
        self.value = float("inf")
        self._stage: list[int] = []
        self._keys = self._plans(random.Random(self.seed))

    def steps(self, orders: int, deadline: float) -> None:
        """The first order, however long it takes, as there is no answer without it, and others as far as a
        part of the time lets them."""
        now = time.perf_counter()
        self.step(float("inf"))
        for _ in range(orders - 1):
            self.step(now + _PART * (deadline - now))

    def step(self, deadline: float) -> None:
        """One order and its best cuts; nothing where the time is up before."""
        if time.perf_counter() >= deadline:
            return
        line = self.order.linear(next(self._keys))
        try:
            where = best_chain(self.model, Ideals.prefixes(line), self.value, deadline)
        except TimeoutError:
            return
        if where is None:
            return
        value = float(self.model.loads(where).max(initial=0.0))
        if value <= self.value:
            rank: dict[int, int] = {}
            for g in line:
                rank.setdefault(int(where[g]), len(rank))
            self._stage = [rank[int(d)] for d in where]
        if value < self.value:
            self.value, self.where = value, self.model.nodes(where)

    def _plans(self, draw: random.Random) -> Iterator[list[float]]:
        count = self.model.count
        depth = self.order.depths()
        yield [float(g) for g in range(count)]
        yield [float(d) for d in depth]
        yield [float(-d) for d in depth]
        while True:
            kind = draw.random()
            noise = [draw.random() for _ in range(count)]
            deep = draw.choice([depth, [-d for d in depth], [0] * count])
            inner = [d + draw.choice([0.5, 5.0]) * x for d, x in zip(deep, noise, strict=True)]
            if self._stage and kind < 0.7:
                spread = 1e6 if kind < 0.4 else draw.choice([10.0, 30.0, 100.0])
                yield [spread * s + x for s, x in zip(self._stage, inner, strict=True)]
            else:
                yield inner
