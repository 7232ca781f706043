"""What no plan is below that a search for a whole plan might still find."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from netsplit.graph.checks.replicated import unreplicable_nodes
from netsplit.partition.base import Problem
from netsplit.partition.bounds.iteration_bound import LIMIT_S, iteration_bound_s
from netsplit.partition.bounds.iteration_tasks import AnySchedule
from netsplit.planning.simulated import simulated_by
from netsplit.planning.whole.auto_schedule import AutoSchedule

__all__ = ["of_every_plan_s", "without_replicas_s"]


def of_every_plan_s(
    problem_of: Callable[[int], Problem],
    counts: Sequence[int],
    open_: AutoSchedule,
    until: float = float("inf"),
) -> float:
    """Seconds of an iteration with any of these numbers of micro-batches, under any schedule that is open.

    The least of all numbers' bounds: of each the quick one, however late it is, and the best one of those
    that are least, as long as there is time.

    Args:
        until: on ``time.perf_counter``.
    """

    def bound_s(m: int, limit_s: float) -> float:
        return _bound_s(problem_of(m), m, open_.recompute, open_.replicas and m > 1, limit_s)

    bounds = {m: bound_s(m, 0.0) for m in counts}
    refined: set[int] = set()
    while (least := min(bounds, key=lambda m: bounds[m])) not in refined:
        left_s = until - time.perf_counter()
        if left_s <= 0:
            break
        refined.add(least)
        bounds[least] = max(bounds[least], bound_s(least, min(left_s, LIMIT_S)))
    return bounds[least]


def without_replicas_s(problem: Problem, limit_s: float = LIMIT_S) -> float:
    """Of plans whose operators are each on one device, with the problem's own number of micro-batches."""
    m = simulated_by(problem).schedule.microbatches
    return _bound_s(problem, m, recompute=True, replicas=False, limit_s=limit_s)


def _bound_s(problem: Problem, microbatches: int, recompute: bool, replicas: bool, limit_s: float) -> float:
    schedule = AnySchedule(
        microbatches,
        simulated_by(problem).training,
        kept=0 if recompute or problem.costs.offload.activations else 1,
        alone=unreplicable_nodes(problem.graph) if replicas else frozenset(problem.graph.nodes),
    )
    return iteration_bound_s(problem, schedule, limit_s)
