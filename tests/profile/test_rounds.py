"""Rounds of a profile: put together, watched for drift, their backward split in two."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from netsplit.graph import capture, initial_values
from netsplit.graph.deferral.deferrable import deferrable_nodes
from netsplit.profile.measure.compute import Profiler, settle
from netsplit.profile.measure.stretches.split import AT_MOST


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
