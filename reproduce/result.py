"""What every study returns: one table, its notes, and pictures with the data that they show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from netsplit.tables import Cell, Column, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Picture", "StudyResult"]


@dataclass(frozen=True)
class Picture:
    """A picture and what it shows, as rows of numbers."""

    name: str  # of its files, without suffix
    size_in: tuple[float, float]  # width and height in inches
    draw: Callable[[Figure], None]
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Cell]] = field(repr=False)


@dataclass(frozen=True)
class StudyResult:
    """The answer of a study. Cells hold seconds, bytes and fractions; columns say how they are shown.

    Args:
        metrics: figures for MLflow, by a name that says of which case they are.
        notes: sentences below the table: how to read it, and what it leaves out.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for row in self.rows:
            assert len(row) == len(self.columns), f"{row} does not fit the columns of '{self.title}'"

    @property
    def table(self) -> Table:
        return Table(self.columns, self.rows, self.title, self.notes)

    def column(self, name: str) -> list[Cell]:
        """All cells of a column, from the top."""
        index = [column.name for column in self.columns].index(name)
        return [row[index] for row in self.rows]
