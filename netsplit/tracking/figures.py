"""Pictures of one run and of a comparison. Each function writes `path` and returns the figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from netsplit.cluster.cluster import Link
from netsplit.pictures.drawing import PALETTE, colours_of, new_figure, save_figure
from netsplit.pictures.timeline_figure import timeline_figure
from netsplit.tracking.table import ComparisonRow
from netsplit.training.metrics import words_of_metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "TrainingCurve",
    "comparison_figure",
    "link_figure",
    "throughput_figure",
    "timeline_figure",
    "training_figure",
]

_MARKERS = "osD^vP*X"


@dataclass(frozen=True)
class TrainingCurve:
    """One method's training, a value per epoch; `epoch_s` are the seconds of each epoch."""

    train_loss: Sequence[float]
    scores: Sequence[float] = field(default_factory=tuple)  # of the metric on the test half
    epoch_s: Sequence[float] = field(default_factory=tuple)
    metric: str = "accuracy"  # its name

    @property
    def elapsed_s(self) -> list[float]:
        """Seconds of training at the end of each epoch."""
        return [sum(self.epoch_s[: epoch + 1]) for epoch in range(len(self.epoch_s))]


def link_figure(
    samples: Mapping[tuple[str, str], Sequence[tuple[int, float]]],
    links: Mapping[tuple[str, str], Link],
    path: str | Path,
) -> Figure:
    """The link probe: measured (bytes, seconds) and the fitted line of every ordered pair of devices."""
    from matplotlib.ticker import EngFormatter

    figure = new_figure(9, 6)
    axes = figure.subplots()
    for index, (pair, points) in enumerate(samples.items()):
        colour = PALETTE[index % len(PALETTE)]
        sizes = sorted(nbytes for nbytes, _ in points)
        axes.scatter(
            [nbytes for nbytes, _ in points],
            [seconds for _, seconds in points],
            color=colour,
            marker=_MARKERS[index % len(_MARKERS)],
            s=28,
            alpha=0.7,
            linewidths=0,
        )
        link = links[pair]
        axes.plot(
            sizes, [link.seconds(nbytes) for nbytes in sizes], color=colour, label=_link_label(pair, link)
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("packet size")
    axes.set_ylabel("time")
    for axis, unit in ((axes.xaxis, "B"), (axes.yaxis, "s")):
        axis.set_major_formatter(EngFormatter(unit))
    axes.set_title("Links: measured transfers and fitted latency + bytes / bandwidth")
    axes.grid(alpha=0.3, which="both")
    if samples:
        axes.legend(loc="upper left", fontsize=9)
    save_figure(figure, path)
    return figure


def _link_label(pair: tuple[str, str], link: Link) -> str:
    fit = "given" if link.r_squared is None else f"R² {link.r_squared:.4f}"
    return f"{pair[0]} → {pair[1]}: {1e6 * link.latency_s:.0f} µs, {link.bandwidth / 1e9:.2f} GB/s, {fit}"


def training_figure(curves: Mapping[str, TrainingCurve], path: str | Path) -> Figure:
    """Training loss and the metric on the test half, where there is one, by epoch and by seconds.

    Curves that lie on one another all show: later ones are drawn thinner.
    """
    name = next((curve.metric for curve in curves.values() if curve.scores), "")
    metric = words_of_metric(name)
    names = ["training loss"] + [f"test {metric.words}{' (%)' if metric.percent else ''}"] * bool(name)
    figure = new_figure(11, 3.75 * len(names))
    grid = figure.subplots(len(names), 2, sharey="row", squeeze=False)
    colours = colours_of(curves)
    for index, (method, curve) in enumerate(curves.items()):
        rows = (list(curve.train_loss), [metric.factor * score for score in curve.scores])
        for row, values in enumerate(rows[: len(names)]):
            epochs = [float(epoch) for epoch in range(1, len(values) + 1)]
            for column, times in enumerate((epochs, curve.elapsed_s)):
                shown = min(len(times), len(values))
                _draw_curve(grid[row][column], times[:shown], values[:shown], index, colours[method], method)
    for row, label in enumerate(names):
        grid[row][0].set_ylabel(label)
        for column in (0, 1):
            grid[row][column].grid(alpha=0.3)
            grid[row][column].set_xlabel(("epoch", "training time (s)")[column])
        grid[row][0].xaxis.get_major_locator().set_params(integer=True)
    if curves:
        grid[0][0].legend(loc="best", fontsize=10)
    save_figure(figure, path)
    return figure


def _draw_curve(
    axes: Axes, times: Sequence[float], values: Sequence[float], index: int, colour: str, label: str
) -> None:
    width = max(1.2, 5.2 - 1.8 * index)
    marker = _MARKERS[index % len(_MARKERS)]
    axes.plot(
        times,
        values,
        color=colour,
        marker=marker,
        markersize=width + 4,
        linewidth=width,
        alpha=1.0,
        label=label,
    )


def throughput_figure(rates: Mapping[str, Sequence[float]], path: str | Path) -> Figure:
    """Samples per second of each iteration, a line for each method."""
    figure = new_figure(11, 3.75)
    axes = figure.subplots()
    for (method, values), colour in zip(rates.items(), colours_of(rates).values(), strict=True):
        axes.plot(range(1, len(values) + 1), values, color=colour, linewidth=1.2, label=method)
    axes.set_xlabel("iteration")
    axes.set_ylabel("samples/s")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize=10)
    save_figure(figure, path)
    return figure


def comparison_figure(rows: Sequence[ComparisonRow], path: str | Path) -> Figure:
    """Samples per second, and predicted beside measured iteration time, a line for each method.

    Where nothing was trained, what is predicted alone.
    """
    figure = new_figure(12, 1.8 + 0.75 * max(len(rows), 1))
    left, right = figure.subplots(1, 2, sharey=True)
    places = list(range(len(rows)))
    left.barh(places, [row.throughput or 0.0 for row in rows], height=0.55, color=PALETTE[0])
    for place, row in zip(places, rows, strict=True):
        text = "failed" if row.failed else "-" if row.throughput is None else f"{row.throughput:.1f}"
        _beside(left, row.throughput or 0.0, place, text)
    planned = all(row.measured_s is None for row in rows)
    left.set_xlabel(f"throughput{', predicted' * planned} (samples/s)")
    left.set_yticks(places, [row.method for row in rows])
    left.invert_yaxis()
    predicted, measured = [[1e3 * (value or 0.0) for value in values] for values in _iterations(rows)]
    shift = 0.0 if planned else 0.18
    right.barh([p - shift for p in places], predicted, height=0.34, color=PALETTE[4], label="predicted")
    if not planned:
        right.barh([p + shift for p in places], measured, height=0.34, color=PALETTE[5], label="measured")
    for place, row in zip(places, rows, strict=True):
        if row.predicted_s is not None:
            _beside(right, predicted[place], place - shift, f"{predicted[place]:.1f}")
        if row.measured_s is not None:
            error = row.prediction_error
            off = "" if error is None else f"  (prediction {100 * error:+.1f} %)"
            _beside(right, measured[place], place + shift, f"{measured[place]:.1f}{off}")
    right.set_xlabel("iteration (ms)")
    left.margins(x=0.18)
    right.margins(x=0.55)
    figure.legend(*right.get_legend_handles_labels(), loc="outside upper right", ncols=2, fontsize=10)
    save_figure(figure, path)
    return figure


def _iterations(rows: Sequence[ComparisonRow]) -> tuple[list[float | None], list[float | None]]:
    return [row.predicted_s for row in rows], [row.measured_s for row in rows]


def _beside(axes: Axes, value: float, place: float, text: str) -> None:
    axes.annotate(text, (value, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9)
