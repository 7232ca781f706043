"""A plan of every kind in what a decision shows, or a sentence that says why there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from netsplit.graph.checks.replicated import why_unreplicable
from netsplit.partition.base import Problem
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.judge import KINDS, Judge, Kind, Tried
from netsplit.planning.whole.lines.line import NodeLine
from netsplit.planning.whole.lines.stages import (
    Group,
    LineStages,
    StageCosts,
    orders_of_devices,
    stages_of_line,
)

__all__ = ["PLAINEST", "every_kind", "roomy"]

LATE = "there was no time to try one"
NONE = "no cut of these operators that was tried gives one"
PLAINEST: tuple[Kind, ...] = ("single", "data parallel")
REPLICATED: tuple[Kind, ...] = ("data parallel", "hybrid")
LEAST: dict[Kind, int] = {"single": 1, "hybrid": 3}
"""Devices that a kind takes; two where it is not named."""


def every_kind(
    judge: Judge,
    counts: Sequence[int],
    open_: AutoSchedule,
    line: Callable[[int], NodeLine],
    judged: Callable[[int, LineStages], Tried | None],
    kinds: Sequence[Kind] = KINDS,
) -> dict[Kind, str]:
    """Try one of each kind of which nothing was tried yet; of those that there are none of, why.

    What does not fit and what cannot be fast is tried, too: its row says what it lacks.

    Args:
        line: micro-batches to the line that is cut.
        judged: simulates stages with a number of micro-batches.
    """
    reasons: dict[Kind, str] = {}
    for kind in kinds:
        if any(tried.kind == kind for tried in judge.tried):
            continue
        refused = _impossible(judge.problem_of(counts[0]), counts, open_, kind)
        reasons[kind] = refused or NONE
        for m, groups in () if refused else _examples(judge.problem_of(counts[0]), counts, kind):
            cut = _cut(judge.problem_of(m), line(m), m, groups)
            if cut is None:
                continue
            before = judge.left_out
            judged(m, cut)
            if judge.left_out > before:
                reasons[kind] = LATE
    shown = {tried.kind for tried in judge.tried}
    return {kind: reason for kind, reason in reasons.items() if kind not in shown}


def roomy(problem: Problem) -> Problem:
    """Every device holds everything."""
    cluster, total = problem.cluster, 2 * problem.memory_model.total_bytes
    devices = tuple(replace(each, capacity_bytes=total) for each in cluster.devices)
    return replace(problem, cluster=replace(cluster, devices=devices))


def _impossible(problem: Problem, counts: Sequence[int], open_: AutoSchedule, kind: Kind) -> str | None:
    """Why there can be none, whatever is tried."""
    least = LEAST.get(kind, 2)
    if len(problem.cluster.devices) < least:
        return f"they need at least {least} devices"
    if kind not in REPLICATED:
        return None
    if not open_.replicas:
        return open_.no_replicas
    refused = why_unreplicable(problem.graph, problem.graph.nodes)
    if refused is not None:
        return refused
    return "they need at least 2 micro-batches" if max(counts) < 2 else None


def _examples(problem: Problem, counts: Sequence[int], kind: Kind) -> Iterator[tuple[int, tuple[Group, ...]]]:
    """Micro-batches and groups of the plainest plans of a kind: the fewest that it takes, and the most."""
    count = len(problem.cluster.devices)
    order = orders_of_devices(problem, count)[0]
    half = count // 2
    groups: dict[Kind, tuple[Group, ...]] = {
        "single": (orders_of_devices(problem, 1)[0],),
        "data parallel": (order,),
        "pipeline": tuple((q,) for q in order),
        "hybrid": (order[:half], order[half:]),
        "operators": tuple((q,) for q in (*order, *order)),
    }
    chosen = groups[kind]
    enough = [m for m in counts if m >= max(map(len, chosen))]
    for m in dict.fromkeys([*enough[:1], *enough[-1:]]):
        yield m, chosen


def _cut(problem: Problem, line: NodeLine, m: int, groups: tuple[Group, ...]) -> LineStages | None:
    """The stages as they would be with room for all."""
    if len(groups) >= len(line.places):
        return None
    costs = StageCosts(roomy(problem), line, m, recompute=False, added=False)
    return stages_of_line(costs, groups)
