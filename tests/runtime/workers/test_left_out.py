"""A batch that fails leaves no trace: what is trained before and after it is as plain training without it."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from netsplit.errors import BatchError
from netsplit.graph import capture, initial_values
from netsplit.graph.ir import Graph
from netsplit.program import Program, Schedule
from netsplit.program.schedules import ZBH1, GPipe, OneFOneB
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.local import LocalRuntime
from tests.builders import compile_placed, cpus
from tests.runtime.equivalence.running import cut
from tests.runtime.references import Batch, Trained, assert_same_bits, plain_loop
from tests.workers import Pools

ADAM = partial(torch.optim.Adam, lr=0.01)
SCHEDULES = [GPipe(4), OneFOneB(4), ZBH1(4)]
FORWARD, BACKWARD = 1e6, 1e12  # inputs on which the first device raises, there


class _Trap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if FORWARD / 2 < float(x.max()) < BACKWARD / 2:
            raise ValueError("no such number")
        ctx.save_for_backward(x)
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        if float(x.max()) > BACKWARD / 2:
            raise ValueError("no way back")
        return grads[0] * 1.0


class Gate(nn.Module):
    """Stays whole, as its steps depend on values."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * _Trap.apply(self.scale * x)  # type: ignore[no-any-return, no-untyped-call]


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        Gate(), nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8),
        nn.Linear(8, 5),
    ).double()  # fmt: skip


def batch(seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(8, 6, generator=generator, dtype=torch.float64)
    return (x,), torch.randint(0, 5, (8,), generator=generator)


def bad(how: str) -> Batch:
    """One that fails in the last micro-batch but one, on the device named."""
    (x,), y = batch(9)
    if how == "label":
        y[5] = 105
    else:
        x[5, 2] = FORWARD if how == "forward" else BACKWARD
    return (x,), y


@cache
def graph() -> Graph:
    (x,), y = batch(0)
    return capture(model(), nn.CrossEntropyLoss(), ((x[:2],), y[:2]))


def program(schedule: Schedule, devices: int, shared_norm: bool = False) -> Program:
    at = {1: [], 2: [0.5], 3: [0.2, 0.7]}[devices]
    device_of = cut(graph(), at)
    return compile_placed(
        graph(), device_of, graph().position, cpus(devices), schedule, shared_norm=shared_norm
    )


def trained(runtime: DistributedRuntime | LocalRuntime, failing: list[str]) -> tuple[Trained, list[str]]:
    """Two batches, those that fail after the first, and two more; what the failures said."""
    losses, told = [runtime.train_batch(*batch(n)) for n in range(2)], []
    for how in failing:
        with pytest.raises(BatchError) as e:
            runtime.train_batch(*bad(how))
        told.append(str(e.value))
        losses.append(runtime.train_batch(*batch(len(losses))))
    return Trained(losses, runtime.state()), told


@cache
def plain(count: int) -> Trained:
    return plain_loop(model(), nn.CrossEntropyLoss(), [batch(n) for n in range(count)], 2, ADAM)


WAYS = ["label", "forward", "backward"]
SAID = {
    "label": ("IndexError: Target 105 is out of bounds", "at its forward of segment", "micro-batch 2, in",
              "in operator 'cross_entropy_loss' of module 'loss'"),
    "forward": ("ValueError: no such number", "forward of segment 0, micro-batch 2", "in operator 'Gate'"),
    "backward": ("ValueError: no way back", "backward of segment 0, micro-batch 2"),
}  # fmt: skip


def assert_said(told: list[str], devices: int) -> None:
    for how, sentence in zip(WAYS, told, strict=True):
        device = f"cpu:{devices - 1}" if how == "label" else "cpu:0"
        assert sentence.startswith((f"worker {device} (rank", f"device {device} raised"))
        for words in SAID[how]:
            assert words in sentence
        assert sentence.endswith("the batch was skipped and the model is unchanged.")
        assert "\n" not in sentence


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda each: each.name)
def test_a_batch_that_fails_is_as_if_it_had_not_been(schedule: Schedule, devices: int) -> None:
    """The gates raise in the first device's forward and backward, the label in the last one's forward."""
    values = initial_values(model(), graph())
    runtime = LocalRuntime(program(schedule, devices), cpus(devices), values, ADAM)
    got, told = trained(runtime, WAYS)
    assert_same_bits(got, plain(5))
    assert_said(told, devices)


def test_workers_leave_a_batch_that_fails_out_and_live(pools: Pools) -> None:
    schedule, devices = ZBH1(4), 3
    pool = pools(devices)
    before = [hello.pid for hello in pool.hellos]
    values = initial_values(model(), graph())
    got, told = trained(DistributedRuntime(program(schedule, devices), pool, values, ADAM), WAYS)
    assert_same_bits(got, plain(5))
    assert_said(told, devices)
    assert [hello.pid for hello in pools(devices).hellos] == before
    assert "no way back" in (pool.folder / "failure.log").read_text()
