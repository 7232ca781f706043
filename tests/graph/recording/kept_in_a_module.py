"""What a script changes after the import: globals, attributes of classes, a registry."""

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

SCALE = 1.0
OPTIONS = {"k": 1.0}
NONE = object()
ACTS: dict[str, Callable[[Tensor], Tensor]] = {}
LOCKED: dict[str, Any] = {"lock": threading.Lock(), "k": 1.0}


class Factor(torch.autograd.Function):
    factor = 1.0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * SCALE

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * Factor.factor


class Whole(nn.Module):
    def forward(self, x: Tensor, by: Any = NONE) -> Tensor:
        return ACTS["act"](x) * (OPTIONS["k"] if by is NONE else by)


class Locked(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with LOCKED["lock"]:
            return x * LOCKED["k"]


class Gated(nn.Module):
    """Stays whole."""

    def forward(self, x: Tensor) -> Tensor:
        return x * SCALE if x.mean() < 9 else x
