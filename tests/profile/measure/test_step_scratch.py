"""What a step allocates, predicted for any parameters from what it takes of three small ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn, optim

from netsplit.profile.measure.memory_meter import MemoryMeter
from netsplit.profile.measure.optimizer import optimizer_scratch, state_tensors
from tests.cover import covering

OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {
    "sgd": partial(optim.SGD, lr=0.1),
    "decay": partial(optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adam": optim.Adam,
    "adamw": optim.AdamW,
    "foreach": partial(optim.AdamW, foreach=True),
    "fused": partial(optim.AdamW, fused=True),
    "rmsprop": optim.RMSprop,
    "adagrad": optim.Adagrad,
    "rprop": optim.Rprop,
}
BESIDE = 512  # bytes of numbers that are no parameter's


def risen(make: Callable[..., optim.Optimizer], sizes: list[int]) -> int:
    """Bytes that a third step allocates."""
    parameters = [nn.Parameter(torch.ones(size)) for size in sizes]
    optimizer = make(parameters)
    for _ in range(3):
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        held = [t for p in parameters for t in (p.data, p.grad, *state_tensors(optimizer.state[p]))]
        with MemoryMeter(torch.device("cpu"), [t for t in held if t is not None]) as meter:
            meter.restart()
            optimizer.step()
    return meter.risen_bytes


@pytest.mark.parametrize("name", OPTIMIZERS)
@settings(max_examples=5, deadline=None)
@given(sizes=st.lists(st.integers(500, 5000), min_size=1, max_size=5))
def test_no_step_takes_more_than_is_predicted_of_its_parameters(name: str, sizes: list[int]) -> None:
    scratch = optimizer_scratch(OPTIMIZERS[name]).on_cpu
    assert risen(OPTIMIZERS[name], sizes) <= scratch.nbytes(4 * size for size in sizes) + BESIDE


@covering(count=[1, 2, 4], name=OPTIMIZERS)
def test_of_equal_parameters_a_step_takes_what_is_predicted(name: str, count: int) -> None:
    """None where an optimiser makes no tensor of its own; alone, none was stepped on before."""
    scratch = optimizer_scratch(OPTIMIZERS[name]).on_cpu
    took = risen(OPTIMIZERS[name], [3000] * count)
    assert took == pytest.approx(scratch.nbytes([4 * 3000] * count), abs=BESIDE)
