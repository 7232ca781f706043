"""Pictures of a comparison, written to `path`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from netsplit.pictures.drawing import PALETTE, new_figure, save_figure
from netsplit.tracking.table import ComparisonRow
from netsplit.training.history import History
from netsplit.training.metrics import words_of_metric

__all__ = ["comparison_figure", "throughput_figure", "training_figure"]

_MARKERS = "osD^vP*X"


def training_figure(histories: Mapping[str, History], path: str | Path) -> None:
    """Draw training loss and the metric on the test half, where there is one, by epoch and by seconds.

    Curves that lie on one another all show: later ones are drawn thinner.
    """
    tested = [each for history in histories.values() for each in history.epochs if each.score is not None]
    name = tested[0].metric if tested else ""
    metric = words_of_metric(name)
    names = ["training loss"] + [f"test {metric.words}{' (%)' if metric.percent else ''}"] * bool(name)
    figure = new_figure(11, 3.75 * len(names))
    grid = figure.subplots(len(names), 2, sharey="row", squeeze=False)
    for index, (method, history) in enumerate(histories.items()):
        width = max(1.2, 5.2 - 1.8 * index)
        look = {
            "color": PALETTE[index % len(PALETTE)], "marker": _MARKERS[index % len(_MARKERS)],
            "markersize": width + 4, "linewidth": width, "label": method,
        }  # fmt: skip
        losses = [epoch.train_loss for epoch in history.epochs]
        scores = [metric.factor * epoch.score for epoch in history.epochs if epoch.score is not None]
        elapsed_s = list(accumulate(epoch.seconds for epoch in history.epochs))
        for row, values in zip(grid, (losses, scores), strict=False):
            for axes, times in zip(row, (range(1, len(values) + 1), elapsed_s), strict=True):
                axes.plot(times[: len(values)], values, **look)
    for row, label in zip(grid, names, strict=True):
        row[0].set(ylabel=label, xlabel="epoch")
        row[0].xaxis.get_major_locator().set_params(integer=True)
        row[1].set(xlabel="training time (s)")
        for axes in row:
            axes.grid(alpha=0.3)
    grid[0][0].legend(loc="best", fontsize=10)
    save_figure(figure, path)


def throughput_figure(histories: Mapping[str, History], path: str | Path) -> None:
    """Draw samples per second of every timed iteration; the legend has each method's median."""
    figure = new_figure(11, 4.5)
    axes = figure.subplots()
    for index, (method, history) in enumerate(histories.items()):
        timed = [done for done in history.iterations if done.timed and done.seconds > 0]
        rates = [(done.samples or history.batch_size) / done.seconds for done in timed]
        steps = [done.step + 1 for done in timed]
        label = f"{method}: {history.throughput:,.1f}"
        axes.plot(steps, rates, color=PALETTE[index % len(PALETTE)], linewidth=1.4, label=label)
    axes.set(xlabel="iteration", ylabel="throughput (samples/s)")
    axes.set_ylim(bottom=0)
    axes.locator_params(axis="x", integer=True)
    axes.grid(alpha=0.3)
    figure.legend(title="median", loc="outside right upper", fontsize=10)
    save_figure(figure, path)


def comparison_figure(rows: Sequence[ComparisonRow], path: str | Path) -> None:
    """Draw samples per second, and predicted beside measured iteration time, a line for each method.

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
