"""Losses that go on with a total over samples, on samples that do not show it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from netsplit.graph import capture
from netsplit.graph.batches.batch import Batch
from netsplit.rewrite.samples.mixing import sample_totals

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 3, 4, 0, 1, 2])

Loss = Callable[[Tensor, Tensor], Tensor]


def each(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def where_larger(outputs: Tensor, targets: Tensor) -> Tensor:
    own = each(outputs, targets)
    return torch.where(own > 0.01, own, 0.0).sum() / (own > 0.01).sum()


def balanced(outputs: Tensor, _: Tensor) -> Tensor:
    shares = outputs.softmax(1)
    return (shares.mean(0) * (shares > 0.2).float().mean(0)).sum()


def by_loop(outputs: Tensor, targets: Tensor) -> Tensor:
    own = [torch.log1p(F.mse_loss(z, torch.ones_like(z))) for z in outputs.unbind()]
    return F.cross_entropy(outputs, targets) + torch.stack(own).sum() / len(outputs)


def written(
    change: Callable[[Tensor, Tensor], object], to: Callable[[Tensor], Tensor] = Tensor.clone
) -> Loss:
    """Cross entropy of a copy of the outputs that is changed in place."""

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        copy = to(outputs)
        change(copy, outputs)
        return F.cross_entropy(copy, targets)

    return loss


WEIGHTS = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])


class Uncertain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.exp(-self.weight) * F.cross_entropy(outputs, targets) + self.weight


class Scaled(nn.Module):
    """A term of the loss times, or by, what is learned."""

    def __init__(self, term: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.term = nn.Parameter(torch.tensor(0.3)), term

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets) + self.term(self.weight, outputs, targets)


class Held(nn.Module):
    """A loss with buffers, which another step may find with other values."""

    def __init__(self, loss: Callable[[Any, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.register_buffer("temperature", torch.tensor(2.0))
        self.register_buffer("weights", torch.tensor([1.0, 0.0]))
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("on", torch.tensor(False))
        self.loss = loss

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss(self, outputs, targets)


def absent(outputs: Tensor, targets: Tensor) -> Tensor:
    """Outputs of the samples of a class that is not there: 0."""
    return (targets == 9)[:, None] * outputs


MIXED: dict[str, Loss] = {
    "above the mean": lambda o, y: (each(o, y) * (each(o, y) > each(o, y).mean())).mean(),
    "a mean over those above": where_larger,
    "a mean over those that count": lambda o, y: (each(o, y) * (y != 9)).sum() / (y != 9).sum().clamp(min=1),
    "weighed by one another": lambda o, y: (each(o, y) * (each(o, y) / each(o, y).sum()).detach()).sum(),
    "flooded": lambda o, y: (each(o, y).mean() - 0.1).abs() + 0.1,
    "over its own value": lambda o, y: F.cross_entropy(o, y) / F.cross_entropy(o, y).detach(),
    "a hinge of a deviation": lambda o, y: F.cross_entropy(o, y) + F.relu(0.0 - o.std(0)).mean(),
    "a hinge of the largest": lambda o, y: F.cross_entropy(o, y) + F.relu(o.max() - 100.0),
    "less the mean": lambda o, y: F.cross_entropy(o - o.mean(0, keepdim=True).detach(), y),
    "squared": lambda o, y: F.cross_entropy(o, y) * F.cross_entropy(o, y),
    "balanced": balanced,
}
MIXED |= {
    "weighed by classes": lambda o, y: F.cross_entropy(o, y, weight=WEIGHTS, label_smoothing=0.1),
    "weighed likelihoods": lambda o, y: F.nll_loss(o.log_softmax(1), y, weight=WEIGHTS),
    "weighed by hand": lambda o, y: (WEIGHTS[y] * each(o, y)).sum() / WEIGHTS[y].sum(),
    "over the weights": lambda o, y: (
        F.cross_entropy(o, y, weight=WEIGHTS, reduction="sum") / WEIGHTS.take(y).sum()
    ),
    "pairs over the positive ones": lambda o, y: (
        F.binary_cross_entropy_with_logits(o, F.one_hot(y, 5).float() * (y > 0)[:, None], reduction="sum")
        / (y > 0).sum()
    ),
    "a sum beside a mean": lambda o, y: F.cross_entropy(o, y) + 1e-2 * F.relu(o - 50).sum(),
    "a sum by class": lambda o, y: F.cross_entropy(o, y) + 1e-2 * (o * (y == 9)[:, None]).square().sum() / 7,
    "a summed loss beside a mean": lambda o, y: (
        F.cross_entropy(o, y) + F.mse_loss(o * (y == 9)[:, None], torch.zeros_like(o), reduction="sum")
    ),
    "a sum times what is learned": Scaled(lambda w, o, y: w * absent(o, y).sum()),
    "a sum times a function of it": Scaled(lambda w, o, y: absent(o, y).sum() * torch.exp(-w)),
    "a sum over what is learned": Scaled(lambda w, o, y: absent(o, y).sum() / w.exp()),
    "sums, by a matrix that is learned": Scaled(
        lambda w, o, y: (absent(o, y).sum(0) @ w.expand(o.shape[1], 1)).sum()
    ),
    "sums, through a layer": Scaled(
        lambda w, o, y: F.linear(absent(o, y).sum(0)[None], w.expand(2, o.shape[1])).mean()
    ),
    "added to rows of none": lambda o, y: (
        F.cross_entropy(o, y) + o.new_zeros(1).index_add(0, torch.zeros_like(y), absent(o, y)[:, 0])[0]
    ),
    "scattered to classes": lambda o, y: (
        F.cross_entropy(o, y) + o.new_zeros(10).scatter_add(0, y, each(o, y) * (y == 9))[9]
    ),
    "all pairs, by dimensions": lambda o, y: F.cross_entropy(o, y) + torch.tensordot(o, o, ([1], [1])).mean(),
    "by norms over the samples": lambda o, y: F.cross_entropy(o, y) + torch.renorm(o, 2, 1, 1.0).mean(),
    "the first sample for all": lambda o, y: F.cross_entropy(o, y) + o.as_strided((len(o),), (0,)).mean(),
    "a diagonal": lambda o, y: F.cross_entropy(o, y) + torch.diag(each(o, y) * (y == 9)).mean(),
    "rows behind others": lambda o, y: (
        F.cross_entropy(o, y)
        + o[torch.arange(len(o))[None], torch.arange(len(o))[:, None].clamp(max=3)].relu().amax(0).mean()
    ),
    "a sum of products": lambda o, y: F.cross_entropy(o, y) + torch.einsum("b,bc->", (y == 9).float(), o),
    "a sum by columns": lambda o, y: (
        F.cross_entropy(o, y) + torch.einsum("b,bc->c", (y == 9).float(), o).mean()
    ),
    "a mean times the number of samples": lambda o, y: (
        F.cross_entropy(o, y) + absent(o, y).mean() * torch.ones_like(y).sum()
    ),
    "a sum beside one over their number": lambda o, y: each(o, y).sum() / len(o) + absent(o, y).sum(),
    "a sum beside a mean by batches": lambda o, y: (
        F.kl_div(o.log_softmax(1), o.detach().softmax(1), reduction="batchmean") + absent(o, y).sum()
    ),
    "a sum over a buffer": Held(
        lambda own, o, y: F.cross_entropy(o, y) + absent(o, y).sum() / own.temperature
    ),
    "terms by a buffer": Held(
        lambda own, o, y: torch.stack([F.cross_entropy(o, y), o.square().sum()]) @ own.weights
    ),
    "terms times a buffer": Held(
        lambda own, o, y: (torch.stack([F.cross_entropy(o, y), o.square().sum()]) * own.weights).sum()
    ),
    "a sum that rises by steps": Held(
        lambda own, o, y: F.cross_entropy(o, y) + (own.steps / 1000).clamp(max=1) * o.square().sum()
    ),
    "a sum from a step on": Held(
        lambda own, o, y: F.cross_entropy(o, y) + (own.steps > 1000).float() * o.square().sum()
    ),
    "a sum that is off": Held(lambda own, o, y: F.cross_entropy(o, y) + own.on * o.square().sum()),
    "a mean that samples choose from": lambda o, y: o.mean(0).index_select(0, y).mean(),
    "written into all but one": written(lambda h, o: h[1:].copy_(h[1:].detach())),
    "written into some samples": written(lambda h, o: h[1:].add_(F.relu(o[:-1] - 50))),
    "written from all, then gated": written(lambda h, o: h.sub_(o.mean()).relu_()),
}
MEANS: dict[str, Loss] = {
    "rows of its own, by columns": lambda o, y: (
        F.cross_entropy(o, y) + o[torch.arange(len(o))[:, None], torch.arange(3)].square().mean()
    ),
    "each by its own norm": lambda o, y: F.cross_entropy(o, y) + torch.renorm(o, 2, 0, 1.0).mean(),
    "added to classes, over all": lambda o, y: (
        F.cross_entropy(o, y) + o.new_zeros(10).index_add(0, y, each(o, y)).sum() / len(o)
    ),
    "means, through a layer": Scaled(
        lambda w, o, y: F.linear(o.mean(0)[None], w.expand(2, o.shape[1]), w.expand(2)).mean()
    ),
    "means, by a matrix": Scaled(lambda w, o, y: (o.mean(0) @ w.expand(o.shape[1], 1)).sum()),
    "a mean times what is learned": Scaled(lambda w, o, y: w * absent(o, y).mean() + w.square()),
    "a sum times what is learned, over all": Scaled(lambda w, o, y: w * absent(o, y).sum() / len(o)),
    "a sum over ones beside a mean": lambda o, y: (
        F.cross_entropy(o, y) + absent(o, y).sum() / torch.ones_like(y).sum().clamp(min=1)
    ),
    "products of each": lambda o, y: F.cross_entropy(o, y) + torch.einsum("bc,bc->b", o, o).mean(),
    "a sum of products, over all": lambda o, y: (
        F.cross_entropy(o, y) + torch.einsum("bc,bc->", o, o) / len(o)
    ),
    "times ones": lambda o, y: (each(o, y) * torch.ones_like(y)).mean(),
    "weighed, over the samples": lambda o, y: (
        F.cross_entropy(o, y, weight=WEIGHTS, reduction="sum") / len(o)
    ),
    "weighed by a lookup": lambda o, y: (WEIGHTS[y] * each(o, y)).mean(),
    "weighed probabilities": lambda o, y: F.cross_entropy(o, F.one_hot(y, 5).float(), weight=WEIGHTS),
    "weighed, of one sample each": lambda o, y: (
        sum(F.cross_entropy(a[None], b[None], weight=WEIGHTS) for a, b in zip(o, y, strict=True)) / len(o)
    ),
    "pairs weighed by classes": lambda o, y: F.binary_cross_entropy_with_logits(
        o, F.one_hot(y, 5).float(), weight=WEIGHTS, pos_weight=WEIGHTS
    ),
    "two sums": lambda o, y: F.cross_entropy(o, y, reduction="sum") + 0.3 * o.square().sum(),
    "a sum over all elements": lambda o, y: F.cross_entropy(o, y) + 0.3 * o.square().sum() / o.numel(),
    "a sum, not trained": lambda o, y: F.cross_entropy(o, y) + 0 * o.sum(),
    "a sum of each": lambda o, y: F.cross_entropy(o, y) + 0.01 * o.square().sum(1).mean(),
    "written into some outputs": written(lambda h, o: h[:, 0].copy_(h[:, 0].detach())),
    "written into zeros": written(lambda h, o: h[:, :2].copy_(o[:, :2]), torch.zeros_like),
    "written by a mask": written(lambda h, o: h.masked_fill_(h > 5, 0.0)),
    "written as a whole": written(lambda h, o: h.mul_(2).clamp_(-5, 5)),
    "joined to nothing": lambda o, y: F.cross_entropy(torch.cat([torch.tensor([]), o], -1), y),
    "cross entropy": F.cross_entropy,
    "over the number of samples": lambda o, y: each(o, y).sum() / len(o),
    "over ones": lambda o, y: each(o, y).sum() / torch.ones_like(y).sum(),
    "above a constant": lambda o, y: (each(o, y) * (each(o, y) > 0.7)).mean(),
    "focal": lambda o, y: ((1 - torch.exp(-each(o, y))) ** 2 * each(o, y)).mean(),
    "of two": lambda o, y: 0.5 * F.cross_entropy(o, y) + (o.softmax(1) * o.log_softmax(1)).sum(1).mean(),
    "less the row's mean": lambda o, y: F.cross_entropy(o - o.mean(1, keepdim=True), y),
    "less the row's largest": lambda o, y: F.cross_entropy(o - o.amax(-1, keepdim=True), y),
    "with the mean to each": lambda o, y: (each(o, y) + 0.1 * each(o, y).mean()).mean(),
    "by a weight that is learned": Uncertain(),
    "by a buffer": Held(
        lambda own, o, y: F.cross_entropy(o, y) + o.square().sum() / len(o) / own.temperature
    ),
    "two sums over their number": lambda o, y: each(o, y).sum() / len(o) + o.square().sum() * (1 / len(o)),
    "by batches": lambda o, y: (
        F.kl_div(o.log_softmax(1), o.detach().softmax(1), reduction="batchmean") + F.cross_entropy(o, y)
    ),
    "terms by weights": Held(
        lambda own, o, y: torch.stack([F.cross_entropy(o, y), o.square().mean()]) @ own.weights
    ),
    "by a loop": by_loop,
}  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize(
    ("loss", "mixed"),
    [(loss, True) for loss in MIXED.values()] + [(loss, False) for loss in MEANS.values()],
    ids=[*MIXED, *MEANS],
)
def test_what_goes_on_with_a_total_is_told_from_means(loss: Any, mixed: bool, size: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 5))
    graph = capture(model, loss, Batch.of(X, Y).rows(0, size).own())
    node = sample_totals(graph).mixed
    assert (node is not None) == mixed
    assert node is None or node.module in ("", "loss")


@pytest.mark.parametrize(
    ("name", "terms"),
    [("cross entropy", 1), ("of two", 2), ("with the mean to each", 2), ("focal", 1), ("by a loop", 2)],
)
def test_terms_of_a_loss_are_counted(name: str, terms: int) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))
    graph = capture(model, MEANS[name], Batch.of(X, Y).rows(0, 4).own())
    assert sample_totals(graph).terms == terms


@pytest.mark.parametrize(
    ("term", "mixed"),
    [
        (lambda o: o.view(2, -1).sum(), True),
        (lambda o: o.view(2, -1).sum(1).mean(), True),
        (lambda o: o.view(2, -1).mean(), False),
        (lambda o: o.view(2, -1).mean(0).mean(), False),
    ],
)
def test_samples_in_other_places_are_added_up_or_averaged(
    term: Callable[[Tensor], Tensor], mixed: bool
) -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets) + term(each(outputs, targets) * (targets == 9))

    graph = capture(nn.Linear(6, 5), loss, Batch.of(X, Y).rows(0, 4).own())
    assert (sample_totals(graph).mixed is not None) == mixed


@pytest.mark.parametrize("size", [2, 4])
def test_a_product_over_the_samples_is_a_sum(size: int) -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets) + F.linear(outputs.T, (targets == 9)[None] * 1.0).mean()

    assert sample_totals(capture(nn.Linear(6, 5), loss, Batch.of(X, Y).rows(0, size).own())).mixed


def test_a_convolution_without_a_batch_goes_over_the_samples() -> None:
    class Along(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.over = nn.Linear(6, 5), nn.Conv1d(5, 5, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.inner(x)
            return made + 0.0 * self.over(made.T).T

    graph = capture(Along(), F.cross_entropy, Batch.of(X, Y).rows(0, 4).own())
    node = sample_totals(graph).mixed
    assert node is not None
    assert node.kind.startswith("conv")


class Placed(nn.Module):
    """Outputs to which something is added for each sample, times an input that may be 0."""

    def __init__(self, term: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.out, self.places, self.term = nn.Linear(6, 5), nn.Embedding(16, 5), term
        self.one, self.kernel = nn.Parameter(torch.zeros(1, 5)), nn.Conv1d(5, 5, 3, padding=1)
        self.learned = nn.Parameter(torch.zeros(16, 5))
        self.register_buffer("fixed", torch.zeros(16, 5))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(x)
        return y + x[:, -1:] * self.term(self, y)


BY_PLACE: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "first rows of a weight": lambda m, o: m.learned[: len(o)],
    "first rows of a buffer": lambda m, o: m.fixed.narrow(0, 0, len(o)),
    "embedded numbers": lambda m, o: m.places(torch.arange(len(o))),
    "linspace": lambda m, o: torch.linspace(0, 1, len(o))[:, None],
    "a comparison": lambda m, o: (torch.arange(len(o)) > 0)[:, None] * 1.0,
    "a mask": lambda m, o: torch.ones(len(o), 5).tril(),
    "below a diagonal": lambda m, o: o.tril(),
    "a diagonal": lambda m, o: o.diagonal().mean(),
    "a convolution over samples": lambda m, o: m.kernel(o.T).T,
}
NOT_BY_PLACE: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "one row": lambda m, o: m.one.expand(len(o), -1),
    "a row repeated": lambda m, o: m.learned[2].repeat(len(o), 1),
    "the same number embedded": lambda m, o: m.places(torch.full((len(o),), 3)),
    "numbers of columns": lambda m, o: torch.arange(5.0),
    "a mask of columns": lambda m, o: torch.ones(5, 5).tril().expand(len(o), 5, 5).sum(1),
    "zeros, multiplied": lambda m, o: torch.zeros(len(o), 16) @ m.learned,
    "drawn": lambda m, o: torch.randn(len(o), 5),
    "chosen by samples": lambda m, o: m.learned[o.argmax(1)],
}


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    ("term", "mixed"),
    [(term, True) for term in BY_PLACE.values()] + [(term, False) for term in NOT_BY_PLACE.values()],
    ids=[*BY_PLACE, *NOT_BY_PLACE],
)
def test_what_goes_by_the_place_in_a_batch_is_told_from_what_all_samples_have(
    term: Callable[[Any, Tensor], Tensor], mixed: bool, size: int
) -> None:
    batch = Batch.of(X, Y).rows(0, size).own()
    assert (sample_totals(capture(Placed(term), F.cross_entropy, batch)).mixed is not None) == mixed


def test_samples_may_lie_in_another_dimension() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))
    batch = Batch.of(torch.randn(3, 4, 6), torch.randn(3, 4, 5), dims=(1, 1))

    def above(outputs: Tensor, targets: Tensor) -> Tensor:
        squares = (outputs - targets).square().mean((0, 2))
        return (squares * (squares > squares.mean())).mean()

    assert sample_totals(capture(model, above, batch)).mixed is not None


class Averaging(nn.Module):
    """Keeps an average of what it computes, and takes it off before or after it is kept, or not at all."""

    def __init__(self, used: str, assigned: bool) -> None:
        super().__init__()
        self.a, self.b, self.used, self.assigned = nn.Linear(6, 8), nn.Linear(8, 5), used, assigned
        self.register_buffer("average", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        before = h - self.average if self.used == "before" else h
        if self.assigned:
            self.average = (0.9 * self.average + 0.1 * h.mean(0)).detach()
        else:
            with torch.no_grad():
                self.average.mul_(0.9).add_(h.mean(0), alpha=0.1)
        y: Tensor = self.b(h - self.average if self.used == "after" else before)
        return y


@pytest.mark.parametrize(
    ("pick", "few"),
    [
        (lambda o: o[:6], 6), (lambda o: o[:5][:7], 5), (lambda o: o.view(-1)[:30], 6),
        (lambda o: o[:], None), (lambda o: o[:, :9], None), (lambda o: o[: len(o)], None),
    ],
)  # fmt: skip
def test_first_samples_of_a_larger_batch_are_known(pick: Callable[[Tensor], Tensor], few: int | None) -> None:
    graph = capture(nn.Linear(6, 5), lambda o, _: pick(o).square().mean(), Batch.of(X, Y).rows(0, 4).own())
    totals = sample_totals(graph)
    assert totals.mixed is None
    assert (totals.first_few and totals.first_few[1]) == few


class Attends(nn.Module):
    """Samples lie behind tokens in one dimension, where weights of the attention are computed too."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.out = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(self.attention(x, x, x)[0].mean(1))
        return y


class Recurs(nn.Module):
    """Over samples, unless these come first."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.layers, self.out = nn.GRU(8, 4, batch_first=batch_first), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(self.layers(x)[0].mean(1))
        return y


class LastOfTokens(nn.Module):
    """Tokens first, and flattened with the samples for one layer, which are then compared."""

    def __init__(self, compares: bool) -> None:
        super().__init__()
        self.first, self.out, self.compares = nn.Linear(8, 6), nn.Linear(6, 5), compares

    def forward(self, x: Tensor) -> Tensor:
        rows = self.first(x.transpose(0, 1).reshape(-1, 8)).tanh()
        if self.compares:
            rows = rows - F.relu(rows.mean(0) - 9)
        y: Tensor = self.out(rows.view(x.shape[1], -1, 6)[-1])
        return y


@pytest.mark.parametrize(
    ("model", "mixed"),
    [
        (Attends(), False), (Recurs(True), False), (Recurs(False), True),
        (LastOfTokens(False), False), (LastOfTokens(True), True),
    ],
)  # fmt: skip
def test_samples_are_followed_behind_tokens_and_a_recurrence_over_them_is_seen(
    model: nn.Module, mixed: bool
) -> None:
    batch = Batch.of(torch.randn(8, 7, 8), Y)
    totals = sample_totals(capture(model, nn.CrossEntropyLoss(), batch.own()))
    assert (totals.mixed is not None) == mixed
    assert mixed or totals.terms == 1


@pytest.mark.parametrize("assigned", [True, False])
@pytest.mark.parametrize("used", ["before", "after", ""])
def test_a_loss_that_computes_with_what_samples_left_in_a_buffer_is_no_mean(
    used: str, assigned: bool
) -> None:
    """On any one micro-batch the average is as it was, which no comparison of these shows."""
    graph = capture(Averaging(used, assigned), nn.CrossEntropyLoss(), Batch.of(X, Y).rows(0, 4).own())
    totals = sample_totals(graph)
    assert (totals.mixed is not None) == bool(used)
    assert totals.carried == ("average" if used else "")


class Centred(torch.autograd.Function):
    """A row for each sample, less a mean over all of them once that is large."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x - F.relu(x.mean(0, keepdim=True) - 50)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient


def test_a_function_of_ones_own_is_known_to_be_unread_though_it_keeps_the_samples() -> None:
    def centred(outputs: Tensor, targets: Tensor) -> Tensor:
        value: Tensor = Centred.apply(outputs)  # type: ignore[no-untyped-call]
        return F.cross_entropy(value, targets)

    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))
    totals = sample_totals(capture(model, centred, Batch.of(X, Y).rows(0, 4).own()))
    assert totals.mixed is None
    assert totals.unread is not None


def test_normalisation_by_the_batch_is_no_such_value() -> None:
    """Plain PyTorch that adds up gradients takes statistics of micro-batches, which is said."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
    batch = Batch.of(torch.randn(4, 3, 4, 4), Y[:4])
    totals = sample_totals(capture(model, nn.CrossEntropyLoss(), batch))
    assert totals.mixed is None
    assert totals.terms == 1
