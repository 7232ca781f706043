"""What no plan is below that a search for a whole plan might still find."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from netsplit.partition.base import Problem
from netsplit.partition.bounds.iteration_bound import iteration_bound_s
from netsplit.partition.bounds.iteration_tasks import AnySchedule
from netsplit.planning.simulated import simulated_by
from netsplit.planning.whole.auto_schedule import AutoSchedule

__all__ = ["of_every_plan_s", "without_replicas_s"]


def of_every_plan_s(
    problem_of: Callable[[int], Problem], counts: Sequence[int], open_: AutoSchedule
) -> float:
    """Seconds of an iteration with any of these numbers of micro-batches, under any schedule that is open."""
    return min(_bound_s(problem_of(m), m, open_.recompute, open_.replicas and m > 1) for m in counts)


def without_replicas_s(problem: Problem) -> float:
    """Of plans whose operators are each on one device, with the problem's own number of micro-batches."""
    return _bound_s(problem, simulated_by(problem).schedule.microbatches, recompute=True, replicas=False)


def _bound_s(problem: Problem, microbatches: int, recompute: bool, replicas: bool) -> float:
    schedule = AnySchedule(
        microbatches,
        simulated_by(problem).training,
        kept=0 if recompute or problem.costs.offload.activations else 1,
        alone=frozenset(() if replicas else problem.graph.nodes),
    )
    return iteration_bound_s(problem, schedule)
