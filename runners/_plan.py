"""What `runners.partition` shows: a line while a method decides, the plan as a table, why, and what moved."""

from __future__ import annotations

import logging
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from netsplit.partition.common.capacity import read_bytes
from netsplit.planning.decide import decide, verified
from netsplit.planning.plan import Plan
from netsplit.profile.memory import memory_of
from netsplit.tables import Column, Table

if TYPE_CHECKING:
    from netsplit.partition.base import Placement, Problem
    from netsplit.partition.partitioner import Partitioner
    from netsplit.planning.workload import Workload

__all__ = ["NO_LIMIT", "Waiting", "explain_plan", "headline", "show_moves", "show_plan"]

log = logging.getLogger(__name__)

NO_LIMIT = 2**50  # bytes: a capacity that stands for none
_LINE_EVERY_S = 10.0


class Waiting:
    """Seconds gone and the limit while a method decides: a bar on a terminal, else a line now and then."""

    def __init__(self, console: Console, name: str, limit_s: float | None) -> None:
        self.name, self.limit_s = name, limit_s
        self.live = console.is_terminal
        self.bar = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"),
            console=console, transient=True,
        )  # fmt: skip
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._tell, daemon=True)

    def __enter__(self) -> Self:
        self.started = time.monotonic()
        if self.live:
            self.bar.start()
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended.set()
        self.thread.join()
        if self.live:
            self.bar.stop()

    def _tell(self) -> None:
        task = self.bar.add_task(f"{self.name} decides", total=self.limit_s, note="")
        while not self.ended.wait(0.25 if self.live else _LINE_EVERY_S):
            gone = time.monotonic() - self.started
            limit = f" of {self.limit_s:.0f}" if self.limit_s is not None else ""
            if self.live:
                self.bar.update(task, completed=min(gone, self.limit_s or gone), note=f"{gone:.0f}{limit} s")
            else:
                log.info("%s decides: %.0f%s s", self.name, gone, limit)


def headline(work: Workload, problem: Problem, partitioner: Partitioner) -> str:
    graph, cluster = problem.graph, problem.cluster
    need = memory_of(graph, graph.nodes, problem.costs.alpha, problem.copies)
    return (
        f"{work.name}: {len(graph)} nodes, {len(graph.edges)} edges, {read_bytes(need)} in all; "
        f"{len(cluster.devices)} devices ({cluster.name}); {partitioner.name} for {problem.objective.name}"
    )


def show_plan(console: Console, plan: Plan, work: Workload) -> None:
    """The headline, a row per device, and the stages where there are replicas."""
    unit, unit_s, report = work.unit, work.unit_s, plan.placement.report
    facts = [
        f"{plan.placement.method}: {plan.status}",
        f"{plan.problem.objective.name} {_number(plan.objective_s / unit_s)} {unit}",
        f"bound {_number(plan.bound_s / unit_s)} {unit}" if plan.bound_s is not None else "no bound",
    ]
    if plan.gap is not None:
        facts.append(f"gap {100 * plan.gap:.2f} %")
    facts.append(f"{plan.seconds:.2f} s" + (f" by {report.engine}" if report.engine else ""))
    console.print("[bold]" + escape(", ".join(facts)), highlight=False)
    console.print(_devices(plan, work).terminal())
    for i, stage in enumerate(plan.placement.stages):
        console.print(
            f"stage {i}: {len(stage.nodes)} nodes on {', '.join(stage.devices)}, warm-up {stage.warm_up}",
            highlight=False,
            markup=False,
        )


def _devices(plan: Plan, work: Workload) -> Table:
    unit, unit_s = work.unit, work.unit_s
    columns = [
        Column("device", text=True),
        Column("nodes"),
        Column(f"busy {unit}" if plan.problem.objective.simulated else f"load {unit}"),
        Column(f"transfers {unit}"),
        Column("%", ".1f", 100.0),
        Column("MB", ",.1f", 1e-6),
        Column("of MB", ",.1f", 1e-6),
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


def explain_plan(
    console: Console, plan: Plan, partitioner: Partitioner, time_limit_s: float | None
) -> dict[str, Any]:
    """Print why the plan is as it is and what would help; answers both for the file."""
    from netsplit.planning.what_if import what_if, what_if_lines

    explanation = plan.explain()
    _lines(console, explanation.lines())
    limit = 2 * time_limit_s if time_limit_s is not None else 120.0
    with Waiting(console, f"{partitioner.name} for what would help", limit):
        changes = what_if(plan.problem, partitioner, time_limit_s=limit, placement=plan.placement)
    _lines(console, what_if_lines(changes))
    return explanation.to_dict() | {"what_if": [change.to_dict() for change in changes]}


def show_moves(
    console: Console,
    plan: Plan,
    other: Partitioner | Placement,
    work: Workload,
    limit_s: float | None,
) -> dict[str, Any]:
    """Print what moved from another plan, which may be too large or not contiguous, and what it brings."""
    from netsplit.partition.base import Placement

    if isinstance(other, Placement):
        before = verified(plan.problem, other, room=False, contiguity=False)
    else:
        with Waiting(console, other.name, limit_s):
            before = decide(plan.problem, other, room=False, contiguity=False)
    moves = plan.moved_from(before)
    console.print(
        f"[bold]from {before.placement.method} ({_number(before.objective_s / work.unit_s)} {work.unit}) to "
        f"{plan.placement.method} ({_number(plan.objective_s / work.unit_s)} {work.unit})",
        highlight=False,
    )
    _lines(console, moves.lines())
    return moves.to_dict()


def _lines(console: Console, lines: list[str]) -> None:
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _number(value: float) -> str:
    return f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}"
