"""The references against each other and against closed forms, before anything is measured by them."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from tests.nets import CASES, SGD, STAGES
from tests.runtime.references import (
    double_loop,
    paper_version,
    pipedream_loop,
    plain_loop,
    replicated_loop,
)

EXACT = 1e-12
PLAIN = partial(torch.optim.SGD, lr=0.1)


class _Quadratic(nn.Module):
    """f(w) = w^2 / 2 whatever the batch: its gradient is the weight itself."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * self.w / 2 + 0.0 * x.sum()


class _Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
        self.b = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (self.a * self.b * x).sum()


def _value(value: Tensor, _: Tensor) -> Tensor:
    return value


def test_replicas_without_batch_norm_are_the_plain_loop() -> None:
    case = CASES["fan"]
    batches = [case.another(seed) for seed in range(3)]
    plain = plain_loop(case.fresh(), case.loss, batches, 2, SGD)
    replicated = replicated_loop(nn.Sequential(case.fresh()), [3], case.loss, batches, 2, SGD)
    assert replicated.losses == pytest.approx(plain.losses, rel=EXACT)
    for key, tensor in plain.state.items():
        torch.testing.assert_close(replicated.state[f"0.{key}"], tensor, rtol=EXACT, atol=EXACT)


def test_pipedream_on_one_stage_is_sgd_on_micro_batches() -> None:
    batches = [STAGES.another(seed) for seed in range(2)]
    pieces = [(tuple(t[j : j + 2] for t in x), y[j : j + 2]) for x, y in batches for j in range(0, 8, 2)]
    sgd = plain_loop(STAGES.fresh(), STAGES.loss, pieces, 2, SGD)
    one = pipedream_loop(STAGES.fresh(), STAGES.loss, batches, 2, SGD, lambda _, i: paper_version(i, 0, 1))
    assert one.losses == pytest.approx([sum(sgd.losses[:4]) / 4, sum(sgd.losses[4:]) / 4], rel=EXACT)
    for key, tensor in sgd.state.items():
        torch.testing.assert_close(one.state[key], tensor, rtol=EXACT, atol=EXACT)


def test_pipedream_by_hand() -> None:
    """Two stages y = a b x with f = y: the first lags one update behind the second."""
    a, b, lr = 1.0, 2.0, 0.1
    old_a = a
    for _ in range(3):
        b_now, a_now = b, old_a
        a, b, old_a = a - lr * b_now, b - lr * a_now, a
    trained = pipedream_loop(
        _Product(), _value, [((torch.ones(3, 1, dtype=torch.float64),), torch.zeros(3))], 1, PLAIN,
        lambda name, i: paper_version(i, "ab".index(name), 2),
    )  # fmt: skip
    assert trained.state["a"].item() == pytest.approx(a, rel=EXACT)
    assert trained.state["b"].item() == pytest.approx(b, rel=EXACT)


def test_pipedreams_versions_are_the_papers_vector_sum() -> None:
    """Four stages: stage 0 lags three updates, stage 3 none; nothing is older than the batch's begin."""
    assert [[paper_version(i, s, 4) for i in range(6)] for s in range(4)] == [
        [0, 0, 0, 0, 1, 2],
        [0, 0, 0, 1, 2, 3],
        [0, 0, 1, 2, 3, 4],
        [0, 1, 2, 3, 4, 5],
    ]


def test_two_versions_follow_the_papers_recurrence() -> None:
    """On f(w) = w^2/2 it is w(t+1) = w(t) - lr w(t-1), solved by the roots of r^2 = r - lr."""
    model = _Quadratic()
    batch = ((torch.zeros(10, 1, dtype=torch.float64),), torch.zeros(10))
    w = double_loop(model, _value, [batch], 2, PLAIN, 1).state["w"].item()
    root = math.sqrt(1 - 4 * 0.1)
    high, low = (1 + root) / 2, (1 - root) / 2
    first, second = 1.0, 0.9  # w(0), and w(1) of an ordinary step
    a = (second - low * first) / (high - low)
    assert w == pytest.approx(a * high**5 + (first - a) * low**5, rel=EXACT)
