"""What is refused says why, and what only looked like a fault trains."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from netsplit.errors import CaptureError, ConfigError
from netsplit.graph.batches.batch import Batch
from netsplit.graph.recording.stand_ins import refuse_tensors
from netsplit.training.captures import checked_capture


@torch.jit.script
def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


class Net(nn.Module):
    def __init__(self, name: str = "a") -> None:
        super().__init__()
        self._modules[name], self.b, self.name = nn.Linear(6, 6), nn.Linear(6, 3), name

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(quick_gelu(self._modules[self.name](x)))  # type: ignore[misc]
        return y


class Cast(Net):
    def forward(self, x: Tensor) -> Tensor:
        self._modules["a"].double()  # type: ignore[union-attr]
        return super().forward(x.double()) if x.dtype == torch.float64 else self.b(x)


def batch() -> Batch:
    return Batch.of(torch.randn(4, 6), torch.randint(0, 3, (4,)))


@pytest.mark.parametrize("warm", [0, 3])
def test_a_scripted_function_trains_whether_it_has_run_before_or_not(warm: int) -> None:
    model, own = Net(), batch()
    for _ in range(warm):
        model(own.tensors[0]).sum().backward()
    assert "aten.sigmoid.default" in {node.op for node in checked_capture(model, nn.CrossEntropyLoss(), own)}


def test_a_forward_that_casts_a_layer_leaves_the_users_own_as_it_was() -> None:
    model = Cast()
    checked_capture(model, nn.CrossEntropyLoss(), batch())
    assert {p.dtype for p in model.parameters()} == {torch.float32}


@pytest.mark.parametrize(("bias", "reason"), [(torch.zeros(1).expand(3), "share memory")])
def test_a_parameter_whose_elements_share_memory_is_named(bias: Tensor, reason: str) -> None:
    model = Net()
    model.b.bias = nn.Parameter(bias)
    with pytest.raises(CaptureError, match=f"'b.bias' of Net {reason}"):
        refuse_tensors(model)


def test_lazy_modules_that_never_ran_are_named() -> None:
    with pytest.raises((CaptureError, ConfigError), match=r"'0\.weight' of Sequential has no shape yet"):
        refuse_tensors(nn.Sequential(nn.LazyLinear(3)))
