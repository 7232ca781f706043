"""How tensors lie in memory: in which order of their dimensions, cut out of more or repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Strides", "copy_as_it_lies", "is_spread", "memory_order", "repeated_dims"]


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


@dataclass(frozen=True)
class Strides:
    """How a tensor lies in memory, whatever its sizes.

    Args:
        order: dimensions by falling stride, without those that are `repeated` (of stride 0).
        apart: of each of these, whether its steps are farther apart than what lies within one takes.
    """

    contiguous: bool
    order: tuple[int, ...]
    repeated: tuple[int, ...]
    apart: tuple[bool, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> Strides:
        sizes, steps = tensor.shape, tensor.stride()
        repeated = repeated_dims(sizes, steps)
        order = sorted((d for d in range(len(sizes)) if d not in repeated), key=lambda d: -steps[d])
        apart, within = [], 1
        for d in reversed(order):
            apart.append(sizes[d] > 1 and steps[d] != within)
            if sizes[d] > 1:
                within = steps[d] * sizes[d]
        return cls(tensor.is_contiguous(), tuple(order), repeated, tuple(reversed(apart)))

    def laid_out(self, tensor: Tensor) -> Tensor:
        """The tensor where it lies so, else a copy that does."""
        if (self.contiguous and tensor.is_contiguous()) or Strides.of(tensor) == self:
            return tensor
        dims = (*self.repeated, *self.order)
        moved = tensor.permute(dims)
        for d in range(len(self.repeated)):
            moved = moved.narrow(d, 0, 1)
        more = (*(False for _ in self.repeated), *(False, *self.apart)[: len(self.order)])
        room = [size + one for size, one in zip(moved.shape, more, strict=True)]
        made = moved.new_empty((*room, 1 + any(self.apart[-1:]))).select(-1, 0)
        for d, size in enumerate(moved.shape):
            made = made.narrow(d, 0, size)
        made.copy_(moved)
        return made.permute([dims.index(d) for d in range(tensor.dim())]).expand(tensor.shape)


def copy_as_it_lies(tensor: Tensor) -> Tensor:
    """`contiguous` and others go by that, too, where a tensor is cut out of another, or repeats itself."""
    return Strides.of(tensor).laid_out(tensor.detach().clone())
