"""Where no plan that fits is known: the nearest one, what it lacks, and with how much it fits."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from netsplit.errors import InfeasibleError, NetSplitError
from netsplit.graph.checks.replicated import require_replicable
from netsplit.partition.base import Problem
from netsplit.partition.common.capacity import read_bytes
from netsplit.partition.partitioner import Partitioner
from netsplit.planning.explanation.notation import microbatches_listed
from netsplit.planning.fitting import fitted
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.bounds import why_none_fits
from netsplit.planning.whole.judge import Judge, problem_under

__all__ = ["nothing_fits", "require_room"]

DO = "or use more devices, a smaller batch, an optimizer with less state, or offload on GPUs"


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
            f"netsplit.plan and runners.plan say with how much on each device the nearest plan fits ({DO})."
        )


def nothing_fits(
    judge: Judge,
    counts: Sequence[int],
    open_: AutoSchedule,
    method: Partitioner | None,
    proven: str | None,
    told: Sequence[str],
    started: float,
) -> NetSplitError:
    """By the plan that lacks least; of a method whose answers were all refused,
    the reason for that.

    Args:
        proven: why there is none; None: the search found none.
        told: what is to be said of the numbers of micro-batches, some of which may have been left out.
        started: when the search did, on ``time.perf_counter``.
    """
    if not judge.tried:
        assert method is not None, "without one, fills were tried"
        return _refusal(problem_under(judge.problem_of(counts[0]), open_.usual(counts[0])), open_, method)
    nearest, cluster = judge.tried[0], judge.problem_of(counts[0]).cluster
    capacity = {each.name: each.capacity_bytes for each in cluster.devices}
    peak, room = nearest.peak_bytes[nearest.missing_on], capacity[nearest.missing_on]
    same = len(set(capacity.values())) == 1
    enough = read_bytes(peak) if same else f"{read_bytes(nearest.missing_bytes)} more"
    again = " with activations computed again" if nearest.recomputes else ""
    parts, where = nearest.schedule.microbatches, f"on cluster '{cluster.name}'"
    seconds = time.perf_counter() - started
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
        f"{known} the nearest, {nearest.origin} under "
        f"{nearest.schedule.name} with {parts} micro-batch{'es' * (parts > 1)}{again}, has its peak at "
        f"{read_bytes(peak)} on device '{nearest.missing_on}' of {read_bytes(room)}: "
        f"{read_bytes(nearest.missing_bytes)} are missing there; that plan fits with {enough} on each device "
        f"({DO}); looked at were {microbatches_listed(counts)}{''.join(f'; {each}' for each in told)}."
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
