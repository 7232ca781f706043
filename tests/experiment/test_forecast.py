"""Comparisons on devices that are not here: planned, predicted, nothing trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from netsplit.cluster.described import ClusterDescription, DescribedDevice, LinkCost, described_cluster
from netsplit.data import synthetic
from netsplit.errors import ConfigError
from netsplit.experiment.comparison import Experiment
from netsplit.experiment.forecast import decided_planner, forecast, planner_of
from netsplit.graph.ir import Graph
from netsplit.partition import Auto, MTopo, NetSplit, Problem, Single
from netsplit.partition.methods.thesis.ablated import Ablated, without_links
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.profile.costs import Costs
from netsplit.program import GPipe, SingleBatch
from netsplit.settings import Settings
from netsplit.tracking import MethodRun, Tracker
from netsplit.tracking.metrics import timeline_tags


def two(model: str | None = "TITAN RTX", capacity: str = "4GB") -> ClusterDescription:
    devices = [DescribedDevice(name, capacity=capacity, model=model) for name in ("a", "b")]
    return described_cluster("two", devices, LinkCost(8e9, 2e-5))


@pytest.fixture
def experiment() -> Experiment:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3),
        nn.Flatten(),
        nn.LazyLinear(10),
    )
    model(torch.zeros(2, 3, 12, 12))
    return Experiment(
        name="drawn",
        model=model,
        loss=nn.CrossEntropyLoss(),
        data=synthetic(shape=[3, 12, 12]),
        partitioners={"m_topo": MTopo(), "single": Single()},
        schedule=SingleBatch(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        settings=Settings(epochs=1, batch_size=8, seed=0),
    )


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
    assert not comparison.failed
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


def test_one_device_takes_the_sum_of_its_operators_and_the_step(
    experiment: Experiment, unrecorded: Tracker, tmp_path: Path
) -> None:
    planner = planner_of(experiment, two())
    assert {each.device.type for each in experiment.model.parameters()} == {"cpu"}  # left as it is
    costs = planner.costs.devices["TITAN RTX"]
    operators_s = sum(each.total_s for each in costs.nodes.values())
    nbytes = sum(each.nbytes for each in planner.graph.initializers.values() if each.requires_grad)
    step_s = nbytes * costs.step_s_per_byte
    instructions = planner.plan(Single()).program.instructions["a"]
    overhead_s = len(instructions) * costs.instruction_s
    predicted_s = planner.plan(Single()).objective_s
    assert predicted_s == pytest.approx(operators_s + step_s + overhead_s)


def test_a_method_without_room_keeps_its_row(
    experiment: Experiment, unrecorded: Tracker, tmp_path: Path
) -> None:
    comparison = forecast(experiment, two(capacity="20KB"), unrecorded, tmp_path)
    (failed,) = comparison.failed
    assert failed.method == "m_topo"
    assert "no placement that fits" in str(failed.error)


def test_the_best_is_the_best_of_what_fits(
    experiment: Experiment, unrecorded: Tracker, tmp_path: Path
) -> None:
    comparison = forecast(experiment, two(), unrecorded, tmp_path)
    fast, slow = sorted(comparison.rows, key=lambda row: row.predicted_s or 0.0)
    assert comparison.best_s == fast.predicted_s
    device, peak = next(iter(fast.predicted_peak.items()))
    planned = replace(fast, capacity={**fast.capacity, device: peak - 1})
    trained = replace(fast, measured_s=1e-9, measured_peak={device: fast.capacity[device] + 1})
    for full in (planned, trained):
        comparison.rows = [full, slow]
        assert comparison.best_s == slow.predicted_s
        comparison.rows = [full]
        assert comparison.best_s is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda each: each,
            r"cluster 'two' says how fast its devices are beside a measured graph",
        ),
        (lambda each: replace(each, schedule=GPipe(3)), "microbatches"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(
    experiment: Experiment, change: Callable[[Experiment], Experiment], message: str
) -> None:
    changed = change(experiment)
    cluster = two(model=None, capacity="50%") if changed is experiment else two()
    with pytest.raises(ConfigError, match=message):
        planner_of(changed, cluster)


def test_copies_of_variables_decide_what_fits(experiment: Experiment) -> None:
    less, more = (
        planner_of(with_settings(experiment, memory="static", variable_copies=n), two()) for n in (1, 3)
    )
    problems = less.problem(), more.problem()
    assert [problem.copies for problem in problems] == [1, 3]


def test_an_ablated_method_does_not_see_what_it_is_judged_by(experiment: Experiment) -> None:
    planner = planner_of(experiment, two())
    seen: list[float] = []

    class Spy(Single):
        def choose(self, problem):  # type: ignore[no-untyped-def]
            costs, cluster = problem.costs, problem.cluster
            seen.append(sum(s.backward_s for each in costs.devices.values() for s in each.nodes.values()))
            seen.append(problem.evaluate(Single().partition(problem)).iteration_s)
            assert problem.evaluate.costs is costs
            assert problem.evaluate.cluster is cluster
            return super().choose(problem)

    whole = planner.plan(Single()).objective_s
    plan = planner.plan(Ablated(Spy(), "backward"))
    assert seen[0] == 0.0
    assert seen[1] < whole
    assert plan.objective_s == pytest.approx(whole)
    assert plan.placement.method == "single without backward"


def test_links_are_all_alike_without_their_differences() -> None:
    devices = [DescribedDevice(name, capacity="4GB", model="TITAN RTX") for name in "abc"]
    cluster = described_cluster("three", devices, LinkCost(8e9, 2e-5)).cluster("x", 1)
    slow = replace(cluster.links["a", "b"], seconds_per_byte=1.0)
    cluster = replace(cluster, links={**cluster.links, ("a", "b"): slow})
    free = without_links(Problem(Graph({}, {}, (), (), {}), Costs({}, 2), cluster)).cluster.links
    assert len(set(free.values())) == 1
    mean = sum(link.seconds_per_byte for link in cluster.links.values()) / len(cluster.links)
    assert next(iter(free.values())).seconds_per_byte == pytest.approx(mean)


def test_a_method_of_the_thesis_plans_too(
    experiment: Experiment, unrecorded: Tracker, tmp_path: Path
) -> None:
    changed = replace(experiment, partitioners={"netsplit": NetSplit(time_limit_s=5)})
    (row,) = forecast(changed, two(), unrecorded, tmp_path).rows
    assert row.status == "optimal"


def test_half_precision_is_planned_with_its_dtypes(experiment: Experiment) -> None:
    whole, half = (planner_of(with_settings(experiment, autocast=each), two()) for each in (None, "float16"))
    kinds = {node.kind: half.graph.variables[node.outputs[0]].dtype for node in half.graph}
    assert kinds["conv2d"] == kinds["linear"] == "float16"
    assert half.graph.autocast == "float16"
    for kind, each in half.costs.devices.items():
        assert each.nodes != whole.costs.devices[kind].nodes
    assert half.workload.need_bytes() < whole.workload.need_bytes()
    assert half.rule.loss_scaling


def test_a_dtype_that_a_device_has_not_is_refused_before_anything_is_captured(
    experiment: Experiment, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level("INFO", logger="netsplit"),
        pytest.raises(ConfigError, match="autocast is bfloat16, in which TITAN RTX does not compute"),
    ):
        planner_of(with_settings(experiment, autocast="bfloat16"), two())
    assert "Capturing" not in caplog.text


def test_operators_in_no_class_are_a_tag_of_the_runs(
    experiment: Experiment, unrecorded: Tracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Sorted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sort(x).values

    tags: list[tuple[str, Any]] = []
    monkeypatch.setattr(MethodRun, "tags", lambda run, values: tags.extend((run.name, k) for k in values))
    forecast(experiment, two(), unrecorded, tmp_path / "known")
    assert ("single", "mode") in tags
    assert not any(key == "unknown_operators" for _, key in tags)
    changed = replace(experiment, model=nn.Sequential(experiment.model, Sorted()))
    forecast(changed, two(), unrecorded, tmp_path / "unknown")
    assert {("m_topo", "unknown_operators"), ("single", "unknown_operators")} <= set(tags)


def test_offload_is_planned_on_accelerators_and_its_host_bytes_are_recorded(
    experiment: Experiment, unrecorded: Tracker, tmp_path: Path
) -> None:
    momentum = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    plain = replace(experiment, optimizer=momentum, partitioners={"m_topo": MTopo()})
    peaks, recorded = [], []
    for name in ("none", "both"):
        asked = with_settings(plain, offload=name)
        planner = planner_of(asked, two())
        assert planner.costs.offload.name == name
        (row,) = forecast(asked, two(), unrecorded, tmp_path / name).rows
        assert not row.failed, row.error
        timeline = planner.plan(MTopo()).timeline
        assert timeline is not None
        peaks.append(max(timeline.peak_bytes.values()))
        recorded.append(timeline_tags(timeline, None)["predicted_host_bytes"])
    assert peaks[1] < peaks[0]
    assert not recorded[0]
    assert sum(recorded[1].values()) > 0


def test_what_is_decided_with_the_placement_is_recorded(
    experiment: Experiment, unrecorded: Tracker, tmp_path: Path
) -> None:
    open_ = AutoSchedule(microbatches=[1, 2], time_limit_s=1.0)
    asked = replace(experiment, schedule=open_, partitioners={"auto": Auto()})
    comparison = forecast(asked, two(), unrecorded, tmp_path)
    assert not comparison.failed
    whole = comparison.decided
    assert whole is not None
    assert comparison.rows[0].predicted_s == pytest.approx(whole.iteration_s)
    written = json.loads((tmp_path / "auto" / "plan.json").read_text())
    assert written["schedule"] == whole.schedule.name
    assert written["frontier"][0]["why_not"] == ""
    assert "why not" in (tmp_path / "auto" / "frontier.txt").read_text()
    uneven = replace(asked, schedule=AutoSchedule(microbatches=3))
    with pytest.raises(ConfigError, match="batch_size 8 does not divide into 3 micro-batches"):
        decided_planner(uneven, two(), AutoSchedule(microbatches=3))
