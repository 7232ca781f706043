"""What of a plan and a training reaches the table: replicas, peaks above capacities, whose seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from netsplit.experiment.comparison import Experiment
from netsplit.experiment.forecast import forecast, planner_of
from netsplit.experiment.records import ProgressRecorder, row_of
from netsplit.partition import MTopo, Single
from netsplit.tracking import MethodRun, Tracker
from netsplit.tracking.store import Store
from netsplit.training.history import Epoch, History, Iteration
from tests.experiment.subjects import experiment_of, two


@pytest.fixture
def experiment() -> Experiment:
    return experiment_of(Single())


def test_a_plan_is_written_as_onnx_with_the_seconds_of_each_nodes_device(
    experiment: Experiment, tmp_path: Path
) -> None:
    planner = planner_of(experiment, two())
    plan = planner.plan(MTopo())
    plan.write_onnx(tmp_path / "placed.onnx", tmp_path / "devices.json")
    (costs,) = planner.costs.devices.values()
    for node in onnx.load(str(tmp_path / "placed.onnx")).graph.node:
        said = {each.key: each.value for each in node.metadata_props}
        assert said["device"] == plan.placement.device_of[node.name]
        assert float(said["backward_s"]) == pytest.approx(costs.nodes[node.name].backward_s)
    data = json.loads((tmp_path / "devices.json").read_text())["netsplit"]["results"]
    assert {each["value"] for each in data.values()} == set(plan.placement.device_of.values())


def test_a_planned_peak_above_the_capacity_is_recorded_and_in_the_table(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: dict[str, Any] = {}
    monkeypatch.setattr(MethodRun, "tags", lambda run, values: recorded.update(values))
    unrecorded = Tracker("sqlite:///nowhere.db", enabled=False)
    (row,) = forecast(experiment, two(capacity="20KB"), unrecorded, tmp_path).rows
    assert row.overfull == ["a"]
    assert recorded["overflow_bytes"] == row.predicted_peak["a"] - 20_000 > 0
    assert recorded["over_capacity"] == "a"
    assert "more than the device's limit" in (tmp_path / "comparison.md").read_text()


class _Silent:
    def waiting(self, what: str, done: int, parts: int) -> None: ...

    def method(self, name: str, iterations: int) -> None: ...

    def iteration(self, done: object) -> None: ...

    def epoch(self, done: object) -> None: ...


def recording() -> ProgressRecorder:
    return ProgressRecorder(MethodRun(Store(), "m", ""), _Silent())


def test_with_nothing_left_to_train_the_earlier_run_s_seconds_are_kept_and_called_so(
    experiment: Experiment,
) -> None:
    iterations = [Iteration(step, 0, 1.0, 9.0) for step in range(4)]
    history = History(8, iterations, [Epoch(0, 1.0, 0.5, 36.0)])
    observer = recording()
    assert observer.first is None
    assert observer.measured(history).iteration_s == 9.0
    row = row_of(planner_of(experiment, two()).plan(Single()), "single", history, earlier=True)
    assert (row.measured_s, row.prediction_error) == (9.0, None)
