"""The answer for a model, a batch and devices: everything that is chosen, and what it was chosen from."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from html import escape
from typing import Any

from netsplit.errors import InfeasibleError, NetSplitError
from netsplit.graph.checks.replicated import require_replicable
from netsplit.partition.base import Problem
from netsplit.partition.engines.search import load_kernels
from netsplit.partition.partitioner import Partitioner
from netsplit.placement.parallelism import Parallelism
from netsplit.placement.placement import Placement, SolverReport
from netsplit.planning.decide import decide, verified
from netsplit.planning.explanation.notation import counted, microbatches_listed
from netsplit.planning.plan import Plan
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.bounds import nothing_fits, of_every_plan_s, why_none_fits
from netsplit.planning.whole.frontier import FrontierRow, absent_kinds, frontier_of, frontier_table, notes_of
from netsplit.planning.whole.judge import Judge, Tried, problem_under
from netsplit.planning.whole.search import WORTH_S, WholeSearch
from netsplit.program.schedules import Schedule

__all__ = ["WholePlan", "decide_whole", "plan_under"]

log = logging.getLogger(__name__)

SEARCHED = 0.9  # of the time: when the search ends; the rest is for verification and the bound
PROVING = 0.02  # of the time, for the linear programmes of the chosen schedule's bound


@dataclass(frozen=True)
class WholePlan:
    """Placement, schedule, micro-batches, recomputation, replicas and devices, decided together.

    `plan` is verified; its problem is that of the chosen micro-batches. Seconds are of one iteration.
    """

    plan: Plan
    batch_size: int
    bound_s: float  # no iteration of any plan of whole operators that was open is shorter
    splits: bool  # whether plans in parts were open, too
    frontier: tuple[FrontierRow, ...]  # the chosen one first
    absent: tuple[str, ...]  # why kinds have no row there, in sentences
    notes: tuple[str, ...]  # what the choice changes of what is trained, in sentences
    seconds: float  # that the decision took
    tried: int  # plans that were simulated
    counts: tuple[int, ...] = ()  # micro-batches of the plans that the bound is of; none: those of this one
    measuring_s: float = 0.0  # of `seconds`, that measuring operators in parts took
    parallelism: Parallelism | None = None
    """Of a uniform plan; `plan` is then of the first rank of each stage, with its part of the batch."""

    @property
    def schedule(self) -> Schedule:
        """With the micro-batches of the whole batch."""
        own = self.plan.compiler.schedule
        data = 1 if self.parallelism is None else self.parallelism.data
        return own.with_microbatches(data * own.microbatches)

    @property
    def placement(self) -> Placement:
        return self.plan.placement

    @property
    def iteration_s(self) -> float:
        """Predicted, of the whole batch."""
        return self.plan.simulated[1].iteration_s

    @property
    def samples_per_s(self) -> float:
        return self.batch_size / self.iteration_s

    @property
    def peak_bytes(self) -> dict[str, int]:
        """Predicted, of every device."""
        return dict(self.plan.simulated[1].peak_bytes)

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """What was chosen, in a few lines."""
        schedule, chosen, given = self.schedule, self.frontier[0], self.plan.problem.cluster.size
        used = f"{chosen.devices} of {given} devices" if chosen.devices < given else f"all {given} devices"
        used = used if given > 1 else "the device"
        placed = ", ".join(filter(None, (chosen.placement, chosen.in_parts)))
        cut = counted(schedule.microbatches, "micro-batch", "es")
        again = ", some activations recomputed" * bool(self.placement.recomputed)
        ms, samples = f"{1e3 * self.iteration_s:,.1f} ms", f"{self.batch_size} samples"
        lines = [
            f"{chosen.kind} on {used}: {placed}, {schedule.name} with {cut}{again}",
            f"predicted: {ms} per iteration of {samples}, {self.samples_per_s:,.1f} samples/s",
        ]
        if self.bound_s > 0:
            faster = max(self.iteration_s / self.bound_s - 1.0, 0.0)
            much = f"{100 * faster:.1f} % faster" if faster < 1.0 else f"{1.0 + faster:.1f} times as fast"
            plan = "plan of whole operators" if self.splits else "plan"
            among = f" with {microbatches_listed(self.counts, 'or')}" if self.counts else ""
            lines.append(f"proven: no {plan}{among} is more than {much}")
        took = f"{counted(self.tried, 'plan')} simulated in {self.seconds:.1f} s"
        if self.measuring_s:
            took += f", {self.measuring_s:.1f} s of it measuring operators in parts"
        parts = self.plan.lines_on_parts if self.parallelism is None else []
        return (*lines, *parts, took, *self.notes)

    def __str__(self) -> str:
        devices, table = self.plan.summary().devices.lines(), frontier_table(self.frontier)
        return "\n".join([*self.lines, "", *devices, "", table.title, *table.lines(), *self.absent])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        lines, absent = ("<br>".join(map(escape, each)) for each in (self.lines, self.absent))
        tables = self.plan.summary().devices.html() + frontier_table(self.frontier).html()
        return f"<p>{lines}</p>{tables}<p>{absent}</p>"

    def to_dict(self) -> dict[str, Any]:
        """For a file of JSON; seconds and bytes."""
        return {
            "kind": self.frontier[0].kind,
            "schedule": self.schedule.name,
            "microbatches": self.schedule.microbatches,
            "recomputed": len(self.placement.recomputed),
            "parallelism": None if self.parallelism is None else asdict(self.parallelism),
            "batch_size": self.batch_size,
            "iteration_s": self.iteration_s,
            "samples_per_s": self.samples_per_s,
            "bound_s": self.bound_s,
            "peak_bytes": self.peak_bytes,
            "placement": self.placement.to_dict(),
            "frontier": [asdict(row) for row in self.frontier],
            "absent": list(self.absent),
            "notes": list(self.notes),
            "seconds": self.seconds,
            "measuring_s": self.measuring_s,
        }


def decide_whole(
    problem_of: Callable[[int], Problem],
    counts: Sequence[int],
    batch_size: int,
    open_: AutoSchedule,
    *,
    method: Partitioner | None = None,
    improved: Callable[[float, str], object] | None = None,
    told: Callable[[int], tuple[str, ...]] = lambda microbatches: (),
) -> WholePlan:
    """Choose everything together: the least simulated seconds of an iteration that fits.

        |── search ─────────────────────────────|─ verification ─|─ bound ─| time limit

    What annealing needs is loaded, or compiled once, before the time begins. A plan that verification refuses
    is logged, and the next is taken. Measuring operators in parts is not of the time.

    Args:
        problem_of: micro-batches to the problem of planning with that many, of lifetimes, with what is known
            of parts by then.
        counts: of micro-batches to look at.
        batch_size: samples of a whole batch.
        open_: what may be chosen.
        method: whose placements are wanted; None: the best of all.
        improved: told seconds and origin of a better plan.
        told: micro-batches to what there is to be said of so many.

    Raises:
        InfeasibleError: nothing was found to fit; the message says what is missing in the nearest plan, and
            whether it is proven that nothing does.
        NetSplitError: the method that is asked for gives no answer that may be taken.
    """
    limit_s = open_.time_limit_s
    if method is None and limit_s > 5 * WORTH_S and len(problem_of(counts[0]).cluster.devices) > 1:
        load_kernels()
    log.info("Searching for a plan, for at most %g s.", limit_s)
    started = time.perf_counter()
    deadline = started + SEARCHED * limit_s
    judge = Judge(problem_of, open_.recompute, open_.shard == "auto", improved, deadline)
    search = WholeSearch(counts, open_, judge, method, started, deadline)
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
        raise nothing_fits(judge, counts, method, proven, told(max(counts)), seconds)
    until = started + limit_s + search.metered_s
    winner, plan = _best_verified(judge, started, PROVING * limit_s, until)
    every = sorted({*counts, winner.schedule.microbatches})
    bound_s = of_every_plan_s(problem_of, every, open_, until)
    rows, absent = frontier_of(judge, winner, batch_size), absent_kinds(judge, counts, open_, method)
    notes = (*told(winner.schedule.microbatches), *notes_of(plan.problem, plan.placement))
    return WholePlan(
        plan, batch_size, bound_s, open_.splits, rows, absent, notes, time.perf_counter() - started,
        len(judge.seen), tuple(every), search.metered_s,
    )  # fmt: skip


def plan_under(
    problem: Problem, method: Partitioner, batch_size: int, told: tuple[str, ...] = ()
) -> WholePlan:
    """What a method decides for a simulated problem, which has its schedule, told as a whole plan is.

    Args:
        batch_size: samples of a whole batch.
        told: what there is to be said of its micro-batches.

    Raises:
        InfeasibleError: nothing fits under this schedule.
        NetSplitError: the answer breaks a rule, or has replicas that would train something else.
    """
    plan = decide(problem, method)
    require_replicable(plan.problem.graph, plan.placement.replicated)
    judge = Judge(lambda microbatches: plan.problem)
    chosen = judge.judge(plan.placement.method, problem.the_simulator.schedule, plan.placement)
    assert chosen is not None, "the first is always simulated"
    rows, notes = frontier_of(judge, chosen, batch_size), (*told, *notes_of(problem, plan.placement))
    bound_s, parts = plan.bound_s or 0.0, bool(plan.placement.rewrites)
    return WholePlan(plan, batch_size, bound_s, parts, rows, (), notes, plan.seconds, len(rows))


def _best_verified(judge: Judge, started: float, proving_s: float, until: float) -> tuple[Tried, Plan]:
    """The best plan that holds; raises as `decide_whole` where none does."""
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
