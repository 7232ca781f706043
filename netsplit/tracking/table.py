"""A comparison as a table and a verdict: for the terminal (100 to 120 columns) and as Markdown.

A method has a line for each of its devices. Its solver's status and gap, objective and seconds stand
below one another; why a method failed, and what marks mean, stands below the table. Last comes the verdict:
which method won, and by how much.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from netsplit.planning.explanation.notation import listed
from netsplit.tables import Cell, Column, Table
from netsplit.training.metrics import words_of_metric

if TYPE_CHECKING:
    import rich.table

__all__ = [
    "ONE_DEVICE", "ComparisonRow", "comparison_figures", "comparison_markdown", "comparison_table",
    "verdict_of", "winner_of",
]  # fmt: skip

_OVER, _LIMIT, _EARLIER = "!", "limit", "†"
_LEGEND = {
    _OVER: "more than the device's limit",
    _LIMIT: "no answer in time; the figures are of a simple fallback plan",
    _EARLIER: "measured by an earlier run, as training was already complete; predictions are for the current "
    "plan",
}
ONE_DEVICE = "single"
"""The method, and the kind of plan, that all else is compared with."""
LEVEL, LEVEL_PREDICTED = 0.02, 0.001
"""Relative: methods that are no further apart are level, whatever their iterations vary."""
_PROVEN = "optimal for the method's own objective (obj); another method may still train faster:"
_MS, _PERCENT, _MIB = Column("", ".1f", 1e3), Column("", ".1f", 100.0), Column("", in_bytes=True)
_Shown = tuple[str, str, Column, Callable[["ComparisonRow"], Cell]]
"""A figure: its heading on a terminal, its full one, how it is written, where a row has it."""


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
        return self.status == _LIMIT

    @property
    def prediction_error(self) -> float | None:
        """(predicted - measured) / measured, of one plan: negative where the prediction was too fast."""
        if self.earlier or self.changes or self.predicted_s is None or not self.measured_s:
            return None
        return (self.predicted_s - self.measured_s) / self.measured_s

    @property
    def overfull(self) -> list[str]:
        """The devices with a peak, predicted or measured, above their capacity."""
        peaks = (*self.predicted_peak.items(), *self.measured_peak.items())
        return list(dict.fromkeys(p for p, peak in peaks if p in self.capacity and peak > self.capacity[p]))


def comparison_table(rows: Sequence[ComparisonRow], title: str = "") -> rich.table.Table:
    """A table for the terminal, 100 to 110 columns wide."""
    from rich.text import Text

    shown = _figures(rows)
    columns = [
        Column("Method", text=True),
        Column("Solver", text=True, whole=True),
        *(replace(column, name=name, whole=True) for name, _, column, _ in shown),
        Column("Device", text=True),
        *(Column(name, whole=True) for name in ("Nodes", "Pred.\nMiB", "Meas.\nMiB", "Limit\nMiB")),
    ]
    cells = []
    for row in rows:
        by_device = ["\n".join(column) for column in zip(*_by_device(row), strict=True)] or [""] * 5
        cells.append([row.method, _solver(row), *(figure(row) for *_, figure in shown), *by_device])
    failed = {index: "failed" for index, row in enumerate(rows) if row.failed}
    table = Table(columns, cells, title, marked=failed).terminal(spaced=True)
    reasons = [Text(f"{row.method} failed: {row.error}", style="red") for row in rows if row.failed]
    table.caption = Text("\n").join([*reasons, *map(Text, _legend(rows))]) or None
    return table


def comparison_figures(rows: Sequence[ComparisonRow]) -> Table:
    """The same, every figure in a column of its own but the devices' in one; the legend is its notes."""
    shown: list[_Shown] = [
        ("", "Objective ms", _MS, lambda row: row.objective_s),
        ("", "Gap %", _PERCENT, lambda row: row.gap),
        ("", "Solve ms", Column("", ",.0f", 1e3), lambda row: row.solve_s),
        *_figures(rows),
    ]
    columns = [
        Column("Method", text=True),
        Column("Status", text=True),
        *(replace(column, name=name) for _, name, column, _ in shown),
        Column("Devices: nodes, MiB predicted / measured / limit", text=True),
    ]
    cells = []
    for row in rows:
        devices = "; ".join(f"{p}: {nodes}, {' / '.join(peaks)}" for p, nodes, *peaks in _by_device(row))
        last = devices if row.error is None else f"failed: {row.error}"
        cells.append([row.method, _status(row), *(figure(row) for *_, figure in shown), last])
    return Table(columns, cells, "Results", _legend(rows))


def comparison_markdown(rows: Sequence[ComparisonRow]) -> str:
    """`comparison_figures` as a GitHub table, and its legend."""
    table = comparison_figures(rows)
    return "\n".join([table.markdown(), *(f"\n{line}" for line in table.notes)]) + "\n"


def _figures(rows: Sequence[ComparisonRow]) -> list[_Shown]:
    """The figures of every method; the metric last, where there is one."""
    shown: list[_Shown] = [
        ("Pred.\nms", "Predicted ms", _MS, lambda row: row.predicted_s),
        ("Meas.\nms", "Measured ms", _MS, _measured),
        ("Error\n%", "Error %", Column("", "+.1f", 100.0), lambda row: row.prediction_error),
        ("Samp.\n/s", "Samples/s", Column("", ".1f"), lambda row: row.throughput),
        ("Loss", "Loss", Column("", ".4f"), lambda row: row.loss),
    ]
    if name := next((row.metric for row in rows if row.metric), ""):
        metric = words_of_metric(name)
        column, unit = (_PERCENT, "%") if metric.percent else (Column("", ".4g"), "")
        words = f"{metric.words[0].upper()}{metric.words[1:]} {unit}".rstrip()
        shown.append((f"{metric.short}\n{unit}".rstrip(), words, column, lambda row: row.score))
    return shown


def _legend(rows: Sequence[ComparisonRow]) -> list[str]:
    """What the marks mean that there are, which operators are in parts, and whose plan is another by now."""
    used = {
        _OVER: any(row.overfull for row in rows),
        _LIMIT: any(row.unanswered for row in rows),
        _EARLIER: any(row.earlier for row in rows),
    }
    solved = [row for row in rows if row.status == "optimal" and row.optimises]
    lines = [_PROVEN, *(f"  {row.method} minimises {row.optimises}" for row in solved)] if solved else []
    lines += [f"{mark}{':' * mark.isalpha()} {meaning}" for mark, meaning in _LEGEND.items() if used[mark]]
    if any(row.throughput is not None and row.measured_s is None for row in rows):
        lines.append("Samples/s is predicted where nothing was measured.")
    lines += [f"{row.method}: {row.parts}" for row in rows if row.parts]
    for row in rows:
        if row.changes:
            times = "once" if row.changes == 1 else f"{row.changes} times"
            lines.append(
                f"{row.method}: its plan changed {times} in training; predictions, nodes, parts and bytes "
                "are of its first plan"
            )
    return lines


def _measured(row: ComparisonRow) -> Cell:
    return f"{_EARLIER}{_MS.shown(row.measured_s)}" if row.earlier else row.measured_s


def _status(row: ComparisonRow) -> str:
    return "failed" if row.failed else row.status


def _solver(row: ComparisonRow) -> str:
    lines = [_status(row)]
    if row.objective_s is not None:
        lines.append(f"obj {1e3 * row.objective_s:.1f} ms")
    if row.gap is not None:
        lines.append(f"gap {100 * row.gap:.1f} %")
    if row.solve_s is not None:
        lines.append(f"in {1e3 * row.solve_s:,.0f} ms")
    return "\n".join(lines)


def _by_device(row: ComparisonRow) -> list[list[str]]:
    """Name, nodes, predicted, measured and allowed bytes of each device; marked where above the limit."""
    lines = []
    for device in dict.fromkeys([*row.capacity, *row.nodes, *row.predicted_peak, *row.measured_peak]):
        limit = row.capacity.get(device)
        peaks = [peak.get(device) for peak in (row.predicted_peak, row.measured_peak)]
        shown = [_OVER * bool(limit and each and each > limit) + _MIB.shown(each) for each in peaks]
        nodes = str(row.nodes.get(device, "-"))
        lines.append([device, nodes, *shown, _MIB.shown(limit)])
    return lines


def winner_of(rows: Sequence[ComparisonRow]) -> str | None:
    """The fastest method that stays within all limits; None where none does."""
    fits = [row for row in rows if not row.failed and row.throughput is not None and not row.overfull]
    return max(fits, key=_rate).method if fits else None


def verdict_of(rows: Sequence[ComparisonRow]) -> str:
    """Which method won, and by how much, of those that did not fail: as measured, else predicted; "" of none.

    What exceeds a limit does not win, but is named where it is faster. Who is level with the fastest, as
    iterations of either vary by more than that, shares the first place. A throughput of 0: it does not fit.
    """
    done = [row for row in rows if not row.failed and row.throughput is not None]
    measured = any(row.measured_s is not None for row in done)
    ranked = sorted((row for row in done if row.throughput), key=_rate, reverse=True)
    fits = [row for row in ranked if not row.overfull]
    if len(done) == 1 or not fits:
        sentences = [_alone(row, "measured" if measured else "predicted") for row in ranked]
    else:
        sentences = _ranking(ranked, fits, measured)
        if any(row.method == ONE_DEVICE and not row.throughput for row in done):
            sentences.append("One device does not fit.")
    if any(row.earlier for row in done):
        sentences.append(
            "An earlier run measured it."
            if len(done) == 1
            else f"Earlier runs measured those marked {_EARLIER}."
        )
    failed = ", ".join(row.method for row in rows if row.failed)
    return " ".join([*sentences, *([f"Failed: {failed}."] if failed else [])])


def _alone(row: ComparisonRow, how: str) -> str:
    """A method that there is no other to compare with, or that is above a limit as all others are."""
    over = f" exceeds the limit of {listed(row.overfull)}" if row.overfull else ""
    predicted = ""
    if row.prediction_error is not None:
        predicted = f" ({_rate(row) / (1 + row.prediction_error):,.1f} predicted)"
    return f"{_label(row)}{over}: {_rate(row):,.1f} samples/s {how}{predicted}."


def _ranking(ranked: Sequence[ComparisonRow], fits: Sequence[ComparisonRow], measured: bool) -> list[str]:
    """Sentences on the best, the second and one device, and what is faster but too large."""
    best = fits[0]
    first = [row for row in fits if row is best or _is_level(best, row)]
    second = [row for row in fits if row not in first][:1]
    one = [row for row in ranked if row.method == ONE_DEVICE and row not in (*first, *second)]
    if len(first) > 1:
        names = listed([_label(best), *(_label(row).replace("One", "one") for row in first[1:])])
        why = " (iteration times vary by more than that)" * all(_vary_alike(best, row) for row in first[1:])
        rates = listed([f"{_rate(row):,.1f}" for row in first])
        said = f"{names} are level: {rates} samples/s {'measured' if measured else 'predicted'}{why}"
    elif measured:
        said = f"{_label(best)} is the fastest: {_rate(best):,.1f} samples/s measured"
    else:
        said = f"{_label(best)} is predicted to be the fastest: {_rate(best):,.1f} samples/s"
    slower = " and ".join(_ahead(best, row) for row in (*second, *one) if _rate(row) < _rate(best))
    sentences = [f"{said}, {slower}." if slower else f"{said}."]
    for row in ranked:
        if row.overfull and _rate(row) >= _rate(best):
            much = "as fast" if _is_level(row, best) else "faster"
            limit = f"exceeds the limit of {listed(row.overfull)}"
            sentences.append(f"{_label(row)} is {much} ({_rate(row):,.1f}), but {limit}.")
    return sentences


def _rate(row: ComparisonRow) -> float:
    return row.throughput or 0.0


def _label(row: ComparisonRow) -> str:
    """The method at the beginning of a sentence."""
    return f"One device ({ONE_DEVICE})" if row.method == ONE_DEVICE else row.method


def _vary_alike(fast: ComparisonRow, slow: ComparisonRow) -> bool:
    """Whether most iterations of the one have a range with the other's middle one in it."""
    if fast.spread is None or slow.spread is None:
        return False
    return _rate(slow) >= fast.spread[0] or _rate(fast) <= slow.spread[1]


def _is_level(fast: ComparisonRow, slow: ComparisonRow) -> bool:
    near = LEVEL_PREDICTED if fast.spread is None else LEVEL
    return _vary_alike(fast, slow) or _rate(slow) >= (1 - near) * _rate(fast)


def _ahead(fast: ComparisonRow, slow: ComparisonRow) -> str:
    """``25 % more than m_topo (226.4)``, ``65 % more than one device (single, 171.9)``."""
    ratio = _rate(fast) / _rate(slow)
    percent = f"{100 * (ratio - 1):.{1 if ratio < 1.1 else 0}f} % more than"
    figure = f"{_rate(slow):,.1f}"
    if slow.overfull:
        figure += f", which exceeds the limit of {listed(slow.overfull)}"
    whom = f"one device ({slow.method}, " if slow.method == ONE_DEVICE else f"{slow.method} ("
    return f"{percent if ratio < 2 else f'{ratio:.1f} times'} {whom}{figure})"
