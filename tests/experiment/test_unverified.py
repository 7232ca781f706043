"""A method whose placement breaks a rule: refused by every way to a plan, before anything is deployed."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
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
from netsplit.experiment.comparison import Experiment, compare
from netsplit.experiment.forecast import forecast
from netsplit.experiment.planner import Planner
from netsplit.experiment.session import Session
from netsplit.graph.ir import Graph
from netsplit.partition import Choice, MTopo, Partitioner, Placement, Problem
from netsplit.program import GPipe
from netsplit.program.inference import inference_placement
from netsplit.settings import Settings
from netsplit.tracking import Tracker
from tests.builders import costs_of
from tests.experiment.test_forecast import two
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


class Backwards(Partitioner):
    """`m_topo` in the opposite order."""

    name = "backwards"

    def choose(self, problem: Problem) -> Choice:
        raise AssertionError("`partition` is the test's own")

    def partition(self, problem: Problem) -> Placement:  # type: ignore[misc]
        right = MTopo().partition(problem)
        last = len(right.priority) - 1
        return replace(right, priority={node: last - rank for node, rank in right.priority.items()})


class Tied(nn.Module):
    """Uses one weight twice, and writes between that in place, so that three nodes must share a device."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(12, 12, bias=False)
        self.head = nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.one(torch.relu_(self.one(x.flatten(1))))))


RULES: list[tuple[Partitioner, str]] = [(Wrong(), "of one colocated set"), (Backwards(), "comes before")]


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


@pytest.fixture
def experiment() -> Callable[[Partitioner], Experiment]:
    def made(partitioner: Partitioner) -> Experiment:
        torch.manual_seed(0)
        return Experiment(
            name="broken",
            model=Tied(),
            loss=nn.CrossEntropyLoss(),
            data=synthetic(shape=[3, 2, 2], num_classes=4),
            partitioners={"broken": partitioner},
            schedule=GPipe(2),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            settings=Settings(epochs=1, batch_size=8, seed=0),
        )

    return made


@pytest.mark.parametrize(("method", "rule"), RULES)
def test_parallelize_deploys_no_placement_that_breaks_a_rule(
    method: Partitioner, rule: str, spec: ClusterSpec, tmp_path: Path
) -> None:
    batch = torch.randn(8, 12), torch.randint(4, (8,))
    with pytest.raises(NetSplitError, match=rule):
        netsplit.parallelize(
            Tied(),
            nn.CrossEntropyLoss(),
            batch,
            cluster=spec,
            partitioner=method,
            schedule="gpipe",
            folder=tmp_path,
        )


@pytest.mark.parametrize(("method", "rule"), RULES)
def test_a_comparison_and_a_forecast_keep_a_row_with_the_broken_rule(
    method: Partitioner,
    rule: str,
    spec: ClusterSpec,
    experiment: Callable[[Partitioner], Experiment],
    tmp_path: Path,
) -> None:
    unrecorded = Tracker("sqlite:///nowhere.db", "none", enabled=False)
    compared = compare(experiment(method), Session(spec, tmp_path), unrecorded, tmp_path, None)  # type: ignore[arg-type]
    planned = forecast(experiment(method), two(), unrecorded, tmp_path)
    for comparison in (compared, planned):
        (row,) = comparison.rows
        assert row.failed
        assert rule in str(row.error)


@pytest.fixture
def planner(spec: ClusterSpec, tmp_path: Path) -> Planner:
    """Of `Tied`, on batches of eight samples in two micro-batches."""
    torch.manual_seed(0)

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    return Session(spec, tmp_path).planner(Tied(), nn.CrossEntropyLoss(), samples(8), GPipe(2), optimizer)


def samples(n: int, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, *(shape or (12,))), torch.randint(4, (n,))


@pytest.mark.parametrize(("method", "rule"), RULES)
def test_no_program_is_made_for_a_ragged_batch_by_a_placement_that_breaks_a_rule(
    method: Partitioner, rule: str, planner: Planner
) -> None:
    right = planner.plan(MTopo())
    programs = planner.programs(right.placement, right.simulated[0])
    assert programs.training(programs.batch(*samples(7))).tail is not None
    broken = planner.programs(method.partition(planner.problem()), right.simulated[0])
    with pytest.raises(NetSplitError, match=rule):
        broken.training(broken.batch(*samples(7)))


def test_no_program_is_made_for_other_shapes_by_a_placement_that_breaks_a_rule(
    planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def apart(training: Graph, other: Graph, device_of: dict[str, str]) -> dict[str, str]:
        right = inference_placement(training, other, device_of)
        node = next(name for name in other.colocated[0] if not other.nodes[name].initializers)
        return right | {node: next(name for name in ("a", "b") if name != right[node])}

    plan = planner.plan(MTopo())
    programs = planner.programs(plan.placement, plan.simulated[0])
    batch = programs.batch(*samples(7, 3, 2, 2))
    assert programs.training(batch).tail is not None
    assert len(list(programs.parts(programs.batch(samples(3, 3, 2, 2)[0])))) == 1
    monkeypatch.setattr("netsplit.training.programs.inference_placement", apart)
    again = planner.programs(plan.placement, plan.simulated[0])
    with pytest.raises(NetSplitError, match="of one colocated set"):
        again.training(batch)
    with pytest.raises(NetSplitError, match="of one colocated set"):
        list(again.parts(again.batch(samples(3, 3, 2, 2)[0])))


def test_bytes_over_a_capacity_are_said_for_batches_that_need_more_than_a_whole_one(
    planner: Planner, caplog: pytest.LogCaptureFixture
) -> None:
    plan = planner.plan(MTopo())
    program, predicted = plan.simulated
    devices = tuple(
        replace(each, capacity_bytes=predicted.peak_bytes[each.name]) for each in planner.cluster.devices
    )
    full = replace(planner, cluster=replace(planner.cluster, devices=devices))
    programs = full.programs(plan.placement, program)
    with caplog.at_level(logging.WARNING, logger="netsplit"):
        caplog.clear()
        programs.training(programs.batch(*samples(7)))
        assert not caplog.messages
        programs.training(programs.batch(*samples(32)))
    assert any(re.match("m_topo: [ab] .* need", line) for line in caplog.messages)
