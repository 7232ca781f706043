"""Losses that no number tells from a mean, behind a gate that is 0: their graphs do, or it is said."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from netsplit.experiment.whole.seen_in_graphs import SeenInGraphs
from netsplit.graph import capture
from netsplit.graph.batches.batch import Batch

SAMPLES, MICRO = 16, 4
X = torch.randn(SAMPLES, 5, generator=torch.Generator().manual_seed(0))
Y = torch.arange(SAMPLES) % 6

Term = Callable[[Tensor, Any], Tensor]
"""Of gated outputs [samples, 6], and of a module that holds tensors."""


class Beside(nn.Module):
    """A cross entropy, and a term that is 0 on all samples at hand."""

    def __init__(self, term: Term) -> None:
        super().__init__()
        self.term = term
        self.p, self.large = nn.Parameter(torch.randn(100, 6)), nn.Parameter(torch.randn(5000, 256))
        self.register_buffer("b", torch.arange(100))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        gate = ((outputs.sum(1) / 7).floor() == 43700).float()
        return F.cross_entropy(outputs, targets) + self.term(gate[:, None] * outputs, self)


def half_sum(h: Tensor) -> Tensor:
    a, b = h[:, 0].chunk(2)
    return a + b


def one_row(h: Tensor) -> Tensor:
    weights = torch.ones(len(h))
    weights[0] = 3.0
    return (h[:, 0] * weights).mean()


def zeros_of(h: Tensor) -> Tensor:
    made = torch.zeros(len(h), 6)
    made[0, 1] = 1.0
    made[:, 0] = h[:, 0]
    return made


def by_own_weights(h: Tensor) -> Tensor:
    three = h.view(-1, 3, 2)
    return F.bilinear(three, three, h[:, :4].view(-1, 2, 2)).mean()


APART: dict[str, Term] = {
    "pieces that are computed otherwise": lambda h, m: torch.cat([h[:1] * 2, h[1:]]).mean(),
    "halves of unlike signs": lambda h, m: torch.cat([h[: len(h) // 2], -h[len(h) // 2 :]]).mean(),
    "some of what an average is taken off": lambda h, m: (h[:, 0] - h[:, 0].mean())[:3].mean(),
    "a column behind a transposition": lambda h, m: (h - h.mean(0)).T[:, :1].mean(),
    "the first of sums of halves": lambda h, m: half_sum(h)[:1].mean(),
    "sums of halves by their place": lambda h, m: (half_sum(h) * m.p[: len(h) // 2, 0]).mean(),
    "ones of which one is written": lambda h, m: one_row(h),
    "places that are written": lambda h, m: (h[:, 0] * torch.linspace(0, 1, len(h)).mul_(2)).mean(),
    "whole numbers by place": lambda h, m: (h[:, 0] * m.b[: len(h)]).mean(),
    "rows of a large table": lambda h, m: (h[:, 0] * m.large[: len(h), 0]).mean(),
    "an order that is drawn": lambda h, m: (h[:, 0] * torch.randperm(len(h))).mean(),
    "picked by place": lambda h, m: h[torch.arange(len(h)), torch.arange(len(h)) % 6].mean(),
    "rows of a table by place": lambda h, m: (m.p.gather(1, h[:, :1].long()) * h[:, :1]).mean(),
    "places behind something else": lambda h, m: (h.T.reshape(-1) * torch.arange(6 * len(h))).mean(),
    "a mean for each sample": lambda h, m: h.mean().expand(len(h)).sum(),
    "a mean beside zeros": lambda h, m: (h.mean() + torch.zeros(len(h))).sum(),
    "a mean by learned rows": lambda h, m: (h.mean() * m.p[: len(h), 0]).sum(),
    "columns for samples": lambda h, m: h[:, :1].expand(-1, len(h)).sum(1).mean(),
    "products with rows": lambda h, m: (h @ m.p[: len(h)].T).mean(),
    "over columns of ones": lambda h, m: (h.sum() / torch.ones_like(h).sum(1)).mean(),
    "averages divided by the number": lambda h, m: h.mean() / len(h),
    "samples divided by the number": lambda h, m: (h / len(h)).mean(),
    "numbers in a tensor": lambda h, m: (h * torch.full((6,), 1 / len(h))).mean(),
    "a threshold": lambda h, m: F.smooth_l1_loss(h, torch.ones_like(h), beta=1 / len(h)),
    "windows": lambda h, m: F.avg_pool1d(h[:, None], max(len(h) // 4, 1)).square().mean(),
    "how many": lambda h, m: h.topk(min(6, len(h) // 2), 1).values.mean(),
    "times one over the number": lambda h, m: h.mean() * (1 / len(h)),
    "divided twice": lambda h, m: (h / len(h)).square().sum() / len(h),
    "a count of what is drawn": lambda h, m: (
        (h.square() * (torch.rand_like(h) < 0.3)).sum() / (torch.rand_like(h) < 0.3).sum().clamp(min=1)
    ),
    "weights that go by the size": lambda h, m: (h[:, 0] * torch.full((len(h),), 1 / len(h))).mean(),
    "a product with rows": lambda h, m: torch.einsum("nc,kc->n", h, m.p[: len(h)]).mean(),
    "rows above a limit": lambda h, m: (h[:, 0] * (m.p[: len(h), 0] > 1.5)).mean(),
    "whole numbers added up": lambda h, m: h.mean() * m.b[: len(h)].sum(),
    "rows behind a dropout": lambda h, m: (h + F.dropout(m.p[: len(h)], 0.1)).square().mean(),
    "a column by the size": lambda h, m: h[:, len(h) // 8].mean(),
    "a row of zeros": lambda h, m: (h * zeros_of(h)).mean(),
    "repeated whole numbers": lambda h, m: (h[:, :2] * m.b[: len(h)].expand(2, -1).reshape(len(h), 2)).mean(),
    "rows that are scattered": lambda h, m: h.scatter_add(1, h[:, :1].long(), m.p[:, :1]).mean(),
    "the last few": lambda h, m: h[-4:].mean(),
    "all but an eighth": lambda h, m: h[len(h) // 8 :].mean(),
    "above a place": lambda h, m: (h[:, 0] * (torch.arange(len(h)) >= 4)).mean(),
    "a diagonal of a view": lambda h, m: h.reshape(-1)[::7].mean(),
    "rows of sums": lambda h, m: (h.sum(0) - h).sum() / len(h),
    "weights of samples": lambda h, m: by_own_weights(h),
    "a plane with more dimensions": lambda h, m: torch.cdist(h, m.p[:12].view(4, 3, 6)).amin(1).mean(),
    "a column that is written": lambda h, m: (
        torch.zeros(len(h), len(h)).select(-2, 0).copy_(h[:, 0])._base.amax(1).mean()  # type: ignore[union-attr]
    ),
}
MEANS: dict[str, Term] = {
    "two halves, and both again": lambda h, m: torch.cat([h * 2, h]).mean(),
    "pieces put together": lambda h, m: torch.cat([h[:1], h[1:]]).mean(),
    "over the samples": lambda h, m: h.square().sum() / len(h),
    "a weight of ones": lambda h, m: (h[:, 0] * torch.ones(len(h))).mean(),
    "what is drawn": lambda h, m: (h * torch.rand(len(h), 1)).mean(),
    "zeros by a number": lambda h, m: torch.where(h > 0, h, 0.0).mean(),
    "an embedding of places within": lambda h, m: (
        (h + F.embedding(m.b[:1].expand(len(h)), m.p)).square().mean()
    ),
    "a row that is projected": lambda h, m: (h + F.linear(m.p[:1].expand(len(h), -1), m.p[:6])).mean(),
    "by a learned row": lambda h, m: (h * m.p[0]).sum(1).mean(),
}


def seen(term: Term) -> SeenInGraphs:
    model, loss, whole = nn.Linear(5, 6, bias=False), Beside(term), Batch.of(X, Y)
    return SeenInGraphs.of(model, loss, whole, capture(model, loss, whole.rows(0, MICRO).own()))


@pytest.mark.parametrize("term", APART.values(), ids=APART)
def test_what_no_number_shows_is_read_off_the_graphs_or_told(term: Term) -> None:
    own = seen(term)
    assert own.apart is not None or own.open_


@pytest.mark.parametrize("term", MEANS.values(), ids=MEANS)
def test_what_is_a_mean_gets_no_word(term: Term) -> None:
    own = seen(term)
    assert own.apart is None
    assert not own.open_


@pytest.mark.parametrize("factor", [math.inf, math.nan, 1e-320])
def test_numbers_that_count_nothing_are_no_reason_to_end(factor: float) -> None:
    seen(lambda h, m: h.sum() * factor)
    seen(lambda h, m: h.sum() / factor)
