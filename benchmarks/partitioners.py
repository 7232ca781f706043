"""Every partitioner on every graph: `python -m benchmarks.partitioners --graphs <folder> --time-limit 60`.

A *setting* is a graph file under one objective and on one cluster. Each row of the output is one method
in one setting: objective, bound, gap, seconds, and the ratio to the best known value where a
`reference.json` lies above the graph. The best here, and the summary, are of the methods that train what one
device trains: replicas have running statistics each of its own micro-batches. Rows are kept in a file as they
come: an interrupted run goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.captured import CAPTURED
from benchmarks.setting import Setting
from benchmarks.settings import SUITES, settings_of
from netsplit.errors import InfeasibleError, NetSplitError
from netsplit.files import write_text
from netsplit.partition import METHODS
from netsplit.partition.methods.auto.auto import replicable
from netsplit.planning.decide import decide

SLOW = ("auto", "netsplit_exact", "netsplit", "pesto", "pesto_full")
"""Methods that search until their time is up; the others are heuristics."""

Row = dict[str, Any]


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=118)
    kept = _Kept(options.out, fresh=options.fresh, time_limit_s=options.time_limit)
    results: list[tuple[Setting, list[Row]]] = []
    for setting in settings_of(options.graphs, options.suites, options.captured):
        rows = [_row(setting, name, options, kept) for name in _methods(setting, options.methods)]
        if not rows:
            continue
        results.append((setting, rows))
        console.print(_table(setting, rows))
    if not results:
        console.print(
            f"nothing to measure: no graph file matches {', '.join(options.suites)}, and no model is captured"
        )
        return 2
    console.print(_summary(results))
    console.print(f"rows: {kept.path}")
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.partitioners", description=__doc__)
    parser.add_argument("--graphs", type=Path, help="a graph file, or a folder of them; default: none")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for a method that searches")
    parser.add_argument("--methods", nargs="+", choices=sorted(METHODS), help="default: all that apply")
    parser.add_argument("--suites", nargs="+", choices=SUITES, default=list(SUITES))
    parser.add_argument(
        "--captured", nargs="*", default=CAPTURED, help="models to profile here: 'NAME OVERRIDES'"
    )
    parser.add_argument("--out", type=Path, default=Path("outputs/benchmarks/partitioners.json"))
    parser.add_argument("--fresh", action="store_true", help="forget the rows of earlier runs")
    return parser.parse_args(arguments)


def _methods(setting: Setting, wanted: Iterable[str] | None) -> list[str]:
    return [name for name in setting.methods if wanted is None or name in set(wanted)]


class _Kept:
    """Rows already measured, in a file that is whole at any time."""

    def __init__(self, path: Path, fresh: bool, time_limit_s: float) -> None:
        self.path, self.time_limit_s = path, time_limit_s
        self.rows: dict[str, Row] = {}
        if path.exists() and not fresh:
            self.rows = json.loads(path.read_text())

    def key(self, setting: Setting, method: str) -> str:
        return f"{setting.key} | {method} | {self.time_limit_s:g} s"

    def add(self, setting: Setting, method: str, row: Row) -> None:
        self.rows[self.key(setting, method)] = row
        write_text(self.path, json.dumps(self.rows, indent=1))


def _row(setting: Setting, method: str, options: argparse.Namespace, kept: _Kept) -> Row:
    key = kept.key(setting, method)
    if key in kept.rows:
        return kept.rows[key]
    problem = setting.problem(options.time_limit)
    started = time.perf_counter()
    row: Row = {"method": method}
    try:
        # the authors' own memory tests are not (5-18): where their own count is asked for, so is their test
        plan = decide(problem, setting.partitioner(method), room=not setting.own_objective)
    except InfeasibleError as refusal:
        row |= {"status": "infeasible", "message": str(refusal)}
    except NetSplitError as refusal:
        row |= {"status": "refused", "message": str(refusal)}
    else:
        own = plan.placement.report.objective
        value = own if setting.own_objective and own is not None else plan.objective_s
        row |= {"status": plan.status, "objective": value / setting.unit_s, "gap": plan.gap}
        row["bound"] = None if plan.bound_s is None else plan.bound_s / setting.unit_s
        row["replication"] = [len(stage.devices) for stage in plan.placement.stages]
        row["same"] = not plan.placement.replicas or replicable(setting.workload.graph)
    row["seconds"] = time.perf_counter() - started
    kept.add(setting, method, row)
    return row


def _ratio(setting: Setting, row: Row) -> float | None:
    known = setting.known.get(row["method"], setting.known.get(""))
    if known is None or row.get("objective") is None:
        return None
    return float(row["objective"] / known)


def _table(setting: Setting, rows: list[Row]) -> Table:
    table = Table(title=setting.title, title_justify="left")
    table.add_column("method")
    for name in (f"objective, {setting.unit}", "bound", "gap", "to best known", "to best here", "seconds"):
        table.add_column(name, justify="right")
    table.add_column("status")
    best = _best(rows)
    for row in sorted(rows, key=lambda row: (row.get("objective") is None, row.get("objective") or 0.0)):
        value = row.get("objective")
        ratio = _ratio(setting, row)
        table.add_row(
            row["method"],
            "" if value is None else f"{value:.6g}",
            "" if row.get("bound") is None else f"{row['bound']:.6g}",
            "" if row.get("gap") is None else f"{100 * row['gap']:.2f} %",
            "" if ratio is None else f"{ratio:.5f}",
            "" if value is None or not best else f"{value / best:.4f}",
            f"{row['seconds']:.1f}",
            row["status"] if row.get("same", True) else f"{row['status']}, other statistics",
        )
    return table


def _best(rows: list[Row]) -> float:
    """The best of those that train what one device trains; nan: there is none."""
    values = (row["objective"] for row in rows if row.get("objective") is not None and row.get("same", True))
    return min(values, default=math.nan)


def _summary(results: list[tuple[Setting, list[Row]]]) -> Table:
    """Per suite and method: how often best, the mean ratio to the best, the mean gap."""
    table = Table(title="Summary: geometric means over the settings of a suite", title_justify="left")
    for name in ("suite", "method", "settings", "best", "to best here", "gap", "to best known", "seconds"):
        table.add_column(name, justify="left" if name in ("suite", "method") else "right")
    for suite in dict.fromkeys(setting.suite for setting, _ in results):
        rows: dict[str, list[tuple[float, Row, float | None]]] = {}
        for setting, own in results:
            best = _best(own)
            for row in own:
                if setting.suite == suite and row.get("objective") is not None and row.get("same", True):
                    ratio = row["objective"] / best if best > 0 else 1.0
                    rows.setdefault(row["method"], []).append((ratio, row, _ratio(setting, row)))
        for method, each in sorted(rows.items(), key=lambda item: _mean(ratio for ratio, _, _ in item[1])):
            gaps = [1 - row["gap"] for _, row, _ in each if row.get("gap") is not None]
            known = [to_known for _, _, to_known in each if to_known is not None]
            table.add_row(
                suite,
                method,
                str(len(each)),
                str(sum(ratio <= 1 + 1e-9 for ratio, _, _ in each)),
                f"{_mean(ratio for ratio, _, _ in each):.4f}",
                f"{100 * (1 - _mean(gaps)):.2f} %" if gaps else "",
                f"{_mean(known):.5f}" if known else "",
                f"{sum(row['seconds'] for _, row, _ in each) / len(each):.1f}",
            )
    return table


def _mean(values: Iterable[float]) -> float:
    """Geometric."""
    logs = [math.log(max(value, 1e-12)) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


if __name__ == "__main__":
    sys.exit(main())
