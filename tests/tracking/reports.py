"""Reports made by hand, trained, planned, of cases and of studies; and their page, read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

from netsplit.report import (
    ComparisonResult,
    EpochFigures,
    MethodResult,
    PictureFile,
    Report,
    StudyRecord,
    grouped,
    html_page,
)
from netsplit.report.data.results import Place
from netsplit.tracking.table import ComparisonRow
from tests.tracking.samples import rows

HOSTILE = "<script>alert('x')</script> \"q\" & ünïcödé | *b* \u202egnp"
VOID = {"meta", "link", "br", "wbr", "img", "hr", "input"}
WHEN = datetime(2026, 11, 21, 17, 44, tzinfo=UTC)
MIB = 2**20
DRAWING = b'<svg xmlns="http://www.w3.org/2000/svg" width="504pt" height="288pt"><circle r="9"/></svg>'


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


def cases(name: str = "table") -> list[ComparisonResult]:
    """Two cases of an experiment, the newest first, with published figures of some methods."""
    netsplit, pipedream = planned().methods
    comparisons = []
    for index, (case, figures) in enumerate({"unet": (1000.0, None), "vgg": (2560.0, 640.25)}.items()):
        methods = [
            replace(netsplit, published=figures[0], predicted_throughput=1280.0 / (1 + index)),
            replace(pipedream, published=figures[1]),
        ]
        one = replace(planned(f"{name}: {case}"), methods=methods, started=WHEN + timedelta(minutes=index))
        tags = {**one.tags, "experiment": name, "case": case}
        comparisons.append(replace(one, place=Place(f"{index}{case:0<31}"), tags=tags))
    return comparisons[::-1]


def sweep(throughputs: Sequence[float | None] = (100.0, 300.0, 200.0), **tags: str) -> list[ComparisonResult]:
    """Jobs of one sweep, the newest first, each of one method that trained, or failed."""
    (row, *_), comparisons = rows(), []
    for index, value in enumerate(throughputs):
        done = (
            replace(row, throughput=value) if value else ComparisonRow("netsplit", "failed", error="no room")
        )
        one = replace(
            trained("digits · gpipe"), methods=[method(done)], started=WHEN + timedelta(minutes=index)
        )
        params = {
            "schedule.microbatches": str(2**index),
            "seed": str(index % 2),
            "dataset.seed": str(index % 2),
        }
        one = replace(one, params=params, place=Place(f"{index:x}ab{'0' * 29}"))
        comparisons.append(replace(one, tags={"command": "2026-11-21/17-44", **tags}))
    return comparisons[::-1]


def study(title: str = "Seconds over links", name: str = "figure_6_1") -> StudyRecord:
    return StudyRecord(
        name,
        Place("b" * 32),
        "links",
        title,
        ["case", "latency (µs)"],
        [False, True],
        [["PIX", "15.0"], ["NODE", "7.5"]],
        ["Latencies are those of the description."],
        [PictureFile("links", "image/svg+xml", DRAWING)],
        {"host.name": "vm"},
        {"seed": "0"},
        WHEN,
    )


def report(*comparisons: ComparisonResult, studies: Sequence[StudyRecord] = ()) -> Report:
    groups = grouped(comparisons) if comparisons or studies else grouped([trained(), planned()])
    return Report("A report", groups, "sqlite:///outputs/mlflow.db", WHEN, studies)


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


def parsed(*comparisons: ComparisonResult, studies: Sequence[StudyRecord] = ()) -> Parsed:
    return Parsed(html_page(report(*comparisons, studies=studies), Path("/somewhere")))
