"""The page and its Markdown hold every figure, run no name as markup, and load nothing."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netsplit.errors import ConfigError, NetSplitError
from netsplit.tracking.report import (
    ComparisonResult,
    EpochFigures,
    MethodResult,
    Report,
    html_page,
    markdown_page,
    write_report,
)
from netsplit.tracking.report.curves import _LINE, _apart, ticks
from netsplit.tracking.report.markup import breakable, clean, element, text_of
from netsplit.tracking.report.results import Place
from netsplit.tracking.report.units import column, fixed, took
from netsplit.tracking.table import ComparisonRow
from tests.tracking.samples import rows

HOSTILE = "<script>alert('x')</script> \"q\" & ünïcödé | *b* \u202egnp"
VOID = {"meta", "link", "br", "wbr", "img", "hr", "input"}
WHEN = datetime(2026, 11, 21, 17, 44, tzinfo=UTC)
MIB = 2**20


def method(row: ComparisonRow, epochs: Sequence[EpochFigures] = (), **given: object) -> MethodResult:
    place = Place(f"{row.method:0<8.8}" * 4)
    state = "FAILED" if row.failed else "FINISHED"
    return replace(MethodResult(row, place, state, epochs=epochs), **given)  # type: ignore[arg-type]


def trained(name: str = "digits, gpipe") -> ComparisonResult:
    """Three methods that trained, one that failed."""
    curve = [EpochFigures(i, 2.0 / (i + 1), 0.5 + 0.125 * i, 4.25) for i in range(3)]
    broken = [
        EpochFigures(0, None, 0.4, 5.0),
        EpochFigures(1, 0.9, None, None),
        EpochFigures(2, 0.8, 0.7, 5.5),
    ]
    netsplit, m_topo, m_sct, single = rows()
    methods = [
        method(netsplit, curve, engine="gurobi 13.0.3", bound_s=0.1234, predicted_throughput=160.0),
        method(m_topo, broken),
        method(m_sct),
        method(single),
    ]
    tags = {"model": "AmoebaNetD", "cluster": "cpu2", "host.name": "vm", "host.cores": "2",
            "version.torch": "2.13.0", "git.commit": "0123456789abcdef", "git.dirty": "true",
            "link.cpu:0 to cpu:1": "80.4 µs, 6.65 GB/s, R² 0.9871"}  # fmt: skip
    params = {
        "batch_size": "64",
        "epochs": "3",
        "model._target_": "x",
        "model.num_layers": "3",
        "cluster.devices.0.name": "cpu:0",
        "cluster.devices.1.name": "cpu:1",
    }
    return ComparisonResult(
        name, Place("f" * 32), "netsplit", "FINISHED", methods, tags, params, WHEN, seconds=125.0
    )


def planned(name: str = "vgg19 on eight") -> ComparisonResult:
    """Nothing measured: two plans for sixteen devices, one of which is too large."""
    devices = [f"gpu{p}" for p in range(16)]
    peaks = {device: (100 + p) * MIB for p, device in enumerate(devices)}
    capacity = dict.fromkeys(devices, 116 * MIB)
    plans = [
        ComparisonRow("netsplit", "optimal", 0.02, 0.0, 3.5, 0.05, predicted_peak=peaks, capacity=capacity),
        ComparisonRow("pipedream", "heuristic", solve_s=0.004, predicted_s=0.08, predicted_peak=peaks),
    ]
    methods = [method(row, predicted_throughput=64 / (row.predicted_s or 1)) for row in plans]
    return ComparisonResult(
        name, Place("e" * 32), "table", "FINISHED", methods, {"mode": "planned", "model": "VGG"}, started=WHEN
    )


def report(*comparisons: ComparisonResult, title: str = "A report") -> Report:
    return Report(title, comparisons or (trained(), planned()), "sqlite:///outputs/mlflow.db", WHEN)


class Parsed(HTMLParser):
    """Refuses what is not nested; keeps texts, tags and attributes."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.texts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.texts.append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.texts).split())


def parsed(*comparisons: ComparisonResult) -> Parsed:
    return Parsed(html_page(report(*comparisons), Path("/somewhere")))


def test_every_figure_is_on_the_page() -> None:
    words = parsed().words
    netsplit = "netsplit 128.0 100 200.0 250.0 −20.0 93.8 0.1234 finished"  # noqa: RUF001
    assert netsplit in words
    assert "m_topo 106.7 83 310.0 300.0 +3.3 93.6 0.1301 finished" in words
    assert "single 71.0 55 – 450.0 – – – finished" in words  # noqa: RUF001
    assert "netsplit optimal 123.4 123.4 0.00 12.345 gurobi 13.0.3" in words
    assert "netsplit cpu:0 203 38.0 39.0 48.0 81.2" in words
    assert "netsplit 3 0.6667 75.0 4.25 12.75" in words
    assert "m_topo 3 0.8000 70.0 5.50 –" in words  # noqa: RUF001 - the seconds of an epoch before are unknown
    assert "Fastest: netsplit with 128.0 samples/s, 1.20 times m_topo, the next." in words


def test_a_failed_method_keeps_its_reason_and_has_no_figures() -> None:
    words = parsed(trained()).words
    assert "m_sct failed: cpu:1 lacks 12,345,678 bytes; raise [cluster] capacity_bytes." in words
    assert "m_sct – – – – – – – failed" in words  # noqa: RUF001


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
    ids = {f"#{attrs['id']}" for _, attrs in page.tags if "id" in attrs}
    assert {"#c1", "#c2"} == {link for link in links if link and link.startswith("#")} == ids
    assert page.count("nav") == 1
    assert parsed(trained()).count("nav") == 0


def test_what_is_beyond_a_capacity_does_not_win() -> None:
    netsplit, *others = trained().methods
    large = replace(netsplit, row=replace(netsplit.row, capacity={"cpu:1": 40 * MIB}))
    found = replace(trained(), methods=[large, *others])
    assert (large.outcome, netsplit.outcome) == ("beyond capacity", "finished")
    assert found.best is others[0]
    assert "netsplit 128.0 120 200.0 250.0 −20.0 93.8 0.1234 beyond capacity" in parsed(found).words  # noqa: RUF001


def test_a_measured_throughput_wins_over_a_predicted_one() -> None:
    both = replace(trained(), methods=[*trained().methods, *planned().methods[1:]])
    assert both.best is both.methods[0]


def test_every_picture_says_in_words_what_it_shows() -> None:
    page = html_page(report(), Path())
    pictures = re.findall(r"<svg[^>]*role=\"img\".*?</svg>", page, re.DOTALL)
    assert len(pictures) >= 10
    for each in pictures:
        assert re.match(r"<svg[^>]*><title>[^<]+</title><desc>[^<]+\d[^<]*</desc>", each), each[:200]
    assert "NaN" not in "".join(pictures)
    assert not re.search(r"\b(nan|inf)\b", "".join(pictures))


def test_pictures_stay_within_their_frames() -> None:
    page = Parsed(html_page(report(), Path()))
    for tag, attrs in page.tags:
        if tag == "rect":
            right = float(attrs["x"] or 0) + float(attrs["width"] or 0)
            assert 0 <= right <= 340.01


@pytest.mark.parametrize("text", [HOSTILE, "x" * 300, "]]> --> </style>", "'; DROP", "\x00\x1b[31m"])
def test_no_name_is_read_as_markup(text: str) -> None:
    row = replace(rows()[0], method=text, status=text, capacity={text: MIB}, predicted_peak={text: MIB},
                  measured_peak={text: 2 * MIB}, nodes={text: 3})  # fmt: skip
    failed = ComparisonRow(text, "failed", error=text)
    one = replace(
        trained(text),
        methods=[method(row, [EpochFigures(0, 1.0, 0.5, 1.0)], engine=text), method(failed)],
        tags=dict.fromkeys(("model", "host.os", f"link.{text}"), text),
        params={text: text, "batch_size": text},
        error=text,
    )
    hostile = Report(text, (one, one), text, WHEN)
    page = Parsed(html_page(hostile, Path()))
    assert (page.count("script"), page.count("style")) == (1, 1)
    assert clean(text) in "".join(page.texts)
    lines = markdown_page(hostile, Path()).splitlines()
    assert not any(re.search(r"(?<!\\)<script", line) for line in lines)
    tables = [re.sub(r"\\.", "", line).count("|") for line in lines if line.startswith("|")]
    assert set(tables) == {3, 13}


@given(st.text())
def test_any_text_comes_back_as_text(text: str) -> None:
    page = Parsed(text_of(element("p", text, title=text)))
    assert "".join(page.texts).strip("\n") == clean(text).strip("\n")
    assert page.tags[0][1]["title"] == clean(text)


def test_the_page_loads_nothing() -> None:
    text = html_page(report(), Path("/somewhere"))
    page = Parsed(text)
    for tag, attrs in page.tags:
        assert "src" not in attrs
        if tag == "link":
            assert attrs["href"] == "data:,"
    assert not re.search(r"@import|url\(|srcset|<(img|iframe|object|embed)\b", text)
    assert {attrs.get("href") for _, attrs in page.tags} >= {"#c1"}
    assert any(attrs.get("name") == "viewport" for _, attrs in page.tags)


def test_files_are_linked_from_where_the_page_is(tmp_path: Path) -> None:
    folder = tmp_path / "mlartifacts" / "a b" / "artifacts"
    folder.mkdir(parents=True)
    (folder / "trace.json").touch()
    place = Place("a" * 32, folder=folder, trace=folder / "trace.json")
    found = replace(trained(), methods=[replace(trained().methods[0], place=place)])
    page, text = write_report(report(found), tmp_path / "out" / "report.html")
    assert 'href="../mlartifacts/a%20b/artifacts/trace.json"' in page.read_text()
    assert "(../mlartifacts/a%20b/artifacts/trace.json)" in text.read_text()
    assert "https://ui.perfetto.dev" in page.read_text()


def test_markdown_has_the_same_tables() -> None:
    text = markdown_page(report(), Path())
    assert "| digits, gpipe | **128.0** | 106.7 | failed | 71.0 | – |" in text  # noqa: RUF001
    assert "| vgg19 on eight | **1,280.0 predicted** |" in text
    assert "| netsplit | optimal | 123.4 | 0.0 | 12.35 | 200.0 | 250.0 | -20.0 | 128.0 |" in text
    assert "- Cluster: cpu2 (cpu:0, cpu:1)" in text


def test_a_report_of_nothing_but_failures_still_says_why() -> None:
    failed = replace(trained(), methods=[method(rows()[2])])
    words = parsed(failed).words
    assert "No method has a throughput within the capacities." in words
    assert "cpu:1 lacks" in words
    empty = replace(trained(), methods=[], error="the model cannot be captured.", state="FAILED")
    assert "the model cannot be captured." in parsed(empty).words


def test_the_output_must_be_a_page_that_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"output is .*\.txt'"):
        write_report(report(), tmp_path / "a.txt")
    (tmp_path / "b.html").mkdir()
    with pytest.raises(NetSplitError, match="cannot be replaced"):
        write_report(report(), tmp_path / "b.html")
    assert not (tmp_path / "b.md").exists()


def test_numbers_of_a_column_have_equal_decimals() -> None:
    assert column([0.01234, 10.2, None]) == ["0.012", "10.200", "–"]  # noqa: RUF001
    assert column([1234.5, 99.96]) == ["1,234.5", "100.0"]
    assert fixed(-1.25, 1) == "−1.2"  # noqa: RUF001
    assert fixed(math.nan, 1) == "–"  # noqa: RUF001
    assert [took(s) for s in (4.4, 185, 7800, None)] == ["4 s", "3 min 05 s", "2 h 10 min", "–"]  # noqa: RUF001


@given(st.text())
def test_breaks_change_no_character(text: str) -> None:
    page = Parsed(text_of(element("p", *breakable(text))))
    assert "".join(page.texts).strip("\n") == clean(text).strip("\n")
    assert all(len(word) <= 2 * 20 for part in page.texts for word in part.split())


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6), st.sampled_from([0.0, 1.0]))
def test_ticks_are_even_and_enclose_what_is_drawn(low: float, length: float, least: float) -> None:
    high = low + length
    found = ticks(low, high, least)
    steps = [b - a for a, b in pairwise(found)]
    step = steps[0]
    assert 2 <= len(found) <= 9
    assert step > 0
    assert step >= least
    assert steps == pytest.approx([step] * len(steps), rel=1e-6)
    assert found[0] <= low + 1e-6 * step
    assert found[-1] >= high - 1e-6 * step


@given(st.lists(st.floats(10, 200), min_size=1, max_size=12))
def test_names_beside_curves_do_not_cover_one_another(wanted: list[float]) -> None:
    places = sorted(_apart(wanted, 10, 200))
    assert all(b - a >= _LINE - 1e-9 for a, b in pairwise(places))
    assert places[-1] <= 200
    assert places[0] >= 200 - _LINE * 15
