"""PipeDream's time of any placement's slowest stage, and stages that are better by it than its planner's.

The formula is `stage_plans.Formula`'s; what crosses a cut is counted as the planner does.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from netsplit.errors import InfeasibleError
from netsplit.graph.order import chosen_order
from netsplit.graph.quotient import successors
from netsplit.partition.base import Answer, Loads, Placement, Problem, Solvers, Stage, Status
from netsplit.partition.bounds.latency_diagram import OutOfTime, check_clock
from netsplit.partition.common.instance import Floats, Instance
from netsplit.partition.methods.pipedream.antichains import (
    Layers,
    States,
    antichain_states,
    downset_states,
    joined_states,
    prefix_states,
)
from netsplit.partition.methods.pipedream.stage_plans import (
    Cost,
    Formula,
    levels_of,
    plan_that_fits,
    staged,
    stages_of,
)
from netsplit.partition.objectives import MaxLoad
from netsplit.partition.partitioner import Choice

__all__ = ["StageTime", "best_stages", "lower_bound_s", "stage_loads", "stage_time_s"]

_STATES = {False: 3000, True: 700}  # by whether there are several levels: seconds of the programme
_WALK_S = 1.2e-3  # a block, to list the downsets of a chain or to find them too many
_FEW = 100  # states of the programme that is run whatever the clock says


def stage_time_s(
    problem: Problem, placement: Placement, cost: Cost = "released", count_transfers: bool = True
) -> float:
    """Seconds of the slowest stage or transfer, by PipeDream's formula.

    With `stages`, which must be in pipeline order, this is what the planner's programme says of them: at
    each level of the network, stages on the same units are one stage of that level. Without, each device
    runs alone what it holds, and for every two devices ``2 a / B`` competes, where `a` is the bytes of the
    variables made on the one and read on the other, and B the bandwidth of the level that joins them.
    """
    return float(stage_loads(problem, placement, cost, count_transfers).seconds.max(initial=0.0))


def stage_loads(
    problem: Problem, placement: Placement, cost: Cost = "released", count_transfers: bool = True
) -> Loads:
    """`stage_time_s` by device: its stage, or its transfers, which go on beside, whichever takes longer."""
    formula = Formula(levels_of(problem), cost, count_transfers)
    layers = Layers.of(problem)
    if placement.stages:
        busy, receive, send = _Score(problem, formula, layers, placement.stages).by_device()
    else:
        busy, receive, send = _without_stages(problem, placement, formula, layers)
    transfer = np.maximum(receive, send)
    return Loads(np.maximum(busy, transfer), transfer, send, receive)


class _Score:
    """The planner's value of given stages."""

    def __init__(self, problem: Problem, formula: Formula, layers: Layers, stages: Sequence[Stage]) -> None:
        self._formula = formula
        index = {name: v for v, name in enumerate(layers.names)}
        own = np.zeros((len(stages), layers.n), bool)
        for s, stage in enumerate(stages):
            own[s, [index[name] for name in stage.nodes if name in index]] = True
        self._seconds, self._weights = own @ layers.seconds, own @ layers.weight_bytes
        self._boundary = layers.boundary_bytes(np.logical_or.accumulate(own, axis=0))
        rank = {device.name: p for p, device in enumerate(problem.cluster.devices)}
        shape = [units for units, _ in reversed(formula.levels)]
        # [levels, replicas] of each stage: the unit at each level, outermost first
        self._ranks = [[rank[p] for p in stage.devices] for stage in stages]
        self._units = [np.array(np.unravel_index(ranks, shape)) for ranks in self._ranks]

    def by_device(self) -> Floats:
        """[3, D] seconds that a device computes and synchronises, receives, and sends."""
        by_stage = self._level(len(self._formula.levels) - 1, list(range(len(self._units))))
        seconds = np.zeros((3, self._formula.devices))
        for s, ranks in enumerate(self._ranks):
            seconds[:, ranks] = np.maximum(seconds[:, ranks], by_stage[:, [s]])
        return seconds

    def _level(self, level: int, stages: Sequence[int]) -> Floats:
        """[3, stages]. The formulas grow with what is within: the slowest's is the slowest of them."""
        if level < 0:
            spent = float(sum(self._seconds[s] for s in stages))
            return np.array([[spent], [0.0], [0.0]]).repeat(len(stages), axis=1)
        axis = len(self._formula.levels) - 1 - level
        groups: list[tuple[frozenset[int], list[int]]] = []
        for s in stages:
            units = frozenset(int(p) for p in self._units[s][axis])
            if not groups or groups[-1][0] != units:
                groups.append((units, []))
            groups[-1][1].append(s)
        parts: list[Floats] = []
        for g, (units, own) in enumerate(groups):
            inner = self._level(level - 1, own)
            weights: Floats = np.array(self._weights[own].sum())
            seconds = self._formula.stage(level, inner, weights, len(units), not g)
            seconds[1:] *= inner[1:] > 0
            if g:
                read = np.array(self._boundary[own[0] - 1])
                sent = float(self._boundary[own[-1]]) if own[-1] + 1 < len(self._units) else 0.0
                none: Floats = np.zeros(())
                crossing = (
                    self._formula.transfer(level, read, 0.0, len(units)),
                    self._formula.transfer(level, none, sent, len(units)),
                )
                seconds[1:] = np.maximum(seconds[1:], np.array(crossing)[:, None])
            parts.append(seconds)
        return np.concatenate(parts, axis=1)


def _without_stages(problem: Problem, placement: Placement, formula: Formula, layers: Layers) -> Floats:
    """[3, D] seconds that a device computes, receives, and sends: of its transfers the longest."""
    instance = Instance.of(problem)
    rank = {device.name: p for p, device in enumerate(problem.cluster.devices)}
    seconds = np.zeros((3, len(rank)))
    for v, name in enumerate(layers.names):
        seconds[0, rank[placement.device_of[name]]] += layers.seconds[v]
    if not formula.count_transfers:
        return seconds
    where, crossing = instance.encode(placement.device_of), np.zeros((len(rank), len(rank)))
    planned = set(layers.names)
    for u, source in enumerate(instance.producer):
        if instance.names[source] in planned:
            p = where[source]
            readers = [int(w) for w in instance.consumers[u] if instance.names[w] in planned]
            for q in {int(where[w]) for w in readers} - {int(p)}:
                crossing[p, q] += instance.nbytes[u]
    for p, q in zip(*np.nonzero(crossing), strict=True):
        spent = 2 * float(crossing[p, q]) / _bandwidth(formula, int(p), int(q))
        seconds[1, q], seconds[2, p] = max(seconds[1, q], spent), max(seconds[2, p], spent)
    return seconds


def _bandwidth(formula: Formula, p: int, q: int) -> float:
    """Bytes per second of the innermost level whose unit above holds both devices."""
    for units, bandwidth in formula.levels:
        p, q = p // units, q // units
        if p == q:
            return bandwidth
    return formula.levels[-1][1]


def lower_bound_s(layers: Layers, formula: Formula) -> float:
    """No contiguous stages are faster: all work shared evenly, and the best replication of each block."""
    if not layers.n:
        return 0.0
    seconds: Floats = np.asarray(np.bincount(layers.block_of, weights=layers.seconds), float)
    weights: Floats = np.asarray(np.bincount(layers.block_of, weights=layers.weight_bytes), float)
    for level, (units, _) in enumerate(formula.levels):
        each = [formula.stage(level, seconds, weights, m, True) for m in range(1, units + 1)]
        seconds = np.min(each, axis=0)
    return max(float(layers.seconds.sum()) / formula.devices, float(seconds.max()))


@dataclass(frozen=True)
class StageTime(MaxLoad):
    """PipeDream's period: stages with replicas, synchronisation of weights, transfers beside compute."""

    bound_key = "stage_time"
    largest_load = False

    def scorer(self, problem: Problem) -> Callable[[Placement], float] | None:
        return lambda placement: stage_time_s(problem, placement)

    def loads(self, problem: Problem, placement: Placement) -> Loads:
        return stage_loads(problem, placement)

    def solved_by(self, solvers: Solvers[Answer]) -> Answer:
        return solvers.stage_time(self.contiguous)


@dataclass(frozen=True)
class _TimedFormula(Formula):
    """The formula, which the programme asks at every state: OutOfTime after the deadline."""

    deadline: float = math.inf

    def stage(self, level: int, inner: Floats, weights: Floats, m: int, first: bool) -> Floats:
        check_clock(self.deadline)
        return super().stage(level, inner, weights, m, first)


def best_stages(
    problem: Problem, time_limit_s: float, cost: Cost = "released", count_transfers: bool = True
) -> Choice:
    """The least `stage_time_s` found of contiguous stages with replicas; devices may stay idle.

    The planner's own answer is a candidate, so none is worse. Where all downsets of the graph are few
    enough, the programme over them is exact: no contiguous stages are faster, and the status is optimal.
    Else the states of the planner are joined with the prefixes of topological orders, of several kinds
    and drawn, for as long as the time lasts; the bound is then `lower_bound_s`. Where the time
    is too short for the planner's own states, or no plan of them fits, a few prefixes are tried.

    Raises:
        InfeasibleError: no contiguous stages were found whose replicas all fit.
    """
    deadline = time.perf_counter() + time_limit_s
    layers, formula = Layers.of(problem), Formula(levels_of(problem), cost, count_transfers)
    timed = _TimedFormula(formula.levels, cost, count_transfers, deadline)
    several = len(formula.levels) > 1
    limit = _STATES[several]
    best: tuple[float, tuple[Stage, ...]] = (math.inf, ())
    bound = lower_bound_s(layers, formula)

    def try_states(states: States, fewer: bool = True, by: Formula = timed) -> float | None:
        """Seconds of the best plan; None: the time is over."""
        nonlocal best
        try:
            value, spans = plan_that_fits(problem, states, by, fewer=fewer)
        except OutOfTime:
            return None
        if value < best[0]:
            best = (value, stages_of(problem, states, spans))
        return value

    if not layers.n:
        raise InfeasibleError("best_stages finds nothing to cut: the graph has only inputs.")
    own = antichain_states(layers, 400 if several else 1500)
    try_states(own, fewer=False)
    try_states(own)
    if not best[1]:
        try_states(prefix_states(layers, range(layers.blocks), _FEW), by=formula)
    count = len(own)
    walkable = time.perf_counter() + _WALK_S * layers.blocks < deadline
    whole = downset_states(layers, limit) if walkable and best[0] > bound * (1 + 1e-12) else None
    if whole is not None:
        count = len(whole)
        least = try_states(whole)
        bound = bound if least is None else max(bound, min(best[0], least))
    else:
        draw = random.Random(problem.seed)
        took = 0.0  # by the states of a round; the programme over them watches the clock
        while best[0] > bound * (1 + 1e-9) and time.perf_counter() + took < deadline:
            begun = time.perf_counter()
            orders = [_order(layers, draw, kind) for kind in ("depth", "breadth", "bytes", "drawn")]
            families = [prefix_states(layers, order, limit // 4) for order in orders]
            joined = joined_states([own, *families], limit)
            count = max(count, len(joined))
            took = time.perf_counter() - begun
            try_states(joined)
    if not best[1]:
        raise InfeasibleError("best_stages finds no contiguous stages whose replicas all fit.")
    return _choice(problem, *best, bound, count)


def _choice(problem: Problem, value: float, stages: tuple[Stage, ...], bound: float, states: int) -> Choice:
    status: Status = "optimal" if value <= bound * (1 + 1e-9) else "feasible"
    notes = {
        "replication": [len(stage.devices) for stage in stages],
        "warm_up": [stage.warm_up for stage in stages],
        "states": states,
    }
    return Choice(
        *staged(problem, stages), status=status, objective_s=value, bound_s=bound, notes=notes, stages=stages
    )


def _order(layers: Layers, draw: random.Random, kind: str) -> list[int]:
    """A topological order of the blocks: of those that could be next, by a key with some noise."""
    count = len(layers.block_feeders)
    fed = successors(count, ((a, b) for b, feeders in enumerate(layers.block_feeders) for a in feeders))
    made = np.bincount(layers.block_of, weights=layers.output_bytes, minlength=layers.blocks)
    unread = [len(own) for own in fed]
    since: dict[int, int] = {}  # how many came before each when it could first come
    places = itertools.count()
    noise = 0.3

    def key(b: int) -> float:
        if kind == "drawn":
            return draw.random()
        if kind == "bytes":  # what it makes, less what nobody else reads any more
            freed = sum(made[a] for a in layers.block_feeders[b] if unread[a] == 1)
            return float(made[b] - freed) * (1 + noise * draw.random())
        return (since[b] if kind == "breadth" else -since[b]) + noise * draw.random()

    def least(ready: list[int]) -> int:
        place = next(places)
        for b in ready:
            since.setdefault(b, place)
        b = min(ready, key=key)
        for a in layers.block_feeders[b]:
            unread[a] -= 1
        return b

    return chosen_order(fed, least)
