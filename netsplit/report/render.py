"""The report through its templates: a page of HTML, and Markdown for a message or a repository.

What a template is given is text: in HTML and in Markdown alike every sign of it that would be read as
markup is escaped, and control characters are replaced. Only what a template itself writes is markup.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from netsplit.report import tables
from netsplit.report.data import facts
from netsplit.report.data.results import ComparisonResult, Report
from netsplit.report.pictures import axes, bars, curves
from netsplit.report.pictures.bars import series
from netsplit.report.pictures.charts import comparison_charts, fidelity_chart, throughput_chart
from netsplit.report.tables import ThroughputCell, cross_table, study_table
from netsplit.report.text import clean, link_to, pieces
from netsplit.report.units import OVER, as_given, decimals, fixed, moment
from netsplit.tables import Column, Table
from netsplit.tracking.table import ComparisonRow, markdown

__all__ = ["HTML", "MARKDOWN", "html_page", "markdown_page"]

_SIGNS = re.compile(r"([\\`*_\[\]<>#&~])")
_FACTS = {name: getattr(facts, name) for name in facts.__all__}


def html_page(report: Report, folder: Path) -> str:
    """The page as text; links to files are relative to `folder`, where it will be.

    It loads nothing: style, script and pictures are in it, and its only addresses are links for a reader.
    """
    return HTML.get_template("page.html.j2").render(
        report=report,
        folder=folder,
        colours={name: series(index) for index, name in enumerate(report.methods)},
        places={found.place.run_id: f"c{number}" for number, found in enumerate(report.comparisons, 1)},
    )


def markdown_page(report: Report, folder: Path) -> str:
    """The Markdown; links to files are relative to `folder`, pictures are at its end."""
    return MARKDOWN.get_template("report.md.j2").render(report=report, folder=folder)


def _as_html(value: object) -> object:
    """What stands for a value on a page, before it is escaped."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, str):
        return clean(value)
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else value


def _as_markdown(value: object) -> object:
    """On one line, with every sign that Markdown or HTML would read as markup escaped."""
    return value if isinstance(value, Markup) else Markup(_escaped(str(value)).replace("|", "\\|"))


def _escaped(text: str) -> str:
    """As `_as_markdown`, but for the bars, which end a table's cells."""
    return _SIGNS.sub(r"\\\1", " ".join(clean(text).split()))


def _environment(**given: Any) -> Environment:
    found = Environment(
        loader=PackageLoader("netsplit.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **given,
    )
    found.globals |= _FACTS | {"link_to": link_to, "moment": moment, "OVER": OVER}
    return found


def _legend(shown: Sequence[ComparisonResult], capacity: bool = True, published: bool = True) -> list[str]:
    """Which of pale, solid, track and marks there are."""
    rows = [method.row for each in shown for method in each.methods]
    there = {
        "predicted": any(row.predicted_s is not None for row in rows),
        "measured": any(row.measured_s is not None or row.throughput is not None for row in rows),
        "capacity": capacity and any(row.capacity for row in rows),
        "published": published and any(each.published for each in shown),
    }
    return [name for name, is_there in there.items() if is_there]


def _table_lines(table: Table) -> Markup:
    """A table of Markdown."""
    columns = [replace(column, name=_escaped(column.name)) for column in table.columns]
    rows = [
        [cell.markdown if isinstance(cell, ThroughputCell) else _escaped(cell) for cell in row]
        for row in table.rows
    ]
    return Markup(Table(columns, rows).markdown())


def _notes_below(shown: Sequence[ComparisonResult]) -> list[str]:
    """What marks and brackets of a table of throughputs mean."""
    large = any(method.too_large and not method.row.failed for each in shown for method in each.methods)
    notes = [f"{OVER} beyond a device's capacity."] if large else []
    known = any(each.published for each in shown)
    return [*notes, *(["In brackets: published, and how far ours is from it."] if known else [])]


def _method_lines(shown: ComparisonResult) -> Markup:
    """The comparison's own table of Markdown, with what its legend says."""
    return Markup(markdown([_safe(method.full_row) for method in shown.methods]).rstrip())


def _safe(row: ComparisonRow) -> ComparisonRow:
    """A row for a table of Markdown, which escapes bars itself."""

    def by_device(figures: dict[str, int]) -> dict[str, int]:
        return {_escaped(device): value for device, value in figures.items()}

    return replace(
        row,
        method=_escaped(row.method),
        status=_escaped(row.status),
        error=None if row.error is None else _escaped(row.error),
        predicted_peak=by_device(row.predicted_peak),
        measured_peak=by_device(row.measured_peak),
        capacity=by_device(row.capacity),
        nodes=by_device(row.nodes),
    )


def _published_table(shown: ComparisonResult) -> Table:
    """What others published, and how far ours are from it."""
    methods = shown.published
    digits = decimals(method.throughput for method in methods)
    known = as_given(method.published for method in methods)
    rows = [
        (method.name, fixed(method.throughput, digits), text, f"{_percent(method.difference)} %")
        for method, text in zip(methods, known, strict=True)
    ]
    figures = map(Column, ("Samples/s", "Published", "Difference"))
    return Table([Column("Method", text=True), *figures], rows)


def _percent(fraction: float | None) -> str:
    return fixed(None if fraction is None else 100 * fraction, 1, sign=True)


HTML = _environment(finalize=_as_html)
HTML.globals |= {name: getattr(tables, name) for name in tables.__all__ if name.islower()}
HTML.globals |= {"axes": axes, "bars": bars, "curves": curves, "legend_of": _legend, "pieces": pieces}
HTML.globals |= {
    "comparison_charts": comparison_charts,
    "fidelity_chart": fidelity_chart,
    "throughput_chart": throughput_chart,
}

MARKDOWN = _environment(finalize=_as_markdown, keep_trailing_newline=True)
MARKDOWN.globals |= {
    "cross_table": cross_table,
    "lines": _table_lines,
    "method_lines": _method_lines,
    "notes_below": _notes_below,
    "published_table": _published_table,
    "study_table": study_table,
}
