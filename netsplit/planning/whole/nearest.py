"""Where no plan that fits is known: the nearest one, what it lacks, and with how much it fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from netsplit.errors import InfeasibleError, NetSplitError
from netsplit.graph.checks.replicated import require_replicable
from netsplit.partition.base import Problem
from netsplit.partition.common.capacity import read_bytes
from netsplit.partition.partitioner import Partitioner
from netsplit.planning.explanation.notation import microbatches_listed
from netsplit.planning.fitting import fitted, nearest_fill
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.bounds import why_none_fits
from netsplit.planning.whole.judge import Judge, problem_under
from netsplit.program.schedules import OneFOneB, Schedule

__all__ = ["nothing_fits", "require_room", "try_nearest"]

ProblemOf = Callable[[int], Problem]


def require_room(problem_of: ProblemOf, counts: Sequence[int], open_: AutoSchedule) -> None:
    """Refuse, before anything is measured, what bytes alone prove to fit nowhere.

    Raises:
        InfeasibleError: with the reason.
    """
    reason = why_none_fits(problem_of, counts, open_)
    if reason is not None:
        cluster = problem_of(counts[0]).cluster
        raise InfeasibleError(
            f"no plan fits on cluster '{cluster.name}', as {reason}: nothing was measured for it; "
            "netsplit.plan and runners.plan say with how much on each device the nearest plan fits "
            "(or use more devices, a smaller batch, an optimizer with less state, or offload on GPUs)."
        )


def try_nearest(problem_of: ProblemOf, counts: Sequence[int], open_: AutoSchedule, judge: Judge) -> None:
    """Have the judge see, for every number of micro-batches, the packing that is nearest to fit."""
    for m in counts:
        first = _first_order(open_, m)
        packing = nearest_fill(problem_under(problem_of(m), first))
        judge.judge(packing.method, first, packing)


def nothing_fits(
    problem_of: ProblemOf,
    counts: Sequence[int],
    open_: AutoSchedule,
    judge: Judge,
    method: Partitioner | None,
    told: Sequence[str],
    seconds: float,
) -> NetSplitError:
    """By the plan that lacks least; of a method whose answers were all refused, the reason for that.

    That there is none is said only where bytes prove it; else what the search did not find.

    Args:
        seconds: that the search took.
        told: what is to be said of the numbers of micro-batches, some of which may have been left out.
    """
    nearest = min(judge.tried, key=lambda tried: tried.rank, default=None)
    cluster = problem_of(counts[0]).cluster
    if nearest is None:
        assert method is not None, "without one, the nearest packing was tried"
        return _refusal(problem_under(problem_of(counts[0]), _first_order(open_, counts[0])), open_, method)
    capacity = {each.name: each.capacity_bytes for each in cluster.devices}
    peak, room = nearest.peak_bytes[nearest.missing_on], capacity[nearest.missing_on]
    same = len(set(capacity.values())) == 1
    enough = read_bytes(peak) if same else f"{read_bytes(nearest.missing_bytes)} more"
    again = " with activations computed again" if nearest.recomputes else ""
    parts, remarks = nearest.schedule.microbatches, [f"; {each}" for each in told]
    reason, where = why_none_fits(problem_of, counts, open_), f"on cluster '{cluster.name}'"
    if reason is not None:
        known = f"no plan fits {where}, as {reason}; of those tried"
    elif method is not None:
        known = f"no plan of {method.name} was found to fit {where} in {seconds:.1f} s, though others may:"
    else:
        known = (
            f"no plan was found to fit {where} in {seconds:.1f} s, though more time (schedule.time_limit_s) "
            "may find one: of those tried"
        )
    return InfeasibleError(
        f"{known} the nearest, {nearest.origin} under "
        f"{nearest.schedule.name} with {parts} micro-batch{'es' * (parts > 1)}{again}, has its peak at "
        f"{read_bytes(peak)} on device '{nearest.missing_on}' of {read_bytes(room)}: "
        f"{read_bytes(nearest.missing_bytes)} are missing there; that plan fits with {enough} on each device "
        "(or use more devices, a smaller batch, an optimizer with less state, or offload on GPUs)"
        f"; looked at were {microbatches_listed(counts)}{''.join(remarks)}."
    )


def _refusal(problem: Problem, open_: AutoSchedule, method: Partitioner) -> NetSplitError:
    """Why a method that was asked for has no answer that may be taken."""
    try:
        placement = fitted(problem, method)
        if not open_.replicas and placement.replicas:
            return InfeasibleError(
                f"{method.name} gives stages replicas, and schedule.replicas is false: leave that out, or "
                "take another partitioner."
            )
        require_replicable(problem.graph, placement.replicated)
    except NetSplitError as error:
        return error
    return InfeasibleError(
        f"{method.name} gave no answer for cluster '{problem.cluster.name}' in {open_.time_limit_s:g} s: "
        "give schedule.time_limit_s more."
    )


def _first_order(open_: AutoSchedule, m: int) -> Schedule:
    allowed = open_.orders(m)
    return next((each for each in allowed if each.name == OneFOneB.name), allowed[0])
