"""The report as Markdown: the tables of all comparisons, for a message or a repository."""

from __future__ import annotations

import re
from pathlib import Path

from netsplit.tracking.report.facts import facts_of, lead_of, when_and_where
from netsplit.tracking.report.markup import clean, link_to
from netsplit.tracking.report.results import ComparisonResult, MethodResult, Report
from netsplit.tracking.report.units import NONE, fixed, moment
from netsplit.tracking.table import markdown

__all__ = ["markdown_page"]

_SIGNS = re.compile(r"([\\`*_\[\]<>#&~])")


def markdown_page(report: Report, folder: Path) -> str:
    """The Markdown; links to files are relative to `folder`."""
    parts = [f"# {_plain(report.title)}", f"Written {moment(report.written)}."]
    if len(report.comparisons) > 1:
        parts.append(_cross(report))
    parts += [_section(found, folder) for found in report.comparisons]
    return "\n\n".join(parts) + "\n"


def _cross(report: Report) -> str:
    """Samples per second; bold is the fastest of its row."""
    lines = [["Samples/s", *map(_plain, report.methods)], ["---", *["---:"] * len(report.methods)]]
    for found in report.comparisons:
        by_name = {method.name: method for method in found.methods}
        cells = [_throughput(found, by_name.get(name)) for name in report.methods]
        lines.append([_plain(found.title), *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _section(found: ComparisonResult, folder: Path) -> str:
    parts = [f"## {_plain(found.title)}", _plain(lead_of(found)), _plain(when_and_where(found))]
    if found.methods:
        parts.append(_escaped(markdown([method.full_row for method in found.methods])).rstrip())
    facts = [*facts_of(found), ("MLflow run", found.place.run_id)]
    parts.append("\n".join(f"- {name}: {_plain(value)}" for name, value in facts))
    traces = [(method.name, link_to(method.place.trace, folder)) for method in found.methods]
    links = [f"[{_plain(name)}]({link})" for name, link in traces if link is not None]
    if links:
        parts.append(f"Traces, for https://ui.perfetto.dev: {', '.join(links)}.")
    return "\n\n".join(parts)


def _throughput(found: ComparisonResult, method: MethodResult | None) -> str:
    if method is None:
        return NONE
    if method.row.failed:
        return method.outcome
    text = fixed(method.throughput, 1)
    if method.only_predicted:
        text += " predicted"
    return f"**{text}**" if method is found.best else text


def _plain(text: str) -> str:
    """On one line, with every sign that Markdown or HTML would read as markup escaped."""
    return _SIGNS.sub(r"\\\1", " ".join(clean(text).split())).replace("|", "\\|")


def _escaped(text: str) -> str:
    """A finished table whose names could still be read as HTML."""
    return clean(text).replace("&", "&amp;").replace("<", "&lt;")
