"""Planning time, memory and score against size: `python -m benchmarks.scaling`.

Layered graphs and repeated blocks (a transformer's layers) with the seconds and bytes of a training step, on
clusters of one kind, of two, and of hosts of eight with slower links between them (`drawn`). Every case has a
process of its own, so that its peak of memory is its own, and a crash is a row. A row has the seconds of the
method, those with the plan compiled, simulated and verified, of these the processor's, the peak, and the
score beside the best of all methods but `auto`. Rows are kept as they come: an interrupted run goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks._command import command_parser
from benchmarks.scaling.case import Case
from benchmarks.scaling.drawn import CLUSTERS, GRAPHS
from netsplit.files import write_text
from netsplit.partition import METHODS

NODES, DEVICES = (300, 2000, 20_000), (8, 64, 1000)
QUICK_NODES, QUICK_DEVICES = (300, 2000), (8,)
SHOWN = ("balanced", "heft", "m_etf", "netsplit", "auto")
OBJECTIVES = ("latency", "simulated")

Row = dict[str, Any]


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=118)
    kept: dict[str, Row] = {}
    if options.json.exists() and not options.fresh:
        kept = json.loads(options.json.read_text())
    rows: list[Row] = []
    for case in _cases(options):
        key = json.dumps(asdict(case))
        if key not in kept:
            kept[key] = _measured(case, options.patience)
            write_text(options.json, json.dumps(kept, indent=1))
        rows.append(kept[key])
        console.print(_told(kept[key]))
    console.print(_table(rows))
    console.print(f"rows: {options.json}")
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("scaling", __doc__)
    parser.add_argument("--quick", action="store_true", help="up to 2,000 nodes on 8 devices")
    parser.add_argument("--nodes", nargs="+", type=int, help=f"default: {NODES}")
    parser.add_argument("--devices", nargs="+", type=int, help=f"default: {DEVICES}")
    parser.add_argument("--methods", nargs="+", choices=sorted(METHODS), default=list(SHOWN))
    parser.add_argument("--graphs", nargs="+", choices=list(GRAPHS), default=list(GRAPHS))
    parser.add_argument("--clusters", nargs="+", choices=list(CLUSTERS), default=["uniform"])
    parser.add_argument("--objectives", nargs="+", choices=OBJECTIVES, default=list(OBJECTIVES))
    parser.add_argument("--time-limit", type=float, default=30.0, help="seconds for a method")
    parser.add_argument("--patience", type=float, default=600.0, help="seconds before a case is stopped")
    parser.add_argument("--json", type=Path, default=Path("outputs/benchmarks/scaling.json"))
    parser.add_argument("--fresh", action="store_true", help="forget the rows of earlier runs")
    return parser.parse_args(arguments)


def _cases(options: argparse.Namespace) -> Iterator[Case]:
    for nodes in options.nodes or (QUICK_NODES if options.quick else NODES):
        for devices in options.devices or (QUICK_DEVICES if options.quick else DEVICES):
            for graph in options.graphs:
                for cluster in options.clusters:
                    for objective in options.objectives:
                        for method in options.methods:
                            yield Case(graph, cluster, nodes, devices, objective, method, options.time_limit)


def _measured(case: Case, patience_s: float) -> Row:
    """The row of a process of its own, whatever becomes of it."""
    command = [sys.executable, "-m", "benchmarks.scaling.case", json.dumps(asdict(case))]
    with subprocess.Popen(
        ["timeout", "-s", "KILL", str(patience_s), *command], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        said = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    peak = {"peak_gb": used.ru_maxrss * 1024 / 1e9}  # of the largest of both processes
    try:
        return {**json.loads(said.splitlines()[-1]), **peak}
    except (IndexError, ValueError):
        return {**asdict(case), **peak, "status": f"ended by {_reason(process.returncode, patience_s)}"}


def _reason(code: int, patience_s: float) -> str:
    if code in (-9, 137):
        return f"a kill (memory, or {patience_s:g} s)"
    return f"signal {-code}" if code < 0 else f"exit status {code}"


def _told(row: Row) -> str:
    seconds = f"{row['all_s']:.1f} s" if "all_s" in row else ""
    setting = " ".join(map(str, _setting(row)))
    return f"{setting} {row['method']}: {row['status']} {seconds}"


def _table(rows: list[Row]) -> Table:
    table = Table(title="Planning against size", title_justify="left")
    for name in ("graph", "cluster", "nodes", "devices", "objective", "method"):
        table.add_column(name)
    for name in ("method s", "with checks s", "CPU s", "GB", "score ms", "to best other"):
        table.add_column(name, justify="right")
    table.add_column("status")
    best: dict[tuple[Any, ...], float] = {}
    for row in rows:
        if row["method"] != "auto" and row.get("score_s") is not None:
            best[_setting(row)] = min(best.get(_setting(row), float("inf")), row["score_s"])
    for row in rows:
        score, other = row.get("score_s"), best.get(_setting(row))
        table.add_row(
            row["graph"],
            row["cluster"],
            f"{row['nodes']:,}",
            f"{row['devices']:,}",
            row["objective"],
            row["method"],
            f"{row['planning_s']:.1f}" if "planning_s" in row else "",
            f"{row['all_s']:.1f}" if "all_s" in row else "",
            f"{row['cpu_s']:.1f}" if "cpu_s" in row else "",
            f"{row['peak_gb']:.2f}",
            "" if score is None else f"{1e3 * score:.1f}",
            "" if score is None or not other else f"{score / other:.3f}",
            row["status"],
        )
    return table


def _setting(row: Row) -> tuple[Any, ...]:
    return row["graph"], row["cluster"], row["nodes"], row["devices"], row["objective"]


if __name__ == "__main__":
    sys.exit(main())
