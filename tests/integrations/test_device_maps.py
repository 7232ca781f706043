"""A device map names every tensor of a model once, where it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from netsplit.integrations import device_map
from netsplit.training.parallel import ParallelModel
from tests.integrations.conftest import Split

X, Y = torch.linspace(0, 1, 32).reshape(8, 4), torch.arange(8) % 3


class Nested(nn.Module):
    """Weights of its own beside modules; one module under two names, a tied weight, one that is unused."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4, 4))
        self.blocks = nn.ModuleList([nn.Linear(4, 4) for _ in range(4)])
        self.again = self.blocks[0]
        self.norm = nn.BatchNorm1d(4)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.blocks[3].weight
        self.idle = nn.Linear(2, 2)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(x @ self.first)
        for block in self.blocks:
            x = torch.tanh(block(x))
        return self.head(self.tied(self.again(self.norm(x @ self.second))))


def covering(places: dict[str, Any], model: nn.Module) -> dict[str, list[str]]:
    """Name of a tensor -> the entries that cover it."""
    state = dict(model.state_dict(keep_vars=True))
    return {
        name: [key for key in places if not key or name == key or name.startswith(f"{key}.")]
        for name in state
    }


def held(parallel: ParallelModel) -> dict[str, str]:
    """Tensor -> the device whose worker holds it."""
    program = parallel.runtime.program
    return {
        name: device
        for k, device in program.initializer_device.items()
        for name in (k, *program.graph.initializers[k].aliases)
    }


@pytest.mark.parametrize("partitioner", ["balanced", "single"])
def test_every_tensor_is_covered_once_by_the_device_that_holds_it(split: Split, partitioner: str) -> None:
    model = Nested()
    parallel = split(model, nn.CrossEntropyLoss(), (X, Y), partitioner=partitioner)
    places = device_map(parallel, devices={"cpu:0": "first", "cpu:1": "second"})
    assert set(places.values()) <= {"first", "second"}
    assert (len(set(places.values())) == 1) == (partitioner == "single")
    cover = covering(places, model)
    assert all(len(keys) == 1 for keys in cover.values()), cover
    names = {"cpu:0": "first", "cpu:1": "second"}
    for name, device in held(parallel).items():
        assert places[cover[name][0]] == names[device], name
    assert ("" in places) == (partitioner == "single")


def test_accelerate_reads_it_and_computes_the_same(split: Split) -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    from accelerate.utils.modeling import check_device_map

    model = Nested().eval()
    parallel = split(Nested(), nn.CrossEntropyLoss(), (X, Y))
    check_device_map(model, device_map(parallel, devices={"cpu:0": 0, "cpu:1": 1}))
    expected = model(X)
    dispatched = accelerate.dispatch_model(model, device_map(parallel), force_hooks=True)
    torch.testing.assert_close(dispatched(X), expected)
