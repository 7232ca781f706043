"""What of a plan and a training reaches the table: replicas, peaks above capacities, whose seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import onnx
import pytest
import torch
from torch import nn

from netsplit.cluster.described import ClusterDescription, DescribedDevice, LinkCost, described_cluster
from netsplit.data import synthetic
from netsplit.experiment.comparison import Experiment
from netsplit.experiment.forecast import forecast, planner_of
from netsplit.experiment.records import ProgressRecorder, record_decisions, record_row, row_of
from netsplit.partition import Ddp, MTopo, Single
from netsplit.planning.explanation.change import PlacementChange
from netsplit.program import GPipe
from netsplit.settings import Settings
from netsplit.tracking import MethodRun, Tracker
from netsplit.tracking.metrics import overflow_bytes
from netsplit.tracking.store import Store
from netsplit.training.adapt.decisions import Decision, Outcome
from netsplit.training.history import Epoch, History, Iteration


def two(capacity: str = "4GB") -> ClusterDescription:
    devices = [DescribedDevice(name, capacity=capacity, model="TITAN RTX") for name in ("a", "b")]
    return described_cluster("two", devices, LinkCost(8e9, 2e-5))


@pytest.fixture
def experiment() -> Experiment:
    torch.manual_seed(0)
    return Experiment(
        name="small",
        model=nn.Sequential(nn.Flatten(), nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 10)),
        loss=nn.CrossEntropyLoss(),
        data=synthetic(shape=[3, 4, 4]),
        partitioners={"single": Single()},
        schedule=GPipe(2),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        settings=Settings(epochs=1, batch_size=8, seed=0),
    )


def test_a_replica_has_the_nodes_and_the_bytes_of_its_stage(experiment: Experiment) -> None:
    planner = planner_of(experiment, two())
    plan = planner.plan(Ddp())
    assert plan.nodes == {"a": len(planner.graph), "b": len(planner.graph)}
    assert row_of(plan, "ddp").nodes == plan.nodes
    assert plan.static_bytes["a"] == plan.static_bytes["b"] > 0
    (told,) = (row for row in plan.summary().devices.rows if row[0] == "b")
    assert told[1] == len(planner.graph)


def test_without_replicas_every_node_counts_once(experiment: Experiment) -> None:
    planner = planner_of(experiment, two())
    assert sum(planner.plan(MTopo()).nodes.values()) == len(planner.graph)
    assert planner.plan(Single()).nodes == {"a": len(planner.graph)}


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
    (row,) = forecast(experiment, two("20KB"), unrecorded, tmp_path).rows
    assert row.overfull == ["a"]
    assert recorded["overflow_bytes"] == row.predicted_peak["a"] - 20_000 > 0
    assert recorded["over_capacity"] == "a"
    assert "more than the device's limit" in (tmp_path / "comparison.md").read_text()


@pytest.mark.parametrize(
    ("peaks", "most"), [({"a": 5, "b": 4}, 0), ({"a": 6, "b": 9}, 5), ({}, 0), ({"c": 99}, 0)]
)
def test_the_worst_overflow_counts(peaks: dict[str, int], most: int) -> None:
    assert overflow_bytes(peaks, {"a": 5, "b": 4}) == most


class _Silent:
    def waiting(self, what: str, done: int, parts: int) -> None: ...

    def method(self, name: str, iterations: int) -> None: ...

    def iteration(self, done: object) -> None: ...

    def epoch(self, done: object) -> None: ...


def recording() -> ProgressRecorder:
    return ProgressRecorder(MethodRun(Store(), "m", ""), _Silent())


def test_a_training_that_goes_on_is_measured_by_its_own_iterations() -> None:
    history = History(8, [Iteration(step, 0, 1.0, 9.0 if step < 6 else 2.0) for step in range(10)])
    observer = recording()
    for done in history.iterations[6:]:
        observer.iteration(done)
    assert history.iteration_s > 2.0
    assert observer.measured(history).iteration_s == 2.0
    assert observer.first == 6


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


def test_what_a_change_of_plan_moved_is_a_point_at_its_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points: list[tuple[str, float, int]] = []
    monkeypatch.setattr(MethodRun, "metrics", lambda run, values: points.extend(values))
    changed = PlacementChange(3, 1, 0, ("3 operators from cpu:1 to cpu:0",))
    kept = Decision(40, "slow", "kept", 0.2, 0.1, method="auto", change=changed)
    record_decisions(MethodRun(Store(), "m", ""), [Decision(7, "first", "stayed", 0.2), kept], tmp_path)
    counts = [each for each in points if each[0].rpartition(".")[2] in ("moved", "split", "joined")]
    assert counts == [("adaptive.moved", 3, 40), ("adaptive.split", 1, 40)]
    (_, written) = json.loads((tmp_path / "adaptive.json").read_text())
    assert written["change"]["lines"] == [*changed.lines]
    assert "changed: 3 operators from cpu:1 to cpu:0" in (tmp_path / "adaptive.txt").read_text()


def test_a_row_knows_how_often_training_went_on_by_another_plan(
    experiment: Experiment, tmp_path: Path
) -> None:
    plan = planner_of(experiment, two()).plan(Single())
    decisions = [Decision(n, "", outcome, 0.2) for n, outcome in enumerate(get_args(Outcome))]
    row = record_row(MethodRun(Store(), "m", ""), plan, tmp_path, decisions=decisions)
    assert row.changes == 2  # kept, and on trial when training ended
    assert row_of(plan, "m").changes == 0
