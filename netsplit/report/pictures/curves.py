"""Curves and points over two axes as inline SVG, each named where it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from netsplit.report.markup import Element, element, short
from netsplit.report.pictures.axes import BOTTOM, TOP, Axis, even_axis, frame, log_axis
from netsplit.report.pictures.bars import WIDTH, picture

__all__ = ["Curve", "curve_chart", "point_chart"]

Point = tuple[float, float]

_NAMES = 96  # at the right stand the curves' names
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


def curve_chart(
    title: str, curves: Sequence[Curve], x_name: str, y_name: str, whole_steps: bool = False
) -> Element | None:
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
    ends = _apart([y.of(curve.points[-1][1]) for curve in curves], TOP, height - BOTTOM)
    shapes = frame(x, y, height)
    for index, (curve, end) in enumerate(zip(curves, ends, strict=True)):
        shapes += _line(curve, x, y, end, dashed=index >= 8)
    words = f"{y_name} over {x_name}. " + "; ".join(f"{curve.name}: {curve.words}" for curve in curves)
    return picture(title, words, height, *shapes)


def point_chart(title: str, curves: Sequence[Curve], x_name: str, y_name: str, band: float) -> Element | None:
    """Points over two equal logarithmic axes, with the diagonal and a band of this fraction about it."""
    curves = [curve for curve in curves if curve.points]
    every = [value for curve in curves for point in curve.points for value in point]
    if not every:
        return None
    low, high = min(every) / 1.25, max(every) * 1.25
    room = log_axis(y_name, low, high, 0, 1).room
    side = WIDTH - room - _EDGE
    height = side + TOP + BOTTOM
    x, y = log_axis(x_name, low, high, room, room + side), log_axis(y_name, low, high, TOP + side, TOP)
    shapes = frame(x, y, height)
    near, far = low * (1 + band), high / (1 + band)
    outline = [(low, low), (low, near), (far, high), (high, high), (high, far), (near, low)]
    shapes.append(element("polygon", points=_path(outline, x, y), class_="band"))
    shapes.append(element("polyline", points=_path([(low, low), (high, high)], x, y), class_="axis"))
    for curve in curves:
        shapes += [_dot(point, curve, x, y, 4) for point in curve.points]
    words = f"{y_name} against {x_name}. " + "; ".join(f"{curve.name}: {curve.words}" for curve in curves)
    return picture(title, words, height, *shapes)


def _line(curve: Curve, x: Axis, y: Axis, end: float, dashed: bool) -> list[Element]:
    last = curve.points[-1]
    dots = curve.points if len(curve.points) <= _DOTS else [last]
    start = WIDTH - _NAMES + 14
    leader = f"{x.of(last[0]) + 4:.6g},{y.of(last[1]):.6g} {start - 3},{end:.6g}"
    return [
        element(
            "polyline", points=_path(curve.points, x, y), class_=f"curve {curve.colour}",
            stroke_dasharray="5 3" if dashed else None,
        ),
        *(_dot(point, curve, x, y, 2.5) for point in dots),
        element("polyline", points=leader, class_="leader"),
        element(
            "text", element("title", curve.name), short(curve.name, _NAME), x=start, y=end + 4,
            class_=f"name {curve.colour}",
        ),
    ]  # fmt: skip


def _dot(point: Point, curve: Curve, x: Axis, y: Axis, radius: float) -> Element:
    said = element("title", f"{curve.name}: {point[0]:.6g}, {point[1]:.6g}")
    return element(
        "circle", said, cx=x.of(point[0]), cy=y.of(point[1]), r=radius, class_=f"solid {curve.colour}"
    )


def _path(points: Sequence[Point], x: Axis, y: Axis) -> str:
    return " ".join(f"{x.of(a):.6g},{y.of(b):.6g}" for a, b in points)


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
