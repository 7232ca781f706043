"""Curves and points over two axes, each named where it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from netsplit.report.pictures.axes import BOTTOM, TOP, Axis, even_axis, log_axis
from netsplit.report.pictures.bars import WIDTH
from netsplit.report.text import abbreviated

__all__ = ["NAMES_AT", "Curve", "Plot", "curve_chart", "point_chart"]

Point = tuple[float, float]

_NAMES = 96  # at the right stand the curves' names
NAMES_AT = WIDTH - _NAMES + 14
_EDGE = 14  # right margin where none stand there
_HEIGHT = 220
_LINE = 13  # between the names
_NAME = 12  # characters of a name
_DOTS = 30  # curves of more points have no dots


@dataclass(frozen=True)
class Curve:
    """One named curve, or a set of points."""

    name: str
    points: Sequence[Point]
    colour: str
    words: str = ""  # its figures, for the description

    @property
    def short_name(self) -> str:
        return abbreviated(self.name, _NAME)

    @property
    def dots(self) -> Sequence[Point]:
        """The points of a curve that are drawn."""
        return self.points if len(self.points) <= _DOTS else self.points[-1:]


@dataclass(frozen=True)
class Plot:
    """Lines with their names, or points about the diagonal."""

    kind: Literal["lines", "points"]
    title: str
    words: str  # what it shows, figures included
    curves: Sequence[Curve]
    height: float
    x: Axis
    y: Axis
    band: Sequence[Point] = ()  # about the diagonal, as an outline

    @property
    def ends(self) -> list[float]:
        """Heights of the lines' names."""
        wanted = [self.y.of(curve.points[-1][1]) for curve in self.curves]
        return _apart(wanted, TOP, self.height - BOTTOM)

    def path(self, points: Sequence[Point]) -> str:
        """The points in the picture, as SVG has them."""
        return " ".join(f"{self.x.of(a):.6g},{self.y.of(b):.6g}" for a, b in points)


def curve_chart(
    title: str, curves: Sequence[Curve], x_name: str, y_name: str, whole_steps: bool = False
) -> Plot | None:
    """Lines from left to right; None where no line has two points.

    Args:
        whole_steps: the x axis counts, its ticks are integers.
    """
    curves = [curve for curve in curves if curve.points]
    if all(len(curve.points) < 2 for curve in curves):
        return None
    height = max(_HEIGHT, _LINE * len(curves) + TOP + BOTTOM + 10)
    y = even_axis(y_name, *_span(curves, 1), height - BOTTOM, TOP)
    x = even_axis(x_name, *_span(curves, 0), y.room, WIDTH - _NAMES, 1.0 if whole_steps else 0.0)
    return Plot("lines", title, _words(f"{y_name} over {x_name}", curves), curves, height, x, y)


def point_chart(title: str, curves: Sequence[Curve], x_name: str, y_name: str, band: float) -> Plot | None:
    """Points over two equal logarithmic axes, with the diagonal and a band of this fraction about it."""
    curves = [curve for curve in curves if curve.points]
    every = [value for curve in curves for point in curve.points for value in point]
    if not every:
        return None
    low, high = min(every) / 1.25, max(every) * 1.25
    room = log_axis(y_name, low, high, 0, 1).room
    side = WIDTH - room - _EDGE
    x, y = log_axis(x_name, low, high, room, room + side), log_axis(y_name, low, high, TOP + side, TOP)
    near, far = low * (1 + band), high / (1 + band)
    outline = [(low, low), (low, near), (far, high), (high, high), (high, far), (near, low)]
    words = _words(f"{y_name} against {x_name}", curves)
    return Plot("points", title, words, curves, side + TOP + BOTTOM, x, y, outline)


def _words(axes: str, curves: Sequence[Curve]) -> str:
    return f"{axes}. " + "; ".join(f"{curve.name}: {curve.words}" for curve in curves)


def _span(curves: Sequence[Curve], axis: int) -> tuple[float, float]:
    values = [point[axis] for curve in curves for point in curve.points]
    return min(values), max(values)


def _apart(wanted: Sequence[float], low: float, high: float) -> list[float]:
    """Heights for names: near the wanted ones, `_LINE` from one another, within the picture."""
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    places = [0.0] * len(wanted)
    last = low - _LINE
    for index in order:
        last = places[index] = max(wanted[index], last + _LINE)
    limit = high
    for index in reversed(order):
        places[index] = min(places[index], limit)
        limit = places[index] - _LINE
    return places
