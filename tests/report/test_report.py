"""The page and its Markdown hold every figure, run no name as markup, and load nothing."""

from __future__ import annotations

import base64
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from netsplit.errors import ConfigError, NetSplitError
from netsplit.report import EpochFigures, Report, grouped, html_page, markdown_page, write_report
from netsplit.report.data.results import Place
from netsplit.report.render import HTML
from netsplit.report.text import clean
from netsplit.tracking.table import ComparisonRow
from tests.tracking.reports import (
    DRAWING,
    HOSTILE,
    MIB,
    WHEN,
    Parsed,
    cases,
    method,
    parsed,
    planned,
    report,
    study,
    sweep,
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


def test_what_was_compared_is_said() -> None:
    words = parsed(trained()).words
    facts = (
        "AmoebaNetD (num_layers 3)",
        "cpu2 (cpu:0, cpu:1)",
        "64, 3, ?",
        "Begun 2026-11-21 17:44 UTC, took 2 min 05 s, on vm (2 cores).",
        "torch 2.13.0",
        "0123456789ab with changes",
        "80.4 µs, 6.65 GB/s",
        "MLflow experiment netsplit",
        f"the comparison {'f' * 32} finished",
        "sqlite:///outputs/mlflow.db",
    )
    for fact in facts:
        assert fact in words, fact


def test_a_plan_reads_as_a_plan() -> None:
    words = parsed(planned()).words
    assert "planned: what an iteration takes is predicted" in words
    assert "Fastest: netsplit with 1,280.0 samples/s predicted, 1.60 times pipedream, the next." in words
    assert "netsplit 1,280.0 100 50.0 finished" in words
    assert "gpu15 115.0 116.0 99.1" in words
    for absent in ("Measured, ms", "Accuracy", "Epochs", "trace"):
        assert absent not in words, absent


def test_several_comparisons_have_contents_and_a_table_with_winners() -> None:
    page = parsed(trained(), planned())
    assert page.words.count("★ 128.0") == 1
    assert page.words.count("★ 1,280.0") == 1
    links = {attrs["href"] for tag, attrs in page.tags if tag == "a"}
    ids = {f"#{attrs['id']}" for tag, attrs in page.tags if "id" in attrs and tag != "path"}
    assert {"#c1", "#c2"} == {link for link in links if link and link.startswith("#")} == ids
    assert page.count("nav") == 1
    assert parsed(trained()).count("nav") == 0


def test_what_is_beyond_a_capacity_does_not_win() -> None:
    netsplit, *others = trained().methods
    large = replace(netsplit, row=replace(netsplit.row, capacity={"cpu:1": 40 * MIB}))
    comparison = replace(trained(), methods=[large, *others])
    assert (large.outcome, netsplit.outcome) == ("beyond capacity", "finished")
    assert comparison.best is others[0]
    assert "netsplit 128.0 – 200.0 250.0 −20.0 93.8 0.1234 beyond capacity" in parsed(comparison).words  # noqa: RUF001


def test_every_picture_says_in_words_what_it_shows() -> None:
    page = html_page(report(), Path())
    curves = re.findall(r"<svg[^>]*role=\"img\".*?</svg>", page, re.DOTALL)
    bars = re.findall(r'<div class="bar".*?</div></div>', page, re.DOTALL)
    assert (len(curves), len(bars)) == (4, 50)
    for each in curves:
        assert re.match(r"<svg[^>]*><title>[^<]+</title><desc>[^<]+\d[^<]*</desc>", each), each[:200]
    for each in bars:
        assert re.match(r'<div class="bar" title="[^"]+: [^"]+"><span class="label">[^<]+</span>', each), each
    assert not re.search(r"\b(nan|inf|NaN)\b", "".join(curves + bars))


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


def test_cases_stand_together_beside_what_was_published() -> None:
    page = parsed(trained(), *cases())
    assert "unet ★ 1,280.0 1,000 (+28 %) 800.0 vgg 640.0 2,560 (−75 %) ★ 800.0 640.25 (+25 %)" in page.words  # noqa: RUF001
    assert "netsplit 1,280.0 1,000 +28.0 100 50.0 finished" in page.words
    assert "pipedream 800.0 640.25 +25.0" in page.words
    assert "2 cases; fastest: netsplit in 1, pipedream in 1." in page.words
    assert (
        "Beside 3 published figures ours differ by 28.0 % in the median, at most by 75.0 % (netsplit in vgg)."
        in page.words
    )
    assert "unet, samples/s" in page.texts
    assert "Throughput, samples/s / published (difference)" in parsed(cases()[0]).texts
    assert sum(attrs.get("class") == "mark" for _, attrs in page.tags) == 3 + 1  # the legend's
    links = {attrs["href"] for tag, attrs in page.tags if tag == "a"}
    ids = {f"#{attrs['id']}" for tag, attrs in page.tags if "id" in attrs and tag != "path"}
    assert {"#c1", "#c2", "#c3", "#e2"} == {link for link in links if link and link.startswith("#")}
    assert {"#c1", "#c2", "#c3", "#e2"} == ids


def test_the_jobs_of_a_sweep_stand_together_with_what_differs_and_the_fastest_marked() -> None:
    (group,) = grouped(sweep())
    assert group.title == "digits · gpipe"
    assert [one.label for one in group.comparisons] == [
        "schedule.microbatches=1, seed=0", "schedule.microbatches=2, seed=1",
        "schedule.microbatches=4, seed=0",
    ]  # fmt: skip
    words = parsed(*sweep(), trained()).words
    assert (
        "3 comparisons of one sweep. Fastest: netsplit (schedule.microbatches=2, seed=1) with 300.0" in words
    )
    assert "Throughput, samples/s; ★ the fastest of all Parameters netsplit" in words
    assert "=1, seed=0 100.0" in words
    assert "=2, seed=1 ★ 300.0" in words
    assert words.count("★ ") == 2
    text = markdown_page(report(*sweep()), Path())
    assert "| schedule.microbatches=2, seed=1 | **300.0** |" in text
    assert "| schedule.microbatches=4, seed=0 | 200.0 |" in text
    assert "### schedule.microbatches=4, seed=0" in text


def test_a_study_has_its_table_its_notes_and_its_picture() -> None:
    page = parsed(trained(), studies=[study()])
    assert "case latency (µs) PIX 15.0 NODE 7.5" in page.words
    assert "Latencies are those of the description." in page.words
    assert "Recorded 2026-11-21 17:44 UTC, on vm." in page.words
    assert "1 comparison, 1 study. Written" in page.words
    assert "figure_6_1: Seconds over links" in page.words
    (image,) = [attrs for tag, attrs in page.tags if tag == "img"]
    kind, _, content = (image["src"] or "").partition(";base64,")
    assert (kind, base64.b64decode(content)) == ("data:image/svg+xml", DRAWING)
    assert {attrs["href"] for tag, attrs in page.tags if tag == "a"} >= {"#c1", "#s1"}
    text = markdown_page(report(studies=[study()]), Path())
    assert "| case | latency (µs) |\n| --- | ---: |\n| PIX | 15.0 |" in text
    assert "![links][picture 1.1]" in text
    assert text.rstrip().endswith(f"[picture 1.1]: {image['src']}")
    assert "1 comparison" not in parsed(studies=[study()]).words


def test_the_output_must_be_a_page_that_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"output is .*\.txt'"):
        write_report(report(), tmp_path / "a.txt")
    (tmp_path / "b.html").mkdir()
    with pytest.raises(NetSplitError, match="cannot be replaced"):
        write_report(report(), tmp_path / "b.html")
    assert not (tmp_path / "b.md").exists()
