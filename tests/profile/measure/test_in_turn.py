"""Whole micro-batches of several sizes, measured in turn."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from netsplit.graph.module import initial_values
from netsplit.graph.recording.step import capture
from netsplit.profile.costs import TurnSeconds
from netsplit.profile.measure.stretches.in_turn import InTurn, SizedStep, in_rounds


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
    took = in_rounds(InTurn(made, values, "cpu", window_bytes=window_bytes).round).seconds
    assert list(took) == [4, 512]
    assert 0 < took[4] < took[512]
    assert all(torch.equal(before[k], t) for k, t in values.items())


def test_company_is_put_beside_what_the_same_round_took_alone() -> None:
    """The machine is twice as slow in every second round; a device of two is slowed by half."""
    speed = iter([1.0, 1.0, 2.0] * 3)
    now = [1.0]

    def alone() -> dict[int, float]:
        now[0] = next(speed)
        return {4: now[0], 16: 3 * now[0]}

    def company() -> list[dict[int, float]]:
        return [{4: 1.5 * now[0], 16: 2.5 * now[0]}, {4: 1.7 * now[0], 16: 2.9 * now[0], 64: 1.0}]

    turns = in_rounds(alone, company)
    assert turns.contention == pytest.approx({4: 1.6, 16: 1.0})
    assert in_rounds(lambda: {4: 1.0}) == TurnSeconds({4: 1.0})


@pytest.mark.parametrize(
    "ratios",
    [
        [1.5, 1.5, 0.9, 1.5, 1.6],
        [1.5, 1.5, 3.0, 1.5, 1.6],
        [3.0, 1.0, 3.0, 1.0, 3.0, *[1.5] * 3],
    ],
)
def test_what_disturbs_a_few_rounds_says_nothing(ratios: list[float]) -> None:
    asked = iter([9.0, *ratios])
    turns = in_rounds(lambda: {4: 1.0}, lambda: [{4: next(asked)}])
    assert turns.contention == {4: 1.5}
    assert next(asked, None) is None
