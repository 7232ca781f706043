"""A parameter that a batch gives no gradient has none, also where others only say so: it stays as it is."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from netsplit.errors import BatchError
from netsplit.graph import Graph, capture
from netsplit.program import GPipe
from tests.nets import SGD, Case
from tests.runtime.equivalence.running import (
    PATIENT,
    assert_same,
    compiled,
    cut,
    local,
    scattered,
)
from tests.runtime.references import Batch, plain_loop


class Skipping(nn.Module):
    """By the sign of a sample's first number a part uses its input, its own parameter, or nothing trained."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.usual = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor, way: Tensor) -> Tensor:
        if way.max() > 0:
            return self.fc(x)
        return self.usual.expand_as(x) if way.max() > -1 else torch.ones_like(x)


class Ways(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 8), nn.Linear(8, 8)
        self.skipping, self.head = Skipping(), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.second(torch.tanh(self.first(x))))
        return self.head(torch.tanh(self.skipping(hidden, x[:, 0])))


WAYS = Case("ways", Ways, (torch.zeros(8, 12, dtype=torch.float64),), torch.zeros(8, dtype=torch.int64))
ORDER = GPipe(4)


def batches() -> list[Batch]:
    """Momentum and weight decay of the first move what the others give no gradient, or a gradient of 0."""
    given = []
    for seed, ways in enumerate(([1.0], [0.0], [-1.0, 0.0], [-1.0], [1.0, -1.0], [0.0])):
        (x,), targets = WAYS.another(seed)
        x[:, 0] = torch.tensor(ways, dtype=torch.float64).repeat_interleave(8 // len(ways))
        given.append(((x,), targets))
    return given


def graph(size: int = 2, way: float = 1.0) -> Graph:
    (x,), targets = WAYS.another(0, size)
    x[:, 0] = way
    return capture(WAYS.fresh(), WAYS.loss, ((x,), targets))


@settings(PATIENT, max_examples=4)
@given(data=st.data())
def test_where_code_leaves_its_input_out_nothing_before_it_is_stepped_on(data: st.DataObject) -> None:
    step = graph()
    program = compiled(step, scattered(data, step, 3), 3, ORDER)
    wanted = plain_loop(WAYS.fresh(), WAYS.loss, batches(), 2, SGD)
    assert_same(local(program, WAYS, batches(), SGD), wanted)


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
    case = Case("adding", Adding, WAYS.inputs, WAYS.targets)
    (x,), targets = WAYS.another(0)
    x[:, 0] = -1.0
    step = capture(case.fresh(), case.loss, ((x[:2],), targets[:2]))
    program = compiled(step, cut(step, [0.2]), 2, ORDER)
    with pytest.raises(BatchError, match=r"module 'two'.* the captured example did not"):
        local(program, case, [((-x,), targets)], SGD)
