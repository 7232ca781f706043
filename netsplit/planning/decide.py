"""The one way to a plan: a method chooses; its answer is verified, compiled, simulated and scored.

    Problem + Partitioner ──decide──► Plan        a placement that is known already ──verified──► Plan

The score of a plan does not depend on the method that made it: it is the asked objective of the placement,
and a method's own bound counts only where the method proved it for that objective.
"""

from __future__ import annotations

import gc
import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np

from netsplit.errors import InfeasibleError, NetSplitError
from netsplit.partition.base import Problem
from netsplit.partition.bounds.iteration_bound import LIMIT_S, iteration_bound_s
from netsplit.partition.bounds.iteration_tasks import AnySchedule
from netsplit.partition.common.capacity import needed_bytes, read_bytes
from netsplit.partition.common.instance import Instance
from netsplit.partition.partitioner import Partitioner
from netsplit.placement.placement import Placement
from netsplit.placement.sharding import in_slices
from netsplit.planning.fitting import fitted
from netsplit.planning.plan import Plan
from netsplit.planning.verify import verify
from netsplit.rewrite.algebra.applying import require_same_algebra
from netsplit.simulate.timeline import Timeline

__all__ = ["decide", "proven_s", "verified"]

log = logging.getLogger(__name__)

MUCH = 1.2  # times what was estimated of parts, from which a method is asked again with what was measured
TOLERANCE = 1e-6  # relative, of a claimed bound: solvers of linear programmes keep their rows no better


def decide(problem: Problem, partitioner: Partitioner, room: bool = True, contiguity: bool = True) -> Plan:
    """Let a method decide, check its answer, and score it.

    Where the problem has a `meter`, parts are measured: by methods that ask it, else once they are chosen. If
    they take much longer than was estimated, the method is asked once more.

    Args:
        room: refuse what is over the capacities; False: for methods that heed none.
        contiguity: refuse what is not contiguous where the objective asks for that; False: the method is
            asked for it, and its answer scored without.

    Raises:
        InfeasibleError: no placement within the capacities, or this one is not and `room` is asked for.
        NetSplitError: the answer breaks a rule, which is a fault of the method.
    """
    held = Instance.of(problem)  # made once: it lives as long as somebody has it
    started, metered_s = time.perf_counter(), problem.metered_s()
    limit_s = problem.time_limit_s or partitioner.time_limit_s or math.inf
    problem, placement = _chosen(problem, partitioner)
    metered_s = problem.metered_s() - metered_s
    seconds = time.perf_counter() - started - metered_s
    plan = verified(problem, placement, seconds, room, contiguity, until=started + metered_s + limit_s)
    del held
    return plan


def _chosen(problem: Problem, partitioner: Partitioner) -> tuple[Problem, Placement]:
    """A method's answer, and the problem with what is known of its parts."""
    placement = fitted(problem, partitioner)
    known = problem.with_measured_parts(placement.rewrites)
    if known is problem:
        return problem, placement
    estimated_s, seconds = (each.objective.score_s(each, placement) for each in (problem, known))
    claimed_s = placement.report.objective
    if claimed_s is not None and math.isclose(claimed_s, seconds, rel_tol=TOLERANCE):
        return known, placement  # they were measured before it was chosen
    log.info(
        "%s: %.4g ms with the operators in parts measured (%.4g ms estimated)",
        placement.method,
        1e3 * seconds,
        1e3 * estimated_s,
    )
    placement = _unclaimed(placement)
    if seconds <= MUCH * estimated_s:
        return known, placement
    log.info("%s: deciding again with the measured times", placement.method)
    again = fitted(known, partitioner)
    now = known.with_measured_parts(again.rewrites)
    if now is not known:
        again = _unclaimed(again)
    return now, min((again, placement), key=partial(now.objective.score_s, now))


def _unclaimed(placement: Placement) -> Placement:
    """The placement without what the method claims of it, which was of other seconds."""
    report = replace(placement.report, status="heuristic", objective=None, bound=None, gap=None)
    return replace(placement, report=report)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Within it the collector of cycles rests, which took a third of verifying large programs."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_uncollected()
def verified(
    problem: Problem,
    placement: Placement,
    seconds: float = 0.0,
    room: bool = True,
    contiguity: bool = True,
    bound_limit_s: float = LIMIT_S,
    until: float = float("inf"),
) -> Plan:
    """The plan of a placement, verified; raises as `decide`.

    The plan's problem is that of the graph after the placement's rewrites. Its placement has the exchanges
    that the schedule asks for; a method's own bound is of send and receive, and claims nothing of others.

    Args:
        seconds: that the decision took.
        room, contiguity: as for `decide`.
        bound_limit_s: for the linear programmes of the bound, at most.
        until: on ``time.perf_counter``: exchanges that would be simulated later are not tried.
    """
    asked = problem
    problem = problem.rewritten(placement.rewrites)
    if problem.graph.rewrites:
        require_same_algebra(problem.graph)
    free = replace(problem, objective=problem.objective.relaxed())
    verify(free, placement, capacity=False).require()
    instance = Instance.of(problem)  # one for all that follows
    if not contiguity:
        problem = free
    if problem.objective.contiguous and (wrong := verify(problem, placement, capacity=False).violations):
        raise NetSplitError(
            f"{placement.method} ignored contiguity, which {problem.objective.name} requires: {wrong[0]} "
            "Use auto or netsplit_exact, which keep it."
        )
    if room and problem.memory == "static":
        _require_room(problem, placement)
        verify(free, placement).require()
    program, timeline = None, None
    if (loads := problem.objective.loads(problem, placement)) is not None:
        objective_s = loads.period_s
    else:
        compiler = problem.the_simulator
        if (shard := compiler.schedule.shard) != "none":
            placement = in_slices(problem.graph, placement, shard)
        scored = compiler.scored(placement, until)
        placement, program, timeline = scored.placement, scored.program, scored.timeline
        verify(free, placement, capacity=False).require()
        objective_s = timeline.iteration_s
    if room and problem.memory == "lifetimes":
        _require_room(problem, placement, timeline)
    bound_s = None if placement.exchanges else problem.objective.bound_s(placement.report)
    if timeline is not None:
        within = bool((needed_bytes(instance, placement, timeline) <= instance.capacity).all())
        bound_s = max(bound_s or 0.0, proven_s(problem, within, not placement.recomputed, bound_limit_s))
    if bound_s is not None and bound_s > objective_s * (1 + TOLERANCE) + 1e-12:
        raise NetSplitError(
            f"{placement.method}'s plan takes {objective_s:.9g} s, below its bound of {bound_s:.9g} s: the "
            "bound does not hold."
        )
    if problem.meter is not None or problem.improved is not None:  # they belong to the search
        asked, problem = (replace(each, meter=None, improved=None) for each in (asked, problem))
    return Plan(asked, problem, placement, seconds, objective_s, bound_s, program, timeline)


def proven_s(problem: Problem, within: bool = True, kept: bool = True, limit_s: float = LIMIT_S) -> float:
    """Seconds that no placement's iteration is below under the schedule of a problem that is simulated.

    Args:
        within: of plans within the capacities; else of such that may be over them, too.
        kept: of plans that recompute what the schedule says; else of such that may recompute anything.
        limit_s: for linear programmes, at most.

    Raises:
        AssertionError: the problem is not simulated.
    """
    schedule = AnySchedule.under(problem.the_simulator, within)
    return iteration_bound_s(problem, schedule if kept else replace(schedule, kept=0), limit_s)


def _require_room(problem: Problem, placement: Placement, timeline: Timeline | None = None) -> None:
    """Refuses answers of methods that heed no capacities; says what is missing where it is most."""
    instance = Instance.of(problem)
    needed = needed_bytes(instance, placement, timeline)
    over = needed - instance.capacity
    p = int(np.argmax(over))
    if over[p] > 0:
        when = " at its peak" if problem.memory == "lifetimes" else ""
        raise InfeasibleError(
            f"{placement.method} needs {read_bytes(int(needed[p]))} on '{instance.devices[p]}'{when}, which "
            f"has {read_bytes(int(instance.capacity[p]))}: {read_bytes(int(over[p]))} are missing there; "
            "give the devices more memory, or use a method that respects it."
        )
