"""The whole page: contents, the comparisons beside one another, and a section for each."""

from __future__ import annotations

from pathlib import Path

from netsplit.tracking.report.bars import series
from netsplit.tracking.report.charts import comparison_charts, fidelity_chart
from netsplit.tracking.report.facts import facts_of, lead_of, links_of, when_and_where
from netsplit.tracking.report.markup import Element, element, text_of
from netsplit.tracking.report.results import ComparisonResult, Report
from netsplit.tracking.report.style import SCRIPT, STYLE
from netsplit.tracking.report.tables import (
    Column,
    cross_table,
    epoch_table,
    memory_table,
    result_table,
    run_table,
    solver_table,
    table,
)
from netsplit.tracking.report.units import moment

__all__ = ["PERFETTO", "html_page"]

_MOST_ROWS = 24  # of a table that is not folded
PERFETTO = "https://ui.perfetto.dev"
_NOTHING_LOADED = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def html_page(report: Report, folder: Path) -> str:
    """The page as text; links to files are relative to `folder`, where it will be.

    It loads nothing: style, script and pictures are in it, and its only addresses are links for a reader.
    """
    colours = {name: series(index) for index, name in enumerate(report.methods)}
    sections = [
        _section(found, number, folder, colours) for number, found in enumerate(report.comparisons, start=1)
    ]
    body = element("body", _header(report), _overview(report, colours), *sections, _footer(report))
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
    comparisons, methods = len(report.comparisons), sum(1 for _ in report)
    many = f"{comparisons} comparison{'s' * (comparisons != 1)}, {methods} runs of methods"
    return element(
        "header",
        element("h1", report.title),
        element("p", f"{many}. Written {moment(report.written)}.", class_="soft"),
    )


def _overview(report: Report, colours: dict[str, str]) -> Element | None:
    """Contents and the table of all, of several comparisons."""
    if len(report.comparisons) < 2:
        return None
    entries = [
        element("li", element("a", found.title, href=f"#c{number}"))
        for number, found in enumerate(report.comparisons, start=1)
    ]
    chart = fidelity_chart(report)
    return element(
        "section",
        element("nav", element("h2", "Comparisons"), element("ol", *entries), aria_label="Contents"),
        cross_table(report),
        None if chart is None else _legend_of({name: colours[name] for name in _measured(report)}),
        None if chart is None else element("div", chart, class_="charts"),
    )


def _section(found: ComparisonResult, number: int, folder: Path, colours: dict[str, str]) -> Element:
    facts = [element("div", element("dt", name), element("dd", value)) for name, value in facts_of(found)]
    charts = comparison_charts(found, colours)
    return element(
        "section",
        element("h2", found.title),
        element("p", lead_of(found)),
        element("p", when_and_where(found), class_="soft"),
        _failures(found),
        result_table(found) if found.methods else None,
        _legend() if charts else None,
        element("div", *charts, class_="charts") if charts else None,
        solver_table(found) if found.methods else None,
        _memory(found),
        _folded("Figures of each epoch", epoch_table(found)),
        element("dl", *facts),
        run_table(found, folder),
        _how_to_open(found),
        _folded(
            "Links between devices", _pairs("Links", "From, to", "Latency, bandwidth, fit", links_of(found))
        ),
        _folded("Configuration", _pairs("Configuration", "Key", "Value", list(found.params.items()))),
        id=f"c{number}",
    )


def _memory(found: ComparisonResult) -> Element | None:
    """Open where it is short."""
    rows = sum(len(method.peaks) for method in found.methods)
    content = memory_table(found)
    return content if rows <= _MOST_ROWS else _folded("Peak memory of each device", content)


def _failures(found: ComparisonResult) -> Element | None:
    entries = [
        element("li", element("b", f"{method.name} {method.outcome}: ", class_="bad"), method.row.error)
        for method in found.failed
    ]
    if found.error and found.best is not None:
        entries.insert(0, element("li", element("b", "the comparison: ", class_="bad"), found.error))
    return element("ul", *entries, class_="failures") if entries else None


def _legend() -> Element:
    """What pale, solid, track and stroke mean."""
    samples = {
        "predicted": [_sample(0, 10, "pale s7")],
        "measured": [_sample(3, 4, "solid s7")],
        "capacity": [_sample(0, 10, "track"), element("line", x1=21, x2=21, y1=0, y2=10, class_="limit")],
    }
    entries = [element("li", _swatch(*shapes), name) for name, shapes in samples.items()]
    return element("ul", *entries, class_="legend")


def _legend_of(colours: dict[str, str]) -> Element:
    entries = [
        element("li", _swatch(element("circle", cx=11, cy=5, r=4, class_=f"solid {colour}")), name)
        for name, colour in colours.items()
    ]
    return element("ul", *entries, class_="legend")


def _measured(report: Report) -> list[str]:
    shown = {method.name for _, method in report if method.row.prediction_error is not None}
    return [name for name in report.methods if name in shown]


def _swatch(*shapes: Element) -> Element:
    return element("svg", *shapes, viewBox="0 0 22 10", aria_hidden="true")


def _sample(y: float, height: float, style: str) -> Element:
    return element("rect", x=0, y=y, width=22, height=height, rx=2, class_=style)


def _how_to_open(found: ComparisonResult) -> Element | None:
    if all(method.place.trace is None for method in found.methods):
        return None
    link = element("a", "ui.perfetto.dev", href=PERFETTO, rel="noreferrer")
    return element(
        "p", "A trace shows what every device does when: save the file, open ", link,
        ", choose Open trace file, and take it. It stays on your machine.", class_="soft",
    )  # fmt: skip


def _folded(summary: str, content: Element | None) -> Element | None:
    return None if content is None else element("details", element("summary", summary), content)


def _pairs(caption: str, name: str, value: str, pairs: list[tuple[str, str]]) -> Element | None:
    if not pairs:
        return None
    columns = [
        Column(name, [key for key, _ in pairs], False),
        Column(value, [text for _, text in pairs], False),
    ]
    return table(caption, columns)


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
