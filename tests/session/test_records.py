"""What of a plan and a training reaches the table: replicas, peaks above capacities, whose seconds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import pytest

from netsplit.errors import InfeasibleError
from netsplit.graph.ir import Graph
from netsplit.partition import Choice, MTopo, Partitioner, Problem, Single
from netsplit.report import read_report
from netsplit.rewrite import Rewrite, Split, applied
from netsplit.session.comparison import Experiment, described, forecast
from netsplit.tracking import MethodRun, Tracker
from netsplit.tracking.records import ProgressRecorder, row_of
from netsplit.training.history import Epoch, History, Iteration
from tests.session.subjects import experiment_of, two
from tests.tracking.reports import parsed


@pytest.fixture
def experiment() -> Experiment:
    return experiment_of(Single())


def test_a_plan_is_written_as_onnx_with_the_seconds_of_each_nodes_device(
    experiment: Experiment, tmp_path: Path
) -> None:
    plan = described(experiment, two()).plan(MTopo())
    plan.write_onnx(tmp_path / "placed.onnx")
    (costs,) = plan.asked.costs.devices.values()
    for node in onnx.load(str(tmp_path / "placed.onnx")).graph.node:
        said = {each.key: each.value for each in node.metadata_props}
        assert said["device"] == plan.placement.device_of[node.name]
        assert float(said["backward_s"]) == pytest.approx(costs.nodes[node.name].backward_s)


def test_a_planned_peak_above_the_capacity_is_recorded_and_in_the_table(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: dict[str, Any] = {}
    monkeypatch.setattr(MethodRun, "tags", lambda run, values: recorded.update(values))
    unrecorded = Tracker("sqlite:///nowhere.db", enabled=False)
    (row,) = forecast(experiment, two(capacity="20KB"), unrecorded, tmp_path).rows
    assert row.overfull == ["a"]
    assert row.predicted_peak["a"] > 20_000
    assert recorded["over_capacity"] == "a"
    assert "more than the device's limit" in (tmp_path / "comparison.md").read_text()


@dataclass
class _Refusing(Partitioner):
    name: str = "refusing"

    def choose(self, problem: Problem) -> Choice:
        raise InfeasibleError("a lacks 5 bytes.")


@pytest.mark.parametrize("others", [(), (Single(),)])
def test_a_comparison_has_failed_when_every_method_has(
    database: str, tmp_path: Path, others: tuple[Partitioner, ...]
) -> None:
    tracker = Tracker(database, f"refused beside {len(others)}")
    comparison = forecast(experiment_of(_Refusing(), *others), two(), tracker, tmp_path)
    assert comparison.reason == "refusing: a lacks 5 bytes."
    assert tracker.client is not None
    (run,) = tracker.client.search_runs([tracker.experiment_id], "tags.role = 'comparison'")
    ended = (run.info.status, run.data.tags.get("error"))
    assert ended == (("FINISHED", None) if others else ("FAILED", "every method failed"))


class _Silent:
    def waiting(self, what: str, done: int, parts: int) -> None: ...

    def method(self, name: str, iterations: int) -> None: ...

    def iteration(self, done: object) -> None: ...

    def epoch(self, done: object) -> None: ...


def recording() -> ProgressRecorder:
    return ProgressRecorder(MethodRun(Tracker("sqlite:///nowhere.db", enabled=False), "m"), _Silent())


def test_with_nothing_left_to_train_the_earlier_run_s_seconds_are_kept_and_called_so(
    experiment: Experiment,
) -> None:
    iterations = [Iteration(step, 0, 1.0, 9.0) for step in range(4)]
    history = History(8, iterations, [Epoch(0, 1.0, 0.5, 36.0)])
    observer = recording()
    assert observer.first is None
    assert observer.measured(history).iteration_s == 9.0
    row = row_of(described(experiment, two()).plan(Single()), "single", history, earlier=True)
    assert (row.measured_s, row.prediction_error) == (9.0, None)


Rewrites = Callable[[Graph, int], Sequence[Rewrite]]


@dataclass
class Cut(Partitioner):
    """Second parts are on the second device, but for views of what is on the first."""

    rewrites: Rewrites
    name: str = "cut"

    def choose(self, problem: Problem) -> Choice:
        rewrites = tuple(self.rewrites(problem.graph, 2))
        graph = applied(problem.graph, rewrites)
        second = {node for node in graph.nodes if node.endswith(":1") and not node.startswith("flatten")}
        return Choice({node: "ab"[node in second] for node in graph.nodes}, rewrites=rewrites)


def columns(graph: Graph, parts: int) -> Sequence[Rewrite]:
    """Three quarters of the hidden units."""
    return (Split("linear", 1, (48, 16)), Split("relu", 1, (48, 16)), Split("linear_1", "input.1", (48, 16)))


def test_a_reader_of_the_report_knows_what_was_cut_along_what_and_where_it_runs(
    database: str, tmp_path: Path
) -> None:
    planned = forecast(experiment_of(Cut(columns), Single()), two(), Tracker(database, "cut"), tmp_path)
    told = (
        "3 operators in parts: linear (1) and relu (2) along dimension 1: 75 % on a, 25 % on b; "
        "linear_1 (3) along dimension 1 of input: 75 % on a, 25 % on b"
    )
    assert [row.parts for row in planned.rows] == [told, ""]
    assert f"cut: {told}" in (tmp_path / "comparison.md").read_text()
    words = parsed(read_report(database, ["cut"])).words
    assert "linear_1 (3) along dimension 1 of input: 75 % on a, 25 % on b" in words
