"""The tables of a comparison: every figure that the pictures show, and those they do not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from netsplit.report.data.results import ComparisonGroup, ComparisonResult, MethodResult, StudyRecord
from netsplit.report.text import NONE, OVER, as_given, column, decimals, fixed, link_to, moment, took
from netsplit.tables import Column, Table, common_unit
from netsplit.tracking.table import OPTIMAL, ComparisonRow, metric_of

__all__ = [
    "LinkCell", "OutcomeCell", "ThroughputCell", "adaptive_table", "cross_table", "epoch_table", "filled",
    "memory_table", "pair_table", "parts_table", "published_table", "result_table", "run_table",
    "solver_table", "study_table",
]  # fmt: skip

_OF_WHAT = "; optimal: no plan is better in what the method itself minimises, which is not the iteration"
_OLD_NEW = "; old: the plan that was trained by; new: the one that was found; both an iteration"


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

    method: MethodResult
    text: str  # the figure, or how the method failed
    best: bool

    @property
    def published(self) -> str:
        return "" if self.method.published is None else as_given([self.method.published])[0]

    @property
    def difference(self) -> str:
        """From the published, in per cent."""
        return fixed(_hundred(self.method.difference), 0, sign=True)

    @property
    def markdown(self) -> str:
        if self.method.row.failed:
            return f"{self.text} ({self.published})" if self.published else self.text
        text = f"{self.text} predicted" if self.method.only_predicted else self.text
        text = f"**{text}**" if self.best else text
        text = f"{OVER} {text}" if self.method.too_large else text
        return f"{text} ({self.published}, {self.difference} %)" if self.published else text


Cells = Sequence[str | LinkCell | OutcomeCell | ThroughputCell | None]


def cross_table(
    comparisons: Sequence[ComparisonResult],
    heading: str,
    names: Iterable[str],
    places: Mapping[str, str] | None = None,
    group: ComparisonGroup | None = None,
) -> Table:
    """Samples per second: a row for each comparison, a column for each method.

    The title says what marks mean on a page, the notes what they mean in Markdown.

    Args:
        heading: what the rows are.
        names: of the rows.
        places: run id -> the comparison's name as a link's target.
        group: which says who is the fastest; else that is so of each row.
    """
    won = ComparisonResult.won_by if group is None else group.won_by
    among = "all" if group is not None and group.is_sweep else "its row"
    results = [method for each in comparisons for method in each.methods]
    digits = decimals(method.throughput for method in results)
    columns = {method.name: Column(method.name) for method in results}
    rows: list[Cells] = []
    for name, each in zip(names, comparisons, strict=True):
        cells: dict[str, str | ThroughputCell] = dict.fromkeys(columns, NONE)
        for method in each.methods:
            unknown = method.row.failed or method.row.unanswered
            text = method.outcome if unknown else fixed(method.throughput, digits)
            cells[method.name] = ThroughputCell(method, text, won(each, method))
        first = LinkCell(name, f"#{places[each.place.run_id]}") if places is not None else name
        rows.append([first, *cells.values()])
    contested = any(won(each, method) for each in comparisons for method in each.methods)
    large = any(method.too_large and not method.row.failed for method in results)
    known = any(each.published for each in comparisons)
    kinds = {
        f"★ the fastest of {among}": contested,
        f"{OVER} beyond a device's capacity": large,
        "italics: predicted": any(method.only_predicted for method in results),
        "below: published (difference)": known,
    }
    title = "; ".join(["Throughput, samples/s", *(text for text, is_there in kinds.items() if is_there)])
    notes = [f"{OVER} beyond a device's capacity."] if large else []
    notes += ["In brackets: published, and how far ours is from it."] if known else []
    return Table([Column(heading, text=True), *columns.values()], rows, title, notes)


def published_table(comparison: ComparisonResult) -> Table:
    """What others published, and how far ours are from it."""
    methods = comparison.published
    ours = column(method.throughput for method in methods)
    theirs = as_given(method.published for method in methods)
    rows = [
        (method.name, *texts, f"{_percent(method.difference)} %")
        for method, *texts in zip(methods, ours, theirs, strict=True)
    ]
    return Table([Column("Method", text=True), *map(Column, ("Samples/s", "Published", "Difference"))], rows)


def result_table(comparison: ComparisonResult) -> Table | None:
    """None where every method failed: the reasons say it."""
    if len(comparison.failed) == len(comparison.methods):
        return None
    methods, rows = comparison.methods, [method.row for method in comparison.methods]
    top = comparison.best.throughput if comparison.best and comparison.contested else None
    kind = ["predicted" if method.only_predicted else "" for method in methods]
    mixed = len(set(kind)) > 1
    columns = [
        _words("Method", [method.name for method in methods]),
        _figures("Samples/s", column([method.throughput for method in methods])),
        _figures("Published", as_given([method.published for method in methods])),
        _figures("Difference, %", [_percent(method.difference) for method in methods]),
        _figures(
            "Of the best, %",
            [_fraction(None if method.too_large else method.throughput, top) for method in methods],
        ),
        _figures("Predicted, ms", column([row.predicted_s for row in rows], 1e3)),
        _figures("Measured, ms", column([row.measured_s for row in rows], 1e3)),
        _figures("Error, %", [_percent(row.prediction_error) for row in rows]),
        *_metric_column(rows, [row.score for row in rows]),
        _figures("Loss", [fixed(row.loss, 4) for row in rows]),
        _words("Throughput is", kind if mixed else [None] * len(kind)),
        _words("State", [_state(method) for method in methods]),
    ]
    return _table("Results", columns, [at for at, method in enumerate(methods) if comparison.won_by(method)])


def solver_table(comparison: ComparisonResult) -> Table | None:
    methods = [each for each in comparison.methods if not each.row.failed or each.row.solve_s is not None]
    rows = [method.row for method in methods]
    times = column([*(row.objective_s for row in rows), *(method.bound_s for method in methods)], 1e3)
    columns = [
        _words("Method", [method.name for method in methods]),
        _words("Answer", ["" if row.failed else row.status for row in rows]),
        _figures("Objective, ms", times[: len(rows)]),
        _figures("Bound, ms", times[len(rows) :]),
        _figures("Gap, %", [fixed(_hundred(row.gap), 2) for row in rows]),
        _figures("Seconds", column([row.solve_s for row in rows], least=2)),
        _words("Minimises", [row.optimises for row in rows]),
        _words("Solver", [method.engine for method in methods]),
    ]
    optimal = any(row.status == OPTIMAL and row.optimises for row in rows)
    return _table(f"Decisions{_OF_WHAT * optimal}", columns)


def adaptive_table(comparison: ComparisonResult) -> Table | None:
    """What was decided about plans while methods trained."""
    pairs = [(method.name, each) for method in comparison.methods for each in method.decisions]
    if not pairs:
        return None

    def times(key: str) -> list[str]:
        values = [each.get(key) for _, each in pairs]
        return column([value if isinstance(value, int | float) else None for value in values], 1e3)

    changes = [each.get("change") or {} for _, each in pairs]
    columns = [
        _words("Method", [name for name, _ in pairs]),
        _figures("Iteration", [str(each.get("iteration", "")) for _, each in pairs]),
        _words("Outcome", [str(each.get("outcome", "")) for _, each in pairs]),
        _figures("Old plan, predicted ms", times("predicted_before_s")),
        _figures("New plan, predicted ms", times("predicted_after_s")),
        _figures("Old plan, measured ms", times("measured_before_s")),
        _figures("New plan, measured ms", times("measured_after_s")),
        _figures("Changing took, ms", times("switch_s")),
        _figures("Operators moved", [str(each.get("moved", "")) for each in changes]),
        _words("What changed", ["; ".join(map(str, each.get("lines", ()))) for each in changes]),
        _words("Why", [str(each.get("why", "")) for _, each in pairs]),
    ]
    return _table(f"Plans looked for while training{_OLD_NEW}", columns)


def parts_table(comparison: ComparisonResult) -> Table | None:
    """Which operators are in parts, along what, by what fraction, and where."""
    told = [(method.name, method.row.parts) for method in comparison.methods if method.row.parts]
    return pair_table("Operators in parts", "Method", "Which, along what, by what fraction, where", told)


def memory_table(comparison: ComparisonResult) -> Table | None:
    """A row for each method and device."""
    decided = [method for method in comparison.methods if not method.row.failed]
    pairs = [(method, device) for method in decided for device in method.peaks]
    if not pairs:
        return None
    predicted = [method.row.predicted_peak.get(device) for method, device in pairs]
    measured = [method.row.measured_peak.get(device) for method, device in pairs]
    capacity = [method.row.capacity.get(device) for method, device in pairs]
    unit, size = common_unit([*predicted, *measured])
    room, whole = common_unit([min((each for each in capacity if each), default=None)])
    nodes = [method.row.nodes.get(device) for method, device in pairs]
    full = [
        fixed(100 * method.peaks[device] / limit if limit else None, 1)
        for (method, device), limit in zip(pairs, capacity, strict=True)
    ]
    columns = [
        _words("Method", [method.name for method, _ in pairs]),
        _words("Device", [device for _, device in pairs]),
        _figures("Nodes", [NONE if count is None else f"{count:,}" for count in nodes]),
        _figures(f"Predicted, {unit}", column(predicted, 1 / size)),
        _figures(f"Measured, {unit}", column(measured, 1 / size)),
        _figures(f"Capacity, {room}", column(capacity, 1 / whole)),
        _figures("Full, %", full),
    ]
    began = ", of the plan that training began with" if any(each.row.changes for each in decided) else ""
    return _table(f"Peak memory of each device{began}", columns)


def epoch_table(comparison: ComparisonResult) -> Table | None:
    """A row for each method and epoch."""
    rows = [
        (method.name, epoch, elapsed)
        for method in comparison.methods
        for epoch, elapsed in zip(method.epochs, method.elapsed_s, strict=True)
    ]
    if not rows:
        return None
    columns = [
        _words("Method", [name for name, _, _ in rows]),
        _figures("Epoch", [str(epoch.index + 1) for _, epoch, _ in rows]),
        _figures("Loss", [fixed(epoch.train_loss, 4) for _, epoch, _ in rows]),
        *_metric_column([method.row for method in comparison.methods], [epoch.score for _, epoch, _ in rows]),
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


def run_table(comparison: ComparisonResult, folder: Path) -> Table | None:
    """The MLflow runs with links to their files, relative to `folder`."""
    places = [comparison.place, *(method.place for method in comparison.methods)]
    begun = [comparison.started, *(method.started for method in comparison.methods)]
    seconds = [comparison.seconds, *(method.seconds for method in comparison.methods)]
    columns = [
        _words("Run", ["the comparison", *(method.name for method in comparison.methods)]),
        _words("Id in MLflow", [LinkCell(place.run_id, place.page, code=True) for place in places]),
        _words("State", [comparison.state.lower(), *map(_state, comparison.methods)]),
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
    others = range(1, len(table.columns))
    shown = [0, *(at for at in others if any(row[at] not in (None, "", NONE) for row in table.rows))]
    if len(shown) < 2:
        return None
    rows = [[row[at] for at in shown] for row in table.rows]
    return replace(table, columns=[table.columns[at] for at in shown], rows=rows)


def _fraction(value: float | None, top: float | None) -> str:
    return NONE if value is None or not top else fixed(100 * value / top, 0)


def _state(method: MethodResult) -> str | OutcomeCell:
    bad = method.row.failed or method.too_large
    text = f"{method.outcome}, measured by an earlier run" if method.row.earlier else method.outcome
    return OutcomeCell(text) if bad else text


def _link(text: str, address: str | None) -> LinkCell | None:
    return None if address is None else LinkCell(text, address)


def _percent(fraction: float | None) -> str:
    return fixed(_hundred(fraction), 1, sign=True)


def _metric_column(
    rows: Sequence[ComparisonRow], scores: Sequence[float | None]
) -> list[tuple[Column, Cells]]:
    """What was computed on the test half, where something was."""
    metric = metric_of(rows)
    if metric is None:
        return []
    words = metric.words[0].upper() + metric.words[1:]
    if metric.percent:
        return [_figures(f"{words}, %", [fixed(_hundred(score), 1) for score in scores])]
    return [_figures(words, column(scores))]


def _hundred(fraction: float | None) -> float | None:
    return None if fraction is None else 100 * fraction
