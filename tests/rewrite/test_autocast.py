"""Copies of weights under autocast: what is sent has the dtypes of the captured graph."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from netsplit.graph import capture, initial_values
from netsplit.program import GPipe
from netsplit.rewrite import CopyWeights, applied
from netsplit.runtime.local import LocalRuntime
from tests.builders import cpus
from tests.runtime.equivalence.running import assert_close, compiled
from tests.runtime.references import plain_loop

SLOW = partial(torch.optim.SGD, lr=0.01)


class Twice(nn.Module):
    """One layer twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.default_generator.manual_seed(7)
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(torch.tanh(self.layer(x))))


@pytest.mark.parametrize("low", ["bfloat16", "float16"])
def test_copies_under_autocast(low: str) -> None:
    """The second reader on another device; a gradient of two readers is rounded once less."""
    batch = (torch.randn(8, 6), torch.arange(8) % 5)
    graph = capture(Twice(), nn.CrossEntropyLoss(), (batch[0][:4], batch[1][:4]), autocast=low)
    copied = applied(graph, (CopyWeights("linear_1", 1),))
    for k, variable in graph.variables.items():
        assert copied.variables[k].dtype == variable.dtype
    homes = {name: f"cpu:{int(name == 'linear_1')}" for name in copied.nodes}
    program = compiled(copied, homes, 2, GPipe(2))
    runtime = LocalRuntime(program, cpus(2), initial_values(Twice(), copied), SLOW)
    loss = runtime.train_batch((batch[0],), batch[1])
    wanted = plain_loop(
        Twice(), nn.CrossEntropyLoss(), [((batch[0],), batch[1])], 4, SLOW, autocast=getattr(torch, low)
    )
    assert loss == pytest.approx(wanted.losses[0], rel=1e-6)
    assert_close(runtime.state(), wanted.state, 1e-4)
