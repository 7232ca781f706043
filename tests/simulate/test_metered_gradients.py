"""Bytes of gradients that are handed on, turned, copied, made again, or of writes into views: predicted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from netsplit.graph.module import initial_values
from netsplit.graph.recording.step import capture
from netsplit.profile.measure.predicted_bytes import predicted_transients
from netsplit.program.compile import compile_program
from netsplit.program.schedules import OneFOneB
from netsplit.simulate.memory import predicted_peak_bytes
from tests.builders import cpus
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
    program = compile_program(graph, where, graph.position, cpus(1), schedule)
    transients = dict.fromkeys(program.devices, predicted_transients(graph))
    predicted = predicted_peak_bytes(program, MOMENTUM, transients)
    measured = measured_peak_bytes(program, initial_values(model, graph), (x,), targets)
    assert all(within_margin(predicted[device], nbytes) for device, nbytes in measured.items())
