"""Which operators are in parts is told by the table, MLflow and the report, to who knows no code."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from mlflow import MlflowClient
from torch import nn

from netsplit.cluster.described import ClusterDescription, DescribedDevice, LinkCost, described_cluster
from netsplit.data import synthetic
from netsplit.experiment.comparison import Experiment
from netsplit.experiment.forecast import forecast, planner_of
from netsplit.experiment.records import write_last_plan
from netsplit.graph.ir import Graph
from netsplit.partition import Choice, Partitioner, Problem, Single
from netsplit.planning.sent_weights import weight_lines
from netsplit.program import GPipe
from netsplit.report import markdown_page, read_report
from netsplit.rewrite import Rewrite, Split, along_samples, applied, replicate
from netsplit.settings import Settings
from netsplit.tables import nbytes
from netsplit.tracking import Tracker
from tests.tracking.reports import parsed, report

SENT = (
    "weights sent in an iteration to where they are read: {0} from a to b; gradients of them: {0} from b to a"
)
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


def test_the_plan_that_was_trained_by_last_is_written_where_it_is_another(tmp_path: Path) -> None:
    planner = planner_of(experiment(), two())
    cut, whole = planner.plan(Cut(columns)), planner.plan(Single())
    written = tmp_path / "last_plan"
    write_last_plan(cut, whole, tmp_path)
    placement = json.loads((written / "placement.json").read_text())
    assert placement["device_of"] == dict(cut.placement.device_of)
    assert {row[0] for row in json.loads((written / "parts.json").read_text())["data"]} >= {"linear"}
    write_last_plan(whole, cut, tmp_path)  # of another training in the same folder
    assert not (written / "parts.json").exists()
    assert json.loads((written / "placement.json").read_text()) != placement
    write_last_plan(whole, whole, tmp_path)
    assert not written.exists()


class OnOne(Cut):
    """All parts are on the first device."""

    def choose(self, problem: Problem) -> Choice:
        choice = super().choose(problem)
        return replace(choice, device_of=dict.fromkeys(choice.device_of, "a"))


def columns(graph: Graph, parts: int) -> Sequence[Rewrite]:
    """Three quarters of the hidden units."""
    return (
        Split("linear", 1, (48, 16)),
        Split("relu", 1, (48, 16)),
        Split("linear_1", "input.1", (48, 16)),
    )


def two() -> ClusterDescription:
    devices = [DescribedDevice(name, capacity="4GB", model="TITAN RTX") for name in "ab"]
    return described_cluster("two", devices, LinkCost(8e9, 2e-5))


def experiment(*methods: Partitioner) -> Experiment:
    torch.manual_seed(0)
    return Experiment(
        name="in parts",
        model=nn.Sequential(nn.Flatten(), nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 10)),
        loss=nn.CrossEntropyLoss(),
        data=synthetic(shape=[3, 4, 4]),
        partitioners={method.name: method for method in methods},
        schedule=GPipe(2),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        settings=Settings(epochs=1, batch_size=8, seed=0),
    )


def test_a_reader_of_the_report_knows_what_was_cut_along_what_and_where_it_runs(
    database: str, tmp_path: Path
) -> None:
    planned = forecast(experiment(Cut(columns), Single()), two(), Tracker(database, "cut"), tmp_path)
    told = (
        "3 operators in parts: linear (1) and relu (2) along dimension 1: 75 % on a, 25 % on b; "
        "linear_1 (3) along dimension 1 of input: 75 % on a, 25 % on b"
    )
    assert [row.parts for row in planned.rows] == [told, ""]
    assert f"cut: {told}" in (tmp_path / "comparison.md").read_text()
    (comparison,) = read_report(database, ["cut"]).comparisons
    cut, single = comparison.methods
    assert (cut.row.parts, single.row.parts, single.parts) == (told, "", [])
    words, page = parsed(comparison).words, markdown_page(report(comparison), tmp_path)
    assert "cut linear (1) and relu (2) 2 dimension 1 1 of 2 75.0 a" in words
    assert "cut linear_1 (3) 1 dimension 1 of input 2 of 2 25.0 b" in words
    assert "| cut | linear (1) and relu (2) | 2 | dimension 1 | 2 of 2 | 25.0 | b |" in page
    assert "linear\\_1 (3) along dimension 1 of input: 75 % on a, 25 % on b" in page


def test_mlflow_has_every_part_as_a_table_and_how_many_operators_there_are(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forecast(experiment(Cut(columns), Single()), two(), Tracker(database, "cut table"), tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", database)  # where `load_table` searches
    client = MlflowClient(database)
    kept = client.get_experiment_by_name("cut table")
    runs = client.search_runs([kept.experiment_id], "tags.role = 'method'")
    counts = {run.data.tags["method"]: int(run.data.tags["operators_in_parts"]) for run in runs}
    assert counts == {"cut": 3, "single": 0}
    table = client.load_table(kept.experiment_id, "parts.json")
    assert list(table["operator"]) == [name for name in ("linear", "relu", "linear_1") for _ in "ab"]
    assert [*map(str, table["module"])] == [name for name in "123" for _ in "ab"]
    assert list(table["devices"]) == ["a", "b"] * 3
    assert list(table["fraction"]) == [0.75, 0.25] * 3
    # What is computed of an operator is computed by its parts; two micro-batches.
    planner = planner_of(experiment(Cut(columns)), two())
    (kind,) = planner.costs.devices
    costs = planner.plan(Cut(columns)).problem.costs
    for name, own in table.groupby("operator"):
        once = sum(costs.total_s(f"{name}:{i}", kind) for i in (0, 1))
        assert sum(own["seconds"]) == pytest.approx(2 * once)
    assert sum(table["of_iteration"]) < 2  # of two devices


@pytest.mark.parametrize(
    ("rewrites", "told"),
    [
        (along_samples, SENT),
        (replicate, "copies of weights, whose gradients are summed in an iteration: {0} over a, b"),
        (columns, None),
    ],
)
def test_a_summary_says_what_weights_travel_where_a_device_computes_with_those_of_another(
    rewrites: Rewrites, told: str | None
) -> None:
    asked = experiment(Cut(rewrites))
    plan = planner_of(asked, two()).plan(Cut(rewrites))
    whole = nbytes(sum(each.nbytes for each in asked.model.parameters()))
    lines = list(weight_lines(*plan.simulated))
    assert lines == ([] if told is None else [told.format(whole)])
    assert {*lines} <= {*plan.summary().lines}
    if rewrites is not columns:
        assert "; and" not in str(plan.summary())
        assert "linear (1), relu (2), linear_1 (3) and 1 more along the samples: 50 % on a, 50 % on b" in str(
            plan.summary()
        )


def test_a_summary_says_nothing_of_copies_that_are_all_on_one_device() -> None:
    """Clipping sums the gradients' norm all the same."""
    method = OnOne(replicate)
    asked = experiment(method)
    asked = replace(asked, settings=replace(asked.settings, clip_norm=1.0))
    plan = planner_of(asked, two()).plan(method)
    assert any(event.kind == "reduce" for event in plan.simulated[1].events)
    assert not [line for line in plan.summary().lines if "in an iteration" in line]
