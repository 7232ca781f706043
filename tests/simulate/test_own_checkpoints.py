"""Bytes of activation checkpoints of the model's own: predicted within the margin."""

from collections.abc import Callable
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from netsplit.graph.ir import Graph
from netsplit.graph.module import initial_values
from netsplit.graph.recording.step import capture
from netsplit.partition.bounds.iteration_tasks import bytes_saved_by
from netsplit.profile.measure.predicted_bytes import predicted_transients
from netsplit.program import GPipe, Program, Schedule, SingleBatch
from netsplit.program.schedules import ZBH1, OneFOneB
from netsplit.simulate import predicted_peak_bytes
from tests.builders import compile_placed, cpus
from tests.cover import covering
from tests.examples import tried
from tests.simulate.test_memory import MARGIN, MOMENTUM, measured_peak_bytes

WIDTH, PLACES, SAMPLES = 16, 12, 4
SCHEDULES: dict[str, Schedule] = {
    "single_batch": SingleBatch(),
    "1f1b": OneFOneB(2),
    "recomputed": GPipe(4, recompute=True),
    "zb_h1": ZBH1(4),
}
OVER = 0.05  # where a checkpoint is cut
SHORT = {"in place": 0.10}  # one tensor, where a write into a view is cut off from what reads it
INPUTS, TARGETS = torch.randn(SAMPLES, PLACES, WIDTH), torch.arange(SAMPLES) % 5


class Within(nn.Module):
    """Some blocks, each within a checkpoint, between two projections."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5)
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        scores: Tensor = self.last(x.mean(1))
        return scores


class Sums(nn.Module):
    """Much that is read, of which the backward needs nothing; with a layer, something."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x + 1.0)
        return ((y * 2.0 + y) * 0.5 + x) * 3.0


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.last, self.rest = nn.Linear(WIDTH, WIDTH), wide(nn.GELU(), nn.Dropout(0.2))

    def forward(self, x: Tensor) -> Tensor:
        turned = self.first(self.norm(x)).unflatten(-1, (3, 4, WIDTH // 4)).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(*turned, dropout_p=0.2).transpose(1, 2).flatten(2)
        y: Tensor = x + self.last(mixed)
        return y + self.rest(y)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)[0]
        return y


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.inner = nn.Linear(WIDTH, WIDTH), wide(nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = checkpoint(self.inner, self.before(x).relu(), use_reentrant=False)
        return y.tanh() * x


class WithConstant(nn.Module):
    """A checkpoint of two results, to which an argument comes that carries no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5)
        self.one, self.other = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

    def _inner(self, x: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
        one, other = self.one(x).tanh(), self.other(given.cos()).sigmoid()
        return one * other, other

    def forward(self, x: Tensor) -> Tensor:
        product, other = checkpoint(self._inner, self.first(x), x, use_reentrant=False)
        scores: Tensor = self.last((product + other)[..., :WIDTH].mean(1))
        return scores


def wide(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), *between, nn.Linear(4 * WIDTH, WIDTH))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "result saved": lambda: Within(wide(nn.ReLU()), wide(nn.Tanh(), nn.Softmax(-1))),
    "in place": lambda: Within(wide(nn.ReLU(inplace=True)), wide(nn.GELU())),
    "last result saved": lambda: Within(nn.Sequential(wide(nn.ReLU()), nn.Tanh()), wide(nn.SiLU())),
    "nothing saved": lambda: Within(Sums(nn.Identity()), Sums(nn.Linear(WIDTH, WIDTH))),
    "dropout": lambda: Within(wide(nn.ReLU(), nn.Dropout(0.3)), wide(nn.Dropout(0.3))),
    "attention": lambda: Within(Attention(), Attention()),
    "recurrent": lambda: Within(Recurrent(), wide(nn.ReLU())),
    "nested": lambda: Within(Nested(), Nested()),
    "constant": WithConstant,
}


@cache
def captured(name: str, size: int) -> tuple[nn.Module, Graph]:
    torch.manual_seed(0)
    model = MODELS[name]()
    return model, capture(model, nn.CrossEntropyLoss(), (INPUTS[:size], TARGETS[:size]))


def compiled(graph: Graph, schedule: Schedule, at: int) -> Program:
    """The nodes from a place on, on the second device; what must be together goes with its first."""
    device_of = {name: f"cpu:{int(i >= at)}" for i, name in enumerate(graph.nodes)}
    for group in graph.colocated:
        device_of.update(dict.fromkeys(group, device_of[group[0]]))
    return compile_placed(graph, device_of, graph.position, cpus(2), schedule)


def predicted(program: Program) -> dict[str, int]:
    transients = dict.fromkeys(program.devices, predicted_transients(program.graph))
    return predicted_peak_bytes(program, MOMENTUM, transients)


def off(name: str, schedule: Schedule, at: int | None = None) -> dict[str, float]:
    """Device -> predicted over metered bytes, less one; from a place on, of all nodes, on a second device."""
    model, graph = captured(name, schedule.microbatch_size(SAMPLES))
    program = compiled(graph, schedule, len(graph) if at is None else at % len(graph))
    measured = measured_peak_bytes(program, initial_values(model, graph), (INPUTS,), TARGETS)
    said = predicted(program)
    return {device: said[device] / nbytes - 1 for device, nbytes in measured.items()}


@covering(name=MODELS, schedule=SCHEDULES)
def test_on_one_device_bytes_are_within_the_margin(name: str, schedule: str) -> None:
    assert abs(off(name, SCHEDULES[schedule])["cpu:0"]) <= MARGIN


@pytest.mark.parametrize("name", MODELS)
@settings(deadline=None, max_examples=tried(4))
@given(at=st.integers(0, 99), schedule=st.sampled_from(list(SCHEDULES)))
def test_cut_anywhere_bytes_are_hardly_short(name: str, at: int, schedule: str) -> None:
    """Within a checkpoint, too, of which each device then makes its own nodes again."""
    for each in off(name, SCHEDULES[schedule], at).values():
        assert -SHORT.get(name, MARGIN) <= each <= OVER


def test_what_is_surely_saved_is_no_more_than_a_device_takes() -> None:
    """Else plans would be refused that fit: of forty checkpoints that save nothing, no argument stays."""
    model = Within(*(Sums(nn.Identity()) for _ in range(40)))
    graph = capture(model, nn.CrossEntropyLoss(), (INPUTS, TARGETS))
    program = compiled(graph, SingleBatch(), len(graph))
    assert 0 < sum(bytes_saved_by(graph).values()) < predicted(program)["cpu:0"]
