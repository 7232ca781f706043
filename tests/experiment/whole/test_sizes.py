"""Costs between two sizes lie on a line, and three captures stand for many."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn

import netsplit
from netsplit.cluster.described import DescribedDevice, LinkCost, described_cluster
from netsplit.errors import InfeasibleError
from netsplit.experiment.calibration import Calibration
from netsplit.experiment.here.costs import CostsHere
from netsplit.experiment.session import Session
from netsplit.experiment.whole import foreseen
from netsplit.experiment.whole.devices import Devices
from netsplit.experiment.whole.foreseen import Foreseen
from netsplit.experiment.whole.sizes import beside, between
from netsplit.graph.batches.batch import Batch
from netsplit.optim.optimizers import MOMENTUM
from netsplit.partition import Auto
from netsplit.partition.methods.single import Single
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.profile.costs import Costs, DeviceCosts, NodeBytes, NodeSeconds, TurnSeconds
from netsplit.profile.measure.stretches.in_turn import SizedStep
from netsplit.program.schedules import GPipe
from tests.builders import costs_of
from tests.workers import cpu_workers, set_costs

seconds = st.floats(0, 1, allow_nan=False)


def costs(forward_s: float, backward_s: float, forward: int = 0) -> Costs:
    nodes = {"n": NodeSeconds(forward_s, backward_s, backward_s / 2)}
    return Costs({"cpu": DeviceCosts(nodes, transients={"n": NodeBytes(forward, 2 * forward)})}, 2)


@given(seconds, seconds, st.integers(0, 999), st.integers(0, 999), st.integers(1, 9), st.integers(1, 9))
def test_seconds_and_bytes_at_the_ends_are_those_measured_unless_they_fall(
    base: float, slope: float, few: int, more: int, small: int, step: int
) -> None:
    large = small + step
    low, high = (costs(base + slope * n, 2 * (base + slope * n), few + more * n) for n in (small, large))
    for n in range(small, large + 5):
        node = between(low, high, small, large, n).devices["cpu"]
        assert node.nodes["n"].forward_s == pytest.approx(base + slope * n, abs=1e-12)
        assert node.nodes["n"].weight_s == pytest.approx(base + slope * n, abs=1e-12)
        assert node.transients["n"] == NodeBytes(few + more * n, 2 * (few + more * n))


@given(seconds, seconds, st.integers(1, 40))
def test_nothing_is_below_zero_and_no_weights_part_above_its_backward(
    one: float, other: float, samples: int
) -> None:
    made = between(costs(one, other), costs(other, one), 4, 16, samples).devices["cpu"].nodes["n"]
    assert min(made.forward_s, made.backward_s, made.weight_s) >= 0
    assert made.weight_s <= made.backward_s + 1e-12


@given(
    st.dictionaries(st.integers(1, 64), st.floats(1e-4, 1), min_size=2, max_size=5),
    st.floats(1e-3, 1),
    st.floats(0, 1e-2),
    st.data(),
)
def test_seconds_of_sizes_are_to_one_another_as_they_were_in_turn(
    took: dict[int, float], base: float, slope: float, data: st.DataObject
) -> None:
    def line(n: int) -> Costs:
        return costs(base + slope * n, 2 * (base + slope * n))

    usual, samples = (data.draw(st.sampled_from(sorted(took))) for _ in range(2))
    made = (
        beside(line(samples), line(usual), {"cpu": TurnSeconds(took)}, samples, usual)
        .devices["cpu"]
        .nodes["n"]
    )
    whole = 3 * (base + slope * usual)
    assert made.forward_s + made.backward_s == pytest.approx(whole * took[samples] / took[usual])
    assert made.weight_s == pytest.approx(made.backward_s / 2)
    same = (
        beside(line(usual), line(usual), {"cpu": TurnSeconds(took)}, usual, usual).devices["cpu"].nodes["n"]
    )
    assert same.forward_s == pytest.approx(base + slope * usual)


@given(st.floats(1e-4, 1), st.floats(0, 1), st.integers(2, 9), st.integers(20, 40), st.integers(1, 50))
def test_a_size_that_was_not_measured_lies_between_those_next_to_it(
    first: float, more: float, few: int, many: int, samples: int
) -> None:
    took = {few: first, many: first + more}
    made = (
        beside(costs(1, 2), costs(1, 2), {"cpu": TurnSeconds(took)}, samples, few)
        .devices["cpu"]
        .nodes["n"]
        .forward_s
    )
    if few <= samples <= many:
        assert made == pytest.approx(1 + more * (samples - few) / (many - few) / first)
    else:
        nearest = few if samples < few else many
        assert made == pytest.approx(took[nearest] * samples / nearest / first)


@given(st.dictionaries(st.integers(1, 64), st.floats(1, 3), min_size=1, max_size=5), st.integers(1, 80))
def test_devices_slow_one_another_as_sizes_next_to_it_did(known: dict[int, float], samples: int) -> None:
    took = {"cpu": TurnSeconds(contention=known)}
    made = beside(costs(1, 2), costs(3, 4), took, samples, 7).devices["cpu"]
    beside_it = [n for n in sorted(known) if n <= samples][-1:] + [n for n in sorted(known) if n >= samples][
        :1
    ]
    around = [known[n] for n in beside_it]
    assert min(around) - 1e-12 <= made.contention <= max(around) + 1e-12
    assert made.nodes == costs(1, 2).devices["cpu"].nodes
    if samples in known:
        assert made.contention == pytest.approx(known[samples])


def test_without_sizes_in_turn_costs_are_those_of_the_line() -> None:
    assert beside(costs(1, 2), costs(3, 4), {}, 5, 7) == costs(1, 2)
    assert beside(costs(1, 2), costs(3, 4), {"cpu": TurnSeconds({7: 1.0})}, 5, 7) == costs(1, 2)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.first(x))))


class Turned(nn.Module):
    """A sample is one column; where there is but one, what is turned lies in memory as it did."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x)).t().reshape(8, -1, 1).transpose(0, 1)
        return self.last(y.transpose(1, 2).expand(-1, 2, -1)).sum(1)


@pytest.mark.parametrize(
    ("model", "counts", "sizes"),
    [(Net, [1, 2, 4, 8, 16], [2, 8, 32]), (Turned, [1, 2, 4, 8, 16, 32], [1, 2, 8, 32])],
)
def test_few_sizes_are_captured_and_all_are_as_captured(
    monkeypatch: pytest.MonkeyPatch, model: type[nn.Module], counts: list[int], sizes: list[int]
) -> None:
    """Three; one more where a single sample is not on the line of the others."""
    taken: list[int] = []
    captured = foreseen.capture

    def counted(*args: object, **more: object) -> object:
        taken.append(args[2].samples)  # type: ignore[attr-defined]
        return captured(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(foreseen, "capture", counted)
    described = [DescribedDevice(name, capacity="1GB", model="TITAN RTX") for name in "ab"]
    cluster = described_cluster("two", described, LinkCost(8e9, 2e-5))
    batch = Batch.of(torch.randn(32, 6), torch.randint(3, (32,)))
    step = Foreseen(model(), nn.CrossEntropyLoss(), batch, Devices.described(cluster), MOMENTUM)
    planner = step.decided(AutoSchedule(microbatches=counts, time_limit_s=1))
    assert sorted(taken) == sizes
    decided = planner.decided
    assert decided is not None
    here = step.planner(GPipe(decided.schedule.microbatches))
    assert replace(here.graph) == planner.graph
    assert here.costs == planner.costs


class Pairs(nn.Module):
    """Two samples belong together: of an odd number there is no graph."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).view(-1, 2, 8)


def apart(outputs: torch.Tensor) -> torch.Tensor:
    return (outputs[:, 0] - outputs[:, 1]).square().mean()


def test_sizes_that_no_graph_can_be_derived_for_are_not_asked_what_they_would_bring() -> None:
    described = [DescribedDevice(name, capacity="1GB", model="TITAN RTX") for name in "abc"]
    cluster = described_cluster("three", described, LinkCost(8e9, 2e-5))
    batch = Batch.of(torch.randn(12, 6), None)
    step = Foreseen(Pairs(), apart, batch, Devices.described(cluster), MOMENTUM)
    decided = step.decided(AutoSchedule(time_limit_s=4)).decided
    assert decided is not None
    assert decided.gains


def test_the_whole_batch_takes_as_long_as_it_does_where_the_usual_size_is_the_smallest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Costs at 16 samples are not those at 4, though 4 are measured first."""
    set_costs(monkeypatch, lambda graph: costs_of(graph, 1e-3 * graph.batch_size, 2e-3 * graph.batch_size))
    monkeypatch.setattr(CostsHere, "in_turn", lambda *_: {})
    spec = replace(cpu_workers(1), latency_s=0.0, bandwidth=1e12)
    batch = torch.randn(16, 6), torch.randint(3, (16,))
    taken: list[Costs] = []
    for counts in ([1], [1, 4], [1, 2], [1, 4, 16]):
        with Session(spec, tmp_path) as session:
            open_ = AutoSchedule(microbatches=counts, time_limit_s=0.3)
            made = session.decided(Net(), nn.CrossEntropyLoss(), batch, open_, Single(), MOMENTUM)
        assert made.schedule.microbatches == 1
        taken.append(made.costs)
    seconds = [sum(each.total_s(name, "cpu") for name in made.graph.nodes) for each in taken]
    assert seconds == pytest.approx([48e-3 * len(made.graph)] * 4)


@pytest.mark.parametrize("counts", [[4], [4, 1], [4, 8], [1, 4, 8]])
def test_how_devices_slow_one_another_is_known_at_every_size(
    counts: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Measured at the usual size alone, which may be the smallest of all or the largest."""

    def measured(here: CostsHere, task: Calibration, alone: bool) -> Costs:
        samples = task.graph.batch_size
        own = costs_of(task.graph, 1e-3 * samples, 2e-3 * samples)
        together = {"contention": 1.5, "message_s": 3e-5, "copy_s_per_byte": 1e-9, "unsure": True}
        return own if alone else own.with_device("cpu", **together)

    monkeypatch.setattr(CostsHere, "of", measured)
    monkeypatch.setattr(CostsHere, "in_turn", lambda *_: {})
    spec = replace(cpu_workers(1), latency_s=0.0, bandwidth=1e12)
    batch = torch.randn(16, 6), torch.randint(3, (16,))
    with Session(spec, tmp_path) as session:
        open_ = AutoSchedule(microbatches=counts, time_limit_s=0.3)
        made = session.decided(Net(), nn.CrossEntropyLoss(), batch, open_, Single(), MOMENTUM)
    costs = made.costs.devices["cpu"]
    assert (costs.contention, costs.message_s, costs.copy_s_per_byte, costs.unsure) == (1.5, 3e-5, 1e-9, True)


def test_where_the_plan_is_to_change_a_model_with_running_statistics_has_no_replicas(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Data parallelism would be the best, and no other plan could follow it."""
    set_costs(monkeypatch, lambda graph: costs_of(graph, 1e-3 * graph.batch_size, 2e-3 * graph.batch_size))
    monkeypatch.setattr(CostsHere, "in_turn", lambda *_: {})
    spec = replace(cpu_workers(2), latency_s=0.0, bandwidth=1e12)
    batch = torch.randn(16, 6), torch.randint(3, (16,))
    plain, kept = nn.Sequential(nn.Linear(6, 3)), nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    open_ = AutoSchedule(time_limit_s=2)
    replicated = {}
    with Session(spec, tmp_path) as session:
        for name, model in {"plain": plain, "kept": kept}.items():
            for adapts in (False, True):
                made = session.decided(
                    model, nn.CrossEntropyLoss(), batch, open_, Auto(), MOMENTUM, adapts=adapts
                )
                whole = made.decided
                assert whole is not None
                replicated[name, adapts] = bool(whole.plan.placement.replicas)
                for told in (whole.absent, whole.notes):
                    assert any("adapt could not change" in each for each in told) == (
                        name == "kept" and adapts
                    )
    assert replicated == {
        ("plain", False): True,
        ("plain", True): True,
        ("kept", False): True,
        ("kept", True): False,
    }


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"microbatches": [4, 2, 16]}, []),
        ({}, []),
        (
            {"microbatches": [4, 3]},
            ["3 micro-batches are left out: the samples of a batch do not divide into so many"],
        ),
        ({"microbatches": 12}, ["12 micro-batches are asked for, and 16 samples make 8, of 2 each"]),
        ({"microbatches": [1, 99]}, ["99 micro-batches are asked for, and 16 samples make 16, of 1 each"]),
        (
            {"microbatches": [1, 4], "schedules": ["single_batch"]},
            ["4 micro-batches are left out: schedule.schedules has 'single_batch' alone"],
        ),
    ],
)  # fmt: skip
def test_numbers_that_are_asked_for_and_not_looked_at_are_told(
    asked: dict[str, Any], said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    open_, batch = AutoSchedule(time_limit_s=0.3, **asked), (torch.randn(16, 6), torch.randint(3, (16,)))
    with caplog.at_level(logging.INFO, "netsplit.experiment.whole.sizes"):
        whole = netsplit.plan(nn.Linear(6, 3), nn.CrossEntropyLoss(), batch, 2, schedule=open_)
    assert len(whole.notes) == len(said)
    assert all(note.startswith(words) for note, words in zip(whole.notes, said, strict=True))
    assert all(note in caplog.messages for note in whole.notes)


@given(st.integers(1, 200), st.lists(st.integers(1, 300), min_size=1, max_size=5))
def test_every_number_given_is_looked_at_or_told(samples: int, asked: list[int]) -> None:
    assume(min(asked) <= samples)
    open_ = AutoSchedule(asked)
    counts = open_.counts(samples, 2)
    equal = [m for m in counts if samples % m == 0]
    told = open_.not_as_given(samples, equal, "of unequal ones no costs are known")
    assert {int(each.split()[0]) for each in told} == set(asked) - set(equal)
    assert sum("are left out" in each for each in told) >= len(set(counts) - set(equal))


def test_a_size_at_which_the_model_is_another_is_told_where_it_was_asked_for() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        value = nn.functional.cross_entropy(outputs, targets)
        return value.abs() if len(outputs) == 2 else value

    batch = torch.randn(16, 6), torch.randint(3, (16,))
    for counts in ([1, 2, 4, 8], None):
        open_ = AutoSchedule(counts, time_limit_s=0.3)
        notes = netsplit.plan(Net(), loss, batch, 2, schedule=open_).notes
        said = "8 micro-batches are left out: the model has other operators there" in notes
        assert said == (counts is not None)


def over_a_number(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A constant that is another with each number of samples."""
    summed = nn.functional.cross_entropy(outputs, targets, reduction="sum")
    return summed / torch.tensor(float(len(outputs)))


def test_constants_of_every_size_are_there_when_they_are_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    set_costs(monkeypatch, lambda graph: costs_of(graph, 1e-3 * graph.batch_size, 2e-3 * graph.batch_size))
    lacking: list[set[str]] = []

    def in_turn(here: CostsHere, steps: Sequence[SizedStep], values: Mapping[str, torch.Tensor]) -> object:
        lacking.extend(set(step.graph.initializers) - set(values) for step in steps)
        return {}

    monkeypatch.setattr(CostsHere, "in_turn", in_turn)
    spec = replace(cpu_workers(1), latency_s=0.0, bandwidth=1e12)
    batch = torch.randn(16, 6), torch.randint(3, (16,))
    with Session(spec, tmp_path) as session:
        open_ = AutoSchedule(microbatches=[1, 2, 4], time_limit_s=0.3)
        session.decided(Net(), over_a_number, batch, open_, Single(), MOMENTUM)
    assert len(lacking) > 1
    assert not any(lacking)


@given(st.integers(1, 700), st.integers(1, 9))
def test_further_numbers_of_micro_batches_are_more_and_divide_the_batch(samples: int, devices: int) -> None:
    known = AutoSchedule().counts(samples, devices, equal=True)
    further = AutoSchedule().further_counts(samples, known)
    assert all(m > max(known) and samples % m == 0 for m in further)
    assert max((*known, *further)) == samples or samples > 512
    assert not AutoSchedule(microbatches=1).further_counts(samples, known)


def test_where_nothing_fits_with_few_micro_batches_more_are_looked_at() -> None:
    described = [DescribedDevice(name, capacity="5.5MB", model="TITAN RTX") for name in "ab"]
    cluster = described_cluster("two", described, LinkCost(8e9, 2e-5))
    wide = nn.Sequential(nn.Linear(6, 40_000), nn.ReLU(), nn.Linear(40_000, 3))
    batch = Batch.of(torch.randn(64, 6), torch.randint(3, (64,)))
    step = Foreseen(wide, nn.CrossEntropyLoss(), batch, Devices.described(cluster), MOMENTUM)
    with pytest.raises(InfeasibleError):
        step.decided(AutoSchedule(microbatches=[1, 2, 4, 8, 16], time_limit_s=1))
    decided = step.decided(AutoSchedule(time_limit_s=1)).decided
    assert decided is not None
    assert decided.schedule.microbatches > 16


@pytest.mark.parametrize("microbatches", [None, 2])
def test_what_bytes_prove_to_fit_nowhere_is_refused_before_a_worker_starts(
    tmp_path: Path, microbatches: int | None
) -> None:
    batch = (torch.randn(8, 6), torch.randint(3, (8,)))
    with Session(netsplit.cpu_cluster(2, capacity=200), tmp_path) as session:
        order = AutoSchedule(microbatches=microbatches, time_limit_s=1)
        with pytest.raises(InfeasibleError, match=r"no plan fits.* needs .*: nothing was measured for it"):
            session.decided(Net(), nn.CrossEntropyLoss(), batch, order, Auto(), MOMENTUM)
        assert session._pool is None
