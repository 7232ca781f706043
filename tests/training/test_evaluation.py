"""A metric over batches: chosen by what is there, counted over all, or refused by the parameter's name."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from netsplit.training.evaluation import evaluated
from netsplit.training.metrics import AUTO


def own(x: Tensor) -> Tensor:
    return x


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    columns=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_a_regression_is_judged_by_its_squared_error_however_it_is_batched(
    sizes: list[int], columns: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(2, sum(sizes), columns, generator=generator, dtype=torch.float64)
    pairs = list(zip(x.split(sizes), y.split(sizes), strict=True))
    wanted = nn.MSELoss()(x, y).item()
    for metric in (AUTO, "mse"):
        assert evaluated(own, pairs, metric, nn.CrossEntropyLoss()) == pytest.approx(wanted)
