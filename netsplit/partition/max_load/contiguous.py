"""`max_load` with contiguous stages: the exact dynamic programme, and a search where it is too large.

A contiguous placement is a chain of ideals: the devices can be put in an order such that no forward
edge goes back. That is what the published dynamic programme means by contiguous, and what a pipeline
needs; sets that are convex one by one, but feed each other both ways, are not looked at. Backward
nodes follow their groups, and their stages are asked to follow one another in the same way.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

from netsplit.partition.common.capacity import infeasible
from netsplit.partition.common.instance import Instance, Ints
from netsplit.partition.max_load.answer import MaxLoadAnswer, answer_of
from netsplit.partition.max_load.contraction import contract
from netsplit.partition.max_load.ideals import Ideals, Order
from netsplit.partition.max_load.model import Hypergraph

__all__ = ["linear_split", "solve_contiguous"]

_IDEALS = 1_000_000  # beyond, the table of the dynamic programme no longer fits a small machine
_ORDERS = 16


def solve_contiguous(instance: Instance, time_limit_s: float, seed: int, gap: float) -> MaxLoadAnswer:
    """See `max_load.solve_max_load`."""
    started = time.perf_counter()
    deadline = started + 0.95 * time_limit_s
    search = _Search(instance, seed)
    for _ in range(_ORDERS):
        search.step()
    notes: dict[str, object] = {"linear_s": search.value}
    exact = _exact(instance, search, started + 0.7 * time_limit_s, notes)
    if exact is not None:
        return answer_of(instance, exact, float("inf"), gap, "ideals", notes)
    if "ideals" in notes and search.where is None:
        raise infeasible(instance.problem, "max_load")
    if search.where is None:
        while search.where is None and time.perf_counter() < deadline:
            search.step()
    if search.where is None:
        raise infeasible(instance.problem, "max_load")
    return _unproven(instance, search, deadline, gap, notes)


def linear_split(instance: Instance, seed: int, orders: int = 4) -> Ints | None:
    """[n] the best contiguous split of a few topological orders, a quick start for other searches."""
    search = _Search(instance, seed)
    for _ in range(orders):
        search.step()
    return search.where


def _exact(instance: Instance, search: _Search, deadline: float, notes: dict[str, object]) -> Ints | None:
    """[n] the optimum over all ideals; None where there are too many, too little time, or no answer."""
    from netsplit.partition.max_load.stages import best_stages

    below = search.value * (1 + 1e-9)
    model, order = Order.acyclic(instance, contract(search.model, below, dominance=False))
    ideals = Ideals.of(order, _IDEALS, deadline)
    if ideals is None:
        return None
    try:
        where = best_stages(model, ideals, below, deadline)
    except TimeoutError:
        notes["ideals_unfinished"] = len(ideals)
        return None
    notes["ideals"] = len(ideals)
    return search.where if where is None else model.nodes(where)


def _unproven(
    instance: Instance, search: _Search, deadline: float, gap: float, notes: dict[str, object]
) -> MaxLoadAnswer:
    from netsplit.partition.max_load.non_contiguous import proven_bound

    middle = time.perf_counter() + 0.4 * (deadline - time.perf_counter())
    while time.perf_counter() < middle:
        search.step()
    assert search.where is not None
    bound = proven_bound(instance, search.value, deadline, gap)
    return answer_of(instance, search.where, bound, gap, "orders", notes)


@dataclass
class _Search:
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

    def step(self) -> None:
        """One order and its best cuts."""
        from netsplit.partition.max_load.stages import best_stages

        line = self.order.linear(next(self._keys))
        where = best_stages(self.model, Ideals.prefixes(line), self.value)
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
