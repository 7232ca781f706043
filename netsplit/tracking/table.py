"""A comparison as a table, for the terminal, Markdown and HTML, and in a few sentences.

A method has a line for each of its devices. Its solver's status, objective, gap and seconds stand below one
another; why a method failed, and what marks mean, stands below the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from netsplit.tables import Cell, Column, Table, listed
from netsplit.training.metrics import words_of_metric

__all__ = [
    "ONE_DEVICE", "ComparisonRow", "comparison_markdown", "comparison_table", "verdict_of", "winner_of",
]  # fmt: skip

_OVER, _LIMIT, _EARLIER = "!", "limit", "†"
ONE_DEVICE = "single"
"""The method, and the kind of plan, that all else is compared with."""
LEVEL, LEVEL_PREDICTED = 0.02, 0.001
"""Relative: methods that are no further apart are level, whatever their iterations vary."""
_PROVEN = "optimal for the method's own objective (obj); another method may still train faster:"
_MIB = Column("", in_bytes=True)


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
    def reason(self) -> str:
        """Why it failed, with its name."""
        error = self.error or ""
        return error if error.startswith(f"{self.method} ") else f"{self.method}: {error}"

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


def comparison_table(rows: Sequence[ComparisonRow], title: str = "Results") -> Table:
    """A line for each device of each method, 100 to 110 columns wide on a terminal, and a legend."""
    figures: list[tuple[Column, Callable[[ComparisonRow], Cell]]] = [
        (Column("Pred.\nms", ".1f", 1e3, whole=True), lambda row: row.predicted_s),
        (Column("Meas.\nms", ".1f", 1e3, whole=True), _measured),
        (Column("Error\n%", "+.1f", 100.0, whole=True), lambda row: row.prediction_error),
        (Column("Samp.\n/s", ".1f", whole=True), lambda row: row.throughput),
        (Column("Loss", ".4f", whole=True), lambda row: row.loss),
    ]
    if name := next((row.metric for row in rows if row.metric), ""):
        metric = words_of_metric(name)
        form, unit = (".1f", "\n%") if metric.percent else (".4g", "")
        figures.append(
            (Column(f"{metric.short}{unit}", form, metric.factor, whole=True), lambda row: row.score)
        )
    columns = [
        Column("Method", text=True),
        Column("Solver", text=True, whole=True),
        *(column for column, _ in figures),
        Column("Device", text=True),
        *(Column(name, whole=True) for name in ("Nodes", "Pred.\nMiB", "Meas.\nMiB", "Limit\nMiB")),
    ]
    cells = [
        [row.method, _solver(row), *(figure(row) for _, figure in figures), *_by_device(row)] for row in rows
    ]
    failed = {index: "failed" for index, row in enumerate(rows) if row.failed}
    return Table(columns, cells, title, _legend(rows), failed)


def comparison_markdown(rows: Sequence[ComparisonRow]) -> str:
    """`comparison_table` as a GitHub table, and its legend."""
    table = comparison_table(rows)
    cells = [[text.replace("\n", "<br>") for text in texts] for texts in table.texts]
    return "\n\n".join([replace(table, rows=cells).markdown(), *table.notes]) + "\n"


def _legend(rows: Sequence[ComparisonRow]) -> list[str]:
    """Why methods failed, what the marks mean that there are, and which operators are in parts."""
    lines = [f"Failed: {row.reason}" for row in rows if row.failed]
    solved = [row for row in rows if row.status == "optimal" and row.optimises]
    lines += [_PROVEN, *(f"  {row.method} minimises {row.optimises}" for row in solved)] if solved else []
    if any(row.overfull for row in rows):
        lines.append(f"{_OVER} more than the device's limit")
    if any(row.unanswered for row in rows):
        lines.append(f"{_LIMIT}: no answer in time; the figures are of a simple fallback plan")
    if any(row.earlier for row in rows):
        lines.append(f"{_EARLIER} measured by an earlier run; predictions are for the current plan")
    if any(row.throughput is not None and row.measured_s is None for row in rows):
        lines.append("Samples/s is predicted where nothing was measured.")
    lines += [f"{row.method}: {row.parts}" for row in rows if row.parts]
    if changed := ", ".join(row.method for row in rows if row.changes):
        lines.append(f"Plan changed in training: {changed}; all but what is measured is of the first plan.")
    return lines


def _measured(row: ComparisonRow) -> Cell:
    return f"{_EARLIER}{1e3 * row.measured_s:.1f}" if row.earlier and row.measured_s else row.measured_s


def _solver(row: ComparisonRow) -> str:
    lines = ["failed" if row.failed else row.status]
    if row.objective_s is not None:
        lines.append(f"obj {1e3 * row.objective_s:.1f} ms")
    if row.gap is not None:
        lines.append(f"gap {100 * row.gap:.1f} %")
    if row.solve_s is not None:
        lines.append(f"in {1e3 * row.solve_s:,.0f} ms")
    return "\n".join(lines)


def _by_device(row: ComparisonRow) -> list[str]:
    """Names, nodes, predicted, measured and allowed bytes of the devices; marked where above the limit."""
    lines = []
    for device in dict.fromkeys([*row.capacity, *row.nodes, *row.predicted_peak, *row.measured_peak]):
        limit = row.capacity.get(device)
        peaks = [peak.get(device) for peak in (row.predicted_peak, row.measured_peak)]
        shown = [_OVER * bool(limit and each and each > limit) + _MIB.shown(each) for each in peaks]
        lines.append([device, str(row.nodes.get(device, "-")), *shown, _MIB.shown(limit)])
    return ["\n".join(column) for column in zip(*lines, strict=True)] or [""] * 5


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
    how = "measured" if any(row.measured_s is not None for row in done) else "predicted"
    ranked = sorted((row for row in done if row.throughput), key=_rate, reverse=True)
    fits = [row for row in ranked if not row.overfull]
    if len(done) > 1 and fits:
        best = fits[0]
        first = [row for row in fits if row is best or _is_level(best, row)]
        others = [row for row in fits if row not in first][:1]
        others += [row for row in ranked if row.method == ONE_DEVICE and row not in (*first, *others)]
        limited = "" if best is ranked[0] else " that fits"
        if len(first) > 1:
            rates = listed([f"{_rate(row):,.1f}" for row in first])
            won = f"{listed([_label(row) for row in first])} are level: {rates} samples/s {how}"
        elif how == "measured":
            won = f"{_label(best)} is the fastest{limited}: {_rate(best):,.1f} samples/s measured"
        else:
            won = f"{_label(best)} is predicted to be the fastest{limited}: {_rate(best):,.1f} samples/s"
        slower = " and ".join(_ahead(best, row) for row in others if _rate(row) < _rate(best))
        sentences = [f"{won}, {slower}." if slower else f"{won}."]
        sentences += [
            f"{_label(row)} is faster ({_rate(row):,.1f}), but exceeds the limit of {listed(row.overfull)}."
            for row in ranked[: ranked.index(best)]
        ]
        if any(row.method == ONE_DEVICE and not row.throughput for row in done):
            sentences.append("One device does not fit.")
    else:
        sentences = []
        for row in ranked:
            over = f" exceeds the limit of {listed(row.overfull)}" if row.overfull else ""
            sentences.append(f"{_label(row)}{over}: {_rate(row):,.1f} samples/s {how}.")
    if earlier := ", ".join(row.method for row in done if row.earlier):
        sentences.append(f"Measured by an earlier run: {earlier}.")
    if failed := ", ".join(row.method for row in rows if row.failed):
        sentences.append(f"Failed: {failed}.")
    return " ".join(sentences)


def _rate(row: ComparisonRow) -> float:
    return row.throughput or 0.0


def _label(row: ComparisonRow) -> str:
    return f"One device ({ONE_DEVICE})" if row.method == ONE_DEVICE else row.method


def _is_level(fast: ComparisonRow, slow: ComparisonRow) -> bool:
    """Whether they are close, or the range of either's iterations has the other's middle one in it."""
    if fast.spread is None or slow.spread is None:
        return _rate(slow) >= (1 - LEVEL_PREDICTED) * _rate(fast)
    near = _rate(slow) >= (1 - LEVEL) * _rate(fast)
    return near or _rate(slow) >= fast.spread[0] or _rate(fast) <= slow.spread[1]


def _ahead(fast: ComparisonRow, slow: ComparisonRow) -> str:
    """``25 % more than m_topo (226.4)``, ``65 % more than one device (single, 171.9)``."""
    ratio = _rate(fast) / _rate(slow)
    percent = f"{100 * (ratio - 1):.{1 if ratio < 1.1 else 0}f} % more than"
    figure = f"{_rate(slow):,.1f}"
    if slow.overfull:
        figure += f", which exceeds the limit of {listed(slow.overfull)}"
    whom = f"one device ({slow.method}, " if slow.method == ONE_DEVICE else f"{slow.method} ("
    return f"{percent if ratio < 2 else f'{ratio:.1f} times'} {whom}{figure})"
