"""What a loss's graph says of cutting batches is what computing says; where it says nothing, one computes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from netsplit.experiment.whole import cutting as cutting_of_plans
from netsplit.experiment.whole.cutting import RightCuts
from netsplit.graph import capture
from netsplit.graph.batches.batch import Batch
from netsplit.graph.checks.cutting import loss_apart
from netsplit.graph.ir import Graph
from tests.nets import CASES, Case

SAMPLES = 8
Loss = Callable[[Tensor, Tensor], Tensor]


def with_penalty(y: Tensor, t: Tensor) -> Tensor:
    return 0.5 * F.cross_entropy(y, t) + 0.1 * y.square().mean() + 1.0


MEANS: dict[str, Loss] = {
    "cross entropy": F.cross_entropy,
    "smoothed": partial(F.cross_entropy, label_smoothing=0.1),
    "with penalty": with_penalty,
    "by logarithms": lambda y, t: F.nll_loss(y.log_softmax(-1), t),
    "one by one": lambda y, t: F.cross_entropy(y, t, reduction="none").mean(),
}
OTHERS: dict[str, Loss] = {
    "sum": lambda y, t: F.cross_entropy(y, t, reduction="sum"),
    "times samples": lambda y, t: F.cross_entropy(y, t) * len(y),
    "of all, by samples": lambda y, t: F.cross_entropy(y, t, reduction="sum") / len(y),
    "sharper by samples": lambda y, t: F.cross_entropy(y * len(y), t),
    "a summed penalty": lambda y, t: F.cross_entropy(y, t) + 0.1 * y.square().sum(),
    "centred": lambda y, t: F.cross_entropy(y - y.mean(0), t),
    "by classes": lambda y, t: F.cross_entropy(y, t, weight=torch.arange(1.0, 6.0, dtype=y.dtype)),
    "contrastive": lambda y, t: F.cross_entropy(y @ y.T, torch.arange(len(y))),
    "the worst": lambda y, t: F.cross_entropy(y, t, reduction="none").topk(len(y) // 2).values.mean(),
    "a square of means": lambda y, t: F.cross_entropy(y, t).square(),
    "a ratio of means": lambda y, t: 1.0 / F.cross_entropy(y, t),
    "some ignored": lambda y, t: F.cross_entropy(y, torch.where(y.argmax(-1) == 0, -100, t)),
    "a draw of its own": lambda y, t: F.cross_entropy(y * torch.rand(len(y), 1), t),
    "into a buffer": lambda y, t: F.cross_entropy(y - torch.zeros(5, dtype=y.dtype).add_(y.sum(0)), t),
}


def graphs(model: nn.Module, loss: Any, batch: Batch, sizes: tuple[int, ...] = (4, SAMPLES)) -> list[Graph]:
    return [capture(model, loss, batch.rows(0, size).own()) for size in sizes]


@pytest.fixture
def not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def computed(*_: Any) -> None:
        raise AssertionError("a loss was computed that its graph says is a mean")

    monkeypatch.setattr(cutting_of_plans, "loss_apart", computed)


def said(model: nn.Module, loss: Any, batch: Batch) -> bool:
    return RightCuts(model, loss, batch, named=False)._is_mean(graphs(model, loss, batch))


@pytest.mark.usefixtures("not_computed")
@pytest.mark.parametrize("loss", MEANS.values(), ids=MEANS)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_of_a_mean_over_samples_no_loss_is_computed(loss: Loss, device: str) -> None:
    case = CASES["chain"]
    model = case.fresh().to(device)
    batch = Batch.of(*(each.to(device) for each in (*case.inputs, case.targets)))
    cutting = RightCuts(model, loss, batch, named=False)
    assert cutting.right(graphs(model, loss, batch), [1, 2, 4]) == [1, 2, 4]
    assert not cutting.told(4)


@pytest.mark.parametrize("loss", OTHERS.values(), ids=OTHERS)
def test_of_other_losses_nothing_is_said(loss: Loss) -> None:
    case = CASES["chain"]
    assert not said(case.fresh(), loss, Batch.of(*case.inputs, case.targets))


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(sorted(CASES)), st.sampled_from(sorted({**MEANS, **OTHERS})), st.integers(1, 4))
def test_what_is_said_to_be_a_mean_adds_up(name: str, form: str, size: int) -> None:
    case: Case = CASES[name]
    model = case.fresh()
    loss = {**MEANS, **OTHERS}[form] if isinstance(case.loss, nn.CrossEntropyLoss) else case.loss
    batch = Batch.of(case.inputs if len(case.inputs) > 1 else case.inputs[0], case.targets)
    made = graphs(model, loss, batch)
    if RightCuts(model, loss, batch, named=False)._is_mean(made):
        assert loss_apart(model, loss, batch, made[0], size, every=True) is None


def test_targets_that_do_not_count_are_looked_for() -> None:
    model, x = nn.Linear(6, 5), torch.randn(SAMPLES, 6)
    loss = nn.CrossEntropyLoss(ignore_index=2)
    assert said(model, loss, Batch.of(x, torch.full((SAMPLES,), 3)))
    assert not said(model, loss, Batch.of(x, torch.arange(SAMPLES) % 5))
    without = Batch.of(x.to("meta"), torch.zeros(SAMPLES, dtype=torch.long, device="meta"))
    assert said(model.to("meta"), loss, without)
    assert not said(model, nn.CrossEntropyLoss(ignore_index=0), without)


def test_a_normalisation_by_the_batch_that_evaluation_has_too_is_none_by_samples() -> None:
    x, y = torch.randn(SAMPLES, 6), torch.arange(SAMPLES) % 5
    for tracked in (True, False):
        model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, track_running_stats=tracked))
        assert said(model, nn.CrossEntropyLoss(), Batch.of(x, y)) == tracked


def test_samples_in_another_dimension_are_followed() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells, self.out = nn.LSTM(6, 8), nn.Linear(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.cells(x.transpose(0, 1))[0]).transpose(0, 1).flatten(0, 1)

    x, y = torch.randn(SAMPLES, 3, 6), torch.randint(5, (SAMPLES, 3))
    assert said(Turned(), lambda o, t: F.cross_entropy(o, t.flatten()), Batch.of(x, y))
