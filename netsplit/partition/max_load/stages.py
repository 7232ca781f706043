"""The dynamic programme over a family of ideals, compiled.

``best[s, I]``: the least max load of ideal I on s, a number of devices of every class. The last stage
is the difference of I and a smaller ideal I' of the family; all I' are walked depth first, one group
at a time, so that the loads of the stage follow by what one group adds (Tarnawski et al., NeurIPS
2020, section 5.1, with their recursion over pairs of ideals).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np

from netsplit.compiled import compiled, inlined
from netsplit.partition.common.instance import Floats, Ints
from netsplit.partition.max_load.ideals import Ideals
from netsplit.partition.max_load.model import Hypergraph, HypergraphArrays

__all__ = ["best_chain"]

_SLACK = 1e-9  # relative; sums of seconds are rounded


@dataclass(frozen=True)
class _Uses:
    """Numbers of devices used of every class: s = 0 none, the last all; one more of class c is a step."""

    steps: Ints  # [steps, 3] class, s before, s after; by ascending s after
    count: int

    @classmethod
    def of(cls, sizes: list[int]) -> _Uses:
        uses = list(product(*(range(size + 1) for size in sizes)))
        index = {use: s for s, use in enumerate(uses)}
        steps = [
            (c, index[(*use[:c], use[c] - 1, *use[c + 1 :])], s)
            for s, use in enumerate(uses)
            for c in range(len(sizes))
            if use[c]
        ]
        return cls(np.array(steps, np.int64).reshape(-1, 3), len(uses))


class _IdealArrays(NamedTuple):
    """`Ideals`."""

    starts: Ints  # [I + 1] of rows
    smaller: Ints  # ideals with one group less
    removed: Ints  # the group that is missing there


class _StageTable(NamedTuple):
    """What the programme fills. I ideals, s numbers of devices used."""

    best: Floats  # [I, s] seconds
    parent: Ints  # [I, s] the ideal before the last stage
    by_step: Ints  # [I, s] which of `_Uses.steps` the last stage is
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
    uses = _Uses.of([len(same) for same in classes])
    family = _IdealArrays(ideals.smaller.starts, ideals.smaller.items, ideals.removed)
    table = _StageTable.empty(len(ideals), uses.count)
    below = below * (1 + _SLACK) if np.isfinite(below) else np.inf
    step = max(1, min(512, 20_000_000 // max(len(ideals), 1)))
    for low in range(1, len(ideals), step):
        _extend(low, min(low + step, len(ideals)), family, arrays, uses.steps, table, below)
        if time.perf_counter() > deadline:
            raise TimeoutError
    if not np.isfinite(table.best[-1, -1]):
        return None
    return _decode(model, ideals, classes, uses, table)


def _decode(
    model: Hypergraph, ideals: Ideals, classes: list[list[int]], uses: _Uses, table: _StageTable
) -> Ints:
    where = np.zeros(model.count, np.int64)
    ideal, use = len(ideals) - 1, uses.count - 1
    free = [list(reversed(same)) for same in classes]
    while ideal:
        c, before, _ = uses.steps[table.by_step[ideal, use]]
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
