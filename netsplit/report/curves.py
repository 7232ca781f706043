"""Curves and points over two axes, drawn by Matplotlib as SVG in the colours of the page's style."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Curve", "Plot"]

Point = tuple[float, float]
_INCHES, _TEXT = 340 / 72, 10  # as wide as a telephone, in points
_DOTS = 30  # curves of more points have no dots
_OF_THE_STYLE = {
    "#0072b2": "--s0", "#c06f00": "--s1", "#008060": "--s2", "#b0508a": "--s3", "#2f8fc4": "--s4",
    "#c44a00": "--s5", "#7d6c00": "--s6", "#6b7280": "--s7", "#5b6470": "--soft", "#dfe2e6": "--line",
    "#eceef0": "--track",
}  # fmt: skip
_COLOURS = {name.removeprefix("--"): colour for colour, name in _OF_THE_STYLE.items()}
_LEFT_OUT = re.compile(
    r"<(metadata|style|clipPath)\b.*?</\1>| (clip-path|transform)=\"(url|rotate\(-0 )[^\"]*\""
    r"| id=\"(?!m[0-9a-f]{10}\")[^\"]*\"|font-family: [^;]*;|^ +",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Curve:
    """One named curve, or a set of points."""

    name: str
    points: Sequence[Point]
    colour: str  # class of the style
    words: str = ""  # its figures, for the description


@dataclass(frozen=True)
class Plot:
    """Lines, or points about the diagonal of two equal logarithmic axes.

    Args:
        band: of points, a fraction: as far about the diagonal is marked; None: lines.
        whole_steps: the x axis counts, its ticks are integers.
    """

    title: str
    curves: Sequence[Curve]
    x_name: str
    y_name: str
    band: float | None = None
    whole_steps: bool = False

    @property
    def shows(self) -> bool:
        """Whether there are two points: of one curve, where they are joined by a line."""
        counts = [len(curve.points) for curve in self.curves]
        return (max(counts, default=0) if self.band is None else sum(counts)) > 1

    @property
    def words(self) -> str:
        """What it shows, figures included."""
        told = "; ".join(f"{curve.name}: {curve.words}" for curve in self.curves if curve.points)
        return f"{self.y_name} {'over' if self.band is None else 'against'} {self.x_name}. {told}"

    @property
    def svg(self) -> str:
        """The inside of an SVG element of 340 by 220 points, or by 340 of points about a diagonal."""
        from matplotlib import rc_context
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        height = _INCHES * (0.65 if self.band is None else 1.0)
        soft = dict.fromkeys(
            ("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "text.color"),
            _COLOURS["soft"],
        )
        bare = {"axes.spines.top": False, "axes.spines.right": False}
        given: Any = {
            "svg.fonttype": "none",
            "font.size": _TEXT,
            "grid.color": _COLOURS["line"],
            **soft,
            **bare,
        }
        with rc_context(given):
            figure = Figure(figsize=(_INCHES, height), layout="constrained", facecolor="none")
            axes = figure.subplots(subplot_kw={"facecolor": "none"})
            axes.set_axisbelow(True)
            axes.grid(True, which="major")
            axes.set_xlabel(self.x_name)
            axes.set_ylabel(self.y_name)
            if self.whole_steps:
                axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            if self.band is None:
                self._lines(axes)
            else:
                self._about_the_diagonal(axes, self.band)
            file = io.StringIO()
            figure.savefig(file, format="svg")
        svg = file.getvalue()
        svg = _LEFT_OUT.sub("", svg[svg.index(">", svg.index("<svg")) + 1 : svg.rindex("</svg>")])
        for colour, name in _OF_THE_STYLE.items():
            svg = svg.replace(colour, f"var({name})")
        return svg

    def _lines(self, axes: Axes) -> None:
        for n, curve in enumerate(self.curves):
            if curve.points:
                dots = "o" if len(curve.points) <= _DOTS else ""
                style = "-" if n < 8 else "--"
                axes.plot(
                    *zip(*curve.points, strict=True), style, marker=dots, ms=4, lw=1.6,
                    color=_COLOURS[curve.colour], clip_on=False,
                )  # fmt: skip

    def _about_the_diagonal(self, axes: Axes, band: float) -> None:
        every = [value for curve in self.curves for point in curve.points for value in point]
        low, high = min(every) / 1.25, max(every) * 1.25
        ends = (low, high)
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
        near, far = ([factor * end for end in ends] for factor in (1 - band, 1 + band))
        axes.fill_between(ends, near, far, color=_COLOURS["track"], lw=0)
        axes.plot(ends, ends, color=_COLOURS["soft"], lw=1)
        for curve in self.curves:
            if curve.points:
                axes.plot(*zip(*curve.points, strict=True), "o", ms=6, color=_COLOURS[curve.colour])
