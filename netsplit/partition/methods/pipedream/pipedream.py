"""`pipedream`: contiguous stages with replicas whose slowest one is the fastest (PipeDream's planner).

Sources: PipeDream (Narayanan et al., SOSP 2019, section 3.1); the released optimiser (github
msr-fiddle/pipedream, optimizer/optimizer_graph_hierarchical.py) and runtime (runtime/runtime.py). The
formula is `stage_time.Formula`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from netsplit.partition.base import Problem
from netsplit.partition.common.instance import Floats, Instance, Ints
from netsplit.partition.methods.pipedream.antichains import States, antichain_states
from netsplit.partition.objectives import Bools, Cost, Formula, Layers, levels_of
from netsplit.partition.partitioner import Choice, Partitioner, fill_in_order, infeasible
from netsplit.placement.placement import Stage

__all__ = ["PipeDream", "StageSpan", "plan_stages", "plan_that_fits", "staged", "stages_of"]


@dataclass(frozen=True)
class PipeDream(Partitioner):
    """Cut the states of the antichain DAG into stages, and give every stage a number of replicas.

    The report's objective is the programme's own value: seconds of the slowest stage or transfer per
    micro-batch (`plan_stages`). Its notes: replicas and warm-up of each stage, the number of states, and
    how blocks were merged where there were more than `max_states`.

    Kept from the released code: the costs, at each level; inputs cost nothing and are in the first stage;
    devices are alike (the slowest kind's seconds) and links have one bandwidth per level, no latency.
    Added: colocated sets, with what lies between their nodes, are never cut; the backward nodes of a
    task graph follow their colour class; and a plan that exceeds a capacity under (5-18), on any replica,
    is replaced by the best that does not, or where there is none by the fill in topological order.
    """

    cost: Cost = "released"
    straight: bool = False  # no replication
    use_fewer_machines: bool = False
    max_states: int = 1500

    name = "pipedream"
    optimises = "the slowest stage of a pipeline with replicated stages"

    def __post_init__(self) -> None:
        self.require_choice("cost", Cost)
        self.require("max_states", self.max_states >= 1, "1 or more")

    def choose(self, problem: Problem) -> Choice:
        layers = Layers.of(problem)
        if not layers.n:
            return self._filled(problem)
        formula = Formula(levels_of(problem), self.cost)
        # All levels but the last take time with the cube of the states.
        limit = self.max_states if len(formula.levels) == 1 else min(self.max_states, 400)
        states = antichain_states(layers, limit)
        fewer = self.use_fewer_machines
        value, spans = plan_that_fits(problem, states, formula, straight=self.straight, fewer=fewer)
        if not spans:
            return self._filled(problem)
        stages = stages_of(problem, states, spans)
        notes: dict[str, Any] = {
            "replication": [len(stage.devices) for stage in stages],
            "states": len(states),
            "reduction": states.reduction,
        }
        return Choice(*staged(problem, stages), objective_s=value, notes=notes, stages=stages)

    def _filled(self, problem: Problem) -> Choice:
        """No stages at all: nothing but inputs, or no cut of the states fits."""
        device_of = fill_in_order(problem, [device.capacity_bytes for device in problem.cluster.devices])
        if device_of is None:
            raise infeasible(problem, self.name)
        return Choice(device_of, notes={"fallback": "fill in order"})


Allowed = Callable[[int, int, Ints], Bools]


@dataclass(frozen=True)
class StageSpan:
    """A stage of a plan: states after `begin` (-1: from the start) up to `end`, and its devices."""

    begin: int
    end: int
    devices: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _LevelTable:
    """One level's answers, for what follows state i - 1 up to state j, on m + 1 units."""

    value: Floats  # [I, S, M] seconds of the slowest stage; inf: not possible
    cut: Ints  # [I, S, M] last state of the stage before; -1: one stage
    units: Ints  # [I, S, M] units of the last stage
    used: Ints  # [I, S, M] units of the whole, fewer than m + 1 where that is allowed and better


def plan_stages(
    states: States,
    formula: Formula,
    *,
    straight: bool = False,
    fewer: bool = False,
    allowed: Allowed | None = None,
) -> tuple[float, list[StageSpan]]:
    """PipeDream's dynamic programme, level by level: O(S^2 M^2) at the last, O(S^3 M^2) at the others.

    Args:
        straight: no replication, at any level.
        fewer: leave units idle where that is better, which replication by the formula can be worse than.
        allowed: (j, m, states k) -> [len(k), M] whether stage k+1..j may be on the last m of so many devices
            in all (of the innermost level); -1 in `k` is the start.

    Returns:
        Seconds of the slowest stage (inf: no such plan), and the stages in pipeline order.
    """
    layers = states.layers
    compute, weights = states.total(layers.seconds), states.total(layers.weight_bytes)
    inner: Floats | None = None
    tables: list[_LevelTable] = []
    for level in range(len(formula.levels)):
        program = _Level(states, formula, level, compute, weights, inner, straight, fewer)
        tables.append(program.run(None if level else allowed))
        inner = tables[-1].value[:, :, -1]
    assert inner is not None
    value = float(inner[0, -1])
    if not math.isfinite(value):
        return math.inf, []
    units = np.arange(formula.devices).reshape([m for m, _ in reversed(formula.levels)])
    return value, _spans(tables, len(tables) - 1, -1, len(states) - 1, units)


def _spans(tables: Sequence[_LevelTable], level: int, begin: int, end: int, units: Ints) -> list[StageSpan]:
    """Unfold the choices of a level; `units` has an axis for each level, this one's and those below last."""
    if level < 0:
        return [StageSpan(begin, end, tuple(int(p) for p in units.ravel()))]
    table, axis = tables[level], len(tables) - 1 - level
    runs: list[tuple[int, int, int]] = []
    i, j, m = begin + 1, end, table.value.shape[2] - 1
    while j > begin:
        m = int(table.used[i, j, m]) - 1
        cut, count = int(table.cut[i, j, m]), int(table.units[i, j, m])
        runs.append((cut if cut >= 0 else begin, j, count))
        if cut < 0:
            break
        j, m = cut, m - count
    spans: list[StageSpan] = []
    offset = 0
    for cut, j, count in reversed(runs):
        own = np.take(units, range(offset, offset + count), axis=axis)
        spans += _spans(tables, level - 1, cut, j, own)
        offset += count
    return spans


@dataclass(frozen=True, eq=False)
class _Level:
    states: States
    formula: Formula
    level: int
    compute: Floats  # [S] of the downset
    weights: Floats  # [S]
    inner: Floats | None  # [S, S] seconds of what follows state i - 1 up to j, of the level below
    straight: bool
    fewer: bool

    def run(self, allowed: Allowed | None) -> _LevelTable:
        """States in order; all beginnings at once, and all earlier states, as arrays."""
        count, units = len(self.states), self.formula.levels[self.level][0]
        final = self.level == len(self.formula.levels) - 1
        starts = 1 if final else count
        value = np.full((starts, count, units), math.inf)
        cut = np.full((starts, count, units), -1, np.int64)
        last_units = np.zeros((starts, count, units), np.int64)
        used = np.broadcast_to(np.arange(1, units + 1, dtype=np.int64), value.shape).copy()
        most = 1 if self.straight else units
        for j in range(count):
            begins = np.concatenate(([-1], np.flatnonzero(self.states.before[:, j])))
            whole = begins[:1] if final else begins
            for m in range(1, most + 1):
                cost = self._stage(whole, j, m, first=True)
                if allowed is not None:
                    cost = np.where(allowed(j, m, whole)[:, m - 1], cost, math.inf)
                value[whole + 1, j, m - 1] = cost
                last_units[whole + 1, j, m - 1] = m
            if len(begins) > 1:
                self._split(j, begins[1:], whole, value, cut, last_units, most, allowed)
            if self.fewer:
                for m in range(1, units):
                    better = value[:, j, m - 1] < value[:, j, m]
                    for table in (value, cut, last_units, used):
                        table[better, j, m] = table[better, j, m - 1]
        return _LevelTable(value, cut, last_units, used)

    def _split(
        self,
        j: int,
        k: Ints,
        whole: Ints,
        value: Floats,
        cut: Ints,
        last_units: Ints,
        most: int,
        allowed: Allowed | None,
    ) -> None:
        """Where the last stage of a pipeline that ends with j begins after one of the states k."""
        units = value.shape[2]
        sent = float(self.states.boundary[j]) if j < len(self.states) - 1 else 0.0
        rows = whole + 1
        for m in range(1, min(most, units - 1) + 1):
            last = self._stage(k, j, m, first=False)
            last = np.maximum(last, self.formula.transfer(self.level, self.states.boundary[k], sent, m))
            fits = None if allowed is None else allowed(j, m, k)
            for total in range(m + 1, units + 1):
                cost = last if fits is None else np.where(fits[:, total - 1], last, math.inf)
                trial = np.maximum(value[rows[:, None], k[None, :], total - m - 1], cost[None, :])
                at = trial.argmin(axis=1)
                best = trial[np.arange(len(rows)), at]
                better = best < value[rows, j, total - 1]
                hit = rows[better]
                value[hit, j, total - 1] = best[better]
                cut[hit, j, total - 1] = k[at[better]]
                last_units[hit, j, total - 1] = m

    def _stage(self, k: Ints, j: int, m: int, first: bool) -> Floats:
        inner = self._since(self.compute, k, j) if self.inner is None else self.inner[k + 1, j]
        return self.formula.stage(self.level, inner, self._since(self.weights, k, j), m, first)

    @staticmethod
    def _since(total: Floats, k: Ints, j: int) -> Floats:
        return total[j] - np.where(k < 0, 0.0, total[k])


def plan_that_fits(
    problem: Problem,
    states: States,
    formula: Formula,
    *,
    straight: bool = False,
    fewer: bool = False,
) -> tuple[float, list[StageSpan]]:
    """The plan without regard to (5-18) if it fits, else the best plan each of whose replicas fits.

    Where no plan uses all devices, as with fewer states than devices and no replication, some stay idle.
    """
    for heeded in (False, True):
        allowed = _HeldBytes(problem, states, formula).allowed if heeded else None
        for idle in dict.fromkeys((fewer, True)):
            value, spans = plan_stages(states, formula, straight=straight, fewer=idle, allowed=allowed)
            if spans and Instance.of(problem).stages_fit(stages_of(problem, states, spans)):
                return value, spans
            if spans:
                break
    return math.inf, []


class _HeldBytes:
    """Static bytes (5-18) of ranges of states."""

    def __init__(self, problem: Problem, states: States, formula: Formula) -> None:
        instance, layers = Instance.of(problem), states.layers
        column = {name: v for v, name in enumerate(layers.names)}
        column |= {name: v for v, own in enumerate(layers.followers) for name in own}
        members = np.ones((len(states), instance.n), bool)
        for i, name in enumerate(instance.names):
            if name in column:
                members[:, i] = states.members[:, column[name]]
        touches = np.zeros((instance.n, len(instance.holders)), np.float32)
        touches[
            instance.holders.items,
            np.repeat(np.arange(len(instance.holders)), np.diff(instance.holders.starts)),
        ] = 1
        self._count = np.rint(members.astype(np.float32) @ touches).astype(np.int32)
        self._bytes, self._state = instance.held_bytes, members @ instance.state_bytes
        units = formula.levels[0][0]
        capacity = instance.capacity
        if len(formula.levels) > 1:  # a machine's place is not known yet
            capacity = np.full(units, capacity.min())
        self._limit = np.zeros((units, units))  # [m - 1, devices in all - 1] least capacity of the last m
        for m in range(1, units + 1):
            for total in range(m, units + 1):
                self._limit[m - 1, total - 1] = capacity[total - m : total].min()

    def allowed(self, j: int, m: int, k: Ints) -> Bools:
        touched = self._count[j] != np.where((k < 0)[:, None], 0, self._count[k])
        own = self._state[j] - np.where(k < 0, 0, self._state[k])
        held = touched @ self._bytes + own
        return np.asarray(held[:, None] <= self._limit[m - 1][None, :])


def stages_of(problem: Problem, states: States, spans: Sequence[StageSpan]) -> tuple[Stage, ...]:
    """The stages with their nodes, in captured order, and PipeDream's warm-up (runtime/runtime.py)."""
    layers, position = states.layers, problem.graph.position
    ranks = sum(len(span.devices) for span in spans)
    names = [device.name for device in problem.cluster.devices]
    stages: list[Stage] = []
    before = 0
    for s, span in enumerate(spans):
        own = states.members[span.end].copy()
        if span.begin >= 0:
            own &= ~states.members[span.begin]
        nodes = [] if s else list(layers.leading)
        for v in np.flatnonzero(own):
            nodes += [layers.names[v], *layers.followers[v]]
        replicas = len(span.devices)
        devices = tuple(names[p] for p in span.devices)
        warm_up = (ranks - 1 - before) // replicas
        stages.append(Stage(tuple(sorted(nodes, key=position.__getitem__)), devices, warm_up))
        before += replicas
    return tuple(stages)


def staged(problem: Problem, stages: tuple[Stage, ...]) -> tuple[dict[str, str], dict[str, float]]:
    """Node to the first device of its stage, and the key by which nodes run stage by stage."""
    device_of = {name: stage.devices[0] for stage in stages for name in stage.nodes}
    graph = problem.graph
    stage_of = {name: s for s, stage in enumerate(stages) for name in stage.nodes}
    key: dict[str, float] = {
        name: position + len(graph) * (len(stages) if name in problem.backward_nodes else stage_of[name])
        for name, position in graph.position.items()
    }
    return {name: device_of[name] for name in graph.nodes}, key
