"""What all pictures share: colours that colour-blind readers can tell apart, canvas, saving.

Matplotlib is used without pyplot: no window, no global state, and imported only when something is drawn.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from netsplit.errors import ConfigError
from netsplit.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["KIND_COLOURS", "PALETTE", "ShownFigure", "colours_of", "new_figure", "save_figure", "tint"]

# Okabe and Ito, "Color Universal Design"
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")

KIND_COLOURS = {
    "forward": "#0072B2",
    "recompute": "#56B4E9",
    "backward": "#E69F00",
    "weight": "#D55E00",
    "step": "#CC79A7",
    "send": "#009E73",
    "recv": "#56B4E9",
    "reduce": "#777777",
    "wait": "#DDDDDD",
}


def new_figure(width_in: float, height_in: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width_in, height_in), layout="constrained")


def save_figure(figure: Figure, path: str | Path, dpi: int = 120) -> None:
    """Write the picture in the format of the suffix (``.png``, ``.svg``, ``.pdf``), whole or not at all."""
    kind = Path(path).suffix.lstrip(".") or "png"
    write_atomically(path, lambda file: figure.savefig(file, format=kind, dpi=dpi))


def colours_of(names: Iterable[str]) -> dict[str, str]:
    return {name: PALETTE[index % len(PALETTE)] for index, name in enumerate(names)}


def tint(colour: str, fraction: float = 0.25) -> str:
    """An opaque light shade of ``#RRGGBB``: `fraction` of the colour on white."""
    parts = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{round(255 + fraction * (part - 255)):02X}" for part in parts)


_FORMATS = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class ShownFigure:
    """The result of `plot`."""

    figure: Figure  # of Matplotlib, to be changed before it is shown
    title: str

    def save(self, path: str | Path) -> Path:
        """Write the picture in the format of its suffix: ``.png``, ``.svg`` or ``.pdf``; makes the folder.

        Raises:
            ConfigError: another suffix, or a place that cannot be written.
        """
        path = Path(path)
        if path.suffix not in _FORMATS:
            raise ConfigError(
                f"'{path}' is not the name of a picture: give one that ends in {', '.join(_FORMATS)}."
            )
        try:
            save_figure(self.figure, path)
        except OSError as error:
            raise ConfigError(f"'{path}' cannot be written: {error.strerror or error}.") from error
        return path

    def __repr__(self) -> str:
        return f"<{self.title}; save(path) writes it>"

    def _repr_svg_(self) -> str:
        text = io.StringIO()
        self.figure.savefig(text, format="svg")
        return text.getvalue()
