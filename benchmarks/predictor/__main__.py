"""How far the static cost predictor is from measured profiles of this machine, model by model.

Every model is profiled on one thread of the processor, operator by operator, and so are a few chains of
layers whose shapes are drawn. Then each model is left out in turn: rates are calibrated on all the others and
on the drawn chains, and the one left out is predicted from its graph alone.

    iteration      sum over all operators, forward and backward: predicted / measured seconds, less 1
    node median    of |predicted / measured - 1| over the operators
    weighted       mean of the same, each operator by the seconds that it takes

Profiles are kept, so that a second run measures nothing (`--measure` does so anyway).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict, fields, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks._command import command_parser
from benchmarks.predictor.draws import draws
from benchmarks.predictor.fit import calibrate_rates, write_rates
from benchmarks.predictor.leave_one_out import Error, Profile, left_out, profile
from benchmarks.predictor.models import MODELS, models
from netsplit.cluster.catalogue import Overheads
from netsplit.files import write_json
from netsplit.profile.measured import ProfileCache, default_folder

WANTED_ITERATION, WANTED_NODE = 0.15, 0.25
FEWEST = 50  # operators of a model whose trial run says what messages cost


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=118)
    began = time.perf_counter()
    cache = ProfileCache(default_folder(), refresh=options.measure)
    chosen, drawn = models(options.quick, options.models), draws(options.draws)
    repeats, rounds = (3, 3) if options.quick else (4, 3)
    profiles: list[Profile] = []
    for i, subject in enumerate([*chosen, *drawn], 1):
        each = profile(subject, cache, repeats, rounds)
        profiles.append(each)
        how = "as kept" if each.kept else f"measured, speed moved by {100 * each.drift:.0f} %"
        console.print(f"{i} of {len(chosen) + len(drawn)}: {each.model}, {len(each.graph)} operators, {how}")
    errors = left_out(profiles[: len(chosen)], profiles[len(chosen) :])
    console.print(_table(errors))
    console.print(_verdict(errors))
    if options.classes:
        console.print(_classes(errors))
    if options.json is not None:
        write_json(options.json, [asdict(error) for error in errors])
    if options.rates is not None:
        rates = calibrate_rates([(each.graph, each.seconds) for each in profiles], options.rates.stem)
        reference_s = statistics.median(each.reference_s for each in profiles)
        rates = replace(rates, overheads=_overheads(default_folder()), reference_s=reference_s)
        write_rates(rates, options.rates)
    console.print(f"{len(errors)} models in {time.perf_counter() - began:.0f} s")
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("predictor", __doc__)
    parser.add_argument("--quick", action="store_true", help="smaller models, few repeats")
    parser.add_argument("--models", nargs="+", choices=MODELS, help="at least 2; default: all")
    parser.add_argument("--draws", type=int, default=12, help="drawn chains to calibrate on too (12)")
    parser.add_argument("--measure", action="store_true", help="measure again what is already kept")
    parser.add_argument("--classes", action="store_true", help="also errors by operator class")
    parser.add_argument("--json", type=Path, help="file for every error")
    parser.add_argument(
        "--rates", type=Path, help="file (.json) for rates fitted to all: the `model` of a described device"
    )
    options = parser.parse_args(arguments)
    if options.models is not None and len(set(options.models)) < 2:
        parser.error("--models: give at least 2, as each model is predicted from the others")
    if options.rates is not None and options.rates.suffix != ".json":
        parser.error("--rates: give a file that ends in .json")
    if options.draws < 0:
        parser.error("--draws: give 0 or more")
    return options


def _overheads(folder: Path) -> Overheads | None:
    """What workers of this machine do beside operators: medians over kept profiles with a steady trial run.

    Comparisons keep them; None where none of a model of `FEWEST` operators was steady yet.
    """
    kept = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")]
    steady = [each["costs"] for each in kept if each.get("steady") and "costs" in each]
    known = [costs for costs in steady if costs["message_s"] and len(costs["nodes"]) >= FEWEST]
    names = [each.name for each in fields(Overheads)]
    return Overheads(*(statistics.median(each[name] for each in known) for name in names)) if known else None


def _table(errors: list[Error]) -> Table:
    table = Table(title="Predicted from all the other models")
    table.add_column("model")
    for column in ("operators", "measured ms", "predicted ms", "iteration", "node median", "weighted"):
        table.add_column(column, justify="right")
    for each in errors:
        table.add_row(
            each.model,
            str(each.nodes),
            f"{1e3 * each.measured_s:.1f}",
            f"{1e3 * each.predicted_s:.1f}",
            f"{100 * each.iteration:+.1f} %",
            f"{100 * each.node_median:.1f} %",
            f"{100 * each.weighted:.1f} %",
        )
    return table


def _verdict(errors: list[Error]) -> str:
    sizes = [abs(each.iteration) for each in errors]
    nodes = [error for each in errors for error in each.node_errors]
    within = sum(size <= WANTED_ITERATION for size in sizes)
    return (
        f"iteration: median {100 * statistics.median(sizes):.1f} %, worst {100 * max(sizes):.1f} %, "
        f"{within} of {len(sizes)} within {100 * WANTED_ITERATION:.0f} %; "
        f"node: median of all {len(nodes)} {100 * statistics.median(nodes):.1f} % "
        f"(wanted: {100 * WANTED_NODE:.0f} %)"
    )


def _classes(errors: list[Error]) -> Table:
    table = Table(title="By class of operator, over all models")
    table.add_column("class")
    for column in ("measured ms", "predicted / measured", "over models"):
        table.add_column(column, justify="right")
    sums: dict[str, list[tuple[float, float]]] = {}
    for each in errors:
        for kind, pair in each.by_class.items():
            sums.setdefault(kind, []).append(pair)
    for kind, pairs in sorted(sums.items(), key=lambda item: -sum(a for a, _ in item[1])):
        measured, predicted = (sum(pair[i] for pair in pairs) for i in (0, 1))
        ratios = [b / a for a, b in pairs]
        table.add_row(
            kind,
            f"{1e3 * measured:.1f}",
            f"{predicted / measured:.2f}",
            f"{min(ratios):.2f} to {max(ratios):.2f}",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
