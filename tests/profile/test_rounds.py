"""Rounds of a profile: put together, watched for drift, their backward split in two."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from netsplit.graph import capture, initial_values
from netsplit.graph.deferral.deferrable import deferrable_nodes
from netsplit.profile.measure.compute import Profiler, profile_compute, settle
from netsplit.profile.measure.optimizer import describe_optimizer
from netsplit.profile.measure.stretches.split import AT_MOST, _spread
from netsplit.profile.speed import reference_seconds


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
        repeats=2, warmup=1, in_flight=in_flight, window_bytes=window_bytes,
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


def test_rounds_add_up() -> None:
    profiler = profiler_of(2, 0)
    profiler.round()
    before = profiler.seconds()
    profiler.round()
    assert len(profiler.rounds) == 2
    assert len(profiler.timed) == 4
    assert profiler.seconds() != before
    assert profiler.seconds().keys() == before.keys()


def test_a_round_warms_up_for_a_time() -> None:
    profiler = profiler_of()
    profiler.warm_s = 0.3
    began = time.perf_counter()
    profiler.round()
    assert time.perf_counter() - began > 0.3
    assert len(profiler.timed) == 2
    assert profiler.timed[0] > 1, "more walks than `warmup` asks for, as they were short"


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
        settle(profiler)
    assert profiler.rounds == [1.0, 1.5, 1.2, 1.2]
    assert "changed by 50 %" in caplog.text


def test_a_steady_machine_is_not_measured_longer(caplog: pytest.LogCaptureFixture) -> None:
    profiler = profiler_of()
    profiler.rounds = [1.0, 1.02]
    with caplog.at_level(logging.WARNING):
        settle(profiler)
    assert profiler.rounds == [1.0, 1.02]
    assert "changed by" not in caplog.text


def test_no_rounds_are_refused() -> None:
    profiler = profiler_of()
    with pytest.raises(ValueError, match="rounds=0"):
        profile_compute(profiler.graph, profiler.batch, profiler.values, "cpu", rounds=0)


@given(
    st.floats(0, 100),
    st.dictionaries(st.text(), st.tuples(st.floats(0.01, 10), st.floats(0.01, 10)), min_size=1),
)
def test_spreading_keeps_the_total_within_bounds(total: float, each: dict[str, tuple[float, float]]) -> None:
    like, bounds = ({name: pair[i] for name, pair in each.items()} for i in (0, 1))
    parts = _spread(total, like, bounds)
    assert all(0 <= parts[name] <= bounds[name] * (1 + 1e-9) for name in parts)
    assert sum(parts.values()) == pytest.approx(min(total, sum(bounds.values())), rel=1e-6, abs=1e-9)


def test_the_reference_piece_takes_time_and_leaves_random_numbers_alone() -> None:
    before = torch.get_rng_state()
    assert 1e-5 < reference_seconds("cpu", repeats=2) < 5
    assert torch.equal(before, torch.get_rng_state())


def test_an_optimizer_is_described_by_what_it_is() -> None:
    one = describe_optimizer(partial(torch.optim.SGD, lr=0.1))
    assert one == describe_optimizer(lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    assert one == describe_optimizer(partial(torch.optim.SGD, lr=0.2))
    assert one != describe_optimizer(partial(torch.optim.SGD, lr=0.1, momentum=0.9))
    assert one != describe_optimizer(partial(torch.optim.SGD, lr=0.1, foreach=True))
    assert one != describe_optimizer(partial(torch.optim.Adam, lr=0.1))
