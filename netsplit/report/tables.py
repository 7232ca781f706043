"""The tables of a comparison: every figure that the pictures show, and those they do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from netsplit.report.data.results import ComparisonResult, Group, MethodResult, Report, StudyRecord
from netsplit.report.text import link_to
from netsplit.report.units import NONE, OVER, as_given, column, decimals, fixed, moment, took
from netsplit.tables import Column, Table

__all__ = [
    "LinkCell", "OutcomeCell", "ThroughputCell", "alone_table", "cross_table", "epoch_table", "filled",
    "group_table", "memory_table", "pair_table", "result_table", "run_table", "solver_table", "study_table",
]  # fmt: skip

_MIB = 2.0**-20

Won = Callable[[ComparisonResult, MethodResult], bool]


@dataclass(frozen=True)
class LinkCell:
    """A text with an address, where there is one."""

    text: str
    href: str | None
    code: bool = False


@dataclass(frozen=True)
class OutcomeCell:
    """How a run ended, where it did not end well."""

    text: str


@dataclass(frozen=True)
class ThroughputCell:
    """What a method reached, beside what others published."""

    text: str  # the figure, or how the method failed
    error: str | None = None  # why it failed
    predicted: bool = False
    over: bool = False  # a device's capacity
    best: bool = False
    published: str = ""
    difference: str = ""  # from the published, in per cent

    @property
    def markdown(self) -> str:
        if self.error is not None:
            return f"{self.text} ({self.published})" if self.published else self.text
        text = f"{self.text} predicted" if self.predicted else self.text
        text = f"**{text}**" if self.best else text
        text = f"{OVER} {text}" if self.over else text
        return f"{text} ({self.published}, {self.difference or NONE} %)" if self.published else text


Cells = Sequence[str | LinkCell | OutcomeCell | ThroughputCell | None]


def alone_table(report: Report, places: dict[str, str]) -> Table | None:
    """The comparisons that are no cases, where there are several.

    Args:
        places: run id -> a comparison's name as a link's target.
    """
    found = [group.comparisons[0] for group in report.groups if group.alone]
    if len(found) < 2:
        return None
    alike = len({each.name for each in found}) == 1  # the contents above have it
    names = [each.detail if alike else each.title for each in found]
    return cross_table(found, _linked(found, names, places), "Comparison")


def group_table(group: Group, places: dict[str, str]) -> Table:
    """Cases, or the jobs of a sweep, beside one another; `places` as of `alone_table`."""
    found = group.comparisons
    links = _linked(found, [each.label for each in found], places)
    if group.is_sweep:
        return cross_table(found, links, "Parameters", group.won_by, "all")
    return cross_table(found, links, "Case")


def cross_table(
    found: Sequence[ComparisonResult],
    names: Cells,
    heading: str,
    won: Won = ComparisonResult.won_by,
    among: str = "its row",
) -> Table:
    """Samples per second: a row for each comparison, a column for each method; below, what others published.

    Args:
        names: of the rows.
        heading: what the rows are.
        won: whether a comparison's method is the fastest.
        among: of what it is the fastest.
    """
    results = [method for each in found for method in each.methods]
    digits = decimals(method.throughput for method in results)
    methods = list(dict.fromkeys(method.name for method in results))
    rows: list[Cells] = []
    for name, each in zip(names, found, strict=True):
        by_name = {method.name: method for method in each.methods}
        cells = [_throughput(by_name.get(method), digits, each, won) for method in methods]
        rows.append([name, *cells])
    contested = any(won(each, method) for each in found for method in each.methods)
    note = f"; ★ the fastest of {among}" if contested else ""
    if any(method.too_large and not method.row.failed for method in results):
        note += f"; {OVER} beyond a device's capacity"
    if any(method.only_predicted for method in results):
        note += "; italics: predicted"
    if any(each.published for each in found):
        note += "; below: published (difference)"
    columns = [Column(heading, text=True), *map(Column, methods)]
    return Table(columns, rows, f"Throughput, samples/s{note}")


def result_table(found: ComparisonResult) -> Table | None:
    """None where every method failed: the reasons say it."""
    if len(found.failed) == len(found.methods):
        return None
    methods, rows = found.methods, [method.row for method in found.methods]
    top = found.best.throughput if found.best and found.contested else None
    kind = ["predicted" if method.only_predicted else "" for method in methods]
    mixed = len(set(kind)) > 1
    columns = [
        _words("Method", [method.name for method in methods]),
        _figures("Samples/s", column([method.throughput for method in methods])),
        _figures("Published", as_given([method.published for method in methods])),
        _figures("Difference, %", [fixed(_hundred(method.difference), 1, sign=True) for method in methods]),
        _figures("Of the best, %", [_share(method.throughput, top) for method in methods]),
        _figures("Predicted, ms", column([row.predicted_s for row in rows], 1e3)),
        _figures("Measured, ms", column([row.measured_s for row in rows], 1e3)),
        _figures("Error, %", [fixed(_hundred(row.prediction_error), 1, sign=True) for row in rows]),
        _figures("Accuracy, %", [fixed(_hundred(row.accuracy), 1) for row in rows]),
        _figures("Loss", [fixed(row.loss, 4) for row in rows]),
        _words("Throughput is", kind if mixed else [None] * len(kind)),
        _words("State", [_state(method) for method in methods]),
    ]
    return _table("Results", columns, [at for at, method in enumerate(methods) if found.won_by(method)])


def solver_table(found: ComparisonResult) -> Table | None:
    methods = [method for method in found.methods if not method.row.failed or method.row.solve_s is not None]
    rows = [method.row for method in methods]
    times = column([*(row.objective_s for row in rows), *(method.bound_s for method in methods)], 1e3)
    columns = [
        _words("Method", [method.name for method in methods]),
        _words("Answer", ["" if row.failed else row.status for row in rows]),
        _figures("Objective, ms", times[: len(rows)]),
        _figures("Bound, ms", times[len(rows) :]),
        _figures("Gap, %", [fixed(_hundred(row.gap), 2) for row in rows]),
        _figures("Seconds", column([row.solve_s for row in rows], least=2)),
        _words("Solver", [method.engine for method in methods]),
    ]
    return _table("Decisions", columns)


def memory_table(found: ComparisonResult) -> Table | None:
    """A row for each method and device."""
    pairs = [(method, device) for method in found.methods if not method.row.failed for device in method.peaks]
    if not pairs:
        return None
    predicted = [method.row.predicted_peak.get(device) for method, device in pairs]
    measured = [method.row.measured_peak.get(device) for method, device in pairs]
    capacity = [method.row.capacity.get(device) for method, device in pairs]
    nodes = [method.row.nodes.get(device) for method, device in pairs]
    full = [
        fixed(100 * method.peaks[device] / limit if limit else None, 1)
        for (method, device), limit in zip(pairs, capacity, strict=True)
    ]
    columns = [
        _words("Method", [method.name for method, _ in pairs]),
        _words("Device", [device for _, device in pairs]),
        _figures("Operators", [NONE if count is None else f"{count:,}" for count in nodes]),
        _figures("Predicted, MiB", column(predicted, _MIB)),
        _figures("Measured, MiB", column(measured, _MIB)),
        _figures("Capacity, MiB", column(capacity, _MIB)),
        _figures("Full, %", full),
    ]
    return _table("Peak memory of each device", columns)


def epoch_table(found: ComparisonResult) -> Table | None:
    """A row for each method and epoch."""
    rows = [
        (method.name, epoch, elapsed)
        for method in found.methods
        for epoch, elapsed in zip(method.epochs, method.elapsed_s, strict=True)
    ]
    if not rows:
        return None
    columns = [
        _words("Method", [name for name, _, _ in rows]),
        _figures("Epoch", [str(epoch.index + 1) for _, epoch, _ in rows]),
        _figures("Loss", [fixed(epoch.train_loss, 4) for _, epoch, _ in rows]),
        _figures("Accuracy, %", [fixed(_hundred(epoch.accuracy), 1) for _, epoch, _ in rows]),
        _figures("Seconds", column([epoch.seconds for _, epoch, _ in rows])),
        _figures("Seconds in all", column([elapsed for _, _, elapsed in rows])),
    ]
    return _table("Epochs", columns)


def study_table(study: StudyRecord) -> Table | None:
    """The table as it was shown when the study ended."""
    columns = [
        Column(name, text=not figures) for name, figures in zip(study.headings, study.numeric, strict=True)
    ]
    return Table(columns, study.rows, "Results") if columns else None


def run_table(found: ComparisonResult, folder: Path) -> Table | None:
    """The MLflow runs with links to their files, relative to `folder`."""
    places = [found.place, *(method.place for method in found.methods)]
    begun = [found.started, *(method.started for method in found.methods)]
    seconds = [found.seconds, *(method.seconds for method in found.methods)]
    columns = [
        _words("Run", ["the comparison", *(method.name for method in found.methods)]),
        _words("Id in MLflow", [LinkCell(place.run_id, place.page, code=True) for place in places]),
        _words("State", [found.state.lower(), *map(_state, found.methods)]),
        _words("Begun", list(map(moment, begun))),
        _figures("Took", list(map(took, seconds))),
        _words("Trace", [_link("trace.json", link_to(place.trace, folder)) for place in places]),
        _words("Files", [_link("folder", link_to(place.folder, folder)) for place in places]),
    ]
    return _table("Runs", columns)


def pair_table(title: str, key: str, value: str, pairs: Sequence[tuple[str, str]]) -> Table | None:
    """Words and their values below two headings."""
    return filled(Table([Column(key, text=True), Column(value, text=True)], pairs, title))


def _words(heading: str, cells: Cells) -> tuple[Column, Cells]:
    return Column(heading, text=True), cells


def _figures(heading: str, cells: Cells) -> tuple[Column, Cells]:
    return Column(heading), cells


def _table(title: str, columns: Sequence[tuple[Column, Cells]], best: Sequence[int] = ()) -> Table | None:
    """A table made of columns with their cells, as `filled`."""
    headings, cells = zip(*columns, strict=True)
    return filled(Table(headings, list(zip(*cells, strict=True)), title, marked=dict.fromkeys(best, "best")))


def filled(table: Table) -> Table | None:
    """Without columns of which all cells are empty; None where nothing but the first is left."""
    shown = [
        at for at in range(len(table.columns))
        if at == 0 or any(row[at] not in (None, "", NONE) for row in table.rows)
    ]  # fmt: skip
    if len(shown) < 2:
        return None
    rows = [[row[at] for at in shown] for row in table.rows]
    return replace(table, columns=[table.columns[at] for at in shown], rows=rows)


def _linked(
    found: Sequence[ComparisonResult], names: Sequence[str], places: dict[str, str]
) -> list[LinkCell]:
    return [LinkCell(name, f"#{places[each.place.run_id]}") for each, name in zip(found, names, strict=True)]


def _throughput(
    method: MethodResult | None, digits: int, found: ComparisonResult, won: Won
) -> str | ThroughputCell:
    if method is None:
        return NONE
    published = "" if method.published is None else as_given([method.published])[0]
    change = "" if method.difference is None else fixed(100 * method.difference, 0, sign=True)
    if method.row.failed:
        return ThroughputCell(method.outcome, method.row.error, published=published)
    return ThroughputCell(
        fixed(method.throughput, digits),
        None,
        method.only_predicted,
        method.too_large,
        won(found, method),
        published,
        change,
    )


def _share(value: float | None, top: float | None) -> str:
    return NONE if value is None or not top else fixed(100 * value / top, 0)


def _state(method: MethodResult) -> str | OutcomeCell:
    bad = method.row.failed or method.too_large
    text = f"{method.outcome}, measured by an earlier run" if method.row.earlier else method.outcome
    return OutcomeCell(text) if bad else text


def _link(text: str, address: str | None) -> LinkCell | None:
    return None if address is None else LinkCell(text, address)


def _hundred(fraction: float | None) -> float | None:
    return None if fraction is None else 100 * fraction
