"""What a model's code changes while it is looked at is put back."""

import functools
import sys
import types
from collections import deque

import pytest
import torch
from torch import Tensor, nn

from netsplit.graph.user_code import kept

SEEN: list[Tensor] = []


@functools.lru_cache
def table(rows: int) -> Tensor:
    return torch.ones(rows)


class Changing(nn.Module):
    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.cache: dict[str, list[Tensor]] = {"seen": []}
        self.past = deque([0], maxlen=3)
        self.register_buffer("mean", torch.zeros(2))
        count = 0

        def counted() -> int:
            nonlocal count
            count += 1
            return count

        self.counted = counted

    def forward(self, x: Tensor) -> Tensor:
        import counted_by_a_test  # type: ignore[import-not-found]

        counted_by_a_test.steps += 1
        SEEN.append(x)
        type(self).calls += 1
        self.cache["seen"].append(x)
        self.past.append(1)
        self.mean = x.mean(0) + self.counted()
        self.fc.weight.data.mul_(2)
        return self.fc(x * table(1))  # type: ignore[no-any-return]


def test_attributes_containers_closures_globals_classes_and_tensors_are_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = types.ModuleType("counted_by_a_test")
    module.steps = 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "counted_by_a_test", module)
    model = Changing()
    mean, cache, weight = model.mean, model.cache, model.fc.weight.detach().clone()
    with kept(model):
        model(torch.zeros(1, 2)).sum().backward()
        assert (model.calls, module.steps, len(SEEN)) == (1, 1, 1)
    assert (Changing.calls, module.steps, SEEN, model.counted()) == (0, 0, [], 1)
    assert (model.cache, list(model.past)) == ({"seen": []}, [0])
    assert model.mean is mean
    assert model.cache is cache
    assert not mean.any()
    assert torch.equal(model.fc.weight, weight)
    assert model.fc.weight.grad is None
    assert table.cache_info().currsize == 0
