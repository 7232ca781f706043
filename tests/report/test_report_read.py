"""What was recorded through the tracker is what a report reads; what cannot be reported is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import pytest
from matplotlib.figure import Figure

from netsplit.errors import ConfigError, InfeasibleError
from netsplit.report import check_output, read_report, write_report
from netsplit.tracking import ComparisonRun, Tracker
from netsplit.tracking.table import ComparisonRow
from reproduce import Column, Picture, StudyResult, record, write
from runners._entry import entry
from runners.report import job
from tests.commands import Command, Ended

MIB = 2**20
NAME = 'a "small" <script> net, ünïcode'
CONFIG = {
    "batch_size": 64,
    "epochs": 2,
    "cluster": {"devices": [{"name": "cpu:0", "capacity": "48MiB"}, {"name": "cpu:1", "capacity": "all"}]},
    "schedule": {"_target_": "netsplit.program.GPipe", "microbatches": 4},
}


class Recorded(NamedTuple):
    uri: str
    ids: dict[str, str]  # of comparisons


def train(comparison: ComparisonRun, name: str, folder: Path, measured_s: float) -> None:
    with comparison.method(name, CONFIG, {"partitioner": name}) as run:
        row = ComparisonRow(
            name, "optimal", predicted_s=0.2, measured_s=measured_s, throughput=64 / measured_s,
            measured_peak={"cpu:0": 40 * MIB}, capacity={"cpu:0": 48 * MIB}, loss=0.5,
        )  # fmt: skip
        run.text(json.dumps(asdict(row)), "row.json")
        (folder / "trace.json").write_text("{}")
        run.artifact(folder / "trace.json")


def plan(comparison: ComparisonRun, name: str, seconds: float) -> None:
    with comparison.method(name) as run:
        row = ComparisonRow(name, "heuristic", predicted_s=seconds, throughput=128 / seconds)
        run.text(json.dumps(asdict(row)), "row.json")


def fail(comparison: ComparisonRun, name: str) -> None:
    with suppress(InfeasibleError), comparison.method(name):
        raise InfeasibleError("cpu:1 lacks <5> bytes.")


@pytest.fixture(scope="module")
def recorded(database: str, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Two comparisons of one name, a plan, one of which all failed, one interrupted, one of another kind."""
    folder = tmp_path_factory.mktemp("report")
    ids = {}
    tracker, plans = Tracker(database, "report trained"), Tracker(database, "report planned")
    for key, parts in (("old", 2), ("new", 4)):
        config = {**CONFIG, "schedule": {**CONFIG["schedule"], "microbatches": parts}}  # type: ignore[dict-item]
        with tracker.comparison(NAME, config, {"cluster": "cpu2"}) as comparison:
            ids[key] = comparison.run_id
            train(comparison, "netsplit", folder, 0.25)
            train(comparison, "m_topo", folder, 0.32)
            fail(comparison, "m_sct")
    with tracker.comparison("all failed", CONFIG) as comparison:
        ids["failed"] = comparison.run_id
        fail(comparison, "netsplit")
    with suppress(KeyboardInterrupt), tracker.comparison("stopped", CONFIG) as comparison:
        ids["stopped"] = comparison.run_id
        raise KeyboardInterrupt
    config = {"batch_size": 128}
    with plans.comparison("vgg19", config, {"mode": "planned"}) as comparison:
        ids["planned"] = comparison.run_id
        plan(comparison, "netsplit", 0.05)
        plan(comparison, "pipedream", 0.08)
    return Recorded(database, ids)


def record_job(tracker: Tracker, name: str, config: dict[str, object], **tags: str) -> str:
    with tracker.comparison(name, config, {"mode": "planned", **tags}) as comparison:
        plan(comparison, "netsplit", 0.05)
        return comparison.run_id


def test_all_jobs_of_the_newest_sweep_of_a_name_are_shown(database: str) -> None:
    tracker = Tracker(database, "sweeps")
    record_job(tracker, "net", {"batch_size": 4})
    old = [record_job(tracker, "net", {"batch_size": size}, command="monday") for size in (8, 16)]
    with (
        suppress(InfeasibleError),
        tracker.comparison("net", {"batch_size": 32}, {"command": "today"}) as failed,
    ):
        fail(failed, "netsplit")
        raise InfeasibleError("no room.")
    with suppress(KeyboardInterrupt), tracker.comparison("net", {"batch_size": 1}, {"command": "later"}):
        raise KeyboardInterrupt
    new = [record_job(tracker, "net", {"batch_size": size}, command="today") for size in (64, 128)]
    head, *jobs = read_report(database, ["sweeps"]).sections
    assert [one.title for one in jobs] == ["batch_size=32", "batch_size=64", "batch_size=128"]
    assert [one.folded[1].rows[0][1] for one in jobs] == [failed.run_id, *new]
    assert head.tables[0].rows == [
        ["batch_size=32", "failed"],
        ["batch_size=64", "2,560.0"],
        ["batch_size=128", "2,560.0"],
    ]
    _, *again = read_report(database, ["sweeps"], [each[:8] for each in old]).sections
    assert [one.title for one in again] == ["batch_size=8", "batch_size=16"]


@pytest.fixture(scope="module")
def studies(database: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two studies, one of which ran again."""
    folder = tmp_path_factory.mktemp("studies")
    tracker = Tracker(database, "tables")
    for name in ("links", "edges", "edges"):
        result = study(name)
        record(result, tracker, name, {"seed": 0}, write(result, folder / name))
    return database


def study(name: str) -> StudyResult:
    def draw(figure: Figure) -> None:
        figure.subplots().plot([1, 2], [3, 4], label=name)

    return StudyResult(
        f"What {name} are | were",
        (Column("case", text=True), Column("bytes|all", ",.1f"), Column("none")),
        (("a|b *c*", 1234.5, None), ("second", math.nan, None)),
        ("One note.", "Another."),
        (Picture(name, (5, 3), draw, ("x", "y"), [(1, 3), (2, 4)]),),
    )


def test_a_study_comes_back_as_it_was_shown(studies: str, tmp_path: Path) -> None:
    report = read_report(studies, ["tables"])
    edges, links = report.sections
    assert report.counted() == "2 studies"
    assert edges.title == "edges: What edges are | were"
    (shown,) = edges.tables
    assert [(each.name, each.text) for each in shown.columns] == [
        ("case", True), ("bytes|all", False), ("none", False),
    ]  # fmt: skip
    assert [list(row) for row in shown.rows] == [["a|b *c*", "1,234.5", "-"], ["second", "-", "-"]]
    assert list(shown.notes) == ["One note.", "Another."]
    (picture,) = links.pictures
    assert picture.content.startswith(b"\x89PNG")
    assert picture.address in write_report(report, tmp_path / "r.html").read_text()


def test_figures_come_back_as_they_were_recorded(recorded: Recorded) -> None:
    (section,) = read_report(recorded.uri, ["report trained"], [recorded.ids["new"]]).sections
    assert section.title == NAME
    assert section.said[0].startswith("netsplit is the fastest: 256.0 samples/s measured")
    assert section.failed == ["m_sct: cpu:1 lacks <5> bytes."]
    assert [text for text, _ in section.links] == ["trace of netsplit", "trace of m_topo"]
    by_method = {row[0].split()[0]: row for row in section.tables[0].texts}
    assert by_method["netsplit"][2:7] == ["200.0", "250.0", "-20.0", "256.0", "0.5000"]
    assert by_method["netsplit"][7:] == ["cpu:0", "-", "-", "40.0", "48.0"]
    assert (by_method["m_topo"][5], by_method["m_sct"][1]) == ("200.0", "failed")


def test_every_decision_in_training_is_a_line(database: str) -> None:
    change = {"moved": 3, "lines": ["3 operators from cpu:1 to cpu:0"]}
    kept = {"iteration": 40, "outcome": "kept", "predicted_before_s": 0.02, "change": change, "why": "slow"}
    with Tracker(database, "adapted").comparison("one") as comparison, comparison.method("auto") as run:
        run.text(json.dumps([kept]), "adaptive.json")
    (section,) = read_report(database, ["adapted"]).sections
    (row,) = section.tables[1].texts
    assert row == ["auto", "40", "kept", "20.0", "-", "-", "-", "3 operators from cpu:1 to cpu:0", "slow"]


@pytest.mark.parametrize(
    ("experiments", "runs", "message"),
    [
        (["report trainde"], "newest", r"experiments names 'report trainde'.*did you mean report trained\?"),
        (["report *"], ["0123456789ab"], "there is no such run"),
        (["report empty"], "newest", "there is no comparison or study"),
        (["report stopped"], "newest", r"no comparison .* has finished \(1 killed\)"),
    ],
)
def test_what_is_not_there_is_said(
    recorded: Recorded, experiments: list[str], runs: str | list[str], message: str
) -> None:
    Tracker(recorded.uri, "report empty").open()
    stopped = Tracker(recorded.uri, "report stopped")
    if experiments == ["report stopped"]:
        with suppress(KeyboardInterrupt), stopped.comparison("only", CONFIG):
            raise KeyboardInterrupt
    with pytest.raises(ConfigError, match=message):
        read_report(recorded.uri, experiments, runs)


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no database .*mlflow\.db"):
        read_report(f"sqlite:///{tmp_path}/mlflow.db")
    assert list(tmp_path.iterdir()) == []


Run = Callable[..., Ended]


@pytest.fixture
def run(command: Command) -> Run:
    def call(*arguments: str, main: Callable[[], object] | None = None) -> Ended:
        return command(main or entry("report")(job), "report", *arguments)

    return call


def test_the_command_writes_the_page(run: Run, recorded: Recorded) -> None:
    code, out, err = run(f"tracking.uri={recorded.uri}", "tracking.experiment=report planned", "title=Plans")
    assert code == 0, err
    assert "Written to outputs/report.html: 1 comparison." in out
    assert "<h1>Plans</h1>" in check_output("outputs/report.html").read_text()
