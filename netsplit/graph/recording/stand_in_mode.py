"""The mode of tensors without data, with the shapes of a batch normalisation known at once.

torch finds them by running what the operator is made of, some twenty operators for each new shape: two
thirds of the first capture of a convolutional network.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensorMode

__all__ = ["StandInMode"]

_NORM = torch.ops.aten._native_batch_norm_legit.default


class StandInMode(FakeTensorMode):
    """Of every recording; tensors of the code around it that have data may be read."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)

    def dispatch(self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if func is _NORM and not kwargs and args[0].device.type == "cpu" and args[0].dim() >= 2:
            with self:
                return _batch_norm(args)
        return super().dispatch(func, types, args, kwargs)


def _batch_norm(args: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor]:
    """The normalised input, and what the backward keeps: each channel's mean and deviation."""
    x, weight, _, mean, _, training, *_ = args
    channels = x.shape[1] if training else 0
    dtype = next((each.dtype for each in (weight, mean) if each is not None), x.dtype)
    normalised = torch.empty_like(x, memory_format=suggest_memory_format(x))
    return normalised, x.new_empty(channels, dtype=dtype), x.new_empty(channels, dtype=dtype)
