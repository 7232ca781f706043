"""The page and its Markdown hold every figure, run no name as markup, and load nothing."""

from __future__ import annotations

import re
import tomllib
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from netsplit.planning.explanation.change import PlacementChange
from netsplit.report import EpochFigures, Report, grouped, html_page, markdown_page, write_report
from netsplit.report.data.results import Place
from netsplit.report.render import HTML
from netsplit.report.text import clean
from netsplit.tracking.table import ComparisonRow
from netsplit.training.adapt.decisions import Decision
from tests.tracking.reports import (
    HOSTILE,
    MIB,
    WHEN,
    Parsed,
    method,
    parsed,
    planned,
    report,
    study,
    trained,
)
from tests.tracking.samples import rows


def test_every_figure_is_on_the_page() -> None:
    words = parsed().words
    netsplit = "netsplit 128.0 100 200.0 250.0 −20.0 93.8 0.1234 finished"  # noqa: RUF001
    assert netsplit in words
    assert "m_topo 106.7 83 310.0 300.0 +3.3 93.6 0.1301 finished" in words
    assert "single 71.0 55 – 450.0 – – – finished" in words  # noqa: RUF001
    assert "netsplit optimal 123.4 123.4 0.00 12.345 one pass gurobi 13.0.3" in words
    assert "optimal: no plan is better in what the method itself minimises" in words
    assert "netsplit cpu:0 203 38.0 39.0 48.0 81.2" in words
    assert "netsplit 3 0.6667 75.0 4.25 12.75" in words
    assert "m_topo 3 0.8000 70.0 5.50 –" in words  # noqa: RUF001 - the seconds of an epoch before are unknown
    assert "Fastest: netsplit with 128.0 samples/s, 1.20 times m_topo, the next." in words


def test_a_plan_reads_as_a_plan() -> None:
    words = parsed(planned()).words
    assert "planned: what an iteration takes is predicted" in words
    assert "Fastest: netsplit with 1,280.0 samples/s predicted, 1.60 times pipedream, the next." in words
    assert "netsplit 1,280.0 100 50.0 finished" in words
    assert "gpu15 115.0 116.0 99.1" in words
    for absent in ("Measured, ms", "Accuracy", "Epochs", "trace"):
        assert absent not in words, absent


@pytest.mark.parametrize("text", [HOSTILE, "]]> --> </style>", "\x00\x1b[31m"])
def test_no_name_is_read_as_markup(text: str) -> None:
    row = replace(rows()[0], metric="accuracy", method=text, status=text, capacity={text: MIB},
                  predicted_peak={text: MIB}, measured_peak={text: 2 * MIB}, nodes={text: 3})  # fmt: skip
    failed = ComparisonRow(text, "failed", error=text)
    one = replace(
        trained(text),
        methods=[method(row, [EpochFigures(0, 1.0, 0.5, 1.0)], engine=text), method(failed)],
        tags=dict.fromkeys(("model", "host.os", f"link.{text}"), text),
        params={text: text, "batch_size": text},
        error=text,
    )
    case = replace(one, tags={**one.tags, "experiment": text, "case": text}, place=Place("c" * 32))
    other = replace(case, tags={**case.tags, "case": f"{text} too"}, place=Place("d" * 32))
    studies = [replace(study(text, text), headings=[text, "x"], rows=[[text, text]], notes=[text])]
    hostile = Report(text, grouped([one, case, other]), text, WHEN, studies)
    page = Parsed(html_page(hostile, Path()))
    assert (page.count("script"), page.count("style")) == (1, 1)
    assert clean(text) in "".join(page.texts)
    lines = markdown_page(hostile, Path()).splitlines()
    assert not any(re.search(r"(?<!\\)<script", line) for line in lines)
    tables = [re.sub(r"\\.", "", line).count("|") for line in lines if line.startswith("|")]
    assert set(tables) == {3, 13}
    assert page.count("img") == 1


def test_the_page_loads_nothing() -> None:
    text = html_page(report(trained(), studies=[study()]), Path("/somewhere"))
    page = Parsed(text)
    for tag, attrs in page.tags:
        assert (attrs.get("src") or "data:").startswith("data:")
        if tag == "link":
            assert attrs["href"] == "data:,"
    assert not re.search(r"@import|url\(|srcset|<(iframe|object|embed)\b", text)
    assert {attrs.get("href") for _, attrs in page.tags} >= {"#c1"}
    assert any(attrs.get("name") == "viewport" for _, attrs in page.tags)


def test_an_installed_package_has_every_template() -> None:
    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())
    (pattern,) = project["tool"]["setuptools"]["package-data"]["netsplit.report"]
    names = {path.name for path in (root / "netsplit" / "report").glob(pattern)}
    assert names == set(HTML.list_templates()) > {"page.html.j2", "report.md.j2", "style.css", "sort.js"}


def test_files_are_linked_from_where_the_page_is(tmp_path: Path) -> None:
    folder = tmp_path / "mlartifacts" / "a b" / "artifacts"
    folder.mkdir(parents=True)
    (folder / "trace.json").touch()
    place = Place("a" * 32, folder=folder, trace=folder / "trace.json")
    comparison = replace(trained(), methods=[replace(trained().methods[0], place=place)])
    page, text = write_report(report(comparison), tmp_path / "out" / "report.html")
    assert 'href="../mlartifacts/a%20b/artifacts/trace.json"' in page.read_text()
    assert "(../mlartifacts/a%20b/artifacts/trace.json)" in text.read_text()
    assert "https://ui.perfetto.dev" in page.read_text()


def test_markdown_has_the_same_tables() -> None:
    text = markdown_page(report(), Path())
    assert "| digits, gpipe | **128.0** | 106.7 | failed | 71.0 | – |" in text  # noqa: RUF001
    assert "| vgg19 on eight | **1,280.0 predicted** |" in text
    assert "| netsplit | optimal | 123.4 | 0.0 | 12,345 | 200.0 | 250.0 | -20.0 | 128.0 |" in text
    assert "- Cluster: cpu2 (cpu:0, cpu:1)" in text


KEPT = Decision(
    40,
    "cpu:1 takes 6.10 times as long",
    "kept",
    0.02,
    0.01,
    0.03,
    0.012,
    "auto",
    0.5,
    0.041,
    4096,
    PlacementChange(3, 1, 0, ("3 operators from cpu:1 to cpu:0", "now fc1 in 2 parts")),
)
STAYED = Decision(
    7, "the first measured iterations; no plan is predicted to be shorter by enough", "stayed", 0.02
)


def test_every_decision_is_a_line() -> None:
    one = trained()
    decided = replace(one.methods[0], decisions=[asdict(STAYED), asdict(KEPT)])
    shown = replace(one, methods=[decided, *one.methods[1:]])
    words = parsed(shown).words
    assert "netsplit 7 stayed 20.0" in words
    changed = "3 3 operators from cpu:1 to cpu:0; now fc1 in 2 parts"
    assert f"netsplit 40 kept 20.0 10.0 30.0 12.0 41.0 {changed} cpu:1 takes 6.10 times as long" in words
    page = markdown_page(report(shown), Path())
    assert "| netsplit | 40 | kept | 20.0 | 10.0 | 30.0 | 12.0 | 41.0 | 3 | 3 operators from cpu:1" in page
