"""Curves and points over two axes as inline SVG, each named where it ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from netsplit.tracking.report.bars import WIDTH, picture
from netsplit.tracking.report.markup import Element, element, short

__all__ = ["Curve", "curve_chart", "point_chart", "ticks"]

Point = tuple[float, float]
Scale = Callable[[float], float]

_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 96, 22, 34  # margins; at the right stand the curves' names
_HEIGHT = 220
_LINE = 13  # between the names
_NAME = 14  # characters of a name
_FLAT = 1e-9  # relative: a shorter axis shows a single value
_SHORT = 8.0  # a logarithmic axis from a number to one so many times as large
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
    """Lines from left to right; None where there is nothing to draw.

    Args:
        whole_steps: the x axis counts, its ticks are integers.
    """
    curves = [curve for curve in curves if curve.points]
    if not curves:
        return None
    height = max(_HEIGHT, _LINE * len(curves) + _TOP + _BOTTOM + 10)
    xs = ticks(*_span(curves, 0), least_step=1.0 if whole_steps else 0.0)
    ys = ticks(*_span(curves, 1))
    x_of = _linear(xs[0], xs[-1], _LEFT, WIDTH - _RIGHT)
    y_of = _linear(ys[0], ys[-1], height - _BOTTOM, _TOP)
    ends = _apart([y_of(curve.points[-1][1]) for curve in curves], _TOP, height - _BOTTOM)
    shapes = _axes(xs, ys, x_of, y_of, height, WIDTH - _RIGHT, x_name, y_name)
    for index, (curve, end) in enumerate(zip(curves, ends, strict=True)):
        shapes += _line(curve, x_of, y_of, end, dashed=index >= 8)
    words = f"{y_name} over {x_name}. " + "; ".join(f"{curve.name}: {curve.words}" for curve in curves)
    return picture(title, words, height, *shapes)


def point_chart(title: str, curves: Sequence[Curve], x_name: str, y_name: str, band: float) -> Element | None:
    """Points over two equal logarithmic axes, with the diagonal and a band of this fraction about it."""
    curves = [curve for curve in curves if curve.points]
    every = [value for curve in curves for point in curve.points for value in point]
    if not every:
        return None
    side = WIDTH - _LEFT - 14
    low, high = min(every) / 1.25, max(every) * 1.25
    axis = _log_ticks(low, high)
    height = side + _TOP + _BOTTOM
    x_of = _logarithmic(low, high, _LEFT, _LEFT + side)
    y_of = _logarithmic(low, high, _TOP + side, _TOP)
    shapes = _axes(axis, axis, x_of, y_of, height, _LEFT + side, x_name, y_name)
    corner_low, corner_high = low * (1 + band), high / (1 + band)
    outline = [
        (low, low),
        (low, corner_low),
        (corner_high, high),
        (high, high),
        (high, corner_high),
        (corner_low, low),
    ]
    shapes.append(element("polygon", points=_path(outline, x_of, y_of), class_="band"))
    shapes.append(element("polyline", points=_path([(low, low), (high, high)], x_of, y_of), class_="axis"))
    for curve in curves:
        shapes += [_dot(point, curve, x_of, y_of, 4) for point in curve.points]
    words = f"{y_name} against {x_name}. " + "; ".join(f"{curve.name}: {curve.words}" for curve in curves)
    return picture(title, words, height, *shapes)


def ticks(low: float, high: float, least_step: float = 0.0, wanted: int = 5) -> list[float]:
    """Round numbers at even steps, the first not above `low` and the last not below `high`."""
    if high - low < _FLAT * max(1.0, abs(low), abs(high)):
        room = abs(low) / 10 if abs(low) > _FLAT else 1.0
        low, high = (low, low + 1) if least_step else (low - room, low + room)
    step = 10.0 ** math.floor(math.log10((high - low) / wanted))
    step = next(step * factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= wanted + 1e-9)
    step = max(step, least_step)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, max(last, first + 1) + 1)]


def _axes(
    xs: Sequence[float],
    ys: Sequence[float],
    x_of: Scale,
    y_of: Scale,
    height: float,
    right: float,
    x_name: str,
    y_name: str,
) -> list[Element]:
    bottom = height - _BOTTOM
    shapes = []
    for y, text in zip(ys, _texts(ys), strict=True):
        shapes.append(element("line", x1=_LEFT, x2=right, y1=y_of(y), y2=y_of(y), class_="grid"))
        shapes.append(element("text", text, x=_LEFT - 5, y=y_of(y) + 4, text_anchor="end", class_="tick"))
    for x, text in zip(xs, _texts(xs), strict=True):
        shapes.append(element("text", text, x=x_of(x), y=bottom + 14, text_anchor="middle", class_="tick"))
    shapes.append(element("line", x1=_LEFT, x2=right, y1=bottom, y2=bottom, class_="axis"))
    middle = (_LEFT + right) / 2
    shapes.append(element("text", x_name, x=middle, y=height - 3, text_anchor="middle", class_="tick"))
    shapes.append(element("text", y_name, x=0, y=9, class_="tick"))
    return shapes


def _line(curve: Curve, x_of: Scale, y_of: Scale, end: float, dashed: bool) -> list[Element]:
    x, y = curve.points[-1]
    dots = curve.points if len(curve.points) <= _DOTS else curve.points[-1:]
    start = WIDTH - _RIGHT + 14
    return [
        element(
            "polyline", points=_path(curve.points, x_of, y_of), class_=f"curve {curve.colour}",
            stroke_dasharray="5 3" if dashed else None,
        ),
        *(_dot(point, curve, x_of, y_of, 2.5) for point in dots),
        element("polyline", points=f"{x_of(x) + 4:.6g},{y_of(y):.6g} {start - 3},{end:.6g}", class_="leader"),
        element(
            "text", element("title", curve.name), short(curve.name, _NAME), x=start, y=end + 4,
            class_=f"name {curve.colour}",
        ),
    ]  # fmt: skip


def _dot(point: Point, curve: Curve, x_of: Scale, y_of: Scale, radius: float) -> Element:
    said = element("title", f"{curve.name}: {point[0]:.6g}, {point[1]:.6g}")
    return element(
        "circle", said, cx=x_of(point[0]), cy=y_of(point[1]), r=radius, class_=f"solid {curve.colour}"
    )


def _path(points: Sequence[Point], x_of: Scale, y_of: Scale) -> str:
    return " ".join(f"{x_of(x):.6g},{y_of(y):.6g}" for x, y in points)


def _span(curves: Sequence[Curve], axis: int) -> tuple[float, float]:
    values = [point[axis] for curve in curves for point in curve.points]
    return min(values), max(values)


def _linear(low: float, high: float, start: float, end: float) -> Scale:
    return lambda value: start + (end - start) * (value - low) / (high - low)


def _logarithmic(low: float, high: float, start: float, end: float) -> Scale:
    linear = _linear(math.log(low), math.log(high), start, end)
    return lambda value: linear(math.log(value))


def _log_ticks(low: float, high: float) -> list[float]:
    """Even steps on a short axis; else 1, 2 and 5 times powers of ten, or on a long one the powers."""
    if high / low < _SHORT:
        return [value for value in ticks(low, high) if low <= value <= high]
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if high / low < 100 else (1,)
    found = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
    return [value for value in found if low <= value <= high]


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


def _texts(values: Sequence[float]) -> list[str]:
    """Of equal decimals where the steps are even, else as short as each can be."""
    if len(values) > 1 and math.isclose(values[-1] - values[-2], values[1] - values[0]):
        digits = max(0, -math.floor(math.log10(values[1] - values[0]) + 1e-9))
        return [f"{value:,.{digits}f}".replace("-", "\N{MINUS SIGN}") for value in values]
    return [f"{value:,.12g}" for value in values]
