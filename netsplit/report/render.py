"""The report through its templates: a page of HTML, and Markdown for a message or a repository.

What a template is given is text: in HTML and in Markdown alike every sign of it that would be read as
markup is escaped, and control characters are replaced. Only what a template itself writes is markup.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from netsplit.report import charts, tables, text
from netsplit.report.data import facts
from netsplit.report.data.results import ComparisonResult, Report
from netsplit.report.text import clean, link_to, pieces
from netsplit.tables import Table
from netsplit.tracking.table import comparison_markdown

__all__ = ["HTML", "MARKDOWN", "html_page", "markdown_page"]

_SIGNS = re.compile(r"([\\`*_\[\]<>#&~])")


def html_page(report: Report, folder: Path) -> str:
    """The page as text; links to files are relative to `folder`, where it will be.

    It loads nothing: style, script and pictures are in it, and its only addresses are links for a reader.
    """
    return HTML.get_template("page.html.j2").render(
        report=report,
        folder=folder,
        colours={name: charts.series(index) for index, name in enumerate(report.methods)},
        places={each.place.run_id: f"c{number}" for number, each in enumerate(report.comparisons, 1)},
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
    loader = PackageLoader("netsplit.report")
    environment = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **given,
    )
    environment.globals |= {"facts": facts, "link_to": link_to, "tables": tables, "units": text}
    return environment


def _table_lines(table: Table) -> Markup:
    """A table of Markdown."""
    columns = [replace(column, name=_escaped(column.name)) for column in table.columns]
    rows = [
        [cell.markdown if isinstance(cell, tables.ThroughputCell) else _escaped(cell) for cell in row]
        for row in table.rows
    ]
    return Markup(Table(columns, rows).markdown())


def _method_lines(shown: ComparisonResult) -> Markup:
    """The comparison's own table of Markdown, with what its legend says."""
    return Markup(comparison_markdown([method.full_row for method in shown.methods], _escaped).rstrip())


HTML = _environment(finalize=_as_html)
HTML.globals |= {"charts": charts, "pieces": pieces}

MARKDOWN = _environment(finalize=_as_markdown, keep_trailing_newline=True)
MARKDOWN.globals |= {"lines": _table_lines, "method_lines": _method_lines}
