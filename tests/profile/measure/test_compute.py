"""Every node gets forward and backward seconds, and profiling leaves no trace."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from netsplit.graph import capture, initial_values
from netsplit.graph.deferral.deferrable import deferrable_nodes
from netsplit.graph.ir import Graph
from netsplit.profile.costs import NodeSeconds
from netsplit.profile.measure.compute import AT_MOST, SMALLEST_S, Profiler, adjusted_to_sum, walks_to_settle
from tests.cover import covering


class Varied(nn.Module):
    """In-place operators, a view, a variable with two readers, dropout, an operator of two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x)).relu_()
        left, right = (y + y.sigmoid()).split(4, dim=1)
        both = torch.cat([left, right.clone().add_(1.0)], dim=1)
        return self.head(self.drop(both).mean((2, 3)).flatten(1))


class WritesItsInput(nn.Module):
    """The variable that is written in place carries a gradient and was made by another node."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.last = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        view = y[:, :3]
        view.mul_(2.0)
        return self.last(y.relu_())


class WithoutGradientAtFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.frozen(x) * 2.0)


IMAGES, ROWS = (4, 3, 8, 8), (4, 6)
CASES = [(Varied, IMAGES), (WritesItsInput, ROWS), (WithoutGradientAtFirst, ROWS)]


def captured(
    make: Callable[[], nn.Module], shape: tuple[int, ...]
) -> tuple[nn.Module, Graph, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    model = make()
    batch = (torch.randn(shape), torch.randint(0, 4, shape[:1]))
    return model, capture(model, nn.CrossEntropyLoss(), batch), batch


def profiled(make: Callable[[], nn.Module], shape: tuple[int, ...], **options: int) -> dict[str, NodeSeconds]:
    model, graph, batch = captured(make, shape)
    profiler = Profiler(graph, batch, initial_values(model, graph), "cpu", repeats=2, **options)
    profiler.round()
    return profiler.seconds()


@covering(case=CASES, window_bytes=[0, 2000, 2**28])
def test_every_node_has_a_positive_forward_whatever_the_window(
    case: tuple[Callable[[], nn.Module], tuple[int, ...]], window_bytes: int
) -> None:
    make, shape = case
    _, graph, _ = captured(make, shape)
    seconds = profiled(make, shape, window_bytes=window_bytes)
    assert list(seconds) == list(graph.nodes)
    assert all(s.forward_s > 0 and s.backward_s >= 0 for s in seconds.values())


@pytest.mark.parametrize(("make", "shape"), CASES)
def test_backward_is_zero_just_where_no_gradient_passes(
    make: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    _, graph, _ = captured(make, shape)
    for name, seconds in profiled(make, shape).items():
        passes = any(graph.variables[k].requires_grad for k in graph.nodes[name].outputs if k)
        assert (seconds.backward_s > 0) == passes, name


@pytest.mark.parametrize(("make", "shape"), CASES)
@pytest.mark.parametrize("window_bytes", [0, 2**28])
def test_parameters_buffers_batch_and_random_state_are_left_as_they_were(
    make: Callable[[], nn.Module], shape: tuple[int, ...], window_bytes: int
) -> None:
    model, graph, batch = captured(make, shape)
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fed = [tensor.clone() for tensor in batch]
    torch.set_num_threads(2)  # measuring takes one
    random = torch.get_rng_state()
    values = initial_values(model, graph)
    profiler = Profiler(graph, batch, values, "cpu", repeats=2, window_bytes=window_bytes)
    profiler.round()
    assert all(torch.equal(kept[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before, after) for before, after in zip(fed, batch, strict=True))
    assert torch.equal(random, torch.get_rng_state())
    assert torch.get_num_threads() == 2


@settings(deadline=None)  # the first call loads SciPy
@given(
    st.dictionaries(st.text(min_size=1), st.floats(1e-6, 1e-2), min_size=1),
    st.floats(0.01, 3.0),
)
def test_fitted_seconds_add_up_to_the_segment_and_keep_their_order(
    alone: dict[str, float], fraction: float
) -> None:
    together = max(fraction * sum(alone.values()), len(alone) * SMALLEST_S)
    changed = adjusted_to_sum(alone, together)
    assert sum(changed.values()) == pytest.approx(together, rel=1e-6)
    names = sorted(alone, key=lambda name: alone[name])
    assert all(changed[a] <= changed[b] * (1 + 1e-12) for a, b in pairwise(names))
    assert min(changed.values()) >= SMALLEST_S * (1 - 1e-9)


class Net(nn.Module):
    """A wide layer whose weight gradient costs far more than the narrow one's, and a norm between."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(256, 1024)
        self.norm = nn.LayerNorm(1024)
        self.narrow = nn.Linear(1024, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.narrow(torch.relu(self.norm(self.wide(x))))


def profiler_of(in_flight: int = 1, window_bytes: int = 2**28) -> Profiler:
    torch.manual_seed(0)
    model, loss = Net(), nn.CrossEntropyLoss()
    batch = (torch.randn(256, 256), torch.randint(0, 4, (256,)))
    graph = capture(model, loss, batch)
    return Profiler(
        graph, batch, initial_values(model, graph, loss), "cpu",
        repeats=2, in_flight=in_flight, window_bytes=window_bytes,
    )  # fmt: skip


@pytest.mark.parametrize("in_flight", [1, 3])
@pytest.mark.parametrize("window_bytes", [0, 2**28])
def test_the_weight_part_is_a_part_of_deferrable_backwards(in_flight: int, window_bytes: int) -> None:
    profiler = profiler_of(in_flight, window_bytes)
    profiler.round()
    seconds, deferrable = profiler.seconds(), deferrable_nodes(profiler.graph)
    assert len(deferrable) == 2
    for name, each in seconds.items():
        assert (each.weight_s > 0) == (name in deferrable), name
        assert each.weight_s <= AT_MOST * each.backward_s * (1 + 1e-9)
    wide, narrow = (seconds[name].weight_s for name in profiler.graph.nodes if name in deferrable)
    assert wide > 2 * narrow


def test_a_machine_that_changes_its_speed_is_measured_longer_and_then_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    profiler = profiler_of()
    profiler.rounds = [1.0, 1.5]

    def one_walk() -> Iterator[None]:
        profiler.rounds.append(1.2)
        yield

    profiler.walks_of_round = one_walk  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING):
        for _ in walks_to_settle(profiler):
            pass
    assert profiler.rounds == [1.0, 1.5, 1.2, 1.2]
    assert "changed by 50 %" in caplog.text
