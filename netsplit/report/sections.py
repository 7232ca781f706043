"""The section of a comparison, and that of a study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from netsplit.report.markup import Child, Element, element, link_to
from netsplit.report.pictures.bars import mark
from netsplit.report.pictures.charts import comparison_charts
from netsplit.report.records.facts import (
    facts_of,
    failures_of,
    lead_of,
    left_out_of,
    links_of,
    when_and_where,
    when_recorded,
)
from netsplit.report.records.results import ComparisonResult, Group, PictureFile, StudyRecord
from netsplit.report.tables import (
    Column,
    epoch_table,
    memory_table,
    result_table,
    run_table,
    solver_table,
    study_table,
    table,
)

__all__ = ["PERFETTO", "comparison_section", "legend", "legend_of", "study_section"]

_MOST_ROWS = 24  # of a table that is not folded
PERFETTO = "https://ui.perfetto.dev"


def comparison_section(
    found: ComparisonResult, place: str, folder: Path, colours: dict[str, str], group: Group | None = None
) -> Element:
    """One comparison.

    Args:
        place: its name as a link's target.
        folder: where the page will be.
        group: of which it is one; that of an experiment shows the throughput of all its cases.
    """
    throughput = group is None or group.is_sweep
    left_out = left_out_of([found]) if group is None else None
    facts = [element("div", element("dt", name), element("dd", value)) for name, value in facts_of(found)]
    about = [element("dl", *facts), run_table(found, folder), _how_to_open(found)]
    charts = comparison_charts(found, colours, throughput=throughput)
    return element(
        "section",
        element("h2", found.title) if group is None else element("h3", found.label),
        element("p", lead_of(found)),
        element("p", when_and_where(found), class_="soft"),
        None if left_out is None else element("p", left_out, class_="soft"),
        _failures(found),
        result_table(found),
        legend([found], published=throughput) if charts else None,
        element("div", *charts, class_="charts") if charts else None,
        solver_table(found),
        _memory(found),
        _folded("Figures of each epoch", epoch_table(found)),
        _folded("What was compared, runs and traces", element("div", *about)) if group else None,
        *([] if group else about),
        _folded(
            "Links between devices", _pairs("Links", "From, to", "Latency, bandwidth, fit", links_of(found))
        ),
        _configuration(list(found.params.items())),
        id=place,
        class_="case" if group else None,
    )


def study_section(study: StudyRecord, place: str, folder: Path) -> Element:
    """One study: its table, how to read it, and its pictures."""
    notes = [element("li", note) for note in study.notes]
    pictures = [_picture(each, study.about) for each in study.pictures]
    files = link_to(study.place.folder, folder)
    source: list[Child] = [
        f"MLflow experiment {study.experiment}, run ",
        element("code", _linked(study.place.run_id, study.place.page)),
    ]
    source += [] if files is None else [", ", element("a", "files", href=files)]
    return element(
        "section",
        element("h2", study.title),
        element("p", when_recorded(study), class_="soft"),
        study_table(study),
        element("ul", *notes, class_="notes") if notes else None,
        element("div", *pictures, class_="pictures") if pictures else None,
        element("p", *source, ".", class_="soft"),
        _configuration(list(study.params.items())),
        id=place,
    )


def legend(
    found: Sequence[ComparisonResult], capacity: bool = True, published: bool = True
) -> Element | None:
    """What pale, solid, track and marks mean, as far as they are there."""
    rows = [method.row for each in found for method in each.methods]
    track, end = _sample(0, 10, "track"), element("line", x1=21, x2=21, y1=0, y2=10, class_="limit")
    samples: dict[str, list[Element]] = {}
    if any(row.predicted_s is not None for row in rows):
        samples["predicted"] = [_sample(0, 10, "pale s7")]
    if any(row.measured_s is not None or row.throughput is not None for row in rows):
        samples["measured"] = [_sample(3, 4, "solid s7")]
    if capacity and any(row.capacity for row in rows):
        samples["capacity"] = [track, end]
    if published and any(each.published for each in found):
        samples["published"] = [mark(11, 5)]
    entries = [element("li", _swatch(*shapes), name) for name, shapes in samples.items()]
    return element("ul", *entries, class_="legend") if entries else None


def legend_of(colours: dict[str, str]) -> Element:
    entries = [
        element("li", _swatch(element("circle", cx=11, cy=5, r=4, class_=f"solid {colour}")), name)
        for name, colour in colours.items()
    ]
    return element("ul", *entries, class_="legend")


def _failures(found: ComparisonResult) -> Element | None:
    entries = [
        element("li", element("b", f"{who}: ", class_="bad"), reason) for who, reason in failures_of(found)
    ]
    return element("ul", *entries, class_="failures") if entries else None


def _memory(found: ComparisonResult) -> Element | None:
    """Open where it is short."""
    rows = sum(len(method.peaks) for method in found.methods)
    content = memory_table(found)
    return content if rows <= _MOST_ROWS else _folded("Peak memory of each device", content)


def _picture(picture: PictureFile, about: str) -> Element:
    image = element("img", src=picture.address, alt=f"{picture.name}: {about}")
    box = element("div", image, class_="scroll", tabindex="0", role="region", aria_label=picture.name)
    hint = element("span", ", tap to enlarge", class_="hint")
    return element("figure", element("figcaption", picture.name, hint), box)


def _linked(text: str, address: str | None) -> Child:
    return text if address is None else element("a", text, href=address)


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


def _configuration(pairs: Sequence[tuple[str, str]]) -> Element | None:
    return _folded("Configuration", _pairs("Configuration", "Key", "Value", pairs))


def _folded(summary: str, content: Element | None) -> Element | None:
    return None if content is None else element("details", element("summary", summary), content)


def _pairs(caption: str, name: str, value: str, pairs: Sequence[tuple[str, str]]) -> Element | None:
    columns = [
        Column(name, [key for key, _ in pairs], False),
        Column(value, [text for _, text in pairs], False),
    ]
    return table(caption, columns)
