"""What is decided together: what fits, by what, and what is said of it."""

import json
import re
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import netsplit
from netsplit.cluster.described import ClusterDescription, DescribedDevice, LinkCost, described_cluster
from netsplit.cluster.local import parse_bytes
from netsplit.errors import ConfigError, InfeasibleError
from netsplit.planning.plan import Plan
from netsplit.program.schedules import GPipe
from netsplit.session.costs import PredictedCosts
from netsplit.session.decision import problem_of
from netsplit.session.step import ModelStep
from netsplit.simulate.simulate import simulate
from tests.cover import covering
from tests.nets import CASES

SAMPLES, WIDTH = 64, 256


class Deep(nn.Module):
    """Many activations and few parameters."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        layers = [(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH) if norm else nn.Tanh()) for _ in range(6)]
        self.layers = nn.Sequential(*(each for pair in layers for each in pair), nn.Linear(WIDTH, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def cluster(count: int, capacity: str | int = "8GB", bandwidth: str = "12GB") -> ClusterDescription:
    devices = [DescribedDevice(f"d{q}", capacity=capacity, model="TITAN RTX") for q in range(count)]
    return described_cluster("drawn", devices, LinkCost(bandwidth, 1e-5))


def batch(samples: int = 4096) -> tuple[Tensor, Tensor]:
    with torch.device("meta"):
        return torch.zeros(samples, WIDTH), torch.zeros(samples, dtype=torch.long)


@cache
def model(norm: bool = False) -> nn.Module:
    with torch.device("meta"):
        return Deep(norm)


def planned(devices: ClusterDescription, norm: bool = False, samples: int = 4096, **open_: Any) -> Plan:
    given = netsplit.AutoSchedule(**({"time_limit_s": 1.0} | open_))
    return netsplit.plan(model(norm), nn.CrossEntropyLoss(), batch(samples), devices, schedule=given)


def peak(whole: Plan) -> int:
    return max(whole.peak_bytes.values())


def test_one_device_is_enough_where_links_are_slow_and_all_where_they_are_fast() -> None:
    slow = planned(cluster(2, bandwidth="1MB"), microbatches=[1, 4])
    assert slow.choice.frontier[0].kind == "single"
    assert "1 of 2 devices" in slow.lines[0]
    fast = planned(cluster(2, bandwidth="100GB"), samples=65536)
    assert fast.choice.frontier[0].devices == 2
    assert fast.samples_per_s > planned(cluster(1), samples=65536).samples_per_s


def test_memory_that_binds_takes_recomputation_or_a_pipeline() -> None:
    four: dict[str, Any] = {"microbatches": 4, "schedules": ["gpipe"]}
    free = planned(cluster(1), **four)
    assert not free.schedule.recompute
    small = int(0.8 * peak(free))
    again = planned(cluster(1, small), **four)
    assert again.schedule.recompute
    assert peak(again) <= small
    assert again.iteration_s > free.iteration_s
    with pytest.raises(InfeasibleError, match=r"on device 'd0', .* over its limit"):
        planned(cluster(1, small), **four, recompute=False)
    split = planned(cluster(2, small), **four, recompute=False, replicas=False)
    assert split.choice.frontier[0].kind in ("pipeline", "operators")
    assert not split.schedule.recompute
    assert peak(split) <= small


def test_a_batch_without_samples_is_refused() -> None:
    for schedule in (netsplit.AutoSchedule(), GPipe(2)):
        with pytest.raises(ConfigError, match="the batch has no samples"):
            netsplit.plan(model(), nn.CrossEntropyLoss(), batch(0), cluster(2), schedule=schedule)


class Wide(nn.Module):
    """Its first operator alone has more parameters than a small device holds: no line can be cut."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 20_000), nn.Linear(20_000, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x)))


@covering(capacities=[("30MB", "30MB"), ("30MB", "60MB")], method=["auto", "balanced"])
def test_where_no_device_holds_an_operator_what_would_be_enough_is_said_and_is(
    method: str, capacities: tuple[str, str]
) -> None:
    with torch.device("meta"):
        wide = Wide()

    def plan_on(*sizes: int | str) -> Plan:
        devices = [DescribedDevice(f"d{q}", capacity=c, model="TITAN RTX") for q, c in enumerate(sizes)]
        open_ = netsplit.AutoSchedule(microbatches=[1, 4], time_limit_s=0.5)
        there = described_cluster("drawn", devices, LinkCost("12GB", 1e-5))
        given = (wide, nn.CrossEntropyLoss(), batch(64), there)
        return netsplit.plan(*given, schedule=open_, partitioner=method)

    with pytest.raises(InfeasibleError) as caught:
        plan_on(*capacities)
    said = str(caught.value)
    assert "time_limit_s" not in said
    assert "over its limit" in said
    assert "\n" not in said
    enough = re.search(r"It fits with .*?\((\d+) bytes\)( more)? on each device", said)
    assert enough is not None
    least = [int(enough[1]) + (parse_bytes(each) if enough[2] else 0) for each in capacities]
    assert plan_on(*least).peak_bytes


def test_replicas_are_had_only_where_they_are_open_and_no_buffer_forbids_them() -> None:
    fast = cluster(2, bandwidth="100GB")
    both = planned(fast, samples=65536)
    assert both.placement.replicas
    alone = planned(fast, samples=65536, replicas=False)
    assert not alone.placement.replicas
    assert all(row.kind not in ("data parallel", "hybrid") for row in alone.choice.frontier)
    case = CASES["in_place"]
    written = netsplit.plan(
        case.fresh(), case.loss, (case.inputs[0], case.targets), fast,
        schedule=netsplit.AutoSchedule(time_limit_s=1),
    )  # fmt: skip
    assert not written.placement.replicas


def test_batch_statistics_are_remarked_on_where_there_are_any() -> None:
    fast = cluster(2, bandwidth="100GB")
    cut = planned(fast, norm=True, samples=65536, microbatches=4, replicas=False)
    assert any("per-micro-batch statistics (16384 samples)" in note for note in cut.choice.remarks)
    assert all(note in str(cut) for note in cut.choice.remarks)
    copied = planned(fast, norm=True, samples=65536)
    if copied.placement.replicas:
        assert any("first replica" in note for note in copied.choice.remarks)
    (note,) = planned(fast, samples=65536, microbatches=4).choice.remarks
    assert "were not compared with its batch" in note  # on the meta device


def test_the_chosen_is_the_best_of_its_table_and_simulated_as_it_is_said() -> None:
    whole = planned(cluster(2))
    rows = whole.choice.frontier
    assert rows[0].why_not == ""
    assert all(row.why_not for row in rows[1:])
    assert all(row.samples_per_s <= rows[0].samples_per_s + 1e-9 for row in rows if row.samples_per_s)
    simulated = whole.problem.the_simulator
    timeline = simulate(simulated.program(whole.placement), whole.problem.cluster, whole.problem.costs)
    assert timeline.iteration_s == whole.iteration_s
    assert simulated.schedule == whole.schedule
    assert all(peak <= 8e9 for peak in whole.peak_bytes.values())
    written = json.loads(json.dumps(whole.to_dict()))
    assert written["microbatches"] == whole.schedule.microbatches
    assert len(written["frontier"]) == len(rows)
    assert "<table" in whole._repr_html_()
    assert "why not" in str(whole)


@cache
def _step() -> ModelStep:
    case = CASES["cells"]
    return ModelStep(case.fresh(), case.loss, (case.inputs[0], case.targets))


@cache
def _problem(microbatches: int) -> Any:
    return problem_of(_step(), PredictedCosts.for_cluster(cluster(3)), GPipe(microbatches))
