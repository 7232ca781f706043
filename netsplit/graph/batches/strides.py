"""How tensors lie in memory: in which order of their dimensions, cut out of more or repeated."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["copy_as_it_lies", "is_spread", "memory_order", "repeated_dims"]


def memory_order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """The dimensions as a copy of such a tensor has them in memory; () where they are in their own order."""
    if 0 in strides:  # torch has rules of its own for what is repeated
        strides = torch.empty_like(torch.empty_strided(shape, strides, device="meta")).stride()
    order = sorted(range(len(shape)), key=lambda d: (-strides[d], -shape[d]))
    return tuple(order) if order != sorted(order) else ()


def repeated_dims(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """The dimensions along which all is the same memory."""
    return tuple(d for d, size in enumerate(shape) if size > 1 and not strides[d])


def is_spread(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether memory between its elements is not its own, or elements share some."""
    step = 1
    for size, stride in sorted(zip(shape, strides, strict=True), key=lambda each: (each[1], each[0])):
        if size > 1:
            if stride != step:
                return True
            step *= size
    return False


def copy_as_it_lies(tensor: Tensor, values: Tensor | None = None) -> Tensor:
    """A copy in memory as the tensor itself, as `contiguous` and others go by that, too.

    Args:
        values: of the same shape, which the copy gets in place of the tensor's.
    """
    values = tensor.detach() if values is None else values
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    once = tuple(slice(None if step else 1) for step in tensor.stride())  # of what is repeated
    try:
        copy[once].copy_(values[once])
    except RuntimeError:  # elements share memory otherwise
        return values.clone()
    return copy
