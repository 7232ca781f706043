"""Whole micro-batches of several sizes, measured in turn."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from netsplit.graph.module import initial_values
from netsplit.graph.recording.step import capture
from netsplit.profile.measure.compute import SizedStep, take_turns


class WritingNet(nn.Module):
    """An operator that writes in place, a buffer that is written, and a wide one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(64, 256), nn.BatchNorm1d(256), nn.Linear(256, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(self.norm(self.first(x)).relu_())
        return y


def steps(*sizes: int) -> tuple[list[SizedStep], dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    model, loss = WritingNet(), nn.CrossEntropyLoss()
    made = []
    for n in sizes:
        batch = torch.randn(n, 64), torch.randint(8, (n,))
        made.append(SizedStep(capture(model, loss, batch), batch, in_flight=2))
    return made, initial_values(model, made[0].graph, loss)


@pytest.mark.parametrize("window_bytes", [2**28, 1])
def test_every_size_has_its_seconds_and_values_stay(window_bytes: int) -> None:
    made, values = steps(4, 512)
    before = {k: t.clone() for k, t in values.items()}
    took = take_turns(made, values, "cpu", window_bytes)
    assert list(took) == [4, 512]
    assert 0 < took[4] < took[512]
    assert all(torch.equal(before[k], t) for k, t in values.items())
