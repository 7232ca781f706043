"""One iteration as a Gantt chart: predicted above measured, on one time axis.

Rows are devices and, below them, directed links and sums; a number in a box is its micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from netsplit.pictures.drawing import KIND_COLOURS, colours_of, new_figure, save_figure
from netsplit.simulate.timeline import Event, Timeline
from netsplit.simulate.trace import lanes
from netsplit.tables import byte_unit, nbytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["memory_figure", "timeline_figure"]

_WIDTH_IN = 15.0
_ROW_IN = 0.42
_CHARACTER_IN = 0.085  # of the numbers inside boxes, at 8 points
_THIN = {"send", "recv", "reduce"}
_DARK = {"forward", "send", "step", "weight", "reduce"}  # kinds whose colour needs white text


def timeline_figure(
    predicted: Timeline, measured: Timeline | None = None, path: str | Path | None = None
) -> Figure:
    """Draw one or both timelines, into `path` if given (PNG or SVG by the suffix); returns the figure."""
    timelines = {"predicted": predicted} | ({"measured": measured} if measured is not None else {})
    rows = {name: list(lanes(timeline.events).items()) for name, timeline in timelines.items()}
    heights = [max(len(stack), 1) for stack in rows.values()]
    figure = new_figure(_WIDTH_IN, 1.6 + _ROW_IN * sum(heights) + 0.4 * len(heights))
    panels = figure.subplots(len(rows), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    end_s = (max([each.iteration_s, *(event.end_s for event in each.events)]) for each in timelines.values())
    end_ms = 1e3 * max(end_s) or 1.0
    for axes, (name, timeline) in zip(panels, timelines.items(), strict=True):
        axes.set_xlim(0, 1.02 * end_ms)
        for place, (_, tracks) in enumerate(rows[name]):
            for number, track in enumerate(tracks):
                _draw_track(axes, track, place - 0.4 + 0.8 * number / len(tracks), 0.8 / len(tracks))
        axes.set_yticks(range(len(rows[name])), [row for row, _ in rows[name]])
        axes.set_ylim(max(len(rows[name]), 1) - 0.5, -0.5)
        axes.axvline(1e3 * timeline.iteration_s, color="black", linestyle=":", linewidth=1.2)
        axes.set_title(f"{name}: {1e3 * timeline.iteration_s:.2f} ms per iteration", loc="left", fontsize=11)
        axes.grid(axis="x", alpha=0.3)
        axes.set_axisbelow(True)
    panels[-1].set_xlabel("time (ms)")
    _legend(figure, timelines.values())
    if path is not None:
        save_figure(figure, path)
    return figure


def _draw_track(axes: Axes, track: Sequence[Event], bottom: float, height: float) -> None:
    """Draw each kind of event as one collection, with text in boxes that are wide enough."""
    for kind, colour in KIND_COLOURS.items():
        spans = [(1e3 * event.start_s, 1e3 * event.seconds) for event in track if event.kind == kind]
        if spans:
            hatch = "////" if kind == "wait" else None
            edge = colour if kind in _THIN else "white"  # a white edge would cover a thin box
            axes.broken_barh(
                spans, (bottom, height), facecolors=colour, edgecolor=edge, linewidth=0.4, hatch=hatch
            )
    left, right = axes.get_xlim()
    inches_per_ms = 0.87 * _WIDTH_IN / (right - left)
    for event in track:
        if event.microbatch < 0 or event.kind == "wait" or height <= 0.3:
            continue
        text = str(event.microbatch)
        if len(text) < 1e3 * event.seconds * inches_per_ms / _CHARACTER_IN - 0.6:
            middle_ms = 500 * (event.start_s + event.end_s)
            colour = "white" if event.kind in _DARK else "black"
            axes.text(
                middle_ms, bottom + height / 2, text, ha="center", va="center", fontsize=8, color=colour
            )


def _legend(figure: Figure, timelines: Iterable[Timeline]) -> None:
    from matplotlib.patches import Patch

    present = {event.kind for timeline in timelines for event in timeline.events}
    handles = [
        Patch(facecolor=colour, edgecolor="white", hatch="////" if kind == "wait" else None, label=kind)
        for kind, colour in KIND_COLOURS.items()
        if kind in present
    ]
    if handles:
        figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), fontsize=10)


_MEMORY_WIDTH_IN, _MEMORY_ROW_IN = 12.0, 2.2
_NEAR = 3.0  # larger capacities, relative to the peak, are only in the text


def memory_figure(
    courses: Mapping[str, Sequence[tuple[float, int]]],
    capacities: Mapping[str, int],
    measured: Mapping[str, int] | None = None,
) -> Figure:
    """Draw a row for each device.

    Args:
        courses: device -> (seconds, bytes alive from then on), in order.
        capacities: device -> bytes.
        measured: device -> bytes of the measured peak.
    """
    figure = new_figure(_MEMORY_WIDTH_IN, 0.8 + _MEMORY_ROW_IN * max(len(courses), 1))
    rows = figure.subplots(max(len(courses), 1), 1, sharex=True, squeeze=False)[:, 0]
    colours = colours_of(courses)
    for axes, (device, course) in zip(rows, courses.items(), strict=False):
        peak, capacity = max((each[1] for each in course), default=0), capacities[device]
        unit, size = byte_unit(peak)
        times, used = [1e3 * each[0] for each in course], [each[1] / size for each in course]
        axes.fill_between(times, used, step="post", color=colours[device], alpha=0.35)
        axes.step(times, used, where="post", color=colours[device], label="predicted")
        title = f"{device}: peak {nbytes(peak)} of {nbytes(capacity)}"
        if capacity < _NEAR * peak:
            axes.axhline(capacity / size, color="black", linestyle=":", label="capacity")
        if measured is not None and device in measured:
            axes.axhline(
                measured[device] / size, color="#D55E00", linestyle="--", label="measured at its peak"
            )
            title += f", measured {nbytes(measured[device])}"
        axes.set_title(title, loc="left", fontsize=11)
        axes.set_ylabel(unit)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right", fontsize=9)
    rows[-1].set_xlabel("time (ms)")
    return figure
