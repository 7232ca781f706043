"""Pictures of one run and of a comparison. Each function writes `path` and returns the figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from netsplit.pictures.drawing import PALETTE, new_figure, save_figure
from netsplit.tracking.table import ComparisonRow
from netsplit.training.metrics import words_of_metric

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["TrainingCurve", "comparison_figure", "training_figure"]

_MARKERS = "osD^vP*X"


@dataclass(frozen=True)
class TrainingCurve:
    """One method's training, a value per epoch; `epoch_s` are the seconds of each epoch."""

    train_loss: Sequence[float]
    scores: Sequence[float] = ()  # of the metric on the test half
    epoch_s: Sequence[float] = ()
    metric: str = "accuracy"  # its name

    @property
    def elapsed_s(self) -> list[float]:
        """Seconds of training at the end of each epoch."""
        return list(accumulate(self.epoch_s))


def training_figure(curves: Mapping[str, TrainingCurve], path: str | Path) -> Figure:
    """Training loss and the metric on the test half, where there is one, by epoch and by seconds.

    Curves that lie on one another all show: later ones are drawn thinner.
    """
    name = next((curve.metric for curve in curves.values() if curve.scores), "")
    metric = words_of_metric(name)
    names = ["training loss"] + [f"test {metric.words}{' (%)' if metric.percent else ''}"] * bool(name)
    figure = new_figure(11, 3.75 * len(names))
    grid = figure.subplots(len(names), 2, sharey="row", squeeze=False)
    for index, (method, curve) in enumerate(curves.items()):
        width = max(1.2, 5.2 - 1.8 * index)
        look = {
            "color": PALETTE[index % len(PALETTE)], "marker": _MARKERS[index % len(_MARKERS)],
            "markersize": width + 4, "linewidth": width, "label": method,
        }  # fmt: skip
        scores = [metric.factor * score for score in curve.scores]
        for row, values in zip(grid, (curve.train_loss, scores), strict=False):
            for axes, times in zip(row, (range(1, len(values) + 1), curve.elapsed_s), strict=True):
                axes.plot(*zip(*zip(times, values, strict=False), strict=True), **look)
    for row, label in zip(grid, names, strict=True):
        row[0].set(ylabel=label, xlabel="epoch")
        row[0].xaxis.get_major_locator().set_params(integer=True)
        row[1].set(xlabel="training time (s)")
        for axes in row:
            axes.grid(alpha=0.3)
    if curves:
        grid[0][0].legend(loc="best", fontsize=10)
    save_figure(figure, path)
    return figure


def comparison_figure(rows: Sequence[ComparisonRow], path: str | Path) -> Figure:
    """Samples per second, and predicted beside measured iteration time, a line for each method.

    Where nothing was trained, what is predicted alone.
    """
    from matplotlib.patches import Patch

    figure = new_figure(12, 1.8 + 0.75 * max(len(rows), 1))
    left, right = figure.subplots(1, 2, sharey=True)
    planned = all(row.measured_s is None for row in rows)
    shift = 0.0 if planned else 0.18
    for place, row in enumerate(rows):
        rate = left.barh(place, row.throughput or 0.0, height=0.55, color=PALETTE[0])
        text = "failed" if row.failed else "-" if row.throughput is None else f"{row.throughput:.1f}"
        left.bar_label(rate, [text], padding=4, fontsize=9)
        error = row.prediction_error
        off = "" if error is None else f"  (prediction {100 * error:+.1f} %)"
        for at, seconds, colour, more in (
            (place - shift, row.predicted_s, PALETTE[4], ""),
            (place + shift, row.measured_s, PALETTE[5], off),
        ):
            if seconds is not None:
                bar = right.barh(at, 1e3 * seconds, height=0.34, color=colour)
                right.bar_label(bar, [f"{1e3 * seconds:.1f}{more}"], padding=4, fontsize=9)
    left.set_yticks(range(len(rows)), [row.method for row in rows])
    left.invert_yaxis()
    left.set_xlabel(f"throughput{', predicted' * planned} (samples/s)")
    right.set_xlabel("iteration (ms)")
    left.margins(x=0.18)
    right.margins(x=0.55)
    names = {"predicted": PALETTE[4]} | ({} if planned else {"measured": PALETTE[5]})
    patches = [Patch(color=colour, label=name) for name, colour in names.items()]
    figure.legend(handles=patches, loc="outside upper right", ncols=2, fontsize=10)
    save_figure(figure, path)
    return figure
