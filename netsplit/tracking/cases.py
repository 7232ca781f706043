"""Comparisons side by side: what every method reaches in every case, beside what others published."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from netsplit.files import write_text
from netsplit.pictures.drawing import colours_of, new_figure, save_figure, tint
from netsplit.tables import Column, Table, csv_text
from netsplit.tracking.metrics import PUBLISHED
from netsplit.tracking.records import Comparison
from netsplit.tracking.table import LEGEND, OVER, ComparisonRow

if TYPE_CHECKING:
    import rich.table
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

__all__ = [
    "NEAR",
    "Agreement",
    "CaseCell",
    "Cases",
    "agreement_table",
    "best_constant",
    "cases_figure",
    "kendall_tau",
    "published_tags",
]  # fmt: skip

Published = Mapping[str, Mapping[str, float]]
"""Case -> method -> samples per second."""

_NONE, _NBSP = "-", "\N{NO-BREAK SPACE}"
_VARIED = "samples/s: least / mean / greatest"
_UNANSWERED = "no answer in time"
_HEADINGS = (
    "case", "method", "status", "gap", "seconds_to_plan", "predicted_s", "measured_s", "samples_per_s",
    "least_samples_per_s", "mean_samples_per_s", "greatest_samples_per_s", "published", "difference",
    "over_capacity",
)  # fmt: skip


class CaseCell(NamedTuple):
    """One method in one case. Samples per second; measured where the method was trained, else predicted."""

    case: str
    row: ComparisonRow
    published: float | None
    best: bool  # of the methods of the case that fit their devices, if there are several methods

    @property
    def throughput(self) -> float | None:
        """None too of a plan that took the place of an answer which did not come in time."""
        return None if self.row.unanswered else self.row.throughput

    @property
    def difference(self) -> float | None:
        """(ours - published) / published."""
        if self.published is None or self.throughput is None:
            return None
        return self.throughput / self.published - 1

    @property
    def solver(self) -> str:
        """How the answer came about: status, the gap that is left of the method's own problem, seconds."""
        if self.row.failed:
            return "failed"
        gap = "" if self.row.gap is None else f", gap {100 * self.row.gap:.2f} %"
        seconds = "" if self.row.solve_s is None else f", {self.row.solve_s:.1f} s"
        return f"{self.row.status}{gap}{seconds}".replace(" ", _NBSP)

    @property
    def throughputs(self) -> str:
        """Least, mean and greatest of the measured iterations."""
        return _NONE if self.row.throughputs is None else " / ".join(f"{x:.2f}" for x in self.row.throughputs)


@dataclass(frozen=True)
class Cases:
    """All comparisons, by case."""

    comparisons: Mapping[str, Comparison]
    published: Published = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Case -> why it failed, or methods of it did."""

    def __iter__(self) -> Iterator[CaseCell]:
        for case, comparison in self.comparisons.items():
            reached = [row for row in comparison.rows if row.throughput is not None and not row.unanswered]
            most = max((row.throughput or 0.0 for row in reached if not row.overfull), default=None)
            for row in comparison.rows:
                known = self.published.get(case, {}).get(row.method)
                best = row in reached and len(reached) > 1 and row.throughput == most and not row.overfull
                yield CaseCell(case, row, known, best)

    @property
    def agreement(self) -> dict[str, Agreement]:
        """The agreement in every case of which others published two methods or more."""
        reached: dict[str, dict[str, float]] = {case: {} for case in self.comparisons}
        for cell in self:
            if cell.throughput is not None:
                reached[cell.case][cell.row.method] = cell.throughput
        every = {
            case: Agreement.between(ours, self.published.get(case, {})) for case, ours in reached.items()
        }
        return {case: each for case, each in every.items() if each is not None}

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(cell.row.method for cell in self))

    def of(self, method: str) -> dict[str, CaseCell]:
        """Case -> the method's cell."""
        return {cell.case: cell for cell in self if cell.row.method == method}

    def table(self, title: str = "") -> rich.table.Table:
        """Methods by cases, for the terminal."""
        return self._table(title).terminal()

    def markdown(self) -> str:
        """GitHub tables: the same, how the answers came about, what iterations varied, what was published."""
        table = self._table(quote="`")
        parts = [table.markdown(), *table.notes, self._by_case("solver", lambda cell: cell.solver).markdown()]
        if any(cell.row.throughputs is not None for cell in self):
            parts.append(self._by_case(_VARIED, lambda cell: cell.throughputs).markdown())
        if self.agreement:
            parts.append(agreement_table(self.agreement).markdown())
        return "\n\n".join(parts) + "\n"

    def csv(self) -> str:
        """One line for each method in each case."""
        rows = [
            [
                cell.case, cell.row.method, cell.row.status, cell.row.gap, cell.row.solve_s,
                cell.row.predicted_s, cell.row.measured_s, cell.throughput,
                *(cell.row.throughputs or [None] * 3), cell.published, cell.difference,
                ", ".join(cell.row.overfull),
            ]
            for cell in self
        ]  # fmt: skip
        return csv_text(_HEADINGS, rows)

    def write(self, folder: Path) -> None:
        """`cases.md` and `cases.csv`, and the bars as `cases.png` and `cases.svg`."""
        write_text(folder / "cases.md", self.markdown())
        write_text(folder / "cases.csv", self.csv())
        cases_figure(self, folder / "cases.png")
        cases_figure(self, folder / "cases.svg")

    def _table(self, title: str = "", quote: str = "") -> Table:
        table = self._by_case("samples/s", _text, quote)
        legend = ["* the most of a case"] if any(cell.best for cell in self) else []
        legend += [f"{OVER} {LEGEND[OVER]}"] if any(cell.row.overfull for cell in self) else []
        known = any(cell.published is not None and cell.difference is not None for cell in self)
        legend += ["in brackets what was published, and the difference"] if known else []
        notes = ["; ".join(legend)] if legend else []
        return replace(table, title=title, notes=notes)

    def _by_case(self, heading: str, text: Callable[[CaseCell], str], quote: str = "`") -> Table:
        """A line for each method, a column for each case."""
        rows = []
        for method in self.methods:
            cells = self.of(method)
            line = [text(cells[case]) if case in cells else _NONE for case in self.comparisons]
            rows.append([f"{quote}{method}{quote}", *line])
        return Table([Column(heading, text=True), *map(Column, self.comparisons)], rows)


def published_tags(figures: Mapping[str, float]) -> dict[str, str]:
    """What others published of methods in one case, as tags of its comparison, for the report."""
    return {f"{PUBLISHED}{method}": str(value) for method, value in figures.items()}


def cases_figure(cases: Cases, path: str | Path) -> Figure:
    """Throughput of every method in every case: a group of bars for each case; marks where published.

    A bar is pale, and its figure marked, where the method does not fit its devices.
    """
    methods, names = cases.methods, list(cases.comparisons)
    colours = colours_of(methods)
    figure = new_figure(max(7.0, 1.6 * len(names) + 0.25 * len(names) * len(methods)), 5)
    axes = figure.subplots()
    width = 0.8 / max(len(methods), 1)
    for index, method in enumerate(methods):
        for at, cell in ((names.index(case), cell) for case, cell in cases.of(method).items()):
            place = at + (index - (len(methods) - 1) / 2) * width
            height = cell.throughput or 0.0
            over = OVER if cell.row.overfull else ""
            axes.bar(place, height, 0.92 * width, color=tint(colours[method]) if over else colours[method])
            axes.annotate(
                f"{over}{height:.3g}" if height else _text(cell), (place, height), xytext=(0, 2),
                textcoords="offset points", ha="center", va="bottom", fontsize=7, zorder=4,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.4},
                rotation=0 if height else 90,
            )  # fmt: skip
            if cell.published is not None:
                edge = 0.46 * width
                axes.plot([place - edge, place + edge], [cell.published] * 2, color="black", lw=1.6)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel("samples per second")
    axes.legend(handles=_entries(cases), loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    axes.margins(y=0.1)
    save_figure(figure, path)
    return figure


def _entries(cases: Cases) -> list[Artist]:
    """What the picture's colours and marks mean that there are."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    entries: list[Artist] = [
        Patch(color=colour, label=method) for method, colour in colours_of(cases.methods).items()
    ]
    if any(cell.published is not None for cell in cases):
        entries.append(Line2D([], [], color="black", lw=1.6, label="published"))
    if any(cell.row.overfull for cell in cases):
        entries.append(Patch(color=tint("#777777"), label=f"{OVER} {LEGEND[OVER]}"))
    return entries


def _text(cell: CaseCell) -> str:
    if cell.throughput is None:
        return "failed" if cell.row.failed else _UNANSWERED if cell.row.unanswered else _NONE
    over, best = OVER if cell.row.overfull else "", "*" if cell.best else ""
    text = f"{over}{cell.throughput:.2f}{best}"
    if cell.published is not None and cell.difference is not None:
        kept = f"({cell.published:.2f}, {100 * cell.difference:+.0f} %)".replace(" ", _NBSP)
        text += f" {kept}"  # a line of the terminal may end before the brackets, not within them
    return text


NEAR = 0.2
"""Relative difference within which a figure counts as met."""

COLUMNS = (
    Column("agreement", text=True),
    Column("figures", "d"),
    Column(f"within {100 * NEAR:.0f} %", "d"),
    Column("Kendall's tau", "+.2f"),
    Column("spread (%)", ".1f", 100.0),
    Column("published spread (%)", ".1f", 100.0),
    Column("best constant", ".1f"),
    Column(f"constant within {100 * NEAR:.0f} %", "d"),
)


@dataclass(frozen=True)
class Agreement:
    """How our figures agree with published ones of two methods or more; samples per second.

    Args:
        tau: rank correlation of the methods, 1 for the same order and -1 for the opposite; None where one
            side has no order.
        constant: the one throughput for all methods that meets the most published figures.
    """

    figures: int
    within: int
    tau: float | None
    spread: float
    published_spread: float
    constant: float
    constant_within: int

    @classmethod
    def between(cls, ours: Mapping[str, float], published: Mapping[str, float]) -> Agreement | None:
        """Compares the methods that both have; None where these are fewer than two."""
        methods = [method for method in ours if method in published]
        if len(methods) < 2:
            return None
        our, their = [ours[method] for method in methods], [published[method] for method in methods]
        constant = best_constant(their)
        return cls(
            len(methods),
            _met(our, their),
            kendall_tau(our, their),
            max(our) / min(our) - 1,
            max(their) / min(their) - 1,
            constant,
            _met([constant] * len(their), their),
        )


def agreement_table(cases: Mapping[str, Agreement]) -> Table:
    """A line for each case."""
    rows = [
        (
            name, each.figures, each.within, each.tau, each.spread, each.published_spread, each.constant,
            each.constant_within,
        )
        for name, each in cases.items()
    ]  # fmt: skip
    return Table(COLUMNS, rows)


def kendall_tau(ours: Iterable[float], theirs: Iterable[float]) -> float | None:
    """Kendall's tau-b; figures that are equal when rounded to 0.01 are ties. None where all of a side are.

    Source: M. G. Kendall, The treatment of ties in ranking problems, Biometrika 33, 1945.
    """
    from scipy.stats import kendalltau

    sides = [[round(100 * each) for each in side] for side in (ours, theirs)]
    tau = float(kendalltau(*sides).statistic)
    return None if isnan(tau) else tau


def best_constant(figures: Iterable[float]) -> float:
    """The value within `NEAR` of the most figures above 0; of several, the one nearest to the farthest."""
    ordered = sorted(figures)
    runs = [(high, low) for i, low in enumerate(ordered) for high in ordered[i:]]
    values = [2 * high * low / (high + low) for high, low in runs]  # as far from one as from the other

    def merit(value: float) -> tuple[int, float]:
        return _met([value] * len(ordered), ordered), -max(abs(value / each - 1) for each in ordered)

    return max(values, key=merit)


def _met(ours: Iterable[float], theirs: Iterable[float]) -> int:
    return sum(abs(a / b - 1) <= NEAR for a, b in zip(ours, theirs, strict=True))
