"""Bytes alive on every device in the course of an iteration, beside its capacity and what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from netsplit.pictures.drawing import colours_of, new_figure, save_figure
from netsplit.tables import byte_unit, nbytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["memory_figure"]

_WIDTH_IN, _ROW_IN = 12.0, 2.2
_NEAR = 3.0  # a capacity of more than so many times the peak would flatten the curve, and is told only


def memory_figure(
    courses: Mapping[str, Sequence[tuple[float, int]]],
    capacities: Mapping[str, int],
    measured: Mapping[str, int] | None = None,
    path: str | Path | None = None,
) -> Figure:
    """Draw a row for each device; into `path`, if given.

    Args:
        courses: device -> (seconds, bytes alive from then on), in order.
        capacities: device -> bytes.
        measured: device -> bytes of the measured peak.
    """
    figure = new_figure(_WIDTH_IN, 0.8 + _ROW_IN * max(len(courses), 1))
    rows = figure.subplots(max(len(courses), 1), 1, sharex=True, squeeze=False)[:, 0]
    colours = colours_of(courses)
    for axes, (device, course) in zip(rows, courses.items(), strict=False):
        peak, capacity = max((each[1] for each in course), default=0), capacities[device]
        unit, size = byte_unit(peak)
        times, used = [1e3 * each[0] for each in course], [each[1] / size for each in course]
        axes.fill_between(times, used, step="post", color=colours[device], alpha=0.35)
        axes.step(times, used, where="post", color=colours[device], label="predicted")
        told = f"{device}: at most {nbytes(peak)} of {nbytes(capacity)}"
        if capacity < _NEAR * peak:
            axes.axhline(capacity / size, color="black", linestyle=":", label="capacity")
        if measured is not None and device in measured:
            axes.axhline(
                measured[device] / size, color="#D55E00", linestyle="--", label="measured at its peak"
            )
            told += f", measured {nbytes(measured[device])}"
        axes.set_title(told, loc="left", fontsize=11)
        axes.set_ylabel(unit)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right", fontsize=9)
    rows[-1].set_xlabel("time (ms)")
    if path is not None:
        save_figure(figure, path)
    return figure
