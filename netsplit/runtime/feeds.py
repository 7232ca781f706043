"""A batch cut into the micro-batches of a program."""

from __future__ import annotations

import torch
from torch import Tensor

from netsplit.errors import NetSplitError
from netsplit.graph.ir import Graph
from netsplit.program.instructions import Program

__all__ = ["loss_shares", "mean_loss", "split_batch"]


def split_batch(
    program: Program, inputs: Tensor | tuple[Tensor, ...], targets: Tensor | tuple[Tensor, ...] = ()
) -> list[dict[str, Tensor]]:
    """Input variables of each micro-batch i, by name.

    Raises:
        NetSplitError: the batch does not have the shape the program was captured for.
    """
    tensors = (*_tuple(inputs), *_tuple(targets))
    graphs = _graphs(program)
    names = program.graph.input_variables
    if len(tensors) != len(names):
        raise NetSplitError(f"the program takes {len(names)} tensors, the batch has {len(tensors)}.")
    parts: list[dict[str, Tensor]] = [{} for _ in graphs]
    for name, tensor in zip(names, tensors, strict=True):
        variable = program.graph.variables[name]
        rows = [graph.variables[name].shape[0] for graph in graphs]
        expected = (sum(rows), *variable.shape[1:])
        if tuple(tensor.shape) != expected:
            raise NetSplitError(
                f"the batch has a tensor of shape {tuple(tensor.shape)} where the program was captured for "
                f"{expected}: use batches of {expected[0]} samples, or capture again."
            )
        if str(tensor.dtype) != f"torch.{variable.dtype}":
            raise NetSplitError(
                f"the batch has a tensor of {tensor.dtype} where the program was captured for "
                f"torch.{variable.dtype}: convert it."
            )
        for part, piece in zip(parts, torch.split(tensor, rows), strict=True):
            part[name] = piece
    return parts


def loss_shares(program: Program, share: float = 1.0) -> list[float]:
    """Each micro-batch's part in what is minimised: by its samples, times the batch's own `share`.

    Where devices step within the batch, they take means themselves, and each micro-batch counts in full.
    """
    if program.asynchronous:
        return [share] * program.microbatches
    return [share * part for part in _sample_shares(program)]


def mean_loss(program: Program, losses: dict[int, float]) -> float:
    """The mean over a batch's samples of the micro-batches' mean losses."""
    return sum(part * losses[i] for i, part in enumerate(_sample_shares(program)))


def _sample_shares(program: Program) -> list[float]:
    sizes = [graph.batch_size for graph in _graphs(program)]
    return [size / sum(sizes) for size in sizes]


def _graphs(program: Program) -> list[Graph]:
    """Of every micro-batch."""
    return [program.graph] * (program.microbatches - 1) + [program.tail or program.graph]


def _tuple(value: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (value,) if isinstance(value, Tensor) else tuple(value)
