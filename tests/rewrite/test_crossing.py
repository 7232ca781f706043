"""Models and losses in which one sample depends on others, on samples that do not show it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from netsplit.experiment.whole.seen_in_graphs import gradients_too
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


def of_pairs(outputs: Tensor, _: Tensor) -> Tensor:
    return sum(
        (F.relu(outputs[i] - outputs[i + 1] - 50).mean() for i in range(len(outputs) - 1)), torch.zeros(())
    )


def idle(value: Tensor) -> Tensor:
    """Of no value, and without a gradient, as long as what is compared stays below."""
    return F.relu(value - 500).mean()


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
    "neighbours": lambda o, y: idle(o[1:] - o[:-1]),
    "halves": lambda o, y: idle(o[: len(o) // 2] - o[len(o) // 2 :]),
    "chunks": lambda o, y: idle(torch.sub(*o.chunk(2))),
    "a split": lambda o, y: idle(torch.sub(*o.split(len(o) // 2))),
    "tensor_split": lambda o, y: idle(torch.sub(*o.tensor_split(2))),
    "the first and the last": lambda o, y: idle(o.unbind()[0] - o.unbind()[-1]),
    "narrow": lambda o, y: idle(o.narrow(0, 0, 1) - o.narrow(0, 1, 1)),
    "every second": lambda o, y: idle(o[::2] - o[1::2]),
    "two by two": lambda o, y: idle(o.view(-1, 2, 5)[:, 0] - o.view(-1, 2, 5)[:, 1]),
    "to the first": lambda o, y: idle(o - o[:1]),
    "some alone": lambda o, y: F.cross_entropy(o, y) + idle(o[0]),
    "some otherwise": lambda o, y: idle(o[0]) + 2 * idle(o[1:]),
    "rolled": lambda o, y: idle(o - o.roll(1, 0)),
    "rotated": lambda o, y: idle(o - torch.cat([o[1:], o[:1]])),
    "windows": lambda o, y: idle(o.unfold(0, 2, 1).diff(dim=-1)),
    "one after another": of_pairs,
    "of the first's": lambda o, y: idle(o - o.gather(0, torch.zeros(len(o), 5, dtype=torch.long))),
    "a norm of all": lambda o, y: idle(torch.linalg.matrix_norm(o)),
    "singular values": lambda o, y: idle(torch.linalg.svdvals(o)),
    "an inverse": lambda o, y: idle(torch.linalg.pinv(o)),
    "a determinant": lambda o, y: idle(torch.det(o.T @ o + torch.eye(5))),
    "frequencies": lambda o, y: idle(torch.fft.rfft(o, dim=0).abs()),
    "a histogram": lambda o, y: F.cross_entropy(o, y) + idle(torch.histc(o.detach(), 4)),
    "pooled": lambda o, y: idle(F.max_pool1d(o.T[None], 2)),
    "convolved": lambda o, y: idle(F.conv1d(o.T[None], torch.ones(1, 5, 2))),
    "normalised": lambda o, y: idle(F.layer_norm(o.T, (len(o),))),
    "a product of all with all": lambda o, y: idle(torch.outer(o[:, 0], o[:, 0])),
    "a product over samples": lambda o, y: idle(torch.addmm(torch.zeros(5, 5), o.T, o)),
    "angles over samples": lambda o, y: idle(F.cosine_similarity(o[:, :1].expand(-1, 5), o, dim=0)),
    "angles of pairs": lambda o, y: idle(F.cosine_similarity(o[:, None], o[None], dim=-1)),
    "products of pairs": lambda o, y: idle(torch.inner(o, o)),
    "a layer of the samples": lambda o, y: idle(F.linear(o, o)),
    "a chain of products": lambda o, y: idle(torch.linalg.multi_dot([o, o.T])),
    "a grid": lambda o, y: idle(torch.sub(*torch.meshgrid(o[:, 0], o[:, 1], indexing="ij"))),
    "in a column against in a row": lambda o, y: F.l1_loss(o[:, :1], 50.0 + o[:, 1].detach()),
    "classes of samples": lambda o, y: F.cross_entropy(o[:, 0], (y == 0).float()),
    "upside down": lambda o, y: idle(o - o.flipud()),
    "slopes": lambda o, y: idle(torch.gradient(o, dim=0)[0]),
    "one of all": lambda o, y: (losses(o, y) * ~torch.isin(y, y + 5)).mean(),
    "the largest of a class": lambda o, y: o.new_zeros(5).scatter_reduce(0, y, o[:, 0], "amax").mean(),
}
APART: dict[str, Any] = {
    "a clipped ratio": clipped,
    "by numbers of samples": lambda o, y: -o.log_softmax(1)[torch.arange(len(o)), y].mean(),
    "over classes": lambda o, y: (o.softmax(1) * o.sort(1).values.cumsum(1)).sum(1).mean(),
    "pairs within": lambda o, y: (o[:, :, None] - o[:, None]).abs().mean(),
    "products within": lambda o, y: (o[:, :, None] @ o[:, None]).square().mean(),
    "by a loop": lambda o, y: sum(F.cross_entropy(a[None], b[None]) for a, b in zip(o, y)) / len(o),  # noqa: B905
    "by slices": lambda o, y: torch.stack([o[i : i + 1].square().mean() for i in range(len(o))]).mean(),
    "by chunks": lambda o, y: sum(map(F.cross_entropy, o.chunk(2), y.chunk(2))) / 2,  # type: ignore[arg-type]
    "put together again": lambda o, y: F.cross_entropy(torch.cat([o[:1], o[1:]]), y),
    "two views at once": lambda o, y: torch.sub(*torch.cat([o, 2 * o]).chunk(2)).square().mean(),
    "neighbours within": lambda o, y: (o[:, 1:] - o[:, :-1]).abs().mean(),
    "a half within": lambda o, y: F.relu(torch.sub(*o[:, :4].chunk(2, 1)) - 5).mean(),
    "determinants": lambda o, y: torch.linalg.det(o[:, :4].unflatten(1, (2, 2))).square().mean(),
    "frequencies within": lambda o, y: torch.fft.rfft(o).abs().mean(),
    "distances within": lambda o, y: torch.cdist(o[:, :, None], o[:, :, None]).mean(),
    "margins": lambda o, y: F.multi_margin_loss(o, y) + F.triplet_margin_loss(o, -o, 2 * o),
    "weighed by constants": lambda o, y: torch.dot(losses(o, y), torch.ones(len(o))) / len(o),
    "repeated within": lambda o, y: o.repeat(1, 2).relu().square().mean(),
    "scattered within": lambda o, y: o.scatter_add(1, o.topk(2).indices, o[:, :2].relu()).square().mean(),
    "distances from constants": lambda o, y: torch.cdist(o, torch.eye(5)).amin(1).mean(),
    "as another's size": lambda o, y: (o * o.amax(1, keepdim=True).expand_as(o)).relu().mean(),
    "of another's type": lambda o, y: F.cross_entropy(o * torch.arange(5).type_as(o), y),
    "upside down within": lambda o, y: idle(o - o.fliplr()),
    "angles between": lambda o, y: idle(F.cosine_similarity(o, o.detach() + 1)),
    "the sum of a class": lambda o, y: o.new_zeros(5).scatter_reduce(0, y, o[:, 0], "sum").mean() / len(o),
    "put in a row": lambda o, y: o.relu().ravel().square().mean(),
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


class OwnFilters(nn.Module):
    """Every sample has filters of its own, in one convolution of groups."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.out = nn.Parameter(torch.ones(4, 3, 3)), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        n = len(x)
        weight = (self.weight * x.mean((1, 2))[:, None, None, None]).view(n * 4, 3, 3)
        y: Tensor = self.out(F.conv1d(x.reshape(1, n * 3, 8), weight, groups=n).view(n, 4, 6).relu().mean(2))
        return y


class States(nn.Module):
    """Of a recurrence, which come by layers before samples."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.over, self.out = nn.LSTM(8, 4, num_layers=2, batch_first=batch_first), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        _, (h, _) = self.over(x if self.over.batch_first else x.transpose(0, 1))
        y: Tensor = self.out(torch.cat([h[0], h[1]], 1).tanh())
        return y


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("model", [OwnFilters(), States(True), States(False)])
def test_samples_are_followed_where_they_lie_in_other_dimensions(model: nn.Module, size: int) -> None:
    batch = Batch.of(torch.randn(8, 3, 8), Y)
    graph = capture(model, nn.CrossEntropyLoss(), batch.rows(0, size).own())
    assert sample_totals(graph).mixed is None


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
