"""A batch cut into the micro-batches of a program."""

from __future__ import annotations

import torch
from torch import Tensor

from netsplit.errors import NetSplitError
from netsplit.program.instructions import Program

__all__ = ["split_batch"]


def split_batch(
    program: Program, inputs: Tensor | tuple[Tensor, ...], targets: Tensor | tuple[Tensor, ...] = ()
) -> list[dict[str, Tensor]]:
    """Input variables of each micro-batch i, by name.

    Raises:
        NetSplitError: the batch does not have the shape the program was captured for.
    """
    tensors = (*_tuple(inputs), *_tuple(targets))
    names = program.graph.input_variables
    if len(tensors) != len(names):
        raise NetSplitError(f"the program takes {len(names)} tensors, the batch has {len(tensors)}.")
    m = program.microbatches
    parts: list[dict[str, Tensor]] = [{} for _ in range(m)]
    for name, tensor in zip(names, tensors, strict=True):
        shape = program.graph.variables[name].shape
        expected = (shape[0] * m, *shape[1:])
        if tuple(tensor.shape) != expected:
            raise NetSplitError(
                f"the batch has a tensor of shape {tuple(tensor.shape)} where the program was captured for "
                f"{expected}: use batches of {expected[0]} samples, or capture again."
            )
        if str(tensor.dtype) != f"torch.{program.graph.variables[name].dtype}":
            raise NetSplitError(
                f"the batch has a tensor of {tensor.dtype} where the program was captured for "
                f"torch.{program.graph.variables[name].dtype}: convert it."
            )
        for part, piece in zip(parts, torch.chunk(tensor, m), strict=True):
            part[name] = piece
    return parts


def _tuple(value: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (value,) if isinstance(value, Tensor) else tuple(value)
