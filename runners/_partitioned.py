"""What `runners.partition` does: decides, shows the plan as a table, why, and what moved, and writes it."""

from __future__ import annotations

import logging
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from netsplit.cluster.described import ClusterDescription
from netsplit.errors import ConfigError, InfeasibleError, NetSplitError
from netsplit.files import check_writable, write_json
from netsplit.formats.placements import read_placement
from netsplit.formats.read import read_workload
from netsplit.partition.base import Problem
from netsplit.partition.partitioner import Partitioner, read_bytes
from netsplit.placement.placement import Placement
from netsplit.planning.decide import decide, verified
from netsplit.planning.plan import Plan
from netsplit.planning.plan_change import placement_change
from netsplit.planning.workload import Workload
from netsplit.profile.memory import memory_of
from netsplit.program.schedules import Schedule
from netsplit.tables import Column, Table, percent, seconds

from ._entry import console_of
from ._graph_file import GraphSettings, PartitionSettings, memory_rule
from ._progress import Waiting

__all__ = ["NO_LIMIT", "read", "run"]

log = logging.getLogger(__name__)

NO_LIMIT = 2**50  # bytes: stands for no limit


def run(
    settings: PartitionSettings,
    partitioner: Partitioner,
    schedule: Schedule,
    cluster: ClusterDescription | None,
    other: Partitioner | Path | None,
    result: Path,
) -> float:
    """From the graph file to the table and `result`; seconds of the objective."""
    work = read(settings)
    of_a_step = settings.objective in ("latency", "simulated") and settings.passes == "training"
    problem = work.problem(
        cluster,
        settings.objective,
        schedule=schedule,
        seed=settings.seed,
        time_limit_s=settings.time_limit,
        passes=settings.passes,
        alpha=settings.alpha,
        variable_copies=settings.variable_copies,
        memory=memory_rule(settings, work, of_a_step),
        offload=settings.offload,
    )
    before = None if other is None else _before(other, problem)
    try:
        check_writable(result)  # before the decision, which may take long
    except NetSplitError as error:
        raise ConfigError(f"result cannot be written: {error}") from error
    console = console_of()
    log.info("%s", headline(work, problem, partitioner))
    try:
        with Waiting(console, partitioner.name, partitioner.time_limit_s and settings.time_limit):
            plan = decide(problem, partitioner)
        work.check_supported(problem, plan.placement)
    except InfeasibleError as error:
        failed = {"graph": settings.graph, "method": partitioner.name, "status": "infeasible"}
        write_json(result, {**failed, "objective": None, "message": " ".join(str(error).split())})
        raise InfeasibleError(f"{error} (written to {result})") from error
    record = {"graph": settings.graph, **plan.to_dict(work.unit, work.unit_s)}
    show_plan(console, plan, work)
    write_json(result, record)  # what follows may take long, or be interrupted
    if settings.explain:
        explanation = plan.explain()
        _lines(console, explanation.lines())
        record["explanation"] = explanation.to_dict()
    if before is not None:
        record["compared_with"] = show_moves(console, plan, before, settings.time_limit)
    if settings.explain or before is not None:
        write_json(result, record)
    console.print(f"Written to {result}.", highlight=False, soft_wrap=True)
    return plan.objective_s


def read(settings: GraphSettings) -> Workload:
    """Read the graph file and log its remarks."""
    work = read_workload(settings.graph, settings.inputs)
    for remark in work.remarks:
        log.info("%s: %s", work.name, remark)
    return work


def _before(other: Partitioner | Path, problem: Problem) -> Partitioner | Placement:
    if isinstance(other, Path):
        return replace(read_placement(other, problem, "compare_with"), method="earlier plan")
    return other


def headline(work: Workload, problem: Problem, partitioner: Partitioner) -> str:
    graph, cluster = problem.graph, problem.cluster
    need = memory_of(graph, graph.nodes, problem.costs.alpha, problem.copies)
    return (
        f"{work.name}: {len(graph)} nodes, {len(graph.edges)} edges, {read_bytes(need)} in all; "
        f"{len(cluster.devices)} devices ({cluster.name}); {partitioner.name} for {problem.objective.name}"
    )


def show_plan(console: Console, plan: Plan, work: Workload) -> None:
    """The headline, a row per device, and the stages where there are replicas."""
    (unit, unit_s), report = _shown_unit(work), plan.placement.report
    facts = [
        f"{plan.placement.method}: {plan.status}",
        f"{plan.problem.objective.name} {_number(plan.objective_s / unit_s)} {unit}",
        f"bound {_number(plan.bound_s / unit_s)} {unit}" if plan.bound_s is not None else "no bound",
    ]
    if plan.gap is not None:
        facts.append(f"gap {100 * plan.gap:.2f} %")
    facts.append(f"decided in {plan.seconds:.2f} s" + (f" by {report.engine}" if report.engine else ""))
    console.print("[bold]" + escape(", ".join(facts)), highlight=False)
    console.print(_devices(plan, work).terminal())
    _lines(console, plan.lines_on_parts)
    for i, stage in enumerate(plan.placement.stages):
        turns = f", micro-batches on {', '.join(stage.in_turn)}" if stage.turns else ""
        devices = ", ".join(stage.devices)
        console.print(
            f"stage {i}: {len(stage.nodes)} nodes on {devices}, warm-up {stage.warm_up}{turns}",
            highlight=False,
            markup=False,
        )


def _devices(plan: Plan, work: Workload) -> Table:
    unit, unit_s = _shown_unit(work)
    columns = [
        Column("device", text=True),
        Column("nodes"),
        Column(f"{plan.problem.objective.column} {unit}"),
        Column(f"transfers {unit}"),
        Column("%", ".1f", 100.0),
        Column("held", in_bytes=True),
        Column("limit", in_bytes=True),
        Column("full %", ".1f", 100.0),
    ]
    rows = [
        (
            name,
            load.nodes,
            _number(load.seconds / unit_s),
            _number(load.transfer_s / unit_s),
            load.seconds / plan.objective_s if plan.objective_s > 0 else 0.0,
            load.nbytes,
            load.capacity_bytes if load.capacity_bytes < NO_LIMIT else "no limit",
            load.filled,
        )
        for name, load in plan.loads.items()
    ]
    return Table(columns, rows)


def show_moves(
    console: Console, plan: Plan, other: Partitioner | Placement, limit_s: float | None
) -> dict[str, Any]:
    """Print what moved from another plan, which may be infeasible, and what that brings."""
    problem = replace(plan.problem, objective=plan.problem.objective.relaxed())
    if isinstance(other, Placement):
        before = verified(problem, other, room=False)
    else:
        with Waiting(console, other.name, limit_s):
            before = decide(problem, other, room=False)
    change, was_s, now_s = placement_change(before, plan), before.objective_s, plan.objective_s
    verdict = (
        f"stays at {seconds(now_s)}"
        if was_s == now_s
        else (
            f"{'faster' if now_s < was_s else 'slower'}, {seconds(was_s)} to {seconds(now_s)} "
            f"({percent(now_s - was_s, was_s)})"
        )
    )
    names = before.placement.method, plan.placement.method
    _lines(console, [f"{' to '.join(names)}: {verdict}", *(f"  {line}" for line in change.lines)])
    return {"before": names[0], "before_s": was_s, "after_s": now_s, "change": asdict(change)}


def _lines(console: Console, lines: list[str]) -> None:
    for line in lines:
        console.print(line, highlight=False, markup=False)


def _shown_unit(work: Workload) -> tuple[str, float]:
    """The printed unit of times, and its seconds."""
    return ("ms", 1e-3) if work.unit == "s" else (work.unit, work.unit_s)


def _number(value: float) -> str:
    return f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}"
