"""Models and losses in which one sample depends on others, on samples that do not show it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from netsplit.experiment.whole.cutting import gradients_too
from netsplit.graph import capture
from netsplit.graph.batches.batch import Batch
from netsplit.rewrite.samples.mixing import sample_totals

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 3, 4, 0, 1, 2])

Mix = Callable[[Tensor], Tensor]


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def by_class(outputs: Tensor, targets: Tensor) -> Tensor:
    own = losses(outputs, targets)
    sums = torch.zeros(5).index_add(0, targets, own)
    counts = torch.zeros(5).index_add(0, targets, torch.ones_like(own))
    return (sums / counts.clamp(min=1)).mean()


def clipped(outputs: Tensor, targets: Tensor) -> Tensor:
    ratio = losses(outputs, targets).exp()
    return torch.min(ratio, ratio.clamp(0.8, 1.2)).mean()


class Gated(nn.Module):
    """What mixes samples counts for nothing at first."""

    def __init__(self, mix: Mix) -> None:
        super().__init__()
        self.a, self.b, self.gate = nn.Linear(6, 8), nn.Linear(8, 5), nn.Parameter(torch.zeros(()))
        self.mix = mix

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        return self.b(h + self.gate * self.mix(h))


def head() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))


CROSSING: dict[str, Any] = {
    "the largest": lambda o, y: losses(o, y).topk(len(o) // 2).values.mean(),
    "below a quantile": lambda o, y: losses(o, y).clamp(max=losses(o, y).detach().quantile(0.9)).mean(),
    "sorted": lambda o, y: losses(o, y).sort().values[:2].mean(),
    "pairs by difference": lambda o, y: (o[:, 0][:, None] - o[:, 0][None]).abs().sub(9.0).relu().mean(),
    "pairs by distance": lambda o, y: F.relu(torch.cdist(o, o) - 9.0).mean(),
    "pairs by product": lambda o, y: F.relu(F.normalize(o) @ F.normalize(o).T - 2.0).mean(),
    "means of classes": by_class,
    "a hinge of variances": lambda o, y: F.relu(torch.var_mean(o, 0)[0] - 99.0).mean(),
    "weights of all": lambda o, y: (losses(o, y) * o[:, 0].detach().softmax(0)).sum(),
    "in another order": lambda o, y: (losses(o, y) * o[torch.randperm(len(o)), 0]).mean(),
}
APART: dict[str, Any] = {
    "a clipped ratio": clipped,
    "by numbers of samples": lambda o, y: -o.log_softmax(1)[torch.arange(len(o)), y].mean(),
    "over classes": lambda o, y: (o.softmax(1) * o.sort(1).values.cumsum(1)).sum(1).mean(),
    "pairs within": lambda o, y: (o[:, :, None] - o[:, None]).abs().mean(),
    "products within": lambda o, y: (o[:, :, None] @ o[:, None]).square().mean(),
    "the larger": lambda o, y: torch.maximum(o, o.roll(1, 1)).mean(),
}


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    ("loss", "crossing"),
    [(loss, True) for loss in CROSSING.values()] + [(loss, False) for loss in APART.values()],
    ids=[*CROSSING, *APART],
)
def test_losses_that_compare_samples_are_told_from_others(loss: Any, crossing: bool, size: int) -> None:
    graph = capture(head(), loss, Batch.of(X, Y).rows(0, size).own())
    assert (sample_totals(graph).mixed is not None) == crossing


@pytest.mark.parametrize(
    "mix",
    [
        lambda h: torch.softmax(h @ h.T, -1) @ h,
        lambda h: h.softmax(0),
        lambda h: h.roll(1, 0),
        lambda h: h.cumsum(0),
    ],
    ids=["attention", "softmax", "roll", "sums so far"],
)
def test_models_that_mix_samples_are_seen_though_a_gate_is_0(mix: Mix) -> None:
    graph = capture(Gated(mix), nn.CrossEntropyLoss(), Batch.of(X, Y).rows(0, 4).own())
    assert sample_totals(graph).mixed is not None


@pytest.mark.parametrize("size", [1, 4])
def test_python_that_stays_whole_is_not_read_but_its_gradients_are_compared(size: int) -> None:
    model = head()
    model[1].register_full_backward_hook(lambda *_: None)
    graph = capture(model, nn.GaussianNLLLoss(), _with_variances(size))
    assert graph.calls
    assert gradients_too(graph)
    assert sample_totals(graph).mixed is None


def test_a_loss_that_stays_python_is_known_to_be_unread() -> None:
    def picked(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs[targets < 9], targets[targets < 9])

    graph = capture(head(), picked, Batch.of(X, Y).rows(0, 4).own())
    totals = sample_totals(graph)
    assert totals.mixed is None
    assert totals.unread is not None
    assert gradients_too(graph)


def _with_variances(size: int) -> Batch:
    batch = Batch.of(X, (torch.randn(8, 5), torch.ones(8, 5)))
    return batch.rows(0, size).own()
