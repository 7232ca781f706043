"""Batches whose graphs leave parameters out: an optimiser steps with these, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from netsplit.errors import NetSplitError
from netsplit.graph import Graph, capture, initial_values
from netsplit.program import GPipe, Program, Schedule
from netsplit.program.other_batches import require_used
from netsplit.rewrite import applied, replicate
from netsplit.runtime.local import LocalRuntime
from netsplit.runtime.share import OptimizerFactory, UpdateRule
from tests.builders import cpus
from tests.cover import covering
from tests.nets import SGD
from tests.runtime.equivalence.running import Trained, assert_same, compiled
from tests.runtime.references import plain_loop

Example = tuple[tuple[Tensor], Tensor]
LOSS = nn.CrossEntropyLoss()
LONG, SHORT = 5, 2
LENGTHS = (LONG, SHORT, SHORT, LONG, LONG, SHORT, SHORT, LONG)
GPIPE = GPipe(2)


class Optional(nn.Module):
    """`further` is for long texts alone; `aside` never has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.further, self.aside, self.head = (nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        if x.shape[1] == LONG:
            h = h + torch.tanh(self.further(h))
        mean: Tensor = self.head(h + self.aside(h).detach()).mean(1)
        return mean


class Counting(optim.Optimizer):
    """Warms up by a counter in its groups and cools down by one of its own, whatever has gradients."""

    def __init__(self, parameters: Any, decay: float = 1.0) -> None:
        super().__init__(parameters, {"lr": 0.2, "k": 0})
        self.steps, self.decay = 0, decay

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.steps += 1
        for group in self.param_groups:
            group["k"] += 1
            for parameter in group["params"]:
                parameter.mul_(self.decay)
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-group["lr"] * min(group["k"] / 4, 1) / self.steps)


def decaying(parameters: Any) -> optim.Optimizer:
    """It moves what has no gradient, too."""
    return Counting(parameters, 0.9)


OPTIMIZERS: dict[str, OptimizerFactory] = {"sgd": SGD, "counting": Counting, "decaying": decaying}


def model() -> nn.Module:
    torch.manual_seed(0)
    return Optional().double()


def batch(seed: int, length: int, samples: int = 8) -> Example:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, length, 6, generator=draw, dtype=torch.float64)
    return (x,), torch.randint(6, (samples,), generator=draw)


@cache
def graph_of(length: int, samples: int) -> Graph:
    return capture(model(), LOSS, batch(0, length, samples))


def by_layer(graph: Graph, homes: dict[str, str]) -> dict[str, str]:
    return {node.name: homes.get(node.module, "cpu:0") for node in graph}


def apart(length: int, order: Schedule, **options: Any) -> Program:
    graph = graph_of(length, order.microbatch_size(8))
    return compiled(graph, by_layer(graph, {"further": "cpu:1", "aside": "cpu:2"}), 3, order, **options)


def stage_of_two(length: int, order: Schedule, **options: Any) -> Program:
    """What is for long texts has replicas, of which each has gradients of its own until they are summed."""
    graph, replicas = graph_of(length, order.microbatch_size(8)), {"cpu:1": ("cpu:1", "cpu:2")}
    given = replicas if length == LONG else {}
    return compiled(graph, by_layer(graph, {"further": "cpu:1"}), 3, order, replicas=given, **options)


def data_parallel(length: int, order: Schedule, **options: Any) -> Program:
    graph = graph_of(length, order.microbatch_size(8))
    return compiled(graph, by_layer(graph, {}), 3, order, replicas={"cpu:0": ("cpu:0", "cpu:2")}, **options)


def in_copies(length: int, order: Schedule, **options: Any) -> Program:
    whole = graph_of(length, order.microbatch_size(8))
    graph = applied(whole, replicate(whole, 2))
    device_of = {node.name: f"cpu:{int(node.name.endswith(':1'))}" for node in graph}
    return compiled(graph, device_of, 3, order, **options)


PLACED: dict[str, Callable[..., Program]] = {
    "apart": apart, "a stage of two": stage_of_two, "data parallel": data_parallel, "in copies": in_copies,
}  # fmt: skip


def here(placed: Callable[..., Program], factory: OptimizerFactory, clip_norm: float | None) -> Trained:
    programs = {k: placed(k, GPIPE, shared_norm=clip_norm is not None) for k in (LONG, SHORT)}
    values = initial_values(model(), programs[LONG].graph)
    runtime = LocalRuntime(programs[LONG], cpus(3), values, factory, UpdateRule(clip_norm))
    batches = [(batch(n, length), programs[length]) for n, length in enumerate(LENGTHS)]
    losses = [runtime.train_batch(*each, program=program) for each, program in batches]
    return Trained(losses, runtime.state())


def wanted(factory: OptimizerFactory, clip_norm: float | None) -> Trained:
    batches: Sequence[Example] = [batch(n, length) for n, length in enumerate(LENGTHS)]
    return plain_loop(model(), LOSS, batches, 4, factory, clip_norm=clip_norm)


@covering(name=PLACED, optimizer=OPTIMIZERS, clip_norm=[None, 0.1])
def test_every_device_steps_with_every_batch(name: str, optimizer: str, clip_norm: float | None) -> None:
    factory = OPTIMIZERS[optimizer]
    assert_same(here(PLACED[name], factory, clip_norm), wanted(factory, clip_norm))


def test_a_gradient_that_waits_is_not_left_out_of_a_step() -> None:
    long, short = (apart(length, GPIPE) for length in (LONG, SHORT))
    require_used(long, {*short.trained, *long.trained})
    with pytest.raises(NetSplitError, match=r"a gradient of 'further.bias' waits .* drop_gradients"):
        require_used(short, {*long.trained})
