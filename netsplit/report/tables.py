"""The tables of a comparison: every figure that the pictures show, and those they do not."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from pathlib import Path

from netsplit.report.markup import Child, Element, breakable, clean, element, link_to
from netsplit.report.records.results import ComparisonResult, MethodResult, StudyRecord
from netsplit.report.units import NONE, OVER, as_given, column, decimals, fixed, moment, took

__all__ = [
    "Column", "cross_table", "epoch_table", "memory_table", "result_table", "run_table", "solver_table",
    "study_table", "table",
]  # fmt: skip

_MIB = 2.0**-20

Won = Callable[[ComparisonResult, MethodResult], bool]


@dataclass(frozen=True)
class Column:
    """A heading with a cell for each row; numbers stand to the right."""

    heading: str
    cells: Sequence[Child]
    number: bool = True

    @property
    def empty(self) -> bool:
        return all(cell in (None, "", NONE) for cell in self.cells)


def table(caption: str, columns: Sequence[Column], best: Container[int] = ()) -> Element | None:
    """A table in a box of its own that scrolls; columns without any figure are left out.

    None where nothing but the first column is left.

    Args:
        best: the rows to be marked.
    """
    shown = [columns[0], *(each for each in columns[1:] if not each.empty)]
    if len(shown) == 1:
        return None
    head = [element("th", each.heading, scope="col", class_=_style(each)) for each in shown]
    rows = []
    for index in range(len(columns[0].cells)):
        first, *others = (each.cells[index] for each in shown)
        name = breakable(first) if isinstance(first, str) else [first]
        cells = [element("th", *name, class_=_style(shown[0]), scope="row")]
        cells += [
            element("td", cell, class_=_style(each)) for cell, each in zip(others, shown[1:], strict=True)
        ]
        rows.append(element("tr", *cells, class_="best" if index in best else None))
    found = element("table", element("thead", element("tr", *head)), element("tbody", *rows))
    box = element("div", found, class_="scroll", tabindex="0", role="region", aria_label=clean(caption))
    return element("div", element("p", caption, class_="caption"), box)


def cross_table(
    found: Sequence[ComparisonResult],
    names: Sequence[Child],
    heading: str,
    won: Won = ComparisonResult.won_by,
    among: str = "its row",
) -> Element | None:
    """Samples per second: a row for each comparison, a column for each method; below, what others published.

    Args:
        names: of the rows.
        heading: what the rows are.
        won: whether a comparison's method is the fastest.
        among: of what it is the fastest.
    """
    results = [method for each in found for method in each.methods]
    digits = decimals(method.throughput for method in results)
    columns = [Column(heading, names, number=False)]
    for name in dict.fromkeys(method.name for method in results):
        cells = [_throughput_cell(each, name, digits, won) for each in found]
        columns.append(Column(name, cells))
    contested = any(won(each, method) for each in found for method in each.methods)
    note = f"; ★ the fastest of {among}" if contested else ""
    if any(method.too_large and not method.row.failed for method in results):
        note += f"; {OVER} beyond a device's capacity"
    if any(method.only_predicted for method in results):
        note += "; italics: predicted"
    if any(each.published for each in found):
        note += "; below: published (difference)"
    return table(f"Throughput, samples/s{note}", columns)


def result_table(found: ComparisonResult) -> Element | None:
    """None where every method failed: the reasons say it."""
    if len(found.failed) == len(found.methods):
        return None
    methods, rows = found.methods, [method.row for method in found.methods]
    top = found.best.throughput if found.best and found.contested else None
    kind = ["predicted" if method.only_predicted else "" for method in methods]
    mixed = len(set(kind)) > 1
    columns = [
        _names(methods),
        Column("Samples/s", column([method.throughput for method in methods])),
        Column("Published", as_given([method.published for method in methods])),
        Column("Difference, %", [fixed(_hundred(method.difference), 1, sign=True) for method in methods]),
        Column("Of the best, %", [_share(method.throughput, top) for method in methods]),
        Column("Predicted, ms", column([row.predicted_s for row in rows], 1e3)),
        Column("Measured, ms", column([row.measured_s for row in rows], 1e3)),
        Column("Error, %", [fixed(_hundred(row.prediction_error), 1, sign=True) for row in rows]),
        Column("Accuracy, %", [fixed(_hundred(row.accuracy), 1) for row in rows]),
        Column("Loss", [fixed(row.loss, 4) for row in rows]),
        Column("Throughput is", kind if mixed else [None] * len(kind), number=False),
        Column("State", [_state(method) for method in methods], number=False),
    ]
    return table("Results", columns, [at for at, method in enumerate(methods) if found.won_by(method)])


def solver_table(found: ComparisonResult) -> Element | None:
    methods = [method for method in found.methods if not method.row.failed or method.row.solve_s is not None]
    rows = [method.row for method in methods]
    times = column([*(row.objective_s for row in rows), *(method.bound_s for method in methods)], 1e3)
    columns = [
        _names(methods),
        Column("Answer", ["" if row.failed else row.status for row in rows], number=False),
        Column("Objective, ms", times[: len(rows)]),
        Column("Bound, ms", times[len(rows) :]),
        Column("Gap, %", [fixed(_hundred(row.gap), 2) for row in rows]),
        Column("Seconds", column([row.solve_s for row in rows], least=2)),
        Column("Solver", [method.engine for method in methods], number=False),
    ]
    return table("Decisions", columns)


def memory_table(found: ComparisonResult) -> Element | None:
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
        Column("Method", [method.name for method, _ in pairs], number=False),
        Column("Device", [device for _, device in pairs], number=False),
        Column("Operators", [NONE if count is None else f"{count:,}" for count in nodes]),
        Column("Predicted, MiB", column(predicted, _MIB)),
        Column("Measured, MiB", column(measured, _MIB)),
        Column("Capacity, MiB", column(capacity, _MIB)),
        Column("Full, %", full),
    ]
    return table("Peak memory of each device", columns)


def epoch_table(found: ComparisonResult) -> Element | None:
    """A row for each method and epoch."""
    rows = [
        (method.name, epoch, elapsed)
        for method in found.methods
        for epoch, elapsed in zip(method.epochs, method.elapsed_s, strict=True)
    ]
    if not rows:
        return None
    columns = [
        Column("Method", [name for name, _, _ in rows], number=False),
        Column("Epoch", [str(epoch.index + 1) for _, epoch, _ in rows]),
        Column("Loss", [fixed(epoch.train_loss, 4) for _, epoch, _ in rows]),
        Column("Accuracy, %", [fixed(_hundred(epoch.accuracy), 1) for _, epoch, _ in rows]),
        Column("Seconds", column([epoch.seconds for _, epoch, _ in rows])),
        Column("Seconds in all", column([elapsed for _, _, elapsed in rows])),
    ]
    return table("Epochs", columns)


def study_table(study: StudyRecord) -> Element | None:
    """The table as it was shown when the study ended."""
    cells = list(zip(*study.rows, strict=True)) or [()] * len(study.headings)
    columns = [Column(*each) for each in zip(study.headings, cells, study.numeric, strict=True)]
    return table("Results", columns) if columns else None


def run_table(found: ComparisonResult, folder: Path) -> Element | None:
    """The MLflow runs with links to their files, relative to `folder`."""
    places = [found.place, *(method.place for method in found.methods)]
    begun = [found.started, *(method.started for method in found.methods)]
    seconds = [found.seconds, *(method.seconds for method in found.methods)]
    columns = [
        Column("Run", ["the comparison", *(method.name for method in found.methods)], number=False),
        Column("Id in MLflow", [_linked(place.run_id, place.page, "code") for place in places], number=False),
        Column("State", [found.state.lower(), *map(_state, found.methods)], number=False),
        Column("Begun", list(map(moment, begun)), number=False),
        Column("Took", list(map(took, seconds))),
        Column(
            "Trace", [_link("trace.json", link_to(place.trace, folder)) for place in places], number=False
        ),
        Column("Files", [_link("folder", link_to(place.folder, folder)) for place in places], number=False),
    ]
    return table("Runs", columns)


def _names(methods: Sequence[MethodResult]) -> Column:
    return Column("Method", [method.name for method in methods], number=False)


def _throughput_cell(found: ComparisonResult, name: str, digits: int, won: Won) -> Child:
    method = next((each for each in found.methods if each.name == name), None)
    if method is None:
        return NONE
    below = None
    if method.published is not None:
        (known,) = as_given([method.published])
        if method.difference is not None:
            known += f" ({fixed(100 * method.difference, 0, sign=True)} %)"
        below = element("span", known, class_="below")
    return element(
        "span", _reached(method, digits, won(found, method)), None if below is None else " ", below
    )


def _reached(method: MethodResult, digits: int, won: bool) -> Child:
    if method.row.failed:
        return element("span", method.outcome, class_="bad", title=method.row.error)
    text = fixed(method.throughput, digits)
    shown: Child = element("i", text) if method.only_predicted else text
    if method.too_large:
        return element("span", f"{OVER} ", shown, class_="bad", title=method.outcome)
    return element("b", "★ ", shown) if won else shown


def _share(value: float | None, top: float | None) -> str:
    return NONE if value is None or not top else fixed(100 * value / top, 0)


def _state(method: MethodResult) -> Child:
    bad = method.row.failed or method.too_large
    text = f"{method.outcome}, measured by an earlier run" if method.row.earlier else method.outcome
    return element("span", text, class_="bad") if bad else text


def _linked(text: str, address: str | None, tag: str) -> Child:
    return element(tag, _link(text, address) or text)


def _link(text: str, address: str | None) -> Element | None:
    return None if address is None else element("a", text, href=address)


def _hundred(fraction: float | None) -> float | None:
    return None if fraction is None else 100 * fraction


def _style(each: Column) -> str | None:
    return "number" if each.number else None
