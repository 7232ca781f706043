"""The whole page: contents, the comparisons beside one another, and a section for each; then studies."""

from __future__ import annotations

from pathlib import Path

from netsplit.report.markup import Element, breakable, element, text_of
from netsplit.report.pictures.bars import series
from netsplit.report.pictures.charts import fidelity_chart, throughput_chart
from netsplit.report.records.facts import lead_of_group, left_out_of
from netsplit.report.records.results import ComparisonResult, Group, Report
from netsplit.report.sections import comparison_section, legend, legend_of, study_section
from netsplit.report.style import SCRIPT, STYLE
from netsplit.report.tables import cross_table
from netsplit.report.units import moment

__all__ = ["html_page"]

_NOTHING_LOADED = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def html_page(report: Report, folder: Path) -> str:
    """The page as text; links to files are relative to `folder`, where it will be.

    It loads nothing: style, script and pictures are in it, and its only addresses are links for a reader.
    """
    colours = {name: series(index) for index, name in enumerate(report.methods)}
    places = {found.place.run_id: f"c{number}" for number, found in enumerate(report.comparisons, 1)}
    groups = [
        _group(group, number, folder, colours, places) for number, group in enumerate(report.groups, start=1)
    ]
    studies = [study_section(study, f"s{number}", folder) for number, study in enumerate(report.studies, 1)]
    body = element(
        "body", _header(report), _overview(report, colours, places), *groups, *studies, _footer(report)
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", http_equiv="Content-Security-Policy", content=_NOTHING_LOADED),
        element("link", rel="icon", href="data:,"),
        element("title", report.title),
        element("style", STYLE),
    )
    body.append(element("script", SCRIPT))
    return text_of(element("html", head, body, lang="en"))


def _header(report: Report) -> Element:
    return element(
        "header",
        element("h1", report.title),
        element("p", f"{report.counted()}. Written {moment(report.written)}.", class_="soft"),
    )


def _overview(report: Report, colours: dict[str, str], places: dict[str, str]) -> Element | None:
    """Contents, and what stands alone in one table; None where there is one section only."""
    if len(report.groups) + len(report.studies) < 2:
        return None
    entries = [_entry(group, number, places) for number, group in enumerate(report.groups, start=1)]
    entries += [_line(study.title, f"s{number}") for number, study in enumerate(report.studies, start=1)]
    chart = fidelity_chart(report)
    return element(
        "section",
        element("nav", element("h2", "Contents"), element("ol", *entries), aria_label="Contents"),
        _alone(report, places),
        None if chart is None else legend_of({name: colours[name] for name in _measured(report)}),
        None if chart is None else element("div", chart, class_="charts"),
    )


def _entry(group: Group, number: int, places: dict[str, str]) -> Element:
    if group.alone:
        return _line(group.title, places[group.comparisons[0].place.run_id])
    entry = _line(group.title, f"e{number}")
    entry.append(
        element("ul", *(_line(found.label, places[found.place.run_id]) for found in group.comparisons))
    )
    return entry


def _line(text: str, place: str) -> Element:
    return element("li", element("a", text, href=f"#{place}"))


def _alone(report: Report, places: dict[str, str]) -> Element | None:
    """The comparisons that are no cases, where there are several."""
    found = [group.comparisons[0] for group in report.groups if group.alone]
    if len(found) < 2:
        return None
    alike = len({each.name for each in found}) == 1  # the contents above have it
    return cross_table(
        found, _links(found, [e.detail if alike else e.title for e in found], places), "Comparison"
    )


def _links(found: list[ComparisonResult], names: list[str], places: dict[str, str]) -> list[Element]:
    return [
        element("a", *breakable(name), href=f"#{places[each.place.run_id]}")
        for each, name in zip(found, names, strict=True)
    ]


def _group(
    group: Group, number: int, folder: Path, colours: dict[str, str], places: dict[str, str]
) -> Element:
    """A comparison, or cases or jobs below what they have in common."""
    found = list(group.comparisons)
    if group.alone:
        return comparison_section(found[0], places[found[0].place.run_id], folder, colours)
    sweep, left_out = group.is_sweep, left_out_of(found)
    charts = [] if sweep else [throughput_chart(f"{each.case}, samples/s", each, colours) for each in found]
    links = _links(found, [each.label for each in found], places)
    kinds = ("Parameters", group.won_by, "all") if sweep else ("Case",)
    return element(
        "section",
        element("h2", group.title),
        element("p", lead_of_group(group)),
        None if left_out is None else element("p", left_out, class_="soft"),
        cross_table(found, links, *kinds),
        legend(found, capacity=False) if charts else None,
        element("div", *charts, class_="charts") if charts else None,
        *(comparison_section(each, places[each.place.run_id], folder, colours, group) for each in found),
        id=f"e{number}",
    )


def _measured(report: Report) -> list[str]:
    shown = {method.name for _, method in report if method.row.prediction_error is not None}
    return [name for name in report.methods if name in shown]


def _footer(report: Report) -> Element:
    return element(
        "footer",
        element(
            "p",
            f"Read from {report.source}; ",
            element("code", "make ui"),
            " shows the same runs.",
            class_="soft",
        ),
    )
