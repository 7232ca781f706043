"""A study's result as a table for people, as files, and as one run in MLflow."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from netsplit.files import write_text
from netsplit.studies.result import Cell, StudyResult
from netsplit.tracking.pictures.drawing import new_figure, save

if TYPE_CHECKING:
    from rich.table import Table

    from netsplit.tracking import Tracker

__all__ = ["TABLE", "markdown", "record", "terminal_table", "write"]

TABLE = "table"
"""Name of the table's files, without suffix."""
HEADING = 10  # letters of a heading's line above figures, which are no longer


def terminal_table(result: StudyResult) -> Table:
    """The table for the terminal; notes stand below it."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=result.title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
        caption=Text("\n".join(result.notes)) if result.notes else None,
        caption_justify="left",
    )
    for column in result.columns:
        name = column.name if column.text else "\n".join(wrap(column.name, HEADING, break_long_words=False))
        table.add_column(Text(name), justify="left" if column.text else "right", vertical="bottom")
    for row in result.rows:
        table.add_row(*(Text(text) for text in _shown(result, row)))
    return table


def markdown(result: StudyResult) -> str:
    """The table as GitHub shows it, with a heading above and a list of notes below."""
    lines = [
        f"# {result.title}",
        "",
        _line([column.name for column in result.columns]),
        _line(["---" if column.text else "---:" for column in result.columns]),
        *(_line(_shown(result, row)) for row in result.rows),
    ]
    if result.notes:
        lines += ["", *(f"- {note}" for note in result.notes)]
    return "\n".join(lines) + "\n"


def write(result: StudyResult, folder: Path) -> list[Path]:
    """Write ``table.md``, ``table.csv``, and of every picture a PNG, an SVG and a CSV; the files' paths.

    Numbers in CSV are in the unit that their column names, in full.

    Raises:
        OSError: the folder cannot be written.
    """
    paths = [folder / f"{TABLE}.md", folder / f"{TABLE}.csv"]
    write_text(paths[0], markdown(result))
    scaled = [
        [column.scaled(cell) for column, cell in zip(result.columns, row, strict=True)] for row in result.rows
    ]
    write_text(paths[1], _csv([column.name for column in result.columns], scaled))
    for picture in result.pictures:
        figure = new_figure(*picture.size_in)
        picture.draw(figure)
        for suffix in ("png", "svg"):
            paths.append(folder / f"{picture.name}.{suffix}")
            save(figure, paths[-1])
        paths.append(folder / f"{picture.name}.csv")
        write_text(paths[-1], _csv(picture.columns, picture.rows))
    return paths


def record(
    result: StudyResult,
    tracker: Tracker,
    name: str,
    config: Mapping[str, Any] | None = None,
    files: Sequence[Path] = (),
) -> None:
    """One MLflow run with the tag ``study: <name>``: parameters, metrics, the table, and `files`."""
    with tracker.comparison(name, config, tags={"role": "study", "study": name}) as run:
        finite = {key: value for key, value in result.metrics.items() if math.isfinite(value)}
        run.metrics([(key, value, 0) for key, value in finite.items()])
        run.describe(markdown(result))
        for path in files:
            run.artifact(path)


def _shown(result: StudyResult, row: Sequence[Cell]) -> list[str]:
    return [column.shown(cell) for column, cell in zip(result.columns, row, strict=True)]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"


def _csv(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()
