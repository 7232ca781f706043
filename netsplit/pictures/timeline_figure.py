"""One iteration as a Gantt chart: predicted above measured, on one time axis.

Rows are devices and, below them, directed links and sums; a number in a box is its micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from netsplit.pictures.drawing import KIND_COLOURS, new_figure, save_figure
from netsplit.simulate.timeline import Event, Timeline
from netsplit.simulate.trace import lanes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["timeline_figure"]

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
    end_ms = 1e3 * max(_end_s(timeline) for timeline in timelines.values()) or 1.0
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


def _end_s(timeline: Timeline) -> float:
    return max([timeline.iteration_s, *(event.end_s for event in timeline.events)])


def _draw_track(axes: Axes, track: Sequence[Event], bottom: float, height: float) -> None:
    """Events of one kind are one collection; numbers stand where the box is wide enough for them."""
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
        label = str(event.microbatch)
        wide = 1e3 * event.seconds * inches_per_ms > _CHARACTER_IN * (len(label) + 0.6)
        if event.microbatch >= 0 and event.kind != "wait" and wide and height > 0.3:
            middle_ms = 500 * (event.start_s + event.end_s)
            colour = "white" if event.kind in _DARK else "black"
            axes.text(
                middle_ms, bottom + height / 2, label, ha="center", va="center", fontsize=8, color=colour
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
