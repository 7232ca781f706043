"""The answer for a model, a batch and devices: everything that is chosen, and what it was chosen from."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from html import escape
from typing import Any

from netsplit.errors import InfeasibleError
from netsplit.partition.base import Placement, Problem, SolverReport
from netsplit.partition.common.capacity import read_bytes
from netsplit.partition.partitioner import Partitioner
from netsplit.planning.decide import verified
from netsplit.planning.plan import Plan
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.bounds import of_every_plan_s
from netsplit.planning.whole.frontier import FrontierRow, frontier_of, frontier_table
from netsplit.planning.whole.gains import Gain, gains_of
from netsplit.planning.whole.judge import Judge, problem_under
from netsplit.planning.whole.notes import notes_of
from netsplit.planning.whole.search import WholeSearch
from netsplit.program.schedules import Schedule

__all__ = ["WholePlan", "decide_whole"]

GAINS = 0.15  # of the time, for what more of a resource would bring


@dataclass(frozen=True)
class WholePlan:
    """Placement, schedule, micro-batches, recomputation, replicas and devices, decided together.

    `plan` is verified; its problem is that of the chosen micro-batches. Seconds are of one iteration.
    """

    plan: Plan
    batch_size: int
    bound_s: float  # no iteration of any plan that was open is shorter, whatever its micro-batches
    frontier: tuple[FrontierRow, ...]  # the chosen one first
    gains: tuple[Gain, ...]
    notes: tuple[str, ...]  # what the choice changes of what is trained, in sentences
    seconds: float  # that the decision took
    tried: int  # plans that were simulated

    @property
    def schedule(self) -> Schedule:
        return self.plan.compiler.schedule

    @property
    def placement(self) -> Placement:
        return self.plan.placement

    @property
    def iteration_s(self) -> float:
        """Predicted, of one iteration of the whole batch."""
        return self.plan.simulated[1].iteration_s

    @property
    def samples_per_s(self) -> float:
        """Predicted."""
        return self.batch_size / self.iteration_s

    @property
    def peak_bytes(self) -> dict[str, int]:
        """Predicted, of every device."""
        return dict(self.plan.simulated[1].peak_bytes)

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """What was chosen, in a few lines."""
        schedule, chosen = self.schedule, self.frontier[0]
        given = len(self.plan.problem.cluster.devices)
        used = f"{chosen.devices} of {given} devices" if chosen.devices < given else f"all {given} devices"
        again = ", some activations computed again" * bool(self.placement.recomputed)
        proven = ""
        if self.bound_s > 0:
            faster = max(self.iteration_s / self.bound_s - 1.0, 0.0)
            proven = f"; proven: no plan is more than {100 * faster:.1f} % faster"
        what = (
            f"{chosen.kind} on {used if given > 1 else 'the device'}: {chosen.placement}, "
            f"{schedule.name} with {schedule.microbatches} micro-batches{again}"
        )
        predicted = (
            f"predicted: {1e3 * self.iteration_s:,.1f} ms an iteration of {self.batch_size} samples, "
            f"{self.samples_per_s:,.1f} samples/s{proven}"
        )
        return (
            what,
            predicted,
            f"decided in {self.seconds:.1f} s from {self.tried} plans that were simulated",
            *self.notes,
        )

    def __str__(self) -> str:
        devices = self.plan.summary().devices.lines()
        parts = [*self.lines, "", *devices, "", *frontier_table(self.frontier).lines()]
        if self.gains:
            parts += ["", "What more would bring:", *(f"  {gain}" for gain in self.gains)]
        return "\n".join(parts)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        told = "<br>".join(map(escape, self.lines))
        gains = "".join(f"<li>{escape(str(gain))}</li>" for gain in self.gains)
        devices = self.plan.summary().devices.html()
        return f"<p>{told}</p>{devices}{frontier_table(self.frontier).html()}<ul>{gains}</ul>"

    def to_dict(self) -> dict[str, Any]:
        """For a file of JSON; seconds and bytes."""
        schedule = self.schedule
        return {
            "kind": self.frontier[0].kind,
            "schedule": schedule.name,
            "microbatches": schedule.microbatches,
            "recomputed": len(self.placement.recomputed),
            "batch_size": self.batch_size,
            "iteration_s": self.iteration_s,
            "samples_per_s": self.samples_per_s,
            "bound_s": self.bound_s,
            "peak_bytes": self.peak_bytes,
            "placement": self.placement.to_dict(),
            "frontier": [asdict(row) for row in self.frontier],
            "gains": [asdict(gain) for gain in self.gains],
            "notes": list(self.notes),
            "seconds": self.seconds,
        }


def decide_whole(
    problem_of: Callable[[int], Problem],
    counts: Sequence[int],
    batch_size: int,
    open_: AutoSchedule,
    *,
    method: Partitioner | None = None,
    improved: Callable[[float, str], object] | None = None,
    gains: bool = True,
) -> WholePlan:
    """Choose everything together: the least simulated seconds of an iteration that fits.

    Args:
        problem_of: micro-batches to the problem of planning with that many, of lifetimes; asked once each.
        counts: of micro-batches to look at.
        batch_size: samples of a whole batch.
        open_: what may be chosen.
        method: whose placements are wanted; None: the best of all.
        improved: told seconds and origin of a better plan.
        gains: also say what more devices, memory and bandwidth would bring.

    Raises:
        InfeasibleError: nothing fits; the message says what is missing in the nearest plan.
    """
    started = time.perf_counter()
    limit_s = open_.time_limit_s
    judge = Judge(problem_of, open_.recompute, improved)
    searching_s = limit_s * (1 - GAINS * gains)
    WholeSearch(problem_of, counts, open_, judge, method, started, started + searching_s).run()
    winner = judge.winner
    if winner is None:
        raise _infeasible(judge, problem_of(counts[0]))
    order = replace(winner.schedule, recompute="auto") if winner.recomputes else winner.schedule  # type: ignore[type-var]
    problem = problem_under(problem_of(order.microbatches), order)
    brings: tuple[Gain, ...] = ()
    if gains and method is None:
        known = sorted((t for t in judge.best.values()), key=lambda tried: tried.rank)
        brings = gains_of(problem_of, counts, open_, known, batch_size, GAINS * limit_s)
    bound_s = of_every_plan_s(problem_of, counts, open_)
    seconds = time.perf_counter() - started
    report = SolverReport("feasible", seconds, objective=winner.iteration_s, notes={"origin": winner.origin})
    placement = replace(winner.placement, method=winner.origin, report=report)
    plan = verified(problem, placement, seconds)
    return WholePlan(
        plan,
        batch_size,
        bound_s,
        frontier_of(judge, winner, batch_size),
        brings,
        notes_of(problem, placement),
        seconds,
        len(judge.seen),
    )


def _infeasible(judge: Judge, problem: Problem) -> InfeasibleError:
    """By the plan that lacks least."""
    nearest = min(judge.tried, key=lambda tried: tried.rank, default=None)
    cluster = problem.cluster
    if nearest is None:
        return InfeasibleError(
            f"no plan of any kind was made for cluster '{cluster.name}': give schedule.time_limit_s more."
        )
    again = " with activations computed again" if nearest.recomputes else ""
    return InfeasibleError(
        f"no plan fits on cluster '{cluster.name}': the nearest, {nearest.origin} under "
        f"{nearest.schedule.name} with {nearest.schedule.microbatches} micro-batches{again}, lacks "
        f"{read_bytes(nearest.missing_bytes)} on '{nearest.missing_on}': give more devices or capacity, a "
        "smaller batch, an optimizer with less state, or offload on GPUs."
    )
