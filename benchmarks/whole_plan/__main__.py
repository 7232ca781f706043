"""The whole plan (`schedule=auto`) beside a grid of all that could be asked for by name, predicted.

    a model on a cluster:   the whole plan, once, in its time
    the grid:               schedule x micro-batches x recomputation x method, each simulated
                            (a method's answer under it, within the capacities)

A row says how the best of the grid compares: 1.10 takes 1.10 times as long as the whole plan. Rows are kept
as they come (`--json`), and an interrupted run goes on. The grid's methods that search have `--method-limit`
seconds each.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks._command import command_parser
from benchmarks.whole_plan.clocks import CLOCKS, limits_by
from benchmarks.whole_plan.subject import CLUSTERS, MODELS, Subject
from netsplit.errors import CaptureError, NetSplitError
from netsplit.files import write_json
from netsplit.partition import METHODS
from netsplit.partition.base import Problem
from netsplit.partition.compile_all import compile_all
from netsplit.placement.placement import Placement, device_in_turn
from netsplit.planning.decide import decide_whole
from netsplit.planning.fitting import fitted
from netsplit.planning.whole.auto_schedule import SYNCHRONOUS, AutoSchedule
from netsplit.planning.whole.judge import problem_under
from netsplit.program.schedules import SCHEDULES, Schedule
from netsplit.simulate.simulate import simulate
from netsplit.tables import Column, Table

QUICK = (
    "single",
    "ddp",
    "m_topo",
    "balanced",
    "layerwise",
    "heft",
    "dpos",
    "m_etf",
    "m_sct",
    "pipedream",
    "round_robin",
)
SLOW = ("auto", "netsplit", "netsplit_exact", "pesto")  # which search for as long as they may
COUNTS = (1, 2, 4, 8, 16, 32)
SAME = 1e-9  # relative


@dataclass(frozen=True)
class Best:
    """The best of the grid, or of one kind of it."""

    method: str
    schedule: str
    microbatches: int
    recompute: bool
    iteration_s: float


@dataclass(frozen=True)
class PlanRow:
    """A model on a cluster."""

    model: str
    cluster: str
    nodes: int
    whole: str  # what was chosen, in words
    whole_s: float | None  # of an iteration; None: nothing fits
    bound_s: float | None
    decided_s: float
    grid: Best | None  # None: nothing of it fits
    ddp_s: float | None  # of the grid's data parallelism, where it fits
    tried: int  # of the grid

    @property
    def ratio(self) -> float | None:
        return self.grid.iteration_s / self.whole_s if self.grid is not None and self.whole_s else None


def main() -> None:
    options = _options()
    kept: dict[str, Any] = (
        json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    )
    console = Console(stderr=True)
    rows = []
    compile_all()  # once an installation, and no part of what is measured
    for model in options.models:
        for cluster in options.clusters:
            key = f"{model} on {cluster}"
            if key not in kept:
                with limits_by(options.clock):
                    row = measured(model, cluster, options)
                kept[key] = asdict(row)
                if options.json:
                    write_json(options.json, kept)
            rows.append(_read(kept[key]))
            console.print(f"{key}: {_said(rows[-1])}", highlight=False)
    print(_table(rows).markdown())
    behind = [row for row in rows if row.ratio is not None and row.ratio < 1 - SAME]
    print(f"\nbehind the grid on {len(behind)} of {len(rows)}; {_gain(rows)}")


def measured(model: str, cluster: str, options: argparse.Namespace) -> PlanRow:
    """The whole plan and the grid."""
    subject = Subject(model, cluster)
    counts = _capturable(subject, [m for m in options.counts if subject.batch_size % m == 0])
    open_ = AutoSchedule(microbatches=counts, time_limit_s=options.time_limit)
    began = time.perf_counter()
    try:
        whole = decide_whole(subject.problem, counts, subject.batch_size, open_)
        words = f"{whole.choice.frontier[0].kind}: {whole.lines[0].partition(': ')[2]}"
        whole_s, bound_s = whole.iteration_s, whole.choice.bound_s
    except NetSplitError as error:
        words, whole_s, bound_s = str(error), None, None
    decided_s = time.perf_counter() - began
    best, ddp_s, tried = None, None, 0
    for point in _grid(subject, counts, options):
        tried += 1
        if best is None or point.iteration_s < best.iteration_s:
            best = point
        if point.method == "ddp":
            ddp_s = min(point.iteration_s, ddp_s or point.iteration_s)
    return PlanRow(model, cluster, subject.nodes, words, whole_s, bound_s, decided_s, best, ddp_s, tried)


def _capturable(subject: Subject, counts: Sequence[int]) -> list[int]:
    """Those whose micro-batches the model takes; captures are no part of the decision."""
    taken = []
    for m in counts:
        try:
            subject.problem(m)
        except CaptureError as error:
            print(
                f"{subject.name}: no {m} micro-batches of {subject.batch_size} samples: {error}",
                file=sys.stderr,
            )
        else:
            taken.append(m)
    return taken


def _grid(subject: Subject, counts: Sequence[int], options: argparse.Namespace) -> Iterator[Best]:
    """What fits of all points that may be the best; a method is told of the capacities where it must be.

    Left out is what cannot be: recomputing what fits without; and a placement that takes longer, whatever the
    schedule, than an iteration that is known. Methods that search come last, asked anew under every schedule.
    """
    names = [name for name in SYNCHRONOUS if name in options.schedules] if options.schedules else SYNCHRONOUS
    best_s = float("inf")
    points = []
    for method, m in itertools.product(options.methods, counts):
        free = _answer(_roomy(subject.problem(m)), method, options.method_limit)
        points.append((0.0 if free is None else _busiest_s(subject.problem(m), m, free), method, m, free))
    points.sort(key=lambda point: point[0])
    points += [(0.0, method, m, None) for method in SLOW if options.slow for m in counts]
    for load_s, method, m, free in points:
        if load_s >= best_s:
            continue
        for name in names:
            if (name == "single_batch") != (m == 1) and not (m == 1 and name == "gpipe"):
                continue
            for recompute in (False, True):
                schedule = replace(_of(name, m), recompute=recompute)  # type: ignore[type-var]
                seconds = _point(subject.problem(m), method, schedule, free, options.method_limit, best_s)
                if seconds is not None:
                    best_s = min(best_s, seconds)
                    yield Best(method, name, m, recompute, seconds)
                    break


def _busiest_s(problem: Problem, m: int, placement: Placement) -> float:
    """Of a batch's computing, on the device that has most of it: no iteration is shorter."""
    kinds, busy = {each.name: each.kind for each in problem.cluster.devices}, defaultdict[str, float](float)
    for stage in placement.all_stages:
        for i in range(m):
            name = device_in_turn(stage.in_turn, i)
            busy[name] += sum(problem.costs.total_s(v, kinds[name]) for v in stage.nodes)
    return max(busy.values(), default=0.0)


def _point(
    problem: Problem, method: str, schedule: Schedule, free: Placement | None, limit_s: float, best_s: float
) -> float | None:
    """Seconds of an iteration; None where nothing fits."""
    asked = problem_under(problem, schedule)
    seconds = _fitting_s(asked, free, best_s)
    if seconds is None and METHODS[method]().respects_capacity:
        seconds = _fitting_s(asked, _answer(asked, method, limit_s), best_s)
    return seconds


def _fitting_s(problem: Problem, placement: Placement | None, best_s: float) -> float | None:
    """Seconds of an iteration; None where there is no placement, or it does not fit.

    Of one that is slower than the best it is not asked whether it fits.
    """
    if placement is None:
        return None
    simulator = problem.the_simulator
    program = simulator.whole_microbatches(placement)
    seconds = simulate(program, simulator.cluster, simulator.costs, peaks=False).iteration_s
    if seconds >= best_s:
        return seconds
    peaks = simulator.peak_bytes(program)
    return seconds if all(peaks.get(d.name, 0) <= d.capacity_bytes for d in problem.cluster.devices) else None


def _answer(problem: Problem, method: str, limit_s: float) -> Placement | None:
    try:
        return fitted(replace(problem, time_limit_s=limit_s), METHODS[method]())
    except NetSplitError:
        return None


def _roomy(problem: Problem) -> Problem:
    devices = tuple(
        replace(d, capacity_bytes=2 * problem.memory_model.total_bytes) for d in problem.cluster.devices
    )
    return replace(problem, cluster=replace(problem.cluster, devices=devices))


def _of(name: str, m: int) -> Schedule:
    return SCHEDULES[name]().with_microbatches(m)


def _read(row: dict[str, Any]) -> PlanRow:
    grid = row["grid"]
    return PlanRow(**{**row, "grid": None if grid is None else Best(**grid)})


def _said(row: PlanRow) -> str:
    if row.whole_s is None:
        return row.whole
    best = row.grid
    beside = "nothing of the grid fits" if best is None else f"grid / whole {row.ratio:.3f} ({_words(best)})"
    return f"{1e3 * row.whole_s:,.1f} ms in {row.decided_s:.0f} s, {row.whole}; {beside}"


def _words(best: Best) -> str:
    return f"{best.method}, {best.schedule} x {best.microbatches}{', recomputing' * best.recompute}"


def _gain(rows: Sequence[PlanRow]) -> str:
    ratios = [row.ratio for row in rows if row.ratio is not None]
    if not ratios:
        return "nothing to compare"
    mean = torch.tensor(ratios).log().mean().exp().item()
    return f"grid / whole {mean:.3f} in the geometric mean, {min(ratios):.3f} to {max(ratios):.3f}"


def _table(rows: Sequence[PlanRow]) -> Table:
    columns = (
        Column("model", text=True), Column("cluster", text=True), Column("operators", ",d"),
        Column("whole plan", text=True), Column("ms", ",.1f", 1e3), Column("bound ms", ",.1f", 1e3),
        Column("decided s", ",.0f"), Column("best of the grid", text=True), Column("grid / whole", ".3f"),
        Column("ddp / whole", ".3f"),
    )  # fmt: skip
    cells = [
        (
            row.model, row.cluster, row.nodes, row.whole, row.whole_s, row.bound_s, row.decided_s,
            "nothing fits" if row.grid is None else _words(row.grid), row.ratio,
            row.ddp_s / row.whole_s if row.ddp_s and row.whole_s else None,
        )
        for row in rows
    ]  # fmt: skip
    return Table(columns, cells)


def _options() -> argparse.Namespace:
    parser = command_parser("whole_plan", __doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--clusters", nargs="+", default=list(CLUSTERS), choices=CLUSTERS)
    parser.add_argument(
        "--methods", nargs="+", default=list(QUICK), choices=sorted(METHODS), metavar="METHOD"
    )
    parser.add_argument("--slow", action="store_true", help=f"also {', '.join(SLOW)}, under every schedule")
    parser.add_argument("--schedules", nargs="+", help="schedules of the grid (all synchronous ones)")
    parser.add_argument("--counts", nargs="+", type=int, default=list(COUNTS), help="of micro-batches")
    parser.add_argument("--time-limit", type=float, default=30.0, help="seconds for a whole plan")
    parser.add_argument("--method-limit", type=float, default=5.0, help="seconds for each answer of a method")
    parser.add_argument(
        "--clock",
        choices=sorted(CLOCKS),
        default="wall",
        help="clock for limits; `process` counts CPU seconds of this process",
    )
    parser.add_argument("--json", type=Path, help="file that keeps the rows between runs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
