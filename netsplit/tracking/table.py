"""The comparison as a table: for the terminal (100 to 120 columns) and as Markdown.

A method has a line for each of its devices. Its solver's status and gap, objective and seconds stand
below one another; why a method failed, and what marks mean, stands below the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from netsplit.tables import Column, Table
from netsplit.tracking.metrics import overfull, prediction_error
from netsplit.training.history import Throughputs

if TYPE_CHECKING:
    import rich.table

__all__ = ["LEGEND", "LIMIT", "OVER", "ComparisonRow", "comparison_table", "markdown", "outline"]

_NONE = "-"
OVER, LIMIT, _EARLIER = "!", "limit", "†"
LEGEND = {
    OVER: "more than the device's limit",
    LIMIT: "no answer in time; the figures are of the plain fill or split that took its place",
    _EARLIER: "measured by an earlier run, as nothing was left to train; predicted is the plan of now",
}
_FIGURES = ("Pred.\nms", "Meas.\nms", "Error\n%", "Samp.\n/s", "Loss", "Acc.\n%")
_DEVICE_FIGURES = ("Nodes", "Pred.\nMiB", "Meas.\nMiB", "Limit\nMiB")


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
    accuracy: float | None = None  # fraction
    predicted_peak: dict[str, int] = field(default_factory=dict)  # device -> bytes
    measured_peak: dict[str, int] = field(default_factory=dict)
    capacity: dict[str, int] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)
    loss: float | None = None
    throughputs: Throughputs | None = None  # over the measured iterations
    error: str | None = None  # why the method failed
    earlier: bool = False  # what is measured is of an earlier run, under the plan it had

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
        return None if self.earlier else prediction_error(self.predicted_s, self.measured_s)

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
        *(Column(heading, whole=True) for heading in _FIGURES),
        Column("Device", text=True),
        *(Column(heading, whole=True) for heading in _DEVICE_FIGURES),
    ]
    cells = []
    for row in rows:
        by_device = [_device_figures(row, device) for device in row.devices]
        per_device = ["\n".join(column) for column in zip(*by_device, strict=True)] or [""] * 5
        cells.append([row.method, "\n".join(_solver_lines(row)), *_figures(row), *per_device])
    failed = {index: "failed" for index, row in enumerate(rows) if row.failed}
    table = Table(columns, cells, title, marked=failed).terminal(spaced=True)
    reasons = [Text(f"{row.method} failed: {row.error}", style="red") for row in rows if row.failed]
    table.caption = Text("\n").join([*reasons, *map(Text, _legend(rows))]) or None
    return table


def markdown(rows: Sequence[ComparisonRow], escape: Callable[[str], str] = str) -> str:
    """The same as a GitHub table, every figure in a column of its own but the devices' in one.

    Args:
        escape: of names and reasons what Markdown would read as markup; bars are escaped in any case.
    """
    figures = (
        "Objective ms", "Gap %", "Solve s", "Predicted ms", "Measured ms", "Error %", "Samples/s", "Loss",
        "Accuracy %",
    )  # fmt: skip
    columns = [
        Column("Method", text=True),
        Column("Status", text=True),
        *map(Column, figures),
        Column("Devices: nodes, MiB predicted / measured / limit", text=True),
    ]
    cells = []
    for row in rows:
        devices = "; ".join(_device_sentence(row, device, escape(device)) for device in row.devices)
        last = devices if row.error is None else f"**failed:** {escape(row.error)}"
        solver = [_ms(row.objective_s), _percent(row.gap), _number(row.solve_s, 2)]
        cells.append([escape(row.method), escape(_status(row)), *solver, *_figures(row), last])
    legend = [f"\n{line}" for line in _legend(rows)]
    return "\n".join([Table(columns, cells).markdown(), *legend]) + "\n"


def outline(rows: Sequence[ComparisonRow]) -> str:
    """The few figures that come first, as aligned lines for a page that is narrow."""
    lines = [f"{'':12}{'predicted':>13}{'measured':>13}{'samples/s':>11}{'accuracy':>11}"]
    for row in rows:
        figures = (
            f"{_ms(row.predicted_s) + ' ms':>13}{_measured(row) + ' ms':>13}"
            f"{_number(row.throughput, 1):>11}{_percent(row.accuracy) + ' %':>11}"
        )
        lines.append(f"{row.method:12}" + (f"  failed: {row.error}" if row.failed else figures))
    full = [f"{row.method}: more than the limit of {', '.join(row.overfull)}" for row in rows if row.overfull]
    return "\n".join([*lines, *full, *(line for line in _legend(rows) if not line.startswith(OVER))])


def _legend(rows: Sequence[ComparisonRow]) -> list[str]:
    """What the marks mean that there are."""
    used = {
        OVER: any(row.overfull for row in rows),
        LIMIT: any(row.unanswered for row in rows),
        _EARLIER: any(row.earlier for row in rows),
    }
    return [f"{mark}{':' * mark.isalpha()} {meaning}" for mark, meaning in LEGEND.items() if used[mark]]


def _figures(row: ComparisonRow) -> list[str]:
    return [
        _ms(row.predicted_s),
        _measured(row),
        _percent(row.prediction_error, sign="+"),
        _number(row.throughput, 1),
        _number(row.loss, 4),
        _percent(row.accuracy),
    ]


def _measured(row: ComparisonRow) -> str:
    return f"{_EARLIER if row.earlier else ''}{_ms(row.measured_s)}"


def _status(row: ComparisonRow) -> str:
    return "failed" if row.failed else row.status


def _solver_lines(row: ComparisonRow) -> list[str]:
    lines = [_status(row)]
    if row.objective_s is not None:
        lines.append(f"obj {_ms(row.objective_s)}ms")
    if row.gap is not None:
        lines.append(f"gap {_percent(row.gap)}%")
    if row.solve_s is not None:
        lines.append(f"in {_number(row.solve_s, 2)}s")
    return lines


def _device_figures(row: ComparisonRow, device: str) -> list[str]:
    """Name, nodes, predicted, measured and allowed MiB of one device."""
    limit = row.capacity.get(device)
    peaks = [_mib(each.get(device), limit) for each in (row.predicted_peak, row.measured_peak)]
    return [device, str(row.nodes.get(device, _NONE)), *peaks, _mib(limit)]


def _device_sentence(row: ComparisonRow, device: str, name: str) -> str:
    _, nodes, *peaks = _device_figures(row, device)
    return f"{name}: {nodes}, {' / '.join(peaks)}"


def _number(value: float | None, digits: int, sign: str = "") -> str:
    if value is None or math.isnan(value):
        return _NONE
    return f"{value:{sign}.{digits}f}"


def _ms(seconds: float | None) -> str:
    return _number(None if seconds is None else 1e3 * seconds, 1)


def _percent(fraction: float | None, sign: str = "") -> str:
    return _number(None if fraction is None else 100 * fraction, 1, sign)


def _mib(nbytes: int | None, limit: int | None = None) -> str:
    """Marked where it is above the limit."""
    mark = OVER if nbytes is not None and limit is not None and nbytes > limit else ""
    return mark + _number(None if nbytes is None else nbytes / 2**20, 1)
