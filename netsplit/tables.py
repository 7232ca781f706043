"""Tables: columns with a heading, a side and a format; rows of cells; and both, or a few figures, as text.

table = Table([Column("method", text=True), Column("ms", ",.1f", 1e3)], [("auto", 0.25), ("one", None)])
table.terminal()    # of rich
table.markdown()    # as GitHub reads it
table.lines()       # aligned, for a log or a file of text
table.html()        # for a notebook and the report
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import compress
from textwrap import wrap
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import rich.table

__all__ = [
    "Cell", "Column", "Table", "byte_unit", "counted", "listed", "nbytes", "percent", "seconds", "short",
]  # fmt: skip

Cell: TypeAlias = str | int | float | None

_NONE = "-"
_BELOW = "    "  # indent of cells below a row
_HEADING = 10  # width of heading lines above figures
_STYLES = {"failed": "red", "best": "bold"}
_UNITS = ("KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True)
class Column:
    """A column of a table. `form` is Python's format specification of its numbers, such as ``",.1f"``."""

    name: str
    form: str = ""
    scale: float = 1.0  # from seconds, bytes and fractions to the unit in `name`
    text: bool = False  # words, aligned left; figures are aligned right
    whole: bool = False  # a terminal does not break its lines
    below: bool = False  # in lines: its cells are below the row; "" has no line
    in_bytes: bool = False  # cells are bytes, shown in MiB

    @property
    def heading(self) -> str:
        return f"{self.name} MiB" if self.in_bytes else self.name

    def scaled(self, cell: Cell) -> Cell:
        """A cell in the column's unit; None for an empty one."""
        if cell is None or (isinstance(cell, float) and not math.isfinite(cell)):
            return None
        return cell * self.scale if self.scale != 1.0 and isinstance(cell, (int, float)) else cell

    def shown(self, cell: Cell) -> str:
        """A cell as text."""
        value = self.scaled(cell)
        if value is None:
            return _NONE
        if self.in_bytes and isinstance(value, (int, float)):
            return _mebibytes(value)
        return format(value, self.form) if isinstance(value, (int, float)) else str(value)


@dataclass(frozen=True)
class Table:
    """Rows of cells.

    Args:
        notes: lines below the table on a terminal.
        marked: row -> how it stands out, "best" or "failed".
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    notes: Sequence[str] = ()
    marked: Mapping[int, str] = field(default_factory=dict)

    @property
    def texts(self) -> list[list[str]]:
        return [
            [column.shown(cell) for column, cell in zip(self.columns, row, strict=True)] for row in self.rows
        ]

    def terminal(self, spaced: bool = False) -> rich.table.Table:
        """The table for a console of rich; `spaced`: an empty line after each row."""
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(
            title=self.title or None,
            title_justify="left",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
            show_edge=False,
            caption=Text("\n".join(self.notes)) if self.notes else None,
            caption_justify="left",
        )
        for column in self.columns:
            table.add_column(
                Text(_heading(column)),
                justify="left" if column.text else "right",
                vertical="top" if spaced else "bottom",
                overflow="ellipsis" if column.whole else "fold",
                no_wrap=column.whole,
            )
        for index, row in enumerate(self.texts):
            style = _STYLES.get(self.marked.get(index, ""), "")
            table.add_row(*(Text(text, style=style) for text in row))
            if spaced:
                table.add_row()
        return table

    def markdown(self) -> str:
        """The table without title and notes; cells stay on one line."""
        sides = ["---" if column.text else "---:" for column in self.columns]
        lines = [[column.heading for column in self.columns], sides, *self.texts]
        return "\n".join(f"| {' | '.join(map(_on_a_line, line))} |" for line in lines)

    def lines(self) -> list[str]:
        """Aligned by spaces, with headings if there are any, without title and notes."""
        headings = [column.heading for column in self.columns]
        rows = [headings, *self.texts] if any(headings) else self.texts
        return [line for row in self._aligned(rows) for line in row]

    def _aligned(self, rows: Sequence[Sequence[str]]) -> list[list[str]]:
        beside = [not column.below for column in self.columns]
        widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
        sides = ["<" if column.text else ">" for column in self.columns]
        aligned = []
        for row in rows:
            cells = map("{:{}{}}".format, row, sides, widths)
            first = "  ".join(compress(cells, beside)).rstrip()
            below = (
                f"{_BELOW}{cell}"
                for cell, is_beside in zip(row, beside, strict=True)
                if cell and not is_beside
            )
            aligned.append([first, *below])
        return aligned

    def html(self) -> str:
        sides = [f' style="text-align: {"left" if column.text else "right"}"' for column in self.columns]
        headings = "".join(
            f"<th{side}>{escape(c.heading)}</th>" for side, c in zip(sides, self.columns, strict=True)
        )
        rows = (
            "".join(f"<td{side}>{escape(text)}</td>" for side, text in zip(sides, row, strict=True))
            for row in self.texts
        )
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<table><thead><tr>{headings}</tr></thead><tbody>{body}</tbody></table>"


def byte_unit(value: float) -> tuple[str, int]:
    """The largest unit not above this many bytes, and its bytes."""
    name, size = "B", 1
    for larger in _UNITS:
        if abs(value) < 1024 * size:
            break
        name, size = larger, 1024 * size
    return name, size


def nbytes(value: float, up: bool = False) -> str:
    """Bytes as text: ``512 B``, ``4 KiB``, from a MiB on ``1.5 MiB``. `up`: rounded up."""
    if abs(value) < 1024:
        return f"{value:.0f} B"
    unit, size = byte_unit(min(abs(value), 2**20))
    figure = value / size
    digits = max(_decimals(figure, 4), 0)
    if up:
        figure = math.ceil(figure * 10**digits) / 10**digits
    text = f"{figure:.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if digits else text} {unit}"


def seconds(value: float) -> str:
    """``1.234 s``, ``12.3 ms``, ``4.5 us``: four digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(value) >= size:
            return f"{value / size:.4g} {unit}"
    return f"{1e6 * value:.3g} us" if value else "0 s"


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def listed(names: Sequence[str], joined: str = "and") -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return f" {joined} ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def counted(number: int, what: str, several: str = "s") -> str:
    """``1 node``, ``2 nodes``."""
    return f"{number} {what}{'' if number == 1 else several}"


def short(name: str, length: int = 32) -> str:
    """A name with its middle left out where it is long."""
    if len(name) <= length:
        return name
    head = (length - 1) // 2
    return f"{name[:head]}…{name[head + 1 - length :]}"


def _mebibytes(value: float) -> str:
    """MiB in a column, with one decimal, or more below 1 MiB."""
    size = value / 2**20
    return f"{size:,.{max(_decimals(size, 3), 1) if 0 < abs(size) < 1 else 1}f}"


def _decimals(value: float, digits: int) -> int:
    """Decimals that give a number this many digits."""
    return digits - 1 - math.floor(math.log10(abs(value)))


def _on_a_line(cell: str) -> str:
    return " ".join(cell.replace("|", "\\|").split())


def _heading(column: Column) -> str:
    if column.text:
        return column.heading
    lines = (wrap(line, _HEADING, break_long_words=False) for line in column.heading.splitlines())
    return "\n".join(part for line in lines for part in line)
