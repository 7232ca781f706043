"""How every plan is made: a placement is chosen, verified, compiled, simulated and scored.

    Problem + Partitioner ──decide──────► Plan        a placement that is known already ──verified──► Plan
    Problems + AutoSchedule ──decide_whole──► Plan    the schedule is chosen with the placement

The score of a plan does not depend on the method that made it: it is the asked objective of the placement,
and a method's own bound counts only where the method proved it for that objective.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from netsplit.errors import InfeasibleError, NetSplitError
from netsplit.graph.checks.replicated import require_replicable
from netsplit.interrupts import older_uncollected, uncollected
from netsplit.partition.base import Problem
from netsplit.partition.bounds.iteration_bound import LIMIT_S, iteration_bound_s
from netsplit.partition.bounds.iteration_tasks import AnySchedule, why_no_room
from netsplit.partition.common.instance import Instance
from netsplit.partition.compile_all import load_kernels
from netsplit.partition.partitioner import Partitioner, needed_bytes, read_bytes
from netsplit.placement.placement import Placement, SolverReport
from netsplit.placement.sharding import in_slices
from netsplit.planning.fitting import fitted
from netsplit.planning.plan import Plan, microbatches_listed
from netsplit.planning.verify import verify
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.frontier import PlanChoice, absent_kinds, frontier_of, remarks_on
from netsplit.planning.whole.judge import Judge, Tried, any_schedule, of_every_plan_s, problem_under
from netsplit.planning.whole.search import WORTH_S, WholeSearch
from netsplit.rewrite.algebra.applying import require_same_algebra
from netsplit.simulate.timeline import Timeline
from netsplit.tables import counted

__all__ = [
    "decide",
    "decide_scheduled",
    "decide_whole",
    "proven_s",
    "require_room",
    "verified",
    "why_none_fits",
]

log = logging.getLogger(__name__)

MUCH = 1.2  # measured over estimated seconds of parts, from which the method plans again
SEARCHED = 0.9  # of the time limit; the rest is for verification and the bound
PROVING = 0.02  # of that time, for the linear programmes of the chosen schedule's bound
DO = "or use more devices, a smaller batch, an optimizer with less state, or offload on GPUs"
TOLERANCE = 1e-6  # relative, of a claimed bound: solvers of linear programmes keep their rows no better


def decide(problem: Problem, partitioner: Partitioner, room: bool = True) -> Plan:
    """Let a method decide, check its answer, and score it.

    With a `meter`, operators in parts are measured: by methods that ask it, or once they are chosen. If they
    take much longer than estimated, the method plans once more.

    Args:
        room: refuse a placement that exceeds a capacity; False for methods that ignore capacities.

    Raises:
        InfeasibleError: no placement fits; or this one does not, with `room`.
        NetSplitError: the answer breaks a rule, which is a fault of the method.
    """
    held = Instance.of(problem)  # made once: it lives as long as somebody has it
    started, metered_s = time.perf_counter(), problem.metered_s()
    limit_s = problem.time_limit_s or partitioner.time_limit_s or math.inf
    problem, placement = _chosen(problem, partitioner)
    metered_s = problem.metered_s() - metered_s
    seconds = time.perf_counter() - started - metered_s
    plan = verified(problem, placement, seconds, room, until=started + metered_s + limit_s)
    del held
    return plan


def _chosen(problem: Problem, partitioner: Partitioner) -> tuple[Problem, Placement]:
    """The problem with measured parts, and the method's placement."""
    placement = fitted(problem, partitioner)
    known = problem.with_measured_parts(placement.rewrites)
    if known is problem:
        return problem, placement
    estimated_s, seconds = (each.objective.score_s(each, placement) for each in (problem, known))
    claimed_s = placement.report.objective
    if claimed_s is not None and math.isclose(claimed_s, seconds, rel_tol=TOLERANCE):
        return known, placement  # they were measured before it was chosen
    log.info(
        "%s: %.4g ms with measured times of operators in parts (%.4g ms estimated)",
        placement.method,
        1e3 * seconds,
        1e3 * estimated_s,
    )
    placement = _unclaimed(placement)
    if seconds <= MUCH * estimated_s:
        return known, placement
    log.info("%s: planning again with the measured times", placement.method)
    again = fitted(known, partitioner)
    now = known.with_measured_parts(again.rewrites)
    if now is not known:
        again = _unclaimed(again)
    return now, min((again, placement), key=partial(now.objective.score_s, now))


def _unclaimed(placement: Placement) -> Placement:
    """The placement without the method's claims, which rest on estimated seconds."""
    report = replace(placement.report, status="heuristic", objective=None, bound=None, gap=None)
    return replace(placement, report=report)


@uncollected()
def verified(
    problem: Problem,
    placement: Placement,
    seconds: float = 0.0,
    room: bool = True,
    bound_limit_s: float = LIMIT_S,
    until: float = float("inf"),
) -> Plan:
    """The plan of a placement, verified; raises as `decide`.

    The plan's problem has the graph after the placement's rewrites; its placement has the exchanges that the
    schedule asks for. A method's own bound holds only for send and receive.

    Args:
        seconds: that the decision took.
        room: as for `decide`.
        bound_limit_s: time limit of the bound's linear programmes.
        until: deadline for trying exchanges, on ``time.perf_counter``.
    """
    asked = problem
    problem = problem.rewritten(placement.rewrites)
    if problem.graph.rewrites:
        require_same_algebra(problem.graph)
    free = replace(problem, objective=problem.objective.relaxed())
    verify(free, placement, capacity=False).require()
    instance = Instance.of(problem)  # one for all that follows
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
    """Lower bound on every placement's iteration, in seconds, under the problem's schedule.

    Args:
        within: for plans within the capacities; else for all plans.
        kept: for plans that recompute what the schedule says; else for any recomputation.
        limit_s: time limit of the linear programmes.

    Raises:
        AssertionError: the problem is not simulated.
    """
    schedule = AnySchedule.under(problem.the_simulator, within)
    return iteration_bound_s(problem, schedule if kept else replace(schedule, kept=0), limit_s)


def _require_room(problem: Problem, placement: Placement, timeline: Timeline | None = None) -> None:
    """Refuse a placement that exceeds a capacity, naming the device that lacks most."""
    instance = Instance.of(problem)
    needed = needed_bytes(instance, placement, timeline)
    over = needed - instance.capacity
    p = int(np.argmax(over))
    if over[p] > 0:
        when = " at its peak" if problem.memory == "lifetimes" else ""
        raise InfeasibleError(
            f"{placement.method} needs {read_bytes(int(needed[p]))} on '{instance.devices[p]}'{when}, "
            f"{read_bytes(int(over[p]))} over its limit of {read_bytes(int(instance.capacity[p]))}: "
            "give that device more memory, or use a method that respects limits."
        )


def decide_whole(
    problem_of: Callable[[int], Problem],
    counts: Sequence[int],
    batch_size: int,
    open_: AutoSchedule,
    *,
    method: Partitioner | None = None,
    improved: Callable[[float, str], object] | None = None,
    remarks: Callable[[int], tuple[str, ...]] = lambda microbatches: (),
) -> Plan:
    """Choose everything together: the fastest simulated plan that fits.

        |── search ─────────────────────────────|─ verification ─|─ bound ─| time limit

    Kernels are loaded, or compiled once, before the clock starts. If verification refuses a plan, that is
    logged and the next is taken. Measuring operators in parts does not count.

    Args:
        problem_of: number of micro-batches -> its problem, with the parts measured so far.
        counts: numbers of micro-batches to try.
        batch_size: samples of a whole batch.
        open_: what may be chosen.
        method: the one that makes placements; None: any.
        improved: called with seconds and origin of each better plan.
        remarks: number of micro-batches -> remarks on it.

    Raises:
        InfeasibleError: no plan was found that fits; says what the nearest one lacks, and if none exists.
        NetSplitError: the chosen method gives no valid placement.
    """
    limit_s = open_.time_limit_s
    if method is None and limit_s > 5 * WORTH_S and len(problem_of(counts[0]).cluster.devices) > 1:
        load_kernels()
    log.info("Searching for a plan, for at most %g s.", limit_s)
    started = time.perf_counter()
    deadline = started + SEARCHED * limit_s
    judge = Judge(problem_of, open_.recompute, open_.shard == "auto", improved, deadline)
    search = WholeSearch(counts, open_, judge, method, started, deadline)
    with older_uncollected():
        proven = why_none_fits(problem_of, counts, open_)
        if proven is None:
            search.run()
    if judge.winner is None and (method is None or proven is not None):
        search.fill_in_order()
    if judge.winner is None and not judge.tried:
        assert method is not None, "without one, fills are tried"
        raise search.refusal or InfeasibleError(
            f"{method.name} found no plan for cluster '{problem_of(counts[0]).cluster.name}' in {limit_s:g} "
            "s: raise schedule.time_limit_s."
        )
    if judge.winner is None:
        seconds = time.perf_counter() - started
        raise _nothing_fits(judge, counts, method, proven, remarks(1), seconds)
    until = started + limit_s + search.metered_s
    winner, plan = _best_verified(judge, started, PROVING * limit_s, until)
    every = sorted({*counts, winner.schedule.microbatches})
    bound_s = of_every_plan_s(problem_of, every, open_, until)
    choice = PlanChoice(
        frontier_of(judge, winner, batch_size, plan.problem.costs.controller_s),
        absent_kinds(judge, counts, open_, method),
        (*remarks(winner.schedule.microbatches), *remarks_on(plan.problem, plan.placement)),
        bound_s, open_.splits, tuple(every), len(judge.seen), search.metered_s, batch_size,
    )  # fmt: skip
    return replace(plan, choice=choice, seconds=time.perf_counter() - started)


def decide_scheduled(
    problem: Problem, method: Partitioner, batch_size: int, remarks: tuple[str, ...] = ()
) -> Plan:
    """A method's plan under the problem's schedule, with a `PlanChoice` of that plan alone.

    Args:
        batch_size: samples of a whole batch.
        remarks: on its micro-batches.

    Raises:
        InfeasibleError: nothing fits under this schedule.
        NetSplitError: the answer breaks a rule, or has replicas that would train something else.
    """
    plan = decide(problem, method)
    require_replicable(plan.problem.graph, plan.placement.replicated)
    judge = Judge(lambda microbatches: plan.problem)
    chosen = judge.judge(plan.placement.method, problem.the_simulator.schedule, plan.placement)
    assert chosen is not None, "the first is always simulated"
    remarks = (*remarks, *remarks_on(problem, plan.placement))
    rows = frontier_of(judge, chosen, batch_size, problem.costs.controller_s)
    choice = PlanChoice(
        rows, (), remarks, plan.bound_s or 0.0, bool(plan.placement.rewrites), tried=len(rows),
        batch_size=batch_size,
    )  # fmt: skip
    return replace(plan, choice=choice)


def _best_verified(judge: Judge, started: float, proving_s: float, until: float) -> tuple[Tried, Plan]:
    """The best plan that passes verification; raises as `decide_whole` if none does."""
    while (winner := judge.winner) is not None:
        order = winner.schedule.recomputing("auto") if winner.placement.recomputed else winner.schedule
        problem = problem_under(judge.problem_of(order.microbatches), order)
        substitutions = winner.placement.report.notes.get("substitutions", [])
        notes = {"origin": winner.origin, "substitutions": substitutions}
        seconds = time.perf_counter() - started
        report = SolverReport("feasible", seconds, objective=winner.iteration_s, notes=notes)
        placement = replace(winner.placement, method=winner.origin, report=report)
        try:
            return winner, verified(problem, placement, seconds, bound_limit_s=proving_s, until=until)
        except NetSplitError as refusal:
            what = f"{winner.origin} under {winner.schedule.name}"
            log.warning("Verification refused a plan; trying the next: %s: %s", what, refusal)
            refused = refusal
            judge.discard(winner)
    raise refused


def require_room(problem_of: Callable[[int], Problem], counts: Sequence[int], open_: AutoSchedule) -> None:
    """Refuse before measuring, if bytes alone prove that no plan fits.

    Raises:
        InfeasibleError: with the reason.
    """
    reason = why_none_fits(problem_of, counts, open_)
    if reason is not None:
        cluster = problem_of(counts[0]).cluster
        raise InfeasibleError(
            f"no plan fits on cluster '{cluster.name}', as {reason}: netsplit.plan and runners.plan "
            f"show how much memory the nearest plan needs ({DO})."
        )


def why_none_fits(
    problem_of: Callable[[int], Problem], counts: Sequence[int], open_: AutoSchedule
) -> str | None:
    """Why no plan of whole operators fits with any of these numbers of micro-batches; None: unproven."""
    reasons: list[str] = []
    for m in () if open_.splits else reversed(counts):  # small micro-batches have most room
        replicas, problem = open_.replicas and m > 1, problem_of(m)
        schedule = any_schedule(problem, m, open_.recompute, replicas)
        reason = why_no_room(problem, schedule, replicas, open_.shard != "none")
        if reason is None:
            return None
        reasons.append(reason)
    return reasons[0] if reasons else None


def _nothing_fits(
    judge: Judge,
    counts: Sequence[int],
    method: Partitioner | None,
    proven: str | None,
    remarks: Sequence[str],
    seconds: float,
) -> InfeasibleError:
    """The error that names the plan that lacks least.

    Args:
        proven: why none exists; None: unproven.
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
        known = f"no plan fits {where}, as {proven}"
    elif method is not None:
        known = f"{method.name} found no plan that fits {where} in {seconds:.1f} s; other methods may"
    else:
        known = f"no plan was found that fits {where} in {seconds:.1f} s; raise schedule.time_limit_s"
    return InfeasibleError(
        f"{known}. The nearest plan tried, {nearest.origin} under {nearest.schedule.name} with "
        f"{counted(parts, 'micro-batch', 'es')}{again}, peaks at {read_bytes(peak)} on device "
        f"'{nearest.missing_on}', {missing} over its limit of {read_bytes(room)}. It fits with {enough} on "
        f"each device ({DO}). Tried: {'; '.join([microbatches_listed(counts), *remarks])}."
    )
