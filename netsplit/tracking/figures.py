"""Pictures of a comparison, written to `path`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from netsplit.pictures.drawing import PALETTE, new_figure, save_figure
from netsplit.tracking.table import ComparisonRow
from netsplit.training.history import History
from netsplit.training.metrics import words_of_metric

__all__ = ["PICTURES", "comparison_figure", "throughput_figure", "training_figure"]

PICTURES = {
    "comparison": "Throughput and iteration",
    "throughput": "Throughput by iteration",
    "training": "Training",
}
"""A comparison's pictures by name, and what they show."""


def training_figure(histories: Mapping[str, History], path: str | Path) -> None:
    """Draw training loss and the metric on the test half, where there is one, by epoch and by seconds.

    Curves that lie on one another all show: later ones are drawn thinner.
    """
    tested = [each for history in histories.values() for each in history.epochs if each.score is not None]
    metric = words_of_metric(tested[0].metric) if tested else None
    figure = new_figure(11, 7.5 if tested else 3.75)
    grid = figure.subplots(1 + bool(tested), 2, sharey="row", squeeze=False)
    for index, (method, history) in enumerate(histories.items()):
        curves = [[epoch.train_loss for epoch in history.epochs]]
        if metric is not None:
            curves.append([metric.factor * each.score for each in history.epochs if each.score is not None])
        elapsed_s = list(accumulate(epoch.seconds for epoch in history.epochs))
        width = max(1.2, 5.2 - 1.8 * index)
        for row, values in zip(grid, curves, strict=True):
            for axes, times in zip(row, (range(1, len(values) + 1), elapsed_s[: len(values)]), strict=True):
                axes.plot(
                    times, values, color=PALETTE[index % len(PALETTE)], marker="osD^vP*X"[index % 8],
                    markersize=width + 4, linewidth=width, label=method,
                )  # fmt: skip
    for row in grid:
        row[0].set(ylabel="training loss", xlabel="epoch")
        row[0].locator_params(axis="x", integer=True)
        row[1].set(xlabel="training time (s)")
    if metric is not None:
        grid[1][0].set(ylabel=f"test {metric.words}{' (%)' if metric.percent else ''}")
    grid[0][0].legend()
    save_figure(figure, path)


def throughput_figure(histories: Mapping[str, History], path: str | Path) -> None:
    """Draw samples per second of every timed iteration; the legend has each method's median."""
    figure = new_figure(11, 4.5)
    axes = figure.subplots()
    for index, (method, history) in enumerate(histories.items()):
        timed = [done for done in history.iterations if done.timed and done.seconds > 0]
        rates = [(done.samples or history.batch_size) / done.seconds for done in timed]
        label = f"{method}: {history.throughput:,.1f}"
        axes.plot([done.step + 1 for done in timed], rates, color=PALETTE[index % len(PALETTE)], label=label)
    axes.set(xlabel="iteration", ylabel="throughput (samples/s)", ylim=(0, None))
    axes.locator_params(axis="x", integer=True)
    figure.legend(title="median", loc="outside right upper")
    save_figure(figure, path)


def comparison_figure(rows: Sequence[ComparisonRow], path: str | Path) -> None:
    """Draw samples per second, and predicted beside measured iteration time, a line for each method.

    Where nothing was trained, what is predicted alone.
    """
    figure = new_figure(12, 1.8 + 0.75 * max(len(rows), 1))
    left, right = figure.subplots(1, 2, sharey=True)
    planned, places = all(row.measured_s is None for row in rows), range(len(rows))
    bars = left.barh(places, [row.throughput or 0.0 for row in rows], height=0.55, color=PALETTE[0])
    left.bar_label(bars, fmt="%.1f", padding=4)
    kinds = {"predicted": [row.predicted_s for row in rows]}
    kinds |= {} if planned else {"measured": [row.measured_s for row in rows]}
    for number, (name, seconds) in enumerate(kinds.items()):
        shifted = [place + 0.36 * number - 0.18 * (not planned) for place in places]
        ms = [math.nan if each is None else 1e3 * each for each in seconds]
        bars = right.barh(shifted, ms, height=0.34, color=PALETTE[4 + number], label=name)
        right.bar_label(bars, fmt="%.1f", padding=4)
    left.set_yticks(places, [row.method for row in rows])
    left.invert_yaxis()
    left.set_xlabel(f"throughput{', predicted' * planned} (samples/s)")
    right.set_xlabel("iteration (ms)")
    for axes in (left, right):
        axes.margins(x=0.18)
    figure.legend(loc="outside upper right", ncols=2)
    save_figure(figure, path)
