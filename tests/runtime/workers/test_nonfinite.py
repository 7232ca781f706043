"""A loss that is no finite number is said at once, with where it arises, and then what was asked is done."""

from __future__ import annotations

import logging
import math
from functools import cache, partial

import pytest
import torch
from torch import Tensor, nn

from netsplit.errors import NonFiniteError
from netsplit.graph import capture, initial_values
from netsplit.graph.ir import Graph
from netsplit.program import GPipe
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.share import UpdateRule
from netsplit.settings import OnNonFinite
from tests.builders import compile_placed, cpus
from tests.runtime.equivalence.running import assert_close, cut
from tests.runtime.references import Batch, plain_loop
from tests.workers import Pools

SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
RUNTIME_LOG = "netsplit.runtime.controller"


class Logs(nn.Module):
    """A mask of minus infinity is no fault, and the logarithm of a number below zero is one."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.tail = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.head(x))
        masked = hidden.masked_fill(hidden > 1.5, -math.inf).softmax(1)
        return self.tail(masked + torch.log(x[:, :1]))


def model() -> nn.Module:
    torch.manual_seed(3)
    return Logs().double()


def batch(seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(8, 6, generator=generator, dtype=torch.float64) + 0.5
    return (x,), torch.randint(0, 5, (8,), generator=generator)


def bad(value: float, column: int = 0) -> Batch:
    (x,), y = batch(9)
    x[5, column] = value
    return (x,), y


@cache
def graph() -> Graph:
    (x,), y = batch(0)
    return capture(model(), nn.CrossEntropyLoss(), ((x[:2],), y[:2]))


def runtime(pools: Pools, on_nonfinite: OnNonFinite | None) -> DistributedRuntime:
    device_of = cut(graph(), [0.5])
    program = compile_placed(graph(), device_of, graph().position, cpus(2), GPipe(4))
    rule = UpdateRule(on_nonfinite=on_nonfinite)
    return DistributedRuntime(program, pools(2), initial_values(model(), graph()), SGD, rule)


def state_of(batches: list[Batch]) -> dict[str, Tensor]:
    return plain_loop(model(), nn.CrossEntropyLoss(), batches, 2, SGD).state


def home(pools: Pools, op: str) -> str:
    return cut(graph(), [0.5])[next(node.name for node in graph() if node.kind == op)]


def test_stop_says_the_iteration_the_device_and_the_operator_and_leaves_the_batch_out(pools: Pools) -> None:
    trained = runtime(pools, "stop")
    trained.train_batch(*batch(0))
    with pytest.raises(NonFiniteError) as e:
        trained.train_batch(*bad(-1.0))
    said = str(e.value)
    assert said.startswith("the loss of iteration 2 is nan: it arises on device " + home(pools, "log"))
    assert "operator 'log'" in said
    assert "torch.log(x[:, :1])" in said
    assert "micro-batch 2" in said
    assert "on_nonfinite=warn" in said
    trained.train_batch(*batch(1))
    assert_close(trained.state(), state_of([batch(0), batch(1)]))


def test_skip_warns_and_leaves_the_batch_out(pools: Pools, caplog: pytest.LogCaptureFixture) -> None:
    trained = runtime(pools, "skip")
    trained.train_batch(*batch(0))
    with caplog.at_level(logging.WARNING, RUNTIME_LOG):
        assert math.isnan(trained.train_batch(*bad(-1.0)))
    assert "operator 'log'" in caplog.text
    assert "the batch is skipped" in caplog.text
    trained.train_batch(*batch(1))
    assert_close(trained.state(), state_of([batch(0), batch(1)]))


@pytest.mark.parametrize("on_nonfinite", ["warn", None])
def test_warn_says_it_once_and_trains_as_plain_pytorch(
    pools: Pools, caplog: pytest.LogCaptureFixture, on_nonfinite: OnNonFinite | None
) -> None:
    trained = runtime(pools, on_nonfinite)
    batches = [batch(0), bad(-1.0), batch(1)]
    with caplog.at_level(logging.WARNING, RUNTIME_LOG):
        losses = [trained.train_batch(*each) for each in batches]
    assert math.isnan(losses[2])
    assert sum("operator 'log'" in record.getMessage() for record in caplog.records) == (
        on_nonfinite == "warn"
    )
    state, wanted = trained.state(), state_of(batches)
    for key, tensor in state.items():
        torch.testing.assert_close(tensor, wanted[key], equal_nan=True)
