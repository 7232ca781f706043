"""The best contiguous stages by PipeDream's formula, with a bound: what `auto` answers to that objective."""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace

import numpy as np

from netsplit.errors import InfeasibleError
from netsplit.graph.quotient import longest_before, successors, topological_order
from netsplit.partition.base import Problem
from netsplit.partition.common.instance import Floats
from netsplit.partition.methods.pipedream.antichains import (
    States,
    antichain_states,
    downset_states,
    joined_states,
    prefix_states,
)
from netsplit.partition.methods.pipedream.pipedream import plan_that_fits, staged, stages_of
from netsplit.partition.objectives import Formula, Layers, levels_of
from netsplit.partition.partitioner import Choice
from netsplit.placement.placement import Stage, Status

__all__ = ["best_stages", "lower_bound_s"]

_STATES = {False: 3000, True: 700}  # by whether there are several levels: seconds of the programme
_WALK_S = 1.2e-3  # a block, to list the downsets of a chain or to find them too many
_NOISE = 3.0  # operators of a path, by which orders differ
_FEW = 100  # states of the programme that is run whatever the clock says


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


def best_stages(problem: Problem, time_limit_s: float) -> Choice:
    """The least time of the slowest stage found of contiguous stages with replicas; devices may stay idle.

    The planner's own answer is a candidate, so none is worse. Where all downsets of the graph are few
    enough, the programme over them is exact, and the status is optimal. Else the states of the planner are
    joined with the prefixes of topological orders, for as long as the time lasts; the bound is then
    `lower_bound_s`. Where no plan of them is found in time, a few prefixes are tried.

    Raises:
        InfeasibleError: no contiguous stages were found whose replicas all fit.
    """
    deadline = time.perf_counter() + time_limit_s
    layers, formula = Layers.of(problem), Formula(levels_of(problem))
    timed = replace(formula, deadline=deadline)
    several = len(formula.levels) > 1
    limit = _STATES[several]
    best: tuple[float, tuple[Stage, ...]] = (math.inf, ())
    bound = lower_bound_s(layers, formula)

    def try_states(states: States, fewer: bool = True, by: Formula = timed) -> float | None:
        """Seconds of the best plan; None: the time is over."""
        nonlocal best
        try:
            value, spans = plan_that_fits(problem, states, by, fewer=fewer)
        except TimeoutError:
            return None
        if value < best[0]:
            best = (value, stages_of(problem, states, spans))
        return value

    if not layers.n:
        raise InfeasibleError("auto finds nothing to place: the graph has only inputs.")
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
        blocks, feeders = range(layers.blocks), layers.block_feeders
        fed = successors(layers.blocks, ((a, b) for b in blocks for a in feeders[b]))
        depth = longest_before(feeders, blocks, [1] * layers.blocks)
        took = 0.0  # by the states of a round; the programme over them watches the clock
        while best[0] > bound * (1 + 1e-9) and time.perf_counter() + took < deadline:
            begun = time.perf_counter()
            families = []
            for sign in (-1, -1, 0, 1):  # branch after branch, any, and all branches at once
                key = [sign * each + _NOISE * draw.random() for each in depth]
                families.append(prefix_states(layers, topological_order(fed, key.__getitem__), limit // 4))
            joined = joined_states([own, *families], limit)
            count = max(count, len(joined))
            took = time.perf_counter() - begun
            try_states(joined)
    if not best[1]:
        raise InfeasibleError(
            "auto finds no contiguous stages whose replicas all fit: use devices with more memory, or "
            "objective=simulated."
        )
    value, stages = best
    status: Status = "optimal" if value <= bound * (1 + 1e-9) else "feasible"
    notes = {"replication": [len(stage.devices) for stage in stages], "states": count}
    return Choice(
        *staged(problem, stages), status=status, objective_s=value, bound_s=bound, notes=notes, stages=stages
    )
