"""Which models are captured, and trained split as they train whole: libraries' and people's.

    python -m benchmarks.capture                            # all of it: an hour or two on two cores
    python -m benchmarks.capture --quick                    # a few of each library, two minutes
    python -m benchmarks.capture --only timm transformers   # these families; also torchvision, people
    python -m benchmarks.capture --only torchvision --name resnet18 vit_b_32

Every model is captured, then trained two steps over three devices by drawn placements under two schedules,
and losses, parameters and buffers are compared with the plain loop's (`tests/models_of_people`). `timm`
and `transformers` are in the extra `capture-benchmark`. Seconds are processor time of the capture
alone. "whole" are nodes that are a module of the model, which runs on one device: splitting gains by few.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.capture.models import FAMILIES, names_of
from benchmarks.capture.workers import CaptureOutcome, judged
from netsplit.files import write_json

__all__ = ["main"]

WANTED = {"torchvision": 0.98, "timm": 0.95, "transformers": 0.95, "people": 1.0}  # parts that come out right
WANTED_S = 3.0  # of capture, per 1,000 operators
LEAST = 50  # operators of a model whose seconds per operator count: of fewer, the start is what is measured
MESSAGE = 200  # characters of a reason


@dataclass(frozen=True)
class Family:
    """What came of a family's models."""

    name: str
    outcomes: list[CaptureOutcome]

    def of(self, *kinds: str) -> list[CaptureOutcome]:
        return [each for each in self.outcomes if each.kind in kinds]

    @property
    def right(self) -> list[CaptureOutcome]:
        return [each for each in self.outcomes if not each.amiss]

    @property
    def per_thousand(self) -> list[float]:
        return [1e3 * each.capture_s / each.operators for each in self.outcomes if each.operators >= LEAST]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    console = Console(width=None if sys.stdout.isatty() else 140)
    families = []
    for family in options.only:
        names = names_of(family, options.quick and not options.name)
        chosen = [name for name in names if not options.name or name in options.name]
        outcomes = []
        for each in judged(family, chosen, options.timeout):
            outcomes.append(each)
            mark = "[red]x[/]" if each.amiss else "[green]o[/]"
            seconds = f"{each.capture_s:.1f} s of {each.total_s:.1f}, {each.operators} operators"
            seconds += f", {each.whole} whole" if each.whole else ""
            console.print(f"{len(outcomes):4}/{len(chosen)} {mark} {each.name}: {each.kind}, {seconds}")
        if outcomes:
            families.append(Family(family, outcomes))
            _write(options.json, families)
    if not families:
        console.print("No model has that name: give names from the family's list.")
        return 1
    console.print(_table(families))
    for family in families:
        _print_reasons(console, family)
    console.print(f"Written to {options.json}.")
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.capture", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="a few models of each library, all third-party ones"
    )
    parser.add_argument("--only", nargs="+", choices=FAMILIES, default=list(FAMILIES), metavar="FAMILY")
    parser.add_argument("--name", nargs="+", default=[], help="models by name")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for one model")
    parser.add_argument("--json", type=Path, default=Path("outputs/capture.json"))
    return parser.parse_args(arguments)


def _table(families: list[Family]) -> Table:
    table = Table(title="Captured, and split training equal to plain")
    columns = (
        "family", "tried", "equal", "refused", "failed", "WRONG", "as wanted", "capture s", "operators",
        "whole (models)", "s per 1,000: median", "worst",
    )  # fmt: skip
    for column in columns:
        table.add_column(column, justify="left" if column == "family" else "right")
    for each in families:
        part = len(each.right) / len(each.outcomes)
        mark = "green" if part >= WANTED[each.name] else "red"
        rates = each.per_thousand
        table.add_row(
            each.name,
            *(str(len(some)) for some in (each.outcomes, each.of("equal"), each.of("refused"))),
            *(str(len(each.of(kind))) for kind in ("failed", "WRONG")),
            f"[{mark}]{part:.1%}[/] of {WANTED[each.name]:.0%}",
            f"{sum(one.capture_s for one in each.outcomes):.1f}",
            str(sum(one.operators for one in each.outcomes)),
            f"{sum(one.whole for one in each.outcomes)} ({sum(one.whole > 0 for one in each.outcomes)})",
            f"{statistics.median(rates):.1f} of {WANTED_S:.0f}" if rates else "",
            f"{max(rates):.1f}" if rates else "",
        )
    return table


def _print_reasons(console: Console, family: Family) -> None:
    for kind in ("WRONG", "failed", "refused"):
        for each in family.of(kind):
            expected = "" if each.amiss else " (as expected)"
            console.print(
                f"{kind} {family.name} {each.name}{expected}: {each.message[:MESSAGE]}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
    for each in family.of("equal"):
        if each.amiss:
            console.print(f"equal {family.name} {each.name}: {each.amiss}", markup=False, soft_wrap=True)


def _write(path: Path, families: list[Family]) -> None:
    outcomes = {family.name: [asdict(each) for each in family.outcomes] for family in families}
    write_json(path, {"wanted": WANTED, "families": outcomes})


if __name__ == "__main__":
    sys.exit(main())
