"""Costs between two sizes lie on a line, and three captures stand for many."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import netsplit
from netsplit.cluster.described import DescribedDevice, LinkCost, described_cluster
from netsplit.errors import CaptureError, InfeasibleError, WorkerError
from netsplit.partition import Auto
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.profile.costs import Costs, DeviceCosts, NodeBytes, NodeSeconds, beside, between
from netsplit.program.schedules import GPipe
from netsplit.session import step as steps
from netsplit.session.costs import PredictedCosts
from netsplit.session.decision import WholeDecision, problem_of
from netsplit.session.session import Session
from netsplit.session.sizes import StepSizes
from netsplit.session.step import ModelStep

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
    made = beside(line(samples), line(usual), {"cpu": took}, samples, usual).devices["cpu"].nodes["n"]
    whole = 3 * (base + slope * usual)
    assert made.forward_s + made.backward_s == pytest.approx(whole * took[samples] / took[usual])
    assert made.weight_s == pytest.approx(made.backward_s / 2)
    same = beside(line(usual), line(usual), {"cpu": took}, usual, usual).devices["cpu"].nodes["n"]
    assert same.forward_s == pytest.approx(base + slope * usual)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.first(x))))


def test_few_sizes_are_captured_and_all_are_as_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    captured = steps.checked_capture

    def counted(*args: object, **more: object) -> object:
        taken.append(args[2].samples)  # type: ignore[attr-defined]
        return captured(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(steps, "checked_capture", counted)
    described = [DescribedDevice(name, capacity="1GB", model="TITAN RTX") for name in "ab"]
    cluster = described_cluster("two", described, LinkCost(8e9, 2e-5))
    batch = torch.randn(32, 6), torch.randint(3, (32,))
    step, source = ModelStep(Net(), nn.CrossEntropyLoss(), batch), PredictedCosts.for_cluster(cluster)
    auto = AutoSchedule(microbatches=[1, 2, 4, 8, 16], time_limit_s=0.5)
    whole, problem = WholeDecision(step, source, auto).decide()
    assert sorted(taken) == [2, 8, 32]
    alone = problem_of(step, source, GPipe(whole.schedule.microbatches))
    assert replace(alone.graph) == problem.graph
    assert alone.costs == problem.costs


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"microbatches": [4, 2, 16]}, []),

        (
            {"microbatches": [4, 3]},
            ["3 micro-batches are not tried: the batch does not divide into equal micro-batches"],
        ),
        ({"microbatches": 12}, ["12 micro-batches were requested, but 16 samples make 8, of 2 each"]),


    ],
)  # fmt: skip
def test_numbers_that_are_asked_for_and_not_looked_at_are_told(
    asked: dict[str, Any], said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    auto, batch = AutoSchedule(time_limit_s=0.3, **asked), (torch.randn(16, 6), torch.randint(3, (16,)))
    with caplog.at_level(logging.INFO, "netsplit.session.sizes"):
        whole = netsplit.plan(nn.Linear(6, 3), nn.CrossEntropyLoss(), batch, 2, schedule=auto)
    assert len(whole.choice.remarks) == len(said)
    assert all(note.startswith(words) for note, words in zip(whole.choice.remarks, said, strict=True))
    assert all(note in caplog.messages for note in whole.choice.remarks)


def test_what_fails_on_a_worker_and_in_plain_pytorch_is_refused_as_a_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(sizes: StepSizes) -> None:
        raise WorkerError("worker cpu:0 raised RuntimeError.")

    described = described_cluster("one", [DescribedDevice("a", model="TITAN RTX")], LinkCost(8e9, 2e-5))
    monkeypatch.setattr(StepSizes, "_measure_two", fails)
    for inputs, refused, said in (
        (
            torch.randn(8, 6).double(),
            CaptureError,
            "Net does not train on this batch in plain PyTorch and in",
        ),
        (torch.randn(8, 6), WorkerError, "worker cpu:0 raised"),
    ):
        step = ModelStep(Net(), nn.CrossEntropyLoss(), (inputs, torch.randint(3, (8,))))
        sizes = StepSizes(step, PredictedCosts.for_cluster(described), [4], None, [])
        sizes.take()
        with pytest.raises(refused, match=said):
            sizes.cost()


def test_what_bytes_prove_to_fit_nowhere_is_refused_before_a_worker_starts(tmp_path: Path) -> None:
    batch = (torch.randn(8, 6), torch.randint(3, (8,)))
    with Session(netsplit.cpu_cluster(2, capacity=200), tmp_path) as session:
        order = AutoSchedule(time_limit_s=1)
        with pytest.raises(
            InfeasibleError, match=r"no plan fits.* needs .*: netsplit.plan and runners.plan show"
        ):
            session.plan(session.step(Net(), nn.CrossEntropyLoss(), batch), order, Auto())
        assert session._pool is None
