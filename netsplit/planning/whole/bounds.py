"""What no plan is below that a search for a whole plan might still find; and why there is none at all."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from netsplit.graph.checks.replicated import unreplicable_nodes
from netsplit.partition.base import Problem
from netsplit.partition.bounds.iteration_bound import LIMIT_S, iteration_bound_s
from netsplit.partition.bounds.iteration_tasks import AnySchedule, why_no_room
from netsplit.planning.whole.auto_schedule import AutoSchedule

__all__ = ["of_every_plan_s", "why_none_fits", "without_replicas_s"]


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
        problem = problem_of(m)
        return iteration_bound_s(
            problem, _any(problem, m, open_.recompute, open_.replicas and m > 1), limit_s
        )

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
    m = problem.the_simulator.schedule.microbatches
    return iteration_bound_s(problem, _any(problem, m, recompute=True, replicas=False), limit_s)


def why_none_fits(
    problem_of: Callable[[int], Problem], counts: Sequence[int], open_: AutoSchedule
) -> str | None:
    """What proves that no plan of whole operators is within the capacities with any of these numbers of
    micro-batches, in words; None: nothing does, and there may be one."""
    reasons = []
    for m in counts:
        replicas, problem = open_.replicas and m > 1, problem_of(m)
        schedule = _any(problem, m, open_.recompute, replicas)
        reasons.append(why_no_room(problem, schedule, replicas, open_.shard != "none"))
    return None if open_.splits or None in reasons else reasons[-1]


def _any(problem: Problem, microbatches: int, recompute: bool, replicas: bool) -> AnySchedule:
    return AnySchedule(
        microbatches,
        problem.the_simulator.training,
        kept=0 if recompute or problem.costs.offload.activations else 1,
        alone=unreplicable_nodes(problem.graph) if replicas else frozenset(problem.graph.nodes),
    )
