"""Bars, one grammar for all: pale is predicted, solid is measured, the track is the limit.

A label stands above its bar and its figures at the right end of the same line, so that a picture is as
narrow as a telephone and neither long names nor many bars need another shape. Colours are classes of the
page's style: one picture serves light and dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from netsplit.report.text import abbreviated

__all__ = ["MARK", "ROW", "WIDTH", "Bar", "BarChart", "series"]

WIDTH = 340  # units of a picture; a telephone shows about one a pixel
COLOURS = 8  # classes s0 to s7 of the style
MARK = 3.5  # radius of a mark
ROW = 36  # height of a bar with its label
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
        known = (self.solid, self.pale, self.limit, self.mark)
        return [value for value in known if value is not None]

    @property
    def short_label(self) -> str:
        """As much of the label as there is room for beside the figures."""
        room = int((WIDTH - _CHARACTER * len(self.figures) - 10) / _CHARACTER)
        return abbreviated(self.label, max(6, room))


@dataclass(frozen=True)
class BarChart:
    """A row for each bar.

    Args:
        longest: what the whole width stands for; the largest length where None.
    """

    kind: ClassVar[str] = "bars"
    title: str
    bars: Sequence[Bar]
    longest: float | None = None

    @property
    def words(self) -> str:
        return "; ".join(f"{bar.label}: {bar.figures}" for bar in self.bars)

    @property
    def height(self) -> float:
        return ROW * len(self.bars) - 4

    @property
    def scale(self) -> float:
        """Units of the picture for one of the lengths."""
        room = WIDTH - 2 - (MARK if any(bar.mark is not None for bar in self.bars) else 0.0)
        lengths = [value for bar in self.bars for value in bar.lengths]
        return room / (self.longest or max(lengths, default=0.0) or 1.0)


def series(index: int) -> str:
    """The style's class of a method's colour."""
    return f"s{index % COLOURS}"
