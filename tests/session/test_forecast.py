"""Comparisons on devices that are not here: planned, predicted, nothing trained."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from netsplit.data import synthetic
from netsplit.errors import ConfigError
from netsplit.partition import Auto, MTopo, Single
from netsplit.partition.methods.thesis.netsplit import Ablated
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.program import GPipe, SingleBatch
from netsplit.session.comparison import Experiment, described, forecast
from netsplit.tracking import Tracker
from tests.session.subjects import experiment_of, two


@pytest.fixture
def experiment() -> Experiment:
    torch.manual_seed(0)
    first = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU()
    model = nn.Sequential(*first, nn.Conv2d(16, 16, 3), nn.Flatten(), nn.Linear(1024, 10))
    data = synthetic(shape=[3, 12, 12])
    return experiment_of(MTopo(), Single(), name="drawn", model=model, data=data, schedule=SingleBatch())


def with_settings(experiment: Experiment, **changes: Any) -> Experiment:
    return replace(experiment, settings=replace(experiment.settings, **changes))


@pytest.fixture
def unrecorded() -> Tracker:
    return Tracker("sqlite:///nowhere.db", "none", enabled=False)


def test_every_method_is_predicted_and_none_is_measured(
    experiment: Experiment, unrecorded: Tracker, tmp_path: Path
) -> None:
    comparison = forecast(experiment, two(), unrecorded, tmp_path)
    assert [row.method for row in comparison.rows] == ["m_topo", "single"]
    assert not comparison.reason
    for row in comparison.rows:
        assert row.predicted_s is not None
        assert row.throughput == pytest.approx(8 / row.predicted_s)
        assert row.measured_s is None
        assert row.score is None
        assert {"placement.json", "program.txt", "trace.json", "timeline.png", "graph.png"} <= {
            file.name for file in (tmp_path / row.method).iterdir()
        }
    assert comparison.best_s == min(row.predicted_s or 0.0 for row in comparison.rows if not row.overfull)
    assert (tmp_path / "comparison.md").exists()
    assert not (tmp_path / "training.png").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda each: each, r"cluster 'two' gives only relative speeds, which need a measured graph"),
        (lambda each: replace(each, schedule=GPipe(3)), "microbatches"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(
    experiment: Experiment, change: Callable[[Experiment], Experiment], message: str
) -> None:
    changed = change(experiment)
    cluster = two(model=None, capacity="50%") if changed is experiment else two()
    with pytest.raises(ConfigError, match=message):
        described(changed, cluster)


def test_an_ablated_method_does_not_see_what_it_is_judged_by(experiment: Experiment) -> None:
    shared = described(experiment, two())
    seen: list[float] = []

    class Spy(Single):
        def choose(self, problem):  # type: ignore[no-untyped-def]
            costs, cluster = problem.costs, problem.cluster
            seen.append(sum(s.backward_s for each in costs.devices.values() for s in each.nodes.values()))
            seen.append(problem.simulator(Single().partition(problem)).iteration_s)
            assert problem.simulator.costs is costs
            assert problem.simulator.cluster is cluster
            return super().choose(problem)

    whole = shared.plan(Single()).objective_s
    plan = shared.plan(Ablated(Spy(), "backward"))
    assert seen[0] == 0.0
    assert seen[1] < whole
    assert plan.objective_s == pytest.approx(whole)
    assert plan.placement.method == "single without backward"


def test_offload_is_planned_on_accelerators_and_its_host_bytes_are_recorded(
    experiment: Experiment, unrecorded: Tracker, tmp_path: Path
) -> None:
    momentum = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    plain = replace(experiment, optimizer=momentum, partitioners={"m_topo": MTopo()})
    peaks, recorded = [], []
    for name in ("none", "both"):
        asked = with_settings(plain, offload=name)
        shared = described(asked, two())
        assert shared.problem.costs.offload.name == name
        (row,) = forecast(asked, two(), unrecorded, tmp_path / name).rows
        assert not row.failed, row.error
        timeline = shared.plan(MTopo()).timeline
        assert timeline is not None
        peaks.append(max(timeline.peak_bytes.values()))
        recorded.append(timeline.host_bytes)
    assert peaks[1] < peaks[0]
    assert not recorded[0]
    assert sum(recorded[1].values()) > 0


def test_what_is_decided_with_the_placement_is_recorded(
    experiment: Experiment, unrecorded: Tracker, tmp_path: Path
) -> None:
    open_ = AutoSchedule(microbatches=[1, 2], time_limit_s=0.5)
    asked = replace(experiment, schedule=open_, partitioners={"auto": Auto()})
    comparison = forecast(asked, two(), unrecorded, tmp_path)
    assert not comparison.reason
    whole = comparison.decided
    assert whole is not None
    assert comparison.rows[0].predicted_s == pytest.approx(whole.iteration_s)
    written = json.loads((tmp_path / "auto" / "plan.json").read_text())
    assert written["schedule"] == whole.schedule.name
    assert written["frontier"][0]["why_not"] == ""
    assert "why not" in (tmp_path / "auto" / "frontier.txt").read_text()
    uneven = replace(asked, schedule=AutoSchedule(microbatches=3))
    with pytest.raises(ConfigError, match="batch_size 8 does not divide into 3 equal micro-batches"):
        described(uneven, two())
