"""What a model's code changes while it is looked at is put back."""

from __future__ import annotations

import random
import sys
import types
from array import array
from decimal import Decimal

import pytest
import torch
from torch import Tensor, nn

from netsplit.graph.checks.python_state.state import changed_state, state_of
from netsplit.graph.surroundings.keep import kept


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.bytes = bytearray(1)
        self.array = array("d", [0.0])
        self.decimal = Decimal(0)
        self.seeds = random.SystemRandom()

    def forward(self, x: Tensor) -> Tensor:
        import counted_by_a_test  # type: ignore[import-not-found]

        counted_by_a_test.steps += 1
        self.bytes[0] += 1
        self.array[0] += 1
        self.decimal += 1
        nn.Linear.steps_of_a_test = getattr(nn.Linear, "steps_of_a_test", 0) + 1  # type: ignore[attr-defined]
        return self.fc(x)  # type: ignore[no-any-return]


def test_numbers_bytes_and_attributes_of_libraries_are_seen_and_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = types.ModuleType("counted_by_a_test")
    module.steps = 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "counted_by_a_test", module)
    model = Counting()
    before = state_of(model, None)
    with kept(model):
        model(torch.zeros(1, 2))
        changed = changed_state(before, state_of(model, None))
    assert {name.partition("'")[2].partition("'")[0] for name in changed} == {
        "bytes", "array", "decimal", "steps", "steps_of_a_test",
    }  # fmt: skip
    assert changed_state(before, state_of(model, None)) == []
