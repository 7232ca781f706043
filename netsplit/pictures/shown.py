"""A picture that a notebook shows, and that can be saved."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from netsplit.errors import ConfigError
from netsplit.pictures.drawing import save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ShownFigure"]

_FORMATS = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class ShownFigure:
    """What `plot` gives."""

    figure: Figure  # of Matplotlib, to be changed before it is shown
    title: str

    def save(self, path: str | Path) -> Path:
        """Write it in the format of the suffix: ``.png``, ``.svg`` or ``.pdf``; makes the folder.

        Raises:
            ConfigError: another suffix, or a place that cannot be written.
        """
        if not isinstance(path, str | Path):
            raise ConfigError(f"save needs the name of a file, and {path!r} is none.")
        path = Path(path)
        if path.suffix not in _FORMATS:
            raise ConfigError(f"'{path}' is no picture's name: give one that ends in {', '.join(_FORMATS)}.")
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
