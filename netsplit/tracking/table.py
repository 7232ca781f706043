"""The comparison as a table: for the terminal (100 to 120 columns) and as Markdown.

A method has a line for each of its devices. Its solver's status and gap, objective and seconds stand
below one another; why a method failed, and what marks mean, stands below the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from netsplit.tables import Cell, Column, Table
from netsplit.tracking.metrics import overfull, prediction_error
from netsplit.training.history import Throughputs
from netsplit.training.metrics import MetricWords, words_of_metric

if TYPE_CHECKING:
    import rich.table

__all__ = [
    "LEGEND",
    "LIMIT",
    "OVER",
    "ComparisonRow",
    "comparison_figures",
    "comparison_markdown",
    "comparison_table",
    "metric_of",
    "outline",
]

OVER, LIMIT, OPTIMAL, _EARLIER = "!", "limit", "optimal", "†"
LEGEND = {
    OVER: "more than the device's limit",
    LIMIT: "no answer in time; the figures are of a simple fallback plan",
    _EARLIER: "measured by an earlier run, as nothing was left to train; predicted for the plan of now",
}
_PROVEN = "optimal for the method's own objective (obj); another method may still train faster:"
_MS, _WHOLE_MS, _PERCENT = Column("", ".1f", 1e3), Column("", ",.0f", 1e3), Column("", ".1f", 100.0)
_NODES, _MIB = Column(""), Column("", in_bytes=True)
_FIGURES = (_MS, _MS, Column("", "+.1f", 100.0), Column("", ".1f"), Column("", ".4f"))
_HEADINGS = ("Pred.\nms", "Meas.\nms", "Error\n%", "Samp.\n/s", "Loss")
_DEVICE_HEADINGS = ("Nodes", "Pred.\nMiB", "Meas.\nMiB", "Limit\nMiB")


@dataclass(frozen=True)
class ComparisonRow:
    """One method's results. Seconds and bytes; None where there is nothing to report."""

    method: str
    status: str  # the solver's: "optimal", "feasible", "heuristic", ...
    objective_s: float | None = None
    gap: float | None = None  # fraction
    solve_s: float | None = None
    predicted_s: float | None = None  # one iteration
    measured_s: float | None = None
    throughput: float | None = None  # samples per second, at the median iteration where it was measured
    score: float | None = None  # of the metric on the test half
    predicted_peak: dict[str, int] = field(default_factory=dict)  # device -> bytes
    measured_peak: dict[str, int] = field(default_factory=dict)
    capacity: dict[str, int] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)
    loss: float | None = None
    throughputs: Throughputs | None = None  # over the measured iterations
    spread: tuple[float, float] | None = None  # samples per second of most of them (`History.spread`)
    error: str | None = None  # why the method failed
    earlier: bool = False  # what is measured is of an earlier run, under the plan it had
    metric: str = ""  # the name of what `score` is of; empty: there is none
    optimises: str = ""  # what the method minimises, in a few words: its objective and status are of that
    changes: int = 0  # of plan, that training went on by; nodes and bytes are of the plan that it began with
    parts: str = ""  # which operators are in parts, along what, and where, in a line; empty: none is

    @property
    def failed(self) -> bool:
        return self.error is not None

    @property
    def unanswered(self) -> bool:
        """The time ended without an answer of the method's; the figures are of a plan made in its place."""
        return self.status == LIMIT

    @property
    def prediction_error(self) -> float | None:
        """(predicted - measured) / measured, of one plan."""
        several = self.earlier or self.changes > 0
        return None if several else prediction_error(self.predicted_s, self.measured_s)

    @property
    def overfull(self) -> list[str]:
        """The devices with a peak, predicted or measured, above their capacity."""
        above = (overfull(peaks, self.capacity) for peaks in (self.predicted_peak, self.measured_peak))
        return list(dict.fromkeys(device for devices in above for device in devices))

    @property
    def devices(self) -> list[str]:
        """Every device that any of the row's figures names, each once."""
        return list(dict.fromkeys([*self.capacity, *self.nodes, *self.predicted_peak, *self.measured_peak]))


def comparison_table(rows: Sequence[ComparisonRow], title: str = "") -> rich.table.Table:
    """A table for the terminal, 100 to 110 columns wide."""
    from rich.text import Text

    columns = [
        Column("Method", text=True),
        Column("Solver", text=True, whole=True),
        *(replace(each, name=name, whole=True) for each, name in zip(_FIGURES, _HEADINGS, strict=True)),
        *_score_columns(rows, "{short}\n{unit}", whole=True),
        Column("Device", text=True),
        *(Column(heading, whole=True) for heading in _DEVICE_HEADINGS),
    ]
    cells = []
    for row in rows:
        by_device = [_device_figures(row, device) for device in row.devices]
        per_device = ["\n".join(column) for column in zip(*by_device, strict=True)] or [""] * 5
        cells.append(
            [row.method, "\n".join(_solver_lines(row)), *_figures(row), *_scores(rows, row), *per_device]
        )
    failed = {index: "failed" for index, row in enumerate(rows) if row.failed}
    table = Table(columns, cells, title, marked=failed).terminal(spaced=True)
    reasons = [Text(reason, style="red") for reason in _reasons(rows)]
    table.caption = Text("\n").join([*reasons, *map(Text, _legend(rows))]) or None
    return table


def comparison_figures(rows: Sequence[ComparisonRow]) -> Table:
    """The same, every figure in a column of its own but the devices' in one; the legend is its notes."""
    names = (
        "Objective ms", "Gap %", "Solve ms", "Predicted ms", "Measured ms", "Error %", "Samples/s", "Loss",
    )  # fmt: skip
    figures = zip((_MS, _PERCENT, _WHOLE_MS, *_FIGURES), names, strict=True)
    columns = [
        Column("Method", text=True),
        Column("Status", text=True),
        *(replace(each, name=name) for each, name in figures),
        *_score_columns(rows, "{words} {unit}"),
        Column("Devices: nodes, MiB predicted / measured / limit", text=True),
    ]
    cells = []
    for row in rows:
        devices = "; ".join(
            f"{device}: {nodes}, {' / '.join(figures)}"
            for device, nodes, *figures in (_device_figures(row, p) for p in row.devices)
        )
        last = devices if row.error is None else f"failed: {row.error}"
        solver = [row.objective_s, row.gap, row.solve_s]
        cells.append([row.method, _status(row), *solver, *_figures(row), *_scores(rows, row), last])
    return Table(columns, cells, "Results", _legend(rows))


def comparison_markdown(rows: Sequence[ComparisonRow]) -> str:
    """`comparison_figures` as a GitHub table, and its legend."""
    table = comparison_figures(rows)
    return "\n".join([table.markdown(), *(f"\n{line}" for line in table.notes)]) + "\n"


def outline(rows: Sequence[ComparisonRow]) -> str:
    """The few figures that come first, as aligned lines for a page that is narrow."""
    columns = [
        Column("", text=True),
        replace(_MS, name="predicted ms"),
        replace(_MS, name="measured ms"),
        Column("samples/s", ".1f"),
        *_score_columns(rows, "{lower} {unit}"),
    ]
    cells = [
        [row.method, row.predicted_s, _measured(row), row.throughput, *_scores(rows, row)]
        for row in rows
        if not row.failed
    ]
    lines = [*Table(columns, cells).lines(), *_reasons(rows)]
    full = [f"{row.method}: more than the limit of {', '.join(row.overfull)}" for row in rows if row.overfull]
    return "\n".join([*lines, *full, *(line for line in _legend(rows) if not line.startswith(OVER))])


def _legend(rows: Sequence[ComparisonRow]) -> list[str]:
    """What the marks mean that there are, which operators are in parts, and whose plan is another by now."""
    used = {
        OVER: any(row.overfull for row in rows),
        LIMIT: any(row.unanswered for row in rows),
        _EARLIER: any(row.earlier for row in rows),
    }
    solved = [row for row in rows if row.status == OPTIMAL and row.optimises]
    meant = [_PROVEN, *(f"  {row.method} minimises {row.optimises}" for row in solved)] if solved else []
    marks = [f"{mark}{':' * mark.isalpha()} {meaning}" for mark, meaning in LEGEND.items() if used[mark]]
    planned = any(row.throughput is not None and row.measured_s is None for row in rows)
    promised = ["Samples per second are predicted where nothing was measured."] if planned else []
    cut = [f"{row.method}: {row.parts}" for row in rows if row.parts]
    began = "the prediction, nodes, parts and bytes are of the plan it began with"
    other = [
        f"{row.method}: its plan changed {_times(row.changes)} in training; {began}"
        for row in rows
        if row.changes
    ]
    return [*meant, *marks, *promised, *cut, *other]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _reasons(rows: Sequence[ComparisonRow]) -> list[str]:
    return [f"{row.method} failed: {row.error}" for row in rows if row.failed]


def _figures(row: ComparisonRow) -> list[Cell]:
    return [row.predicted_s, _measured(row), row.prediction_error, row.throughput, row.loss]


def metric_of(rows: Sequence[ComparisonRow]) -> MetricWords | None:
    """How the metric of all rows is written; None where there is none."""
    name = next((row.metric for row in rows if row.metric), "")
    return words_of_metric(name) if name else None


def _score_columns(rows: Sequence[ComparisonRow], name: str, **options: Any) -> list[Column]:
    """The column of the metric, where there is one."""
    metric = metric_of(rows)
    if metric is None:
        return []
    unit = "%" if metric.percent else ""
    words = metric.words[0].upper() + metric.words[1:]
    heading = name.format(short=metric.short, words=words, lower=metric.words, unit=unit).rstrip()
    shape = _PERCENT if metric.percent else Column("", ".4g")
    return [replace(shape, name=heading, **options)]


def _scores(rows: Sequence[ComparisonRow], row: ComparisonRow) -> list[Cell]:
    return [] if metric_of(rows) is None else [row.score]


def _measured(row: ComparisonRow) -> Cell:
    return f"{_EARLIER}{_MS.shown(row.measured_s)}" if row.earlier else row.measured_s


def _status(row: ComparisonRow) -> str:
    return "failed" if row.failed else row.status


def _solver_lines(row: ComparisonRow) -> list[str]:
    lines = [_status(row)]
    if row.objective_s is not None:
        lines.append(f"obj {_MS.shown(row.objective_s)} ms")
    if row.gap is not None:
        lines.append(f"gap {_PERCENT.shown(row.gap)} %")
    if row.solve_s is not None:
        lines.append(f"in {_WHOLE_MS.shown(row.solve_s)} ms")
    return lines


def _device_figures(row: ComparisonRow, device: str) -> list[str]:
    """Name, nodes, predicted, measured and allowed bytes of one device; marked where above the limit."""
    limit = row.capacity.get(device)
    shown = []
    for nbytes in (row.predicted_peak.get(device), row.measured_peak.get(device)):
        above = nbytes is not None and limit is not None and nbytes > limit
        shown.append(OVER * above + _MIB.shown(nbytes))
    return [device, _NODES.shown(row.nodes.get(device)), *shown, _MIB.shown(limit)]
