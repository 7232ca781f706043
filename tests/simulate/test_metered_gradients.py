"""Bytes of gradients that are handed on, turned, copied, made again, or of writes into views: predicted."""

from collections.abc import Callable
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from netsplit.graph import Graph, initial_values
from netsplit.graph.recording.step import capture
from netsplit.profile.measure.predicted_bytes import predicted_transients
from netsplit.program import GPipe, Schedule, SingleBatch
from netsplit.program.other_batches import with_tail
from netsplit.program.schedules import ZBH1, OneFOneB
from netsplit.simulate import predicted_peak_bytes
from tests.builders import compile_placed, cpus
from tests.examples import tried
from tests.nets import CASES
from tests.simulate.test_memory import MOMENTUM, measured_peak_bytes, within_margin

WIDTH, PLACES = 32, 24


class Around(nn.Module):
    """A function of one layer and its input, between two projections."""

    def __init__(self, layer: nn.Module, function: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(WIDTH, WIDTH), layer, nn.Linear(WIDTH, 5)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.last(self.function(self.layer, self.first(x)).mean(1))
        return scores


def part_written(layer: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = layer(x)
    y[..., ::2].mul_(2.0)
    return y


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "turned norm": lambda: Around(nn.GroupNorm(4, WIDTH), lambda f, x: f(x.transpose(1, 2)).transpose(1, 2)),
    "less its mean": lambda: Around(nn.Identity(), lambda f, x: x - f(x).mean(1, keepdim=True)),
    "flat branch": lambda: Around(nn.Linear(WIDTH, WIDTH), lambda f, x: x + f(x.flatten(0, 1)).view_as(x)),
    "view written": lambda: Around(
        nn.Linear(WIDTH, WIDTH),
        lambda f, x: f(x).view(-1, WIDTH, PLACES).relu_().view(-1, PLACES, WIDTH).tanh(),
    ),
    "turned, written": lambda: Around(
        nn.Linear(WIDTH, WIDTH, bias=False), lambda f, x: f(x).transpose(1, 2).relu_().transpose(1, 2).tanh()
    ),
    "part written": lambda: Around(nn.Linear(WIDTH, WIDTH), part_written),
    "normalised, written": lambda: Around(
        nn.InstanceNorm1d(PLACES), lambda f, x: (x + f(x).relu_()).tanh() * x
    ),
    "checkpoint": lambda: Around(wide(), lambda f, x: checkpoint(f, x, use_reentrant=False)),
}


@pytest.mark.parametrize("name", MODELS)
def test_gradients_take_what_is_predicted(name: str) -> None:
    model = MODELS[name]()
    torch.manual_seed(0)
    x, targets = torch.randn(16, PLACES, WIDTH), torch.randint(5, (16,))
    loss, schedule = nn.CrossEntropyLoss(), OneFOneB(2)
    graph = capture(model, loss, ((x[:8],), targets[:8]))
    where = dict.fromkeys(graph.nodes, "cpu:0")
    program = compile_placed(graph, where, graph.position, cpus(1), schedule)
    transients = dict.fromkeys(program.devices, predicted_transients(graph))
    predicted = predicted_peak_bytes(program, MOMENTUM, transients)
    measured = measured_peak_bytes(program, initial_values(model, graph), (x,), targets)
    assert all(within_margin(predicted[device], nbytes) for device, nbytes in measured.items())


SCHEDULES: tuple[Schedule, ...] = (SingleBatch(), GPipe(4), OneFOneB(4), ZBH1(4))
SETTINGS = settings(deadline=None, max_examples=tried(12))


@cache
def graph_of(name: str, samples: int) -> Graph:
    case = CASES[name]
    inputs, targets = case.batch(samples)
    return capture(case.fresh(), case.loss, (inputs[0] if len(inputs) == 1 else inputs, targets))


def cut(graph: Graph, at: int) -> dict[str, str]:
    """The nodes from a place on, on the second device; what must be together goes with its first."""
    device_of = {name: f"cpu:{int(i >= at)}" for i, name in enumerate(graph.nodes)}
    for group in graph.colocated:
        device_of.update(dict.fromkeys(group, device_of[group[0]]))
    return device_of


def check(name: str, at: int, schedule: Schedule, samples: int) -> None:
    """The step of a batch of so many samples, the last micro-batch smaller where they do not divide."""
    case, size = CASES[name], schedule.microbatch_size(samples)
    graph, schedule = graph_of(name, size), schedule.for_batch(samples)
    device_of = cut(graph, at % (len(graph) + 1))
    program = compile_placed(graph, device_of, graph.position, cpus(2), schedule)
    if samples % size:
        program = with_tail(program, graph, graph_of(name, samples % size))
    inputs, targets = case.another(7, samples)
    measured = measured_peak_bytes(program, initial_values(case.fresh(), graph), inputs, targets)
    transients = dict.fromkeys(program.devices, predicted_transients(graph))
    predicted = predicted_peak_bytes(program, MOMENTUM, transients)
    for device, nbytes in measured.items():
        assert within_margin(predicted[device], nbytes)


@pytest.mark.parametrize("name", ["chain", "cells", "tied", "attention", "fan"])
@SETTINGS
@given(st.integers(0, 99), st.sampled_from(SCHEDULES[1:]), st.sampled_from([5, 7, 9, 13]))
def test_a_last_micro_batch_of_fewer_samples(name: str, at: int, schedule: Schedule, samples: int) -> None:
    check(name, at, schedule, samples)
