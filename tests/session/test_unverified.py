"""A method whose placement breaks a rule: refused by every way to a plan, before anything is deployed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import netsplit
from netsplit.cluster.local import ClusterSpec, LocalDevice, local_cluster
from netsplit.data import synthetic
from netsplit.errors import NetSplitError
from netsplit.partition import Choice, MTopo, Partitioner, Placement, Problem
from netsplit.session.comparison import compare, forecast
from netsplit.session.session import Session
from netsplit.tracking import Tracker
from tests.builders import costs_of
from tests.session.subjects import experiment_of, two
from tests.workers import set_costs


class Wrong(Partitioner):
    """`m_topo` with the last node on another device than the rest of the set that it must stay with."""

    name = "wrong"

    def choose(self, problem: Problem) -> Choice:
        raise AssertionError("`partition` is the test's own")

    def partition(self, problem: Problem) -> Placement:  # type: ignore[misc]
        right = MTopo().partition(problem)
        node = problem.graph.colocated[0][-1]
        others = [each.name for each in problem.cluster.devices if each.name != right.device_of[node]]
        return replace(right, method=self.name, device_of=right.device_of | {node: others[0]})


class Tied(nn.Module):
    """Uses one weight twice, and writes between that in place, so that three nodes must share a device."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(12, 12, bias=False)
        self.head = nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.one(torch.relu_(self.one(x.flatten(1))))))


RULE = "of one colocated set"


@pytest.fixture
def spec(monkeypatch: pytest.MonkeyPatch) -> ClusterSpec:
    """Two devices with costs that nobody measures; a deployment fails the test."""

    both = local_cluster("two", [LocalDevice("a"), LocalDevice("b")], latency_s=1e-5, bandwidth=1e9)
    kinds = tuple({device.kind for device in both.devices})

    def deploy(*_: Any, **__: Any) -> None:
        pytest.fail("a plan that was refused is deployed")

    set_costs(monkeypatch, lambda graph: costs_of(graph, 1e-4, 2e-4, kinds=kinds))
    monkeypatch.setattr(Session, "deploy", deploy)
    monkeypatch.setattr(Session, "pool", property(lambda _: None))
    return both


def test_parallelize_deploys_no_placement_that_breaks_a_rule(spec: ClusterSpec, tmp_path: Path) -> None:
    batch = torch.randn(8, 12), torch.randint(4, (8,))
    with pytest.raises(NetSplitError, match=RULE):
        netsplit.parallelize(
            Tied(),
            nn.CrossEntropyLoss(),
            batch,
            cluster=spec,
            partitioner=Wrong(),
            schedule="gpipe",
            folder=tmp_path,
        )


def test_a_comparison_and_a_forecast_keep_a_row_with_the_broken_rule(
    spec: ClusterSpec, tmp_path: Path
) -> None:
    data = synthetic(shape=[3, 2, 2], num_classes=4)
    unrecorded = Tracker("sqlite:///nowhere.db", "none", enabled=False)
    compared = compare(
        experiment_of(Wrong(), model=Tied(), data=data), Session(spec, tmp_path), unrecorded, tmp_path, None
    )  # type: ignore[arg-type]
    planned = forecast(experiment_of(Wrong(), model=Tied(), data=data), two(), unrecorded, tmp_path)
    for comparison in (compared, planned):
        (row,) = comparison.rows
        assert row.failed
        assert RULE in str(row.error)
