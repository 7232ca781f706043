"""Code that stays whole may train less on another batch than on the example, and not more."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from netsplit.errors import BatchError
from netsplit.graph import capture
from netsplit.program import GPipe
from tests.nets import SGD, Case
from tests.runtime.equivalence.running import compiled, cut, local


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 5), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.first(x), self.second(x) if x[:, 0].max() > 0 else torch.zeros(len(x), 5).to(x)


class Adding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.two = Two()

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.two(x)
        return first + second


def test_what_was_not_trained_through_on_the_example_is_refused_on_a_batch_where_it_is() -> None:
    example = (torch.zeros(8, 12, dtype=torch.float64),), torch.zeros(8, dtype=torch.int64)
    case = Case("adding", Adding, *example)
    (x,), targets = case.another(0)
    x[:, 0] = -1.0
    step = capture(case.fresh(), case.loss, ((x[:2],), targets[:2]))
    program = compiled(step, cut(step, [0.2]), 2, GPipe(4))
    with pytest.raises(BatchError, match=r"module 'two'.* did not on the example"):
        local(program, case, [((-x,), targets)], SGD)
