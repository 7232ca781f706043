"""A graph at a size it was not captured at is what a capture there gives."""

import pytest
import torch
from torch import Tensor, nn

from netsplit.graph import Graph, capture
from netsplit.graph.ir import graph_at
from tests.cover import few
from tests.nets import CASES, Case


def at(case: Case, samples: int) -> Graph:
    inputs, targets = case.another(samples, samples)
    given = inputs[0] if len(inputs) == 1 else inputs
    return capture(case.fresh(), case.loss, (given, targets))


@pytest.mark.parametrize("name", few(list(CASES), 4))
def test_what_two_captures_say_of_others_is_what_is_captured_there(name: str) -> None:
    case = CASES[name]
    small, large = at(case, 2), at(case, 16)
    for samples in (3, 7, 16, 24):
        assert graph_at(small, large, samples) == at(case, samples)


class Halved(nn.Module):
    """Works on half of the samples, rounded down: what it makes lies on no line."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight)[: len(x) // 2]

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))


def test_sizes_that_are_no_whole_numbers_are_not_guessed() -> None:
    small, large = (
        capture(Halved(), lambda y, t: y.mean(), (torch.ones(n, 3), torch.ones(n))) for n in (2, 4)
    )
    assert graph_at(small, large, 8) is not None
    assert graph_at(small, large, 3) is None
