"""Contiguous stages as chains of ideals, and the compiled dynamic programme over a family of ideals.

An ideal is a set of groups that holds every predecessor of its members; a stage is the difference of two
(Tarnawski et al., NeurIPS 2020, section 5.1, with their recursion over pairs of ideals).

``best[s, I]``: the least max load of ideal I on s, a number of devices of every class. The last stage is the
difference of I and a smaller ideal I' of the family; all I' are walked depth first, one group at a time, so
that the loads of the stage follow by what one group adds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np

from netsplit.compiled import compiled, inlined
from netsplit.graph.quotient import longest_before, strong_components, successors, topological_order
from netsplit.partition.common.instance import Csr, Floats, Instance, Ints
from netsplit.partition.max_load.model import Hypergraph, HypergraphArrays

__all__ = ["Ideals", "Order", "SliceGraph", "best_chain"]

_SLACK = 1e-9  # relative; sums of seconds are rounded
_PART = 0.3  # of the time that orders after the first may take


@dataclass(frozen=True)
class Order:
    """Which groups come before which: forward edges, and backward edges turned round."""

    before: tuple[frozenset[int], ...]  # [G] direct predecessors

    @classmethod
    def acyclic(cls, instance: Instance, model: Hypergraph) -> tuple[Hypergraph, Order]:
        """The model with the groups of every cycle merged (one stage must hold them), and its order.

        The stages of the backward nodes may follow one another in either direction. The one that
        leaves more groups is taken: most files have backward edges against the forward ones.
        """
        group = model.group_of
        backward = np.array([name in instance.problem.backward_nodes for name in instance.names], bool)
        tail = np.repeat(np.arange(instance.n), np.diff(instance.successors.starts))
        head = instance.successors.items
        chosen: tuple[Ints, set[tuple[int, int]]] | None = None
        for as_is in (~backward[tail], np.ones(len(tail), bool)):
            alike = backward[tail] == backward[head]
            source = np.where(as_is, group[tail], group[head])[alike]
            target = np.where(as_is, group[head], group[tail])[alike]
            arcs = set(zip(source.tolist(), target.tolist(), strict=True))
            label = np.array(strong_components(model.count, arcs), np.int64)
            if chosen is None or label.max(initial=-1) > chosen[0].max(initial=-1):
                chosen = label, arcs
        assert chosen is not None
        label, arcs = chosen
        if label.max(initial=-1) + 1 < model.count:
            model = Hypergraph.of(instance, label[group])
            arcs = {(int(label[a]), int(label[b])) for a, b in arcs}
        return model, cls(tuple(map(frozenset, successors(model.count, ((b, a) for a, b in arcs)))))

    @property
    def after(self) -> list[list[int]]:
        return successors(
            len(self.before), ((a, b) for b, feeders in enumerate(self.before) for a in feeders)
        )

    def linear(self, key: Sequence[float]) -> list[int]:
        """The topological order that takes a ready group of least key first."""
        return topological_order(self.after, key.__getitem__)

    def depths(self) -> list[int]:
        """[G] edges on the longest path from a group without predecessors."""
        count = len(self.before)
        return longest_before([*map(sorted, self.before)], self.linear(range(count)), [1] * count)


@dataclass(frozen=True)
class Ideals:
    """A family of ideals by ascending size: the first is empty, the last is everything."""

    smaller: Csr  # [I] -> ideals of the family with one group less
    removed: Ints  # beside `smaller.items`: the group that is missing there

    def __len__(self) -> int:
        return len(self.smaller)

    @classmethod
    def prefixes(cls, order: Sequence[int]) -> Ideals:
        """The ideals on one linear order alone."""
        rows: list[list[int]] = [[], *([i] for i in range(len(order)))]
        return cls(Csr.of(rows), np.array(order, np.int64))

    @classmethod
    def of(cls, order: Order, limit: int, deadline: float = float("inf")) -> Ideals | None:
        """All ideals; None where there are more than `limit`, or the clock passes `deadline`."""
        count = len(order.before)
        need = [sum(1 << a for a in groups) for groups in order.before]
        after = order.after
        layer: dict[int, tuple[int, tuple[int, ...]]] = {
            0: (0, tuple(g for g in range(count) if not order.before[g]))
        }
        rows: list[list[int]] = [[]]
        removed: list[list[int]] = [[]]
        for _ in range(count):
            larger: dict[int, tuple[int, tuple[int, ...]]] = {}
            for ideal, (index, ready) in layer.items():
                for g in ready:
                    grown = ideal | 1 << g
                    entry = larger.get(grown)
                    if entry is None:
                        fresh = [b for b in after[g] if need[b] & ~grown == 0]
                        entry = (len(rows), tuple(r for r in ready if r != g) + tuple(fresh))
                        larger[grown] = entry
                        rows.append([])
                        removed.append([])
                    rows[entry[0]].append(index)
                    removed[entry[0]].append(g)
            layer = larger
            if len(rows) > limit or time.perf_counter() > deadline:
                return None
        return cls(Csr.of(rows), np.array([g for row in removed for g in row], np.int64))


def _steps(sizes: list[int]) -> Ints:
    """[steps, 3] class c, s before, s after one more device of the class, by ascending s after; s is a number
    of devices used of every class, 0 none, the last all."""
    uses = list(product(*(range(size + 1) for size in sizes)))
    index = {use: s for s, use in enumerate(uses)}
    steps = [
        (c, index[(*use[:c], use[c] - 1, *use[c + 1 :])], s)
        for s, use in enumerate(uses)
        for c in range(len(sizes))
        if use[c]
    ]
    return np.array(steps, np.int64).reshape(-1, 3)


class _IdealArrays(NamedTuple):
    """`Ideals`."""

    starts: Ints  # [I + 1] of rows
    smaller: Ints  # ideals with one group less
    removed: Ints  # the group that is missing there


class _StageTable(NamedTuple):
    """What the programme fills. I ideals, s numbers of devices used."""

    best: Floats  # [I, s] seconds
    parent: Ints  # [I, s] the ideal before the last stage
    by_step: Ints  # [I, s] which of `_steps` the last stage is
    walked_from: Ints  # [I] the ideal from which this one was last walked to

    @classmethod
    def empty(cls, ideals: int, uses: int) -> _StageTable:
        best = np.full((ideals, uses), np.inf)
        best[0] = 0.0
        parent, by_step = (np.full((ideals, uses), -1, np.int64) for _ in range(2))
        return cls(best, parent, by_step, np.full(ideals, -1, np.int64))


class _WalkedStage(NamedTuple):
    """The groups walked over, as one stage. c classes of devices."""

    pins: Ints  # [E] how many are in the stage
    held: Ints  # [h] how many groups of the set
    barred: Ints  # [c] groups that the class may not have
    seconds: Floats  # [c] of the groups
    cut: Floats  # [c] of the nets that are cut
    used: Ints  # [1] bytes


def best_chain(model: Hypergraph, ideals: Ideals, below: float, deadline: float = np.inf) -> Ints | None:
    """[G] device of each group, of least max load among all chains in the family; every stage meets memory.

    Args:
        below: seconds; stages with a load above it are not looked at (infinite: all).

    Returns:
        None where no chain has a max load of at most `below`.

    Raises:
        TimeoutError: the clock passed `deadline`.
    """
    classes = [list(same) for same in model.classes]
    arrays = model.arrays([same[0] for same in classes])
    steps = _steps([len(same) for same in classes])
    family = _IdealArrays(ideals.smaller.starts, ideals.smaller.items, ideals.removed)
    table = _StageTable.empty(len(ideals), int(steps[-1, 2]) + 1)
    below = below * (1 + _SLACK) if np.isfinite(below) else np.inf
    step = max(1, min(512, 20_000_000 // max(len(ideals), 1)))
    for low in range(1, len(ideals), step):
        _extend(low, min(low + step, len(ideals)), family, arrays, steps, table, below)
        if time.perf_counter() > deadline:
            raise TimeoutError
    if not np.isfinite(table.best[-1, -1]):
        return None
    return _decode(model, ideals, classes, steps, table)


def _decode(
    model: Hypergraph, ideals: Ideals, classes: list[list[int]], steps: Ints, table: _StageTable
) -> Ints:
    where = np.zeros(model.count, np.int64)
    ideal, use = len(ideals) - 1, int(steps[-1, 2])
    free = [list(reversed(same)) for same in classes]
    while ideal:
        c, before, _ = steps[table.by_step[ideal, use]]
        device = free[c].pop()
        target = int(table.parent[ideal, use])
        where[sorted(_members(ideals, ideal) - _members(ideals, target))] = device
        ideal, use = target, int(before)
    return where


def _members(ideals: Ideals, ideal: int) -> set[int]:
    members = set()
    while ideal:
        k = ideals.smaller.starts[ideal]
        members.add(int(ideals.removed[k]))
        ideal = int(ideals.smaller.items[k])
    return members


@compiled
def _extend(
    low: int,
    high: int,
    family: _IdealArrays,
    model: HypergraphArrays,
    steps: Ints,
    table: _StageTable,
    below: float,
) -> None:
    """Fills the table's rows of the ideals from `low` up to `high`, after those of all smaller ideals.

    From each ideal, smaller ones are walked to depth first, each once:

        1. a walk that has no way on goes back: its last group leaves the stage;
        2. the next smaller ideal joins its missing group to the stage, if any class can still hold it;
        3. the stage on one more device of each class follows the best of the smaller ideal.

    4. A device may stay empty.
    """
    count, classes = model.weight.shape
    stage = _WalkedStage(
        np.zeros(len(model.size), np.int64), np.zeros(len(model.held_bytes), np.int64),
        np.zeros(classes, np.int64), np.zeros(classes), np.zeros(classes), np.zeros(1, np.int64),
    )  # fmt: skip
    at = np.empty(count + 1, np.int64)
    edge = np.empty(count + 1, np.int64)
    group = np.empty(count + 1, np.int64)
    for ideal in range(low, high):
        depth = 0
        at[0] = ideal
        edge[0] = family.starts[ideal]
        stage.seconds[:] = 0.0
        stage.cut[:] = 0.0
        while depth >= 0:
            # 1. back
            if edge[depth] == family.starts[at[depth] + 1]:
                if depth > 0:
                    _change(group[depth], -1, stage, model)
                depth -= 1
                continue
            # 2. on
            k = edge[depth]
            edge[depth] += 1
            target, g = family.smaller[k], family.removed[k]
            if table.walked_from[target] == ideal:
                continue
            table.walked_from[target] = ideal
            if not _may_join(g, stage, model, below):
                continue
            _change(g, 1, stage, model)
            depth += 1
            at[depth], edge[depth], group[depth] = target, family.starts[target], g
            # 3. the stage, on each class
            for j in range(len(steps)):
                c, before, after = steps[j, 0], steps[j, 1], steps[j, 2]
                load = stage.seconds[c] + stage.cut[c]
                if stage.barred[c] == 0 and stage.used[0] <= model.capacity[c] and load <= below:
                    value = max(table.best[target, before], load)
                    if value < table.best[ideal, after]:
                        table.best[ideal, after] = value
                        table.parent[ideal, after] = target
                        table.by_step[ideal, after] = j
        # 4. an empty device
        for j in range(len(steps)):
            before, after = steps[j, 1], steps[j, 2]
            if table.best[ideal, before] < table.best[ideal, after]:
                table.best[ideal, after] = table.best[ideal, before]
                table.parent[ideal, after] = ideal
                table.by_step[ideal, after] = j


@inlined
def _may_join(g: int, stage: _WalkedStage, model: HypergraphArrays, below: float) -> bool:
    """Whether a class of devices could hold the stage with the group, cut nets left out."""
    for c in range(len(stage.barred)):
        if (
            stage.barred[c] == 0
            and model.allowed[g, c]
            and stage.seconds[c] + model.weight[g, c] <= below
            and stage.used[0] + model.state[g] <= model.capacity[c]
        ):
            return True
    return False


@inlined
def _change(g: int, sign: int, stage: _WalkedStage, model: HypergraphArrays) -> None:
    """Take a group into the stage (sign 1), or the last one out again (-1)."""
    classes = len(stage.barred)
    for i in range(model.nets[g], model.nets[g + 1]):
        e = model.nets[i]
        if stage.pins[e] == (0 if sign > 0 else model.size[e]):
            for c in range(classes):
                stage.cut[c] += model.hop[e, c]
        stage.pins[e] += sign
        if stage.pins[e] == (model.size[e] if sign > 0 else 0):
            for c in range(classes):
                stage.cut[c] -= model.hop[e, c]
    for i in range(model.sets[g], model.sets[g + 1]):
        h = model.sets[i]
        if stage.held[h] == (0 if sign > 0 else 1):
            stage.used[0] += sign * model.held_bytes[h]
        stage.held[h] += sign
    stage.used[0] += sign * model.state[g]
    for c in range(classes):
        stage.seconds[c] += sign * model.weight[g, c]
        if not model.allowed[g, c]:
            stage.barred[c] += sign


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
