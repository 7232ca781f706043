"""Gradients that autograd leaves in one memory: adding to a parameter's changes no other."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from netsplit.graph import capture
from netsplit.program import GPipe, Program, Schedule
from tests.nets import SGD, Case
from tests.runtime.equivalence.running import assert_same, batches_of, compiled, local
from tests.runtime.references import Trained, plain_loop


class _Shifted(nn.Module):
    """The gradient of the sum's result is that of both its terms, seen through views."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(6, 6)
        self.shift = nn.Parameter(torch.randn(2, 3))
        self.after = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.before(x).view(6) + self.shift.view(6)).view(1, 5)


CASE = Case("shifted", _Shifted, (torch.randn(8, 6, dtype=torch.float64),), torch.arange(8) % 5)


def _program(schedule: Schedule) -> Program:
    graph = capture(CASE.fresh(), CASE.loss, CASE.another(0, 1))
    second = graph.position["view"]
    return compiled(graph, {k: f"cpu:{int(i >= second)}" for k, i in graph.position.items()}, 2, schedule)


def _plain() -> Trained:
    return plain_loop(CASE.fresh(), CASE.loss, batches_of(CASE), 1, SGD)


def test_a_gradient_that_waits_is_left_as_it_is() -> None:
    assert_same(local(_program(GPipe(8)), CASE, batches_of(CASE)), _plain())
