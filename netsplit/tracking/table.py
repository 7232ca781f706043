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
    "LEGEND", "ONE_DEVICE", "OVER", "ComparisonRow", "Contender", "comparison_figures", "comparison_markdown",
    "comparison_table", "verdict", "verdict_of", "winner_of",
]  # fmt: skip

OVER, LIMIT, _EARLIER = "!", "limit", "†"
LEGEND = {
    OVER: "more than the device's limit",
    LIMIT: "no answer in time; the figures are of a simple fallback plan",
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
        return self.status == LIMIT

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
        OVER: any(row.overfull for row in rows),
        LIMIT: any(row.unanswered for row in rows),
        _EARLIER: any(row.earlier for row in rows),
    }
    solved = [row for row in rows if row.status == "optimal" and row.optimises]
    lines = [_PROVEN, *(f"  {row.method} minimises {row.optimises}" for row in solved)] if solved else []
    lines += [f"{mark}{':' * mark.isalpha()} {meaning}" for mark, meaning in LEGEND.items() if used[mark]]
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
        shown = [OVER * bool(limit and each and each > limit) + _MIB.shown(each) for each in peaks]
        nodes = str(row.nodes.get(device, "-"))
        lines.append([device, nodes, *shown, _MIB.shown(limit)])
    return lines


@dataclass(frozen=True)
class Contender:
    """A method, or a kind of plan.

    Args:
        rate: samples per second; 0: there is none, as it does not fit.
        spread: the rates of most of its iterations (`History.spread`); None: it is predicted.
        over: the devices whose limit it exceeds.
    """

    name: str
    rate: float
    spread: tuple[float, float] | None = None
    over: Sequence[str] = ()

    @property
    def label(self) -> str:
        """The label at the beginning of a sentence."""
        return f"One device ({ONE_DEVICE})" if self.name == ONE_DEVICE else self.name

    @property
    def figure(self) -> str:
        return f"{self.rate:,.1f}"

    @property
    def exceeds(self) -> str:
        return f"exceeds the limit of {listed(self.over)}"

    def varies_as(self, other: Contender) -> bool:
        """Whether most iterations of the one have a range with the other's middle one in it."""
        if self.spread is None or other.spread is None:
            return False
        return other.rate >= self.spread[0] or self.rate <= other.spread[1]

    def is_level(self, other: Contender) -> bool:
        near = LEVEL_PREDICTED if self.spread is None else LEVEL
        return self.varies_as(other) or other.rate >= (1 - near) * self.rate

    def ahead_of(self, other: Contender) -> str:
        """``25 % more than m_topo (226.4)``, ``65 % more than one device (single, 171.9)``."""
        ratio = self.rate / other.rate
        percent = f"{100 * (ratio - 1):.{1 if ratio < 1.1 else 0}f} % more than"
        figure = other.figure + (f", which {other.exceeds}" if other.over else "")
        whom = f"one device ({other.name}, " if other.name == ONE_DEVICE else f"{other.name} ("
        return f"{percent if ratio < 2 else f'{ratio:.1f} times'} {whom}{figure})"


def verdict_of(rows: Sequence[ComparisonRow]) -> str:
    """The verdict on the methods that did not fail, by what was measured, else predicted; "" of none."""
    done = [row for row in rows if not row.failed and row.throughput]
    measured = any(row.measured_s is not None for row in done)
    said = verdict([Contender(r.method, r.throughput or 0, r.spread, r.overfull) for r in done], measured)
    if len(done) == 1 and measured and done[0].prediction_error is not None:
        (row,) = done
        rate = (row.throughput or 0.0) * (row.measured_s or 0.0) / (row.predicted_s or 1.0)
        said = f"{said[:-1]} ({rate:,.1f} predicted)."
    if any(row.earlier for row in done):
        said += " An earlier run measured it." if len(done) == 1 else " Earlier runs measured those marked †."
    failed = [row.method for row in rows if row.failed]
    return " ".join(filter(None, [said, f"Failed: {', '.join(failed)}." if failed else ""]))


def winner_of(rows: Sequence[ComparisonRow]) -> str | None:
    """The fastest method that stays within all limits; None where none does."""
    fits = [row for row in rows if not row.failed and row.throughput is not None and not row.overfull]
    return max(fits, key=lambda row: row.throughput or 0.0).method if fits else None


def verdict(contenders: Sequence[Contender], measured: bool) -> str:
    """A sentence or two; "" where there is nothing to compare.

    What exceeds a limit does not win, but is named where it is faster. Who is level with the fastest, as
    iterations of either vary by more than that, shares the first place.
    """
    how = "measured" if measured else "predicted"
    ranked = sorted((each for each in contenders if each.rate), key=lambda each: -each.rate)
    fits = [each for each in ranked if not each.over]
    if not fits:
        return " ".join(f"{each.label} {each.exceeds}: {each.figure} samples/s {how}." for each in ranked)
    best = fits[0]
    if len(contenders) == 1:
        return f"{best.label}: {best.figure} samples/s {how}."
    first = [each for each in fits if each is best or best.is_level(each)]
    second = [each for each in fits if each not in first][:1]
    one = [each for each in ranked if each.name == ONE_DEVICE and each not in (*first, *second)]
    if len(first) > 1:
        names = listed([best.label, *(each.label.replace("One", "one") for each in first[1:])])
        why = " (iteration times vary by more than that)" * all(map(best.varies_as, first[1:]))
        said = f"{names} are level: {listed([each.figure for each in first])} samples/s {how}{why}"
    elif measured:
        said = f"{best.label} is the fastest: {best.figure} samples/s measured"
    else:
        said = f"{best.label} is predicted to be the fastest: {best.figure} samples/s"
    slower = " and ".join(best.ahead_of(each) for each in (*second, *one) if each.rate < best.rate)
    sentences = [f"{said}, {slower}." if slower else f"{said}."]
    for each in ranked:
        if each.over and each.rate >= best.rate:
            much = "as fast" if each.is_level(best) else "faster"
            sentences.append(f"{each.label} is {much} ({each.figure}), but {each.exceeds}.")
    if any(each.name == ONE_DEVICE and not each.rate for each in contenders):
        sentences.append("One device does not fit.")
    return " ".join(sentences)
