"""Bars as inline SVG, one grammar for all: pale is predicted, solid is measured, the track is the limit.

A label stands above its bar and its figures at the right end of the same line, so that a picture is as
narrow as a telephone and neither long names nor many bars need another shape. Colours are classes of the
page's style: one picture serves light and dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from netsplit.report.markup import Element, element, short

__all__ = ["MARK", "WIDTH", "Bar", "bar_chart", "mark", "picture", "series"]

WIDTH = 340  # units of a picture; a telephone shows about one a pixel
COLOURS = 8  # classes s0 to s7 of the style
MARK = 3.5  # radius of a mark
_ROW, _BAR_TOP, _BAR, _THIN = 36, 17, 10, 4
_CHARACTER = 7.2  # width of one at the size of a label, in a wide font


@dataclass(frozen=True)
class Bar:
    """One bar; lengths in the chart's own unit, None where there is nothing to draw."""

    label: str
    figures: str  # at the right end
    solid: float | None = None
    pale: float | None = None
    limit: float | None = None
    colour: str = "s0"
    bad: bool = False  # its figures are a failure, or beyond a limit
    mark: float | None = None  # what others reached

    @property
    def lengths(self) -> list[float]:
        found = (self.solid, self.pale, self.limit, self.mark)
        return [value for value in found if value is not None]


def series(index: int) -> str:
    """The style's class of a method's colour."""
    return f"s{index % COLOURS}"


def picture(title: str, description: str, height: float, *shapes: Element | None) -> Element:
    """A drawing with a heading; the description tells in words what it shows, figures included."""
    words = (element("title", title), element("desc", description))
    drawing = element("svg", *words, *shapes, viewBox=f"0 0 {WIDTH} {height:.6g}", role="img")
    return element("figure", element("figcaption", title), drawing)


def bar_chart(title: str, bars: Sequence[Bar], longest: float | None = None) -> Element:
    """A row for each bar.

    Args:
        longest: what the whole width stands for; the largest length where None.
    """
    room = WIDTH - 2 - (MARK if any(bar.mark is not None for bar in bars) else 0.0)
    lengths = [value for bar in bars for value in bar.lengths]
    scale = room / (longest or max(lengths, default=0.0) or 1.0)
    rows = [_row(bar, _ROW * index, scale) for index, bar in enumerate(bars)]
    words = "; ".join(f"{bar.label}: {bar.figures}" for bar in bars)
    return picture(title, words, _ROW * len(bars) - 4, *rows)


def mark(x: float, y: float) -> Element:
    """The hollow mark of a figure that others published."""
    return element("circle", cx=x, cy=y, r=MARK, class_="mark")


def _row(bar: Bar, top: float, scale: float) -> Element:
    room = int((WIDTH - _CHARACTER * len(bar.figures) - 10) / _CHARACTER)
    middle = top + _BAR_TOP + _BAR / 2
    limit = WIDTH if bar.limit is None else scale * bar.limit
    return element(
        "g",
        element("title", f"{bar.label}: {bar.figures}"),
        element("text", short(bar.label, max(6, room)), x=0, y=top + 12, class_="label"),
        element(
            "text", bar.figures, x=WIDTH, y=top + 12, text_anchor="end",
            class_="figure bad" if bar.bad else "figure",
        ),
        _box(0, top + _BAR_TOP, limit, _BAR, "track"),
        None if bar.pale is None else _box(0, top + _BAR_TOP, scale * bar.pale, _BAR, f"pale {bar.colour}"),
        None if bar.solid is None else _box(
            0, middle - _THIN / 2, scale * bar.solid, _THIN, f"solid {bar.colour}"
        ),
        None if bar.limit is None else element(
            "line", x1=limit, x2=limit, y1=top + _BAR_TOP - 2, y2=top + _BAR_TOP + _BAR + 2, class_="limit"
        ),
        None if bar.mark is None else mark(scale * bar.mark, middle),
    )  # fmt: skip


def _box(x: float, y: float, width: float, height: float, style: str) -> Element:
    return element("rect", x=x, y=y, width=max(0.0, width), height=height, rx=2, class_=style)
