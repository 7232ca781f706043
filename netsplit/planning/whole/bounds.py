"""What no plan of a search is below; and where none fits, why not, and what the nearest lacks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from netsplit.errors import InfeasibleError
from netsplit.graph.checks.replicated import unreplicable_nodes
from netsplit.partition.base import Problem
from netsplit.partition.bounds.iteration_bound import LIMIT_S, iteration_bound_s
from netsplit.partition.bounds.iteration_tasks import AnySchedule, why_no_room
from netsplit.partition.common.capacity import read_bytes
from netsplit.partition.partitioner import Partitioner
from netsplit.planning.explanation.notation import counted, microbatches_listed
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.judge import Judge

__all__ = ["nothing_fits", "of_every_plan_s", "require_room", "why_none_fits", "without_replicas_s"]

DO = "or use more devices, a smaller batch, an optimizer with less state, or offload on GPUs"


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
        schedule = _any(problem_of(m), m, open_.recompute, open_.replicas and m > 1)
        return iteration_bound_s(problem_of(m), schedule, limit_s)

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
    """Bound of plans with each operator on one device, with the problem's own number of micro-batches."""
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


def require_room(problem_of: Callable[[int], Problem], counts: Sequence[int], open_: AutoSchedule) -> None:
    """Refuse, before anything is measured, what bytes alone prove to fit nowhere.

    Raises:
        InfeasibleError: with the reason.
    """
    reason = why_none_fits(problem_of, counts, open_)
    if reason is not None:
        cluster = problem_of(counts[0]).cluster
        raise InfeasibleError(
            f"no plan fits on cluster '{cluster.name}', as {reason}: nothing was measured for it; "
            f"netsplit.plan and runners.plan say how much memory the nearest plan needs ({DO})."
        )


def nothing_fits(
    judge: Judge,
    counts: Sequence[int],
    method: Partitioner | None,
    proven: str | None,
    remarks: Sequence[str],
    seconds: float,
) -> InfeasibleError:
    """What is raised, by the plan that lacks least.

    Args:
        proven: why there is none; None: the search found none in these seconds.
        remarks: on the numbers of micro-batches.
    """
    nearest, cluster = judge.tried[0], judge.problem_of(counts[0]).cluster
    capacity = {each.name: each.capacity_bytes for each in cluster.devices}
    peak, room = nearest.peak_bytes[nearest.missing_on], capacity[nearest.missing_on]
    missing = read_bytes(nearest.missing_bytes)
    enough = read_bytes(peak) if len(set(capacity.values())) == 1 else f"{missing} more"
    again = " and recomputed activations" if nearest.placement.recomputed else ""
    parts, where = nearest.schedule.microbatches, f"on cluster '{cluster.name}'"
    if proven is not None:
        known = f"no plan fits {where}, as {proven}; of those tried"
    elif method is not None:
        known = f"no plan of {method.name} was found to fit {where} in {seconds:.1f} s, though others may:"
    else:
        known = (
            f"no plan was found to fit {where} in {seconds:.1f} s, though more time (schedule.time_limit_s) "
            "may find one: of those tried"
        )
    return InfeasibleError(
        f"{known} the nearest, {nearest.origin} under {nearest.schedule.name} with "
        f"{counted(parts, 'micro-batch', 'es')}{again}, has its peak at {read_bytes(peak)} on device "
        f"'{nearest.missing_on}', which has {read_bytes(room)}: {missing} are missing there; that plan fits "
        f"with {enough} on each device ({DO}); tried were "
        f"{'; '.join([microbatches_listed(counts), *remarks])}."
    )
