"""Runs end with the right status and hold everything that was logged."""

from __future__ import annotations

import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from netsplit.errors import InfeasibleError
from netsplit.tracking import ComparisonRun, Tracker


@pytest.fixture
def tracker(database: str, request: pytest.FixtureRequest) -> Tracker:
    return Tracker(database, request.node.name)


def fetched(tracker: Tracker) -> dict[str, Any]:
    """Run name -> MLflow run, of the tracker's experiment."""
    tracker.open()
    assert tracker.client is not None
    return {run.info.run_name: run for run in tracker.client.search_runs([tracker.experiment_id])}


def artifacts(tracker: Tracker, run: Any) -> Path:
    assert run.info.artifact_uri.startswith("file:///")
    return Path(run.info.artifact_uri.removeprefix("file://"))


def run_and_raise(comparison: ComparisonRun, name: str, error: BaseException) -> None:
    with comparison.method(name) as run:
        run.metrics([("loss", 3.0, 0)])
        raise error


def test_methods_are_finished_runs_beside_their_comparison_s(tracker: Tracker) -> None:
    with tracker.comparison("all", {"seed": 1}, {"purpose": "test"}) as comparison:
        for name in ("netsplit", "m_topo"):
            settings = {"netsplit": {"seed": 2}, "m_topo": {"order": "time"}}
            with comparison.method(name, {"partitioner": settings}) as run:
                run.metrics([("loss", 2.5, 0), ("loss", 2.0, 1)])
                run.summary({"solver_gap": 0.5, "no": None})
                run.tags({"solver_status": "optimal", "peak": {"cpu:0": 7}, "no": None})
    runs = fetched(tracker)
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    tags = runs["netsplit"].data.tags
    assert tags["comparison"] == runs["all"].info.run_id
    assert "mlflow.parentRunId" not in tags  # MLflow draws no charts of what lies under another run
    assert runs["netsplit"].data.metrics == {"loss": 2.0, "solver_gap": 0.5}
    assert (tags["solver_status"], tags["peak.cpu:0"], "no" in tags) == ("optimal", "7", False)
    assert runs["m_topo"].data.params == {"partitioner": "m_topo", "partitioner.order": "time"}
    assert runs["all"].data.params == {"seed": "1"}
    assert runs["all"].data.tags["purpose"] == "test"
    assert "version.torch" in runs["all"].data.tags


def test_a_failed_method_does_not_lose_the_others(tracker: Tracker) -> None:
    with tracker.comparison("some") as comparison:
        with pytest.raises(InfeasibleError):
            run_and_raise(comparison, "bad", InfeasibleError("cpu:1 lacks 5 bytes."))
        with comparison.method("good"):
            pass
    runs = fetched(tracker)
    assert {name: run.info.status for name, run in runs.items()} == {
        "some": "FINISHED",
        "bad": "FAILED",
        "good": "FINISHED",
    }
    assert runs["bad"].data.tags["error"] == "cpu:1 lacks 5 bytes."
    assert runs["bad"].data.metrics == {"loss": 3.0}


def test_an_interrupt_marks_method_and_comparison_killed(tracker: Tracker) -> None:
    with pytest.raises(KeyboardInterrupt), tracker.comparison("stopped") as comparison:
        run_and_raise(comparison, "netsplit", KeyboardInterrupt("SIGTERM"))
    runs = fetched(tracker)
    assert {run.info.status for run in runs.values()} == {"KILLED"}
    assert {run.data.tags["error"] for run in runs.values()} == {"interrupted (SIGTERM)"}
    assert runs["netsplit"].data.metrics == {"loss": 3.0}


def test_metrics_of_many_iterations_are_all_there_and_in_order(tracker: Tracker) -> None:
    with tracker.comparison("many") as comparison:
        for step in range(1250):
            comparison.metrics([("loss", 0.1, step), ("iteration_s", 0.2, step)])
    assert tracker.client is not None
    for key in ("loss", "iteration_s"):
        history = tracker.client.get_metric_history(comparison.run_id, key)
        assert [each.step for each in history] == list(range(1250))


def test_a_locked_database_stops_no_training(tmp_path: Path, empty_database: Path) -> None:
    copy = shutil.copy(empty_database, tmp_path / "locked.db")
    tracker = Tracker(f"sqlite:///{copy}")
    other = sqlite3.connect(copy, isolation_level=None)
    with tracker.comparison("locked") as comparison, closing(other):
        other.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        for step in range(100):
            comparison.metrics([("loss", 0.1, step)])
        assert time.monotonic() - began < 1
        other.execute("ROLLBACK")
    assert tracker.client is not None
    assert len(tracker.client.get_metric_history(comparison.run_id, "loss")) == 100


def test_more_than_a_hundred_params_and_long_values(tracker: Tracker) -> None:
    config = {"group": {f"key{i}": i for i in range(250)}, "long": "x" * 7000}
    with tracker.comparison("wide", config):
        pass
    run = fetched(tracker)["wide"]
    assert len(run.data.params) == 251
    assert run.data.params["group.key249"] == "249"
    assert len(run.data.params["long"]) == 6000
    assert yaml.safe_load((artifacts(tracker, run) / "config.yaml").read_text()) == config


def test_passwords_are_in_no_record(tracker: Tracker) -> None:
    config = {"tracking": {"uri": "postgresql+psycopg://me:secret@host/base"}}
    with tracker.comparison("hidden", config) as comparison, comparison.method("auto", config):
        pass
    for run in fetched(tracker).values():
        assert "secret" not in (artifacts(tracker, run) / "config.yaml").read_text()
        assert "secret" not in str(run.data.params)
