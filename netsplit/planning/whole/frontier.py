"""What a plan was chosen from: the best of each kind, why each other loses, and what the choice changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from netsplit.graph.checks.replicated import replicated_statistics, statistics_notes, why_unreplicable
from netsplit.partition.base import Problem
from netsplit.partition.partitioner import Partitioner
from netsplit.placement.parallelism import Parallelism
from netsplit.placement.placement import TOLD, Placement
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.judge import KINDS, Judge, Kind, Tried
from netsplit.rewrite.records import folded
from netsplit.tables import Column, Table, counted, listed, nbytes

__all__ = ["FrontierRow", "PlanChoice", "absent_kinds", "frontier_of", "remarks_on", "why_not"]

PER_KIND = 3
_WORDS: dict[Kind, str] = {"single": "one-device", "operators": "operator-by-operator"}
SHOWN = 0.001  # relative: smaller differences are not shown
_COLUMNS = (
    Column("kind", text=True),
    Column("placement", text=True),
    Column("schedule", text=True),
    Column("micro-batches"),
    Column("devices"),
    Column("samples/s", ",.1f"),
    Column("peak", in_bytes=True),
    Column("why not", text=True, below=True),
)


@dataclass(frozen=True)
class FrontierRow:
    """One of the plans that were tried."""

    kind: str
    placement: str
    schedule: str
    microbatches: int
    devices: int
    samples_per_s: float | None  # None: it does not fit
    peak_bytes: int  # of the device with the most
    why_not: str  # "" for the chosen plan
    parts: int = 0  # operators that are in parts
    recomputes: bool = False
    shard: str = ""  # what replicas keep in slices

    @property
    def cells(self) -> tuple[Any, ...]:
        shard = f"shard={self.shard}" * bool(self.shard)
        why, more = self.why_not or "chosen", [self.in_parts, "recomputes" * self.recomputes, shard]
        if self.samples_per_s is None:
            saved = [*filter(None, ("recomputed activations" * self.recomputes, shard))]
            why, more = why + f", even with {listed(saved)}" * bool(saved), [self.in_parts]
        return (
            self.kind, self.placement, self.schedule, self.microbatches, self.devices, self.samples_per_s,
            self.peak_bytes, "; ".join(filter(None, [why, *more])),
        )  # fmt: skip

    @property
    def in_parts(self) -> str:
        """``3 operators in parts``; "" for none."""
        return f"{counted(self.parts, 'operator')} in parts" if self.parts else ""


@dataclass(frozen=True)
class PlanChoice:
    """What a plan was chosen from; empty if only a placement was asked for."""

    frontier: tuple[FrontierRow, ...] = ()  # the chosen one first
    absent: tuple[str, ...] = ()  # sentences: why kinds have no row
    remarks: tuple[str, ...] = ()  # sentences: what the choice changes in training
    bound_s: float = 0.0  # lower bound on the iteration of any open plan of whole operators
    splits: bool = False  # whether operators could be in parts
    counts: tuple[int, ...] = ()  # micro-batches that the bound covers; none: those of this plan
    tried: int = 0  # plans that were simulated
    measuring_s: float = 0.0  # part of the decision, for measuring operators in parts
    batch_size: int = 0  # samples of an iteration; 0: the program's
    parallelism: Parallelism | None = None
    """Set for a uniform plan, which is then of the first rank of each stage, with its part of the batch."""

    @property
    def table(self) -> Table:
        title = "Plans of each kind, the chosen one first:"
        return Table(_COLUMNS, [row.cells for row in self.frontier], title, marked={0: "best"})


def frontier_of(
    judge: Judge, winner: Tried, batch_size: int, controller_s: float = 0.0
) -> tuple[FrontierRow, ...]:
    """The best few placements of every kind, each under its best schedule; the chosen one first.

    Args:
        controller_s: what the controller adds to every iteration.
    """
    rows = [_row(winner, winner, batch_size, controller_s)]
    for kind in (*KINDS, "parts"):
        plans = [winner] if kind == winner.kind else []
        for tried in (each for each in judge.tried if each.kind == kind):
            shown = len(plans) - (kind == winner.kind)
            if shown == PER_KIND or (shown > 0 and not tried.fits):
                break
            if not any(_alike(tried, other) for other in plans):
                plans.append(tried)
                rows.append(_row(tried, winner, batch_size, controller_s))
    return tuple(rows)


def absent_kinds(
    judge: Judge, counts: Sequence[int], open_: AutoSchedule, method: Partitioner | None
) -> tuple[str, ...]:
    """Sentences for the kinds without a row, one for each reason.

    Args:
        method: the only one asked for, if any.
    """
    shown = {tried.kind for tried in judge.tried}
    skipped: dict[str, list[str]] = {}
    for kind in (each for each in KINDS if each not in shown):
        why = f"only {method.name} was asked for" if method else _why_absent(judge, counts, open_, kind)
        skipped.setdefault(why, []).append(_WORDS.get(kind, kind))
    return tuple(
        f"{listed(kinds).capitalize()} plans skipped: {reason}." for reason, kinds in skipped.items()
    )


def _why_absent(judge: Judge, counts: Sequence[int], open_: AutoSchedule, kind: Kind) -> str:
    problem = judge.problem_of(counts[0])
    least = {"single": 1, "hybrid": 3}.get(kind, 2)
    if len(problem.cluster.devices) < least:
        return f"they need at least {least} devices"
    refused = None if open_.replicas else open_.no_replicas
    refused = refused or why_unreplicable(problem.graph, problem.graph.nodes)
    if kind in ("data parallel", "hybrid") and (refused or max(counts) < 2):
        return refused or "they need at least 2 micro-batches"
    return "none was found in time"


def _alike(tried: Tried, shown: Tried) -> bool:
    """Whether equally fast plans have one origin or placement, or plans of one origin have one order."""

    def order(each: Tried) -> str:  # "" without an order: one device, replicas of all, one micro-batch
        ordered = each.kind not in ("single", "data parallel") and each.schedule.microbatches > 1
        return each.schedule.name if ordered else ""

    equal = tried.rank[:2] == shown.rank[:2]
    if tried.origin == shown.origin:
        return equal or order(tried) == order(shown)
    return equal and (tried.devices, tried.placement.device_of) == (shown.devices, shown.placement.device_of)


def _row(tried: Tried, winner: Tried, batch_size: int, controller_s: float) -> FrontierRow:
    schedule, shards, placement = tried.schedule, tried.placement.shards, tried.placement
    samples_per_s = batch_size / (tried.iteration_s + controller_s) if tried.fits else None
    return FrontierRow(
        tried.kind, tried.origin, schedule.name, schedule.microbatches, len(tried.devices), samples_per_s,
        max(tried.peak_bytes.values(), default=0), "" if tried is winner else why_not(tried, winner),
        sum(bool(each.cuts) for each in folded(placement.rewrites).values()), bool(placement.recomputed),
        shards[0].level if shards else "",
    )  # fmt: skip


def why_not(tried: Tried, winner: Tried) -> str:
    """What it spends most more on than the chosen plan."""
    if not tried.fits:
        return f"does not fit: {tried.missing_on} lacks {nbytes(tried.missing_bytes)}"
    behind = tried.iteration_s / winner.iteration_s - 1
    if behind <= SHOWN:
        return "as fast within 0.1 %"
    more = {
        "sums gradients for {} more": tried.sums_s - winner.sums_s,
        "recomputes activations for {} more": tried.recompute_s - winner.recompute_s,
        "computes {} more": (tried.compute_s - tried.recompute_s) - (winner.compute_s - winner.recompute_s),
        "waits {} more (bubbles, transfers, overheads)": tried.wait_s - winner.wait_s,
    }
    words = max(more, key=lambda key: more[key])
    much = f"{100 * behind:.1f} % longer" if behind < 1.0 else f"{1.0 + behind:,.1f} times as long"
    ms = 1e3 * more[words]
    return f"takes {much}: {tried.busiest} " + words.format(f"{ms:,.1f} ms" if ms >= 0.05 else f"{ms:.1g} ms")


def remarks_on(problem: Problem, placement: Placement) -> tuple[str, ...]:
    """Sentences: what a plan changes in training, and if its predicted seconds are uncertain."""
    graph = problem.graph
    notes = [*statistics_notes(graph)] if problem.the_simulator.schedule.microbatches > 1 else []
    if replicated_statistics(graph, placement.replicated):
        notes.append(
            "BatchNorm's running statistics come from the first replica's micro-batches, as in "
            "DistributedDataParallel (schedule.replicas=false uses no replicas)."
        )
    notes += [placement.report.notes[TOLD]] if TOLD in placement.report.notes else []
    return (*notes, *_guessed(problem, placement))


def _guessed(problem: Problem, placement: Placement) -> Iterator[str]:
    """Remarks on device kinds whose workers share a host and slow each other down by a guess."""
    used = {name for stage in placement.all_stages for name in stage.devices}
    devices = [each for each in problem.cluster.devices if each.name in used and each.host is not None]
    together = Counter((device.kind, device.host) for device in devices)
    for kind in dict.fromkeys(kind for (kind, _), count in together.items() if count > 1):
        costs = problem.costs.of(kind)
        if costs.unsure:
            yield (
                f"The slow-down between {kind} workers is uncertain and assumed as "
                f"{100 * (costs.contention - 1):.0f} %: training may take longer than predicted (measure "
                "again on a quiet machine)."
            )
