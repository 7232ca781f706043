"""Micro-batches of which different numbers of targets count: that plain PyTorch trains otherwise is said."""

from __future__ import annotations

import logging
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from netsplit.errors import NonFiniteError
from netsplit.graph import capture, initial_values
from netsplit.graph.ir import Graph
from netsplit.program import GPipe
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.local import LocalRuntime
from netsplit.runtime.share import UpdateRule
from tests.builders import compile_placed, cpus
from tests.runtime.equivalence.running import assert_close, cut
from tests.runtime.references import Batch, plain_loop
from tests.workers import Pools

SGD = partial(torch.optim.SGD, lr=0.05)
RUNTIME_LOG = "netsplit.runtime.controller.attempts"
WEIGHTS = (1.0, 2.0, 0.5, 1.5)


class Shifted(nn.Module):
    """Targets that no device is fed: those of the next token, made where the loss is."""

    def __init__(self, weighted: bool = False, reduction: str = "mean") -> None:
        super().__init__()
        self.weights = torch.tensor(WEIGHTS, dtype=torch.float64) if weighted else None
        self.reduction = reduction

    def forward(self, output: Tensor, targets: Tensor) -> Tensor:
        scores, labels = output[:, :-1].flatten(0, 1), targets[:, 1:].flatten()
        loss = F.cross_entropy(scores, labels, self.weights, ignore_index=-7, reduction=self.reduction)
        return loss if self.reduction == "mean" else loss / len(targets)


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4)).double()


def batch(seed: int, ignored: tuple[tuple[int, int], ...] = ()) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    x = torch.rand(8, 5, 3, generator=draw, dtype=torch.float64)
    y = torch.randint(0, 4, (8, 5), generator=draw)
    for place in ignored:
        y[place] = -7
    return (x,), y


def graph(loss: nn.Module) -> Graph:
    (x,), y = batch(0)
    return capture(model(), loss, ((x[:2],), y[:2]))


def local(loss: nn.Module, recompute: bool = False) -> LocalRuntime:
    step = graph(loss)
    program = compile_placed(step, cut(step, [0.5]), step.position, cpus(2), GPipe(4, recompute=recompute))
    return LocalRuntime(program, cpus(2), initial_values(model(), step), SGD)


def told(runtime: LocalRuntime) -> dict[tuple[str, int], float]:
    return {
        key: n
        for each in runtime.executors_of(runtime.program).values()
        for key, n in each.targets.outputs().items()
    }


def test_the_first_batch_that_is_uneven_is_said_once(pools: Pools, caplog: pytest.LogCaptureFixture) -> None:
    loss = Shifted()
    step = graph(loss)
    program = compile_placed(step, cut(step, [0.5]), step.position, cpus(2), GPipe(4))
    runtime = DistributedRuntime(
        program, pools(2), initial_values(model(), step), SGD, UpdateRule(on_nonfinite="stop")
    )
    seen = [batch(1), batch(2, ((0, 1), (5, 2))), batch(3, ((0, 1),))]
    said: list[int] = []
    with caplog.at_level(logging.WARNING, RUNTIME_LOG):
        for (x,), y in seen:
            runtime.train_batch(x, y)
            said.append(len(caplog.records))
    assert said == [0, 1, 1]
    assert "iteration 2 have 7, 8, 7, 8" in caplog.text
    assert "single_batch" in caplog.text
    assert_close(runtime.state(), plain_loop(model(), loss, seen, 2, SGD).state)
    (x,), y = batch(4, tuple((row, at) for row in (2, 3) for at in range(1, 5)))
    with pytest.raises(NonFiniteError, match=r"is nan \(no target of micro-batch 1 counts, .*'single_batch'"):
        runtime.train_batch(x, y)
