"""Losses of micro-batches against that of their batch: sums are refused, other means are said."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from netsplit.errors import CaptureError
from netsplit.graph import capture
from netsplit.graph.batches.batch import Batch
from netsplit.graph.checks.cutting import check_cutting
from tests.messages import tells

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 3, 4, 0, 1, 2])


def told(
    loss: Callable[..., Any], targets: Tensor = Y, model: nn.Module | None = None, size: int = 2
) -> None:
    model = model or nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))
    whole = Batch.of(X, targets)
    check_cutting(model, loss, whole, capture(model, loss, whole.rows(0, size).own()))


def contrastive(z: Tensor, _: Tensor) -> Tensor:
    return F.cross_entropy(F.normalize(z) @ F.normalize(z).T / 0.1, torch.arange(len(z)))


def hardest(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of the five samples with the largest losses, or of all where there are fewer."""
    return F.cross_entropy(outputs, targets, reduction="none").topk(min(5, len(targets))).values.mean()


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.fc(x), 0.5)


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(reduction="sum"),
        lambda o, y: F.cross_entropy(o, y) + 0.1 * o.square().sum(),
        lambda o, y: F.cross_entropy(o, y, reduction="sum") / 8,
        lambda o, y: -F.cross_entropy(o, y, reduction="sum"),
    ],
)
def test_a_sum_over_samples_is_refused(loss: Callable[..., Any]) -> None:
    with pytest.raises(CaptureError, match=r"is a sum over the samples.*'single_batch'"):
        told(loss)


def test_a_sum_is_told_from_what_a_loss_draws() -> None:
    with pytest.raises(CaptureError, match="is a sum over the samples"):
        told(lambda o, y: F.cross_entropy(o, y, reduction="sum") + 100 * len(o), model=Dropping())


def test_a_micro_batch_without_targets_is_refused() -> None:
    with pytest.raises(CaptureError, match="nan on micro-batch 1, of 2 samples, where it is"):
        told(nn.CrossEntropyLoss(), torch.where(torch.arange(8) < 2, -100, Y))


def test_a_micro_batch_without_targets_is_refused_wherever_it_is() -> None:
    with pytest.raises(CaptureError, match="nan on micro-batch 3, of 2 samples, where it is"):
        told(nn.CrossEntropyLoss(), torch.where(torch.arange(8) // 2 == 2, -100, Y))


def test_a_batch_too_large_to_look_at_whole_is_looked_at_by_its_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("losses", "elsewhere"):
        monkeypatch.setattr(f"netsplit.graph.checks.apart.{name}._MOST_BYTES", 100)
    told(nn.CrossEntropyLoss(), torch.where(torch.arange(8) == 5, -100, Y))
    assert "no mean" not in caplog.text
    told(nn.CrossEntropyLoss(), torch.where(torch.arange(8) == 7, -100, Y))
    assert "no mean over samples alone" in caplog.text


def test_a_small_part_that_is_no_mean_shows_in_double_precision(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5)).double()
    whole = Batch.of(X.double(), Y)
    for small, said in ((0.0, False), (5e-4, True)):
        loss = lambda z, y, small=small: F.cross_entropy(z, y) + small * contrastive(z, y)  # noqa: E731
        check_cutting(model, loss, whole, capture(model, loss, whole.rows(0, 2).own()))
        assert ("no mean over samples alone" in caplog.text) == said
    one, other = re.findall(r"\d\.\d+(?= on 4| as the mean)", caplog.text)
    assert one != other


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (nn.CrossEntropyLoss(), torch.where(torch.arange(8) < 1, -100, Y)),
        (contrastive, Y),
        (nn.CrossEntropyLoss(), torch.where(torch.arange(8) == 7, -100, Y)),
        (nn.CrossEntropyLoss(), torch.where(torch.arange(8) == 3, -100, Y)),
        (hardest, Y),
    ],
    ids=["first", "contrastive", "last", "inner", "hardest"],
)
def test_another_mean_is_said(
    loss: Callable[..., Any], targets: Tensor, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        told(loss, targets)
    assert "no mean over samples alone" in caplog.text


def test_statistics_of_micro_batches_are_said_with_the_name(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        told(nn.CrossEntropyLoss(), model=nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 5)))
    assert tells(caplog.text, "'1'", "per-micro-batch statistics", "schedule=single_batch")
    assert "no mean" not in caplog.text


class Spare(nn.Module):
    """With a normalisation that is called where it is asked for, and one that never is."""

    def __init__(self, called: bool) -> None:
        super().__init__()
        self.called = called
        self.spare, self.norm = nn.BatchNorm1d(8), nn.BatchNorm1d(8)
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.last(self.norm(y) if self.called else y)


@pytest.mark.parametrize("called", [False, True])
def test_a_norm_that_is_never_called_is_not_spoken_of(called: bool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        told(nn.CrossEntropyLoss(), model=Spare(called))
    assert ("statistics" in caplog.text) == called
    assert "'spare'" not in caplog.text


@pytest.mark.parametrize("model", [None, Dropping()])
def test_an_ordinary_mean_and_dropout_are_not_mentioned(
    model: nn.Module | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        told(nn.CrossEntropyLoss(), model=model)
        told(nn.CrossEntropyLoss(), model=model, size=8)
        told(nn.CrossEntropyLoss(reduction="sum"), model=model, size=8)
    assert not caplog.text


def test_the_model_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 5))
    before = {k: t.clone() for k, t in model.state_dict().items()}
    state = torch.get_rng_state()
    told(nn.CrossEntropyLoss(), model=model)
    assert all(torch.equal(t, before[k]) for k, t in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "loss",
    [
        lambda o, y: F.cross_entropy(o, y) + o.sum() - o.sum().detach(),
        lambda o, y: F.cross_entropy(o, y) + 1e-5 * (1e4 * o).sin().sum(),
    ],
    ids=["of value 0", "small"],
)
def test_a_term_without_a_value_shows_by_its_gradient(
    loss: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    told(loss)
    assert re.search(
        r"the gradient of '2.(bias|weight)' in Sequential on 4 samples at once is apart", caplog.text
    )
    caplog.clear()
    told(lambda o, y: F.cross_entropy(o, y) + o.mean() - o.mean().detach())
    assert not caplog.text


def test_a_hook_that_changes_gradients_shows_by_them(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))
    told(nn.CrossEntropyLoss(), model=model)
    assert not caplog.text
    model[2].weight.register_hook(lambda gradient: gradient / gradient.norm())
    told(nn.CrossEntropyLoss(), model=model)
    assert "though their losses are alike: it is no mean over samples alone" in caplog.text


class Counting(nn.Module):
    """Keeps an average of what it is given, and does not compute with it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 5)
        self.register_buffer("average", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.average.mul_(0.9).add_(x.mean(0), alpha=0.1)
        y: Tensor = self.fc(x)
        return y


def test_a_buffer_that_every_micro_batch_writes_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    told(nn.CrossEntropyLoss(), model=Counting())
    assert "buffer 'average' once per micro-batch" in caplog.text
