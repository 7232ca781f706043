"""A metric over batches: chosen by what is there, counted over all, or refused by the parameter's name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from netsplit.errors import NetSplitError
from netsplit.training.evaluation import evaluated
from netsplit.training.metrics import AUTO

SCORES = torch.tensor([[0.0, 1.0, 2.0], [3.0, 1.0, 0.0], [0.0, 5.0, 1.0], [1.0, 0.0, 2.0]])
CLASSES = torch.tensor([2, 0, 0, 2])


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


@pytest.mark.parametrize(
    ("targets", "loss", "wanted"),
    [
        (CLASSES, nn.CrossEntropyLoss(), 0.75),
        (CLASSES, None, 0.75),
        (SCORES + 1, None, 1.0),
        (SCORES.long() + 1, nn.L1Loss(), 1.0),
    ],
)
def test_auto_is_what_suits_the_first_batch_and_the_loss(targets: Tensor, loss: Any, wanted: float) -> None:
    pairs = list(zip(SCORES.split(3), targets.split(3), strict=True))
    assert evaluated(own, iter(pairs), AUTO, loss) == pytest.approx(wanted)


NONE_SUITS = r"^no metric suits .*: give metric=, a function of \(outputs, targets\)"


@pytest.mark.parametrize(
    ("batches", "metric", "sentence"),
    [
        (5, AUTO, r"^batches is 5: give pairs \(inputs, targets\)"),
        ([], AUTO, "nothing to evaluate"),
        ([(SCORES[:, :1], CLASSES)], AUTO, NONE_SUITS),
        ([(SCORES, CLASSES + 1)], AUTO, r"^metric accuracy needs targets from 0 to 2, .* one is 3: "),
        ([(SCORES, CLASSES)], "acuracy", r"^metric is 'acuracy': did you mean accuracy\?"),
    ],
)
def test_what_cannot_be_evaluated_is_a_sentence_that_names_the_parameter(
    batches: Any, metric: Any, sentence: str
) -> None:
    with pytest.raises(NetSplitError, match=sentence) as told:
        evaluated(own, batches, metric, nn.CrossEntropyLoss())
    assert "metrics=" not in str(told.value)
