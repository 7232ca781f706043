"""The mode of tensors without data, with what torch is slow or wrong to say of their operators.

It finds the shapes of a batch normalisation by running what the operator is made of, some twenty operators
for each new shape: two thirds of the first capture of a convolutional network. And of the workspace that an
LSTM layer keeps for its backward on a CPU, more than all else that it keeps, it says that it is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["StandInMode"]

_NORM = torch.ops.aten._native_batch_norm_legit.default
_RNN_LAYER = torch.ops.aten.mkldnn_rnn_layer.default
_ENOUGH_BYTES = 2**20
"""Bytes of an LSTM layer's output from which on what is kept grows by the same bytes a step."""


class StandInMode(FakeTensorMode):
    """The mode of every recording; tensors of the code around it that have data may be read."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)

    def dispatch(self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if func is _NORM and not kwargs and args[0].device.type == "cpu" and args[0].dim() >= 2:
            with self:
                return _batch_norm(args)
        result: Any = super().dispatch(func, types, args, kwargs)
        if func is _RNN_LAYER and args[-1] and torch.is_grad_enabled():
            with self:
                return *result[:-1], torch.empty(_workspace_bytes(args), dtype=torch.uint8)
        return result


def _batch_norm(args: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor]:
    """The normalised input, and what the backward keeps: each channel's mean and deviation."""
    x, weight, _, mean, _, training, *_ = args
    channels = x.shape[1] if training else 0
    dtype = next((each.dtype for each in (weight, mean) if each is not None), x.dtype)
    normalised = torch.empty_like(x, memory_format=suggest_memory_format(x))
    return normalised, x.new_empty(channels, dtype=dtype), x.new_empty(channels, dtype=dtype)


def _workspace_bytes(args: Sequence[Any]) -> int:
    """Bytes of an LSTM layer's workspace, known by its library alone: from a run on few of many steps."""
    x, hx = args[0], args[5]
    steps, samples, features = x.shape
    shape = (samples, features, hx.shape[-1], x.dtype, *args[7:8], args[9], args[12])
    few = 2 * -(-_ENOUGH_BYTES // (2 * samples * hx.shape[-1] * x.element_size()))
    if steps <= few:
        return _kept_bytes(steps, *shape)
    few_bytes = _kept_bytes(few, *shape)
    return few_bytes + (steps - few) * (few_bytes - _kept_bytes(few // 2, *shape)) // (few // 2)


@cache
def _kept_bytes(
    steps: int,
    samples: int,
    features: int,
    hidden: int,
    dtype: torch.dtype,
    reverse: bool,
    mode: int,
    has_biases: bool,
) -> int:
    with _disable_current_modes(), torch.enable_grad():  # without it nothing is kept
        x, state = (
            torch.zeros(steps, samples, features, dtype=dtype),
            torch.zeros(1, samples, hidden, dtype=dtype),
        )
        weights = [torch.zeros(4 * hidden, width, dtype=dtype) for width in (features, hidden)]
        biases = [torch.zeros(4 * hidden, dtype=dtype) for _ in range(2)]
        kept = torch.mkldnn_rnn_layer(
            x,
            weights[0],
            weights[1],
            biases[0],
            biases[1],
            state,
            state,
            reverse,
            [],
            mode,
            hidden,
            1,
            has_biases,
            False,
            False,
            True,
        )
    return int(kept[-1].nbytes)
