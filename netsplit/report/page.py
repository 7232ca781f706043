"""A report as a page of HTML, and as Markdown for a message or a repository.

Every sign of a name that HTML or Markdown would read as markup is escaped; control characters are replaced.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from netsplit.report.sections import Report
from netsplit.tables import Table

__all__ = ["PAGE", "html_page", "markdown_page"]

_SIGNS = re.compile(r"([\\`*_\[\]<>#&~])")
_CONTROL = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]"
)
PAGE = Environment(
    loader=PackageLoader("netsplit.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
)


def html_page(report: Report, folder: Path) -> str:
    """The page as text; links to files are relative to `folder`, where it will be. It loads nothing."""
    page = PAGE.get_template("page.html.j2").render(report=report, folder=folder, address=_address)
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", page)


def markdown_page(report: Report, folder: Path) -> str:
    """Sentences, tables and links of the page, without its pictures and settings."""
    parts = [f"# {_escaped(report.title)}", f"Written {report.written:%Y-%m-%d %H:%M} UTC."]
    for section in report.sections:
        parts.append(f"##{'#' * section.inner} {_escaped(section.title)}")
        parts += map(_escaped, section.said)
        parts += [f"**Failed:** {_escaped(each)}" for each in section.failed]
        for table in section.tables:
            parts += [f"{_escaped(table.title)}:", _lines(table), *map(_escaped, table.notes)]
        parts += [f"[{_escaped(text)}]({_address(to, folder)})" for text, to in section.links]
    return "\n\n".join(parts) + "\n"


def _address(target: Path | str, folder: Path) -> str:
    """What a page in `folder` calls `target`: a relative path, or the address as it is."""
    if isinstance(target, str):
        return target
    try:
        return quote(Path(os.path.relpath(target, folder)).as_posix())
    except ValueError:  # another drive
        return target.as_uri()


def _escaped(text: str) -> str:
    clean = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
    return _SIGNS.sub(r"\\\1", " ".join(clean.split()))


def _lines(table: Table) -> str:
    columns = [replace(each, name=_escaped(each.name)) for each in table.columns]
    return Table(columns, [list(map(_escaped, row)) for row in table.texts]).markdown()
