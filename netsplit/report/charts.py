"""The pictures of a comparison, and of all of them: bars, which the templates draw, and curves.

One grammar for all bars: pale is predicted, solid is measured, the track is the limit. A label stands above
its bar and its figures at the right end of the same line, so that a picture is as narrow as a telephone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from netsplit.report.curves import Curve, Plot
from netsplit.report.data.results import ComparisonResult, MethodResult, Report
from netsplit.report.text import OVER, as_given, column, decimals, fixed
from netsplit.tables import common_unit
from netsplit.tracking.table import metric_of
from netsplit.training.metrics import words_of_metric

__all__ = ["BarChart", "comparison_charts", "fidelity_chart", "legend", "series", "throughput_chart"]

BAND = 0.1  # of the fidelity picture: within ten per cent
_MOST_DEVICES = 32  # bars of one memory picture
_COLOURS = 8  # classes s0 to s7 of the style


@dataclass(frozen=True)
class Bar:
    """One bar; lengths in the chart's own unit, None where there is nothing to draw."""

    label: str
    figures: str  # at the right end
    solid: float | None = None
    pale: float | None = None
    limit: float | None = None
    colour: str = "s0"
    bad: bool = False  # its figures are a failure, or beyond a limit
    mark: float | None = None  # what others reached


@dataclass(frozen=True)
class BarChart:
    """A row for each bar; `longest` is what the whole width stands for, the largest length where None."""

    title: str
    bars: Sequence[Bar]
    longest: float | None = None

    def percent(self, length: float) -> str:
        """Of the width."""
        lengths = [
            n for bar in self.bars for n in (bar.solid, bar.pale, bar.limit, bar.mark) if n is not None
        ]
        return f"{100 * max(length, 0.0) / (self.longest or max(lengths, default=0.0) or 1.0):.4g}%"


def series(index: int) -> str:
    """The style's class of a method's colour."""
    return f"s{index % _COLOURS}"


def comparison_charts(
    comparison: ComparisonResult, colours: dict[str, str], throughput: bool = True
) -> list[BarChart | Plot]:
    """Whatever there is data for: throughput, iteration time, solvers, training, memory.

    Args:
        throughput: it is not shown elsewhere.
    """
    beside = " / published (difference)" if comparison.published else ""
    charts = [
        throughput_chart(f"Throughput, samples/s{beside}", comparison, colours) if throughput else None,
        _iteration(comparison.methods, colours),
        _solvers(comparison.methods, colours),
        *_training(comparison.methods, colours),
        *_memory(comparison.methods, colours),
    ]
    return [chart for chart in charts if chart is not None]


def throughput_chart(title: str, comparison: ComparisonResult, colours: dict[str, str]) -> BarChart | None:
    """Measured, or else predicted; with a mark where others published a figure."""
    methods = comparison.methods
    if all(method.throughput is None for method in methods):
        return None
    texts = column([method.throughput for method in methods])
    known = as_given([method.published for method in methods])
    bars = []
    for method, text, published in zip(methods, texts, known, strict=True):
        if method.throughput is None:
            bars.append(replace(_failed(method), mark=method.published))
            continue
        if method.difference is not None:
            text += f" / {published} ({fixed(100 * method.difference, 0, sign=True)} %)"
        text = f"{OVER} {text}" if method.too_large else text
        pale = method.throughput if method.only_predicted else None
        bar = Bar(method.name, text, method.row.throughput, pale, colour=colours[method.name])
        bars.append(replace(bar, bad=method.too_large, mark=method.published))
    return BarChart(title, bars)


def fidelity_chart(report: Report) -> Plot | None:
    """Predicted against measured iteration of every method; None of fewer than two."""
    curves = []
    for index, name in enumerate(report.methods):
        points = [
            (1e3 * method.row.measured_s, 1e3 * method.row.predicted_s)
            for _, method in report
            if method.name == name
            and method.row.prediction_error is not None
            and method.row.measured_s
            and method.row.predicted_s
        ]
        words = ", ".join(f"{y:.1f} predicted, {x:.1f} measured" for x, y in points)
        curves.append(Curve(name, points, series(index), words))
    title = f"Predicted against measured iteration, with ±{BAND:.0%}".replace("%", " %")
    plot = Plot(title, curves, "measured ms", "predicted ms", BAND)
    return plot if plot.shows else None


def legend(shown: Sequence[ComparisonResult], capacity: bool = True, published: bool = True) -> list[str]:
    """Which of pale, solid, track and marks there are."""
    rows = [method.row for each in shown for method in each.methods]
    there = {
        "predicted": any(row.predicted_s is not None for row in rows),
        "measured": any(row.measured_s is not None or row.throughput is not None for row in rows),
        "capacity": capacity and any(row.capacity for row in rows),
        "published": published and any(each.published for each in shown),
    }
    return [name for name, is_there in there.items() if is_there]


def _iteration(methods: Sequence[MethodResult], colours: dict[str, str]) -> BarChart | None:
    rows = [method.row for method in methods]
    known = [value for row in rows for value in (row.predicted_s, row.measured_s) if value is not None]
    if not known:
        return None
    digits = decimals([1e3 * value for value in known])
    bars = []
    for method in methods:
        row = method.row
        if row.failed:
            bars.append(_failed(method))
            continue
        parts = [
            fixed(1e3 * value, digits) for value in (row.predicted_s, row.measured_s) if value is not None
        ]
        text = " / ".join(parts)
        if row.prediction_error is not None:
            text += f" ({fixed(100 * row.prediction_error, 1, sign=True)} %)"
        bars.append(Bar(method.name, text, row.measured_s, row.predicted_s, colour=colours[method.name]))
    measured = any(row.measured_s is not None for row in rows)
    return BarChart(f"Iteration, ms {'predicted / measured (error)' if measured else 'predicted'}", bars)


def _solvers(methods: Sequence[MethodResult], colours: dict[str, str]) -> BarChart | None:
    known = [method for method in methods if method.row.solve_s is not None]
    if not known:
        return None
    texts = column([method.row.solve_s for method in known], least=2)
    bars = []
    for method, text in zip(known, texts, strict=True):
        gap = "" if method.row.gap is None else f", gap {fixed(100 * method.row.gap, 1)} %"
        bars.append(Bar(method.name, f"{text}{gap}", method.row.solve_s, colour=colours[method.name]))
    return BarChart("Time to decide, s", bars)


def _training(methods: Sequence[MethodResult], colours: dict[str, str]) -> list[Plot]:
    """The metric by epoch and by time; the loss by epoch. An epoch counts where it ends: from 1."""
    metric = metric_of([method.row for method in methods]) or words_of_metric("")
    unit = "%" if metric.percent else metric.words
    by_epoch, by_time, losses = [], [], []
    for method in methods:
        name, colour = method.name, colours[method.name]
        ends = [epoch.index + 1 for epoch in method.epochs]
        scores = [None if each.score is None else metric.factor * each.score for each in method.epochs]
        by_epoch.append(_curve(name, ends, scores, colour))
        by_time.append(_curve(name, method.elapsed_s, scores, colour))
        losses.append(_curve(name, ends, [epoch.train_loss for epoch in method.epochs], colour, digits=4))
    plots = [
        Plot(f"Test {metric.words} by epoch", by_epoch, "epoch", unit, whole_steps=True),
        Plot(f"Test {metric.words} by training time", by_time, "seconds of training", unit),
        Plot("Training loss by epoch", losses, "epoch", "loss", whole_steps=True),
    ]
    return [plot for plot in plots if plot.shows]


def _memory(methods: Sequence[MethodResult], colours: dict[str, str]) -> list[BarChart | None]:
    """A picture for each method, all of one scale."""
    peaks = [
        value
        for method in methods
        for figures in (method.row.predicted_peak, method.row.measured_peak)
        for value in figures.values()
    ]
    rooms = [value for method in methods for value in method.row.capacity.values()]
    unit = common_unit(peaks)
    longest = max([*peaks, *rooms], default=0) / unit[1]
    return [_memory_of(method, longest, colours[method.name], *unit) for method in methods]


def _memory_of(method: MethodResult, longest: float, colour: str, unit: str, size: int) -> BarChart | None:
    row = method.row
    devices = list(method.peaks)
    if not devices:
        return None
    bars = []
    for name in devices[:_MOST_DEVICES]:
        peaks = [
            figures[name] / size for figures in (row.predicted_peak, row.measured_peak) if name in figures
        ]
        limit = row.capacity[name] / size if name in row.capacity else None
        text = " / ".join(fixed(value, 1) for value in peaks)
        text += "" if limit is None else f" of {fixed(limit, 1)}"
        solid, pale = (
            figures[name] / size if name in figures else None
            for figures in (row.measured_peak, row.predicted_peak)
        )
        bars.append(Bar(name, text, solid, pale, limit, colour, name in row.overfull))
    more = len(devices) - _MOST_DEVICES
    rest = f", first {_MOST_DEVICES} of {len(devices)} devices" if more > 0 else ""
    return BarChart(f"Peak memory of {method.name}, {unit}{rest}", bars, longest)


def _curve(
    name: str, xs: Sequence[float | None], ys: Sequence[float | None], colour: str, digits: int = 1
) -> Curve:
    points = [(x, y) for x, y in zip(xs, ys, strict=True) if x is not None and y is not None]
    return Curve(name, points, colour, ", ".join(fixed(y, digits) for _, y in points))


def _failed(method: MethodResult) -> Bar:
    return Bar(method.name, method.outcome, bad=True)
