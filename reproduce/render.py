"""A study's result as a table for people, as files, and as one run in MLflow."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from netsplit.files import write_text
from netsplit.pictures.drawing import new_figure, save_figure
from netsplit.tracking import Tracker
from reproduce.result import StudyResult

__all__ = ["TABLE", "markdown", "record", "write"]

TABLE = "table"
"""Name of the table's files, without suffix."""


def markdown(result: StudyResult) -> str:
    """The table as GitHub shows it, with a heading above and a list of notes below."""
    lines = [f"# {result.title}", "", result.table.markdown()]
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
    names = [f"{column.name} bytes" if column.in_bytes else column.name for column in result.columns]
    cells = ([c.scaled(cell) for c, cell in zip(result.columns, row, strict=True)] for row in result.rows)
    write_text(paths[1], csv_text(names, cells))
    for picture in result.pictures:
        figure = new_figure(*picture.size_in)
        picture.draw(figure)
        for suffix in ("png", "svg"):
            paths.append(folder / f"{picture.name}.{suffix}")
            save_figure(figure, paths[-1])
        paths.append(folder / f"{picture.name}.csv")
        write_text(paths[-1], csv_text(picture.columns, picture.rows))
    return paths


def csv_text(headings: Iterable[str], rows: Iterable[Sequence[object]]) -> str:
    """Cells as they are, as lines of CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(headings)
    writer.writerows(rows)
    return text.getvalue()


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
        columns = [(column.heading, column.text) for column in result.columns]
        shown = {"about": result.title, "columns": columns, "rows": result.table.texts}
        run.text(json.dumps(shown | {"notes": list(result.notes)}), f"{TABLE}.json")  # for the report
        for path in files:
            run.artifact(path)
