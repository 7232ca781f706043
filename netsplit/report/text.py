"""The report as Markdown: the tables of all comparisons and studies, for a message or a repository."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from netsplit.report.markup import clean, link_to
from netsplit.report.records.facts import (
    facts_of,
    lead_of,
    lead_of_group,
    left_out_of,
    own_error,
    when_and_where,
    when_recorded,
)
from netsplit.report.records.results import ComparisonResult, Group, MethodResult, Report, StudyRecord
from netsplit.report.tables import Won
from netsplit.report.units import NONE, OVER, as_given, decimals, fixed, moment
from netsplit.tracking.table import ComparisonRow, markdown

__all__ = ["markdown_page"]

_SIGNS = re.compile(r"([\\`*_\[\]<>#&~])")


def markdown_page(report: Report, folder: Path) -> str:
    """The Markdown; links to files are relative to `folder`, pictures are at its end."""
    parts = [f"# {_plain(report.title)}", f"Written {moment(report.written)}."]
    alone = [group.comparisons[0] for group in report.groups if group.alone]
    if len(alone) > 1:
        parts.append(_cross(alone, [found.title for found in alone]))
    for group in report.groups:
        parts += [_section(group.comparisons[0], folder)] if group.alone else _group(group, folder)
    parts += [_study(study, number) for number, study in enumerate(report.studies, 1)]
    addresses = [
        f"[{_label(number, at)}]: {picture.address}"
        for number, study in enumerate(report.studies, 1)
        for at, picture in enumerate(study.pictures, 1)
    ]
    parts += ["\n".join(addresses)] if addresses else []
    return "\n\n".join(parts) + "\n"


def _group(group: Group, folder: Path) -> list[str]:
    found, left_out = group.comparisons, left_out_of(group.comparisons)
    parts = [f"## {_plain(group.title)}", _plain(lead_of_group(group))]
    parts += [] if left_out is None else [_plain(left_out)]
    table = _cross(found, [each.label for each in found], group.won_by)
    return [*parts, table, *(_section(each, folder, alone=False) for each in found)]


def _cross(
    found: Sequence[ComparisonResult], names: Sequence[str], won: Won = ComparisonResult.won_by
) -> str:
    """Samples per second, and in brackets what others published; bold is the fastest."""
    results = [method for each in found for method in each.methods]
    methods = list(dict.fromkeys(method.name for method in results))
    digits = decimals(method.throughput for method in results)
    rows = []
    for name, each in zip(names, found, strict=True):
        by_name = {method.name: method for method in each.methods}
        cells = [
            NONE if method is None else _throughput(method, digits, won(each, method))
            for method in map(by_name.get, methods)
        ]
        rows.append([_plain(name), *cells])
    table = _table(["Samples/s", *map(_plain, methods)], [False] + [True] * len(methods), rows)
    notes = [f"{OVER} beyond a device's capacity."] if any(map(_beyond, results)) else []
    if any(each.published for each in found):
        notes.append("In brackets: published, and how far ours is from it.")
    return "\n\n".join([table, *notes])


def _section(found: ComparisonResult, folder: Path, alone: bool = True) -> str:
    heading = f"## {_plain(found.title)}" if alone else f"### {_plain(found.label)}"
    left_out = left_out_of([found]) if alone else None
    parts = [heading, _plain(lead_of(found)), _plain(when_and_where(found))]
    parts += [] if left_out is None else [_plain(left_out)]
    error = own_error(found)
    parts += [] if error is None else [f"**The comparison failed:** {_plain(error)}"]
    if found.methods:
        parts.append(markdown([_marked(method.full_row) for method in found.methods]).rstrip())
    parts += [_beside(found)] if found.published else []
    facts = [*facts_of(found), ("MLflow run", found.place.run_id)]
    parts.append("\n".join(f"- {name}: {_plain(value)}" for name, value in facts))
    traces = [(method.name, link_to(method.place.trace, folder)) for method in found.methods]
    links = [f"[{_plain(name)}]({link})" for name, link in traces if link is not None]
    if links:
        parts.append(f"Traces, for https://ui.perfetto.dev: {', '.join(links)}.")
    return "\n\n".join(parts)


def _beside(found: ComparisonResult) -> str:
    """What others published, and how far ours are from it."""
    methods = found.published
    digits = decimals(method.throughput for method in methods)
    rows = [
        [_plain(method.name), fixed(method.throughput, digits), known, _percent(method.difference, 1)]
        for method, known in zip(methods, as_given(method.published for method in methods), strict=True)
    ]
    return _table(["Method", "Samples/s", "Published", "Difference"], [False, True, True, True], rows)


def _study(study: StudyRecord, number: int) -> str:
    parts = [f"## {_plain(study.title)}", _plain(when_recorded(study))]
    if study.headings:
        rows = [list(map(_plain, row)) for row in study.rows]
        parts.append(_table(list(map(_plain, study.headings)), study.numeric, rows))
    if study.notes:
        parts.append("\n".join(f"- {_plain(note)}" for note in study.notes))
    for at, picture in enumerate(study.pictures, 1):
        parts.append(f"![{_plain(picture.name)}][{_label(number, at)}]")
    parts.append(f"- MLflow experiment: {_plain(study.experiment)}\n- MLflow run: {study.place.run_id}")
    return "\n\n".join(parts)


def _label(study: int, picture: int) -> str:
    return f"picture {study}.{picture}"


def _throughput(method: MethodResult, digits: int, won: bool) -> str:
    known = as_given([method.published])[0]
    if method.row.failed:
        return method.outcome if method.published is None else f"{method.outcome} ({known})"
    text = fixed(method.throughput, digits)
    if method.only_predicted:
        text += " predicted"
    text = f"**{text}**" if won else text
    text = f"{OVER} {text}" if method.too_large else text
    return text if method.published is None else f"{text} ({known}, {_percent(method.difference, 0)})"


def _percent(fraction: float | None, digits: int) -> str:
    return fixed(None if fraction is None else 100 * fraction, digits, sign=True) + " %"


def _table(headings: Sequence[str], numeric: Sequence[bool], rows: Sequence[Sequence[str]]) -> str:
    """Of finished cells."""
    lines = [headings, ["---:" if each else "---" for each in numeric], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _plain(text: str) -> str:
    """On one line, with every sign that Markdown or HTML would read as markup escaped."""
    return _escaped(text).replace("|", "\\|")


def _escaped(text: str) -> str:
    """As `_plain`, but for the bars, which end a table's cells."""
    return _SIGNS.sub(r"\\\1", " ".join(clean(text).split()))


def _marked(row: ComparisonRow) -> ComparisonRow:
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


def _beyond(method: MethodResult) -> bool:
    return method.too_large and not method.row.failed
