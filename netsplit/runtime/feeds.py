"""A batch cut into the micro-batches of a program, and their losses and metrics put together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from netsplit.errors import NetSplitError
from netsplit.graph.batches.batch import Batch
from netsplit.graph.ir import Graph, Variable
from netsplit.program.instructions import Program

__all__ = [
    "as_batch", "loss_fractions", "mean_loss", "mean_metrics", "own_parts", "own_rows",
    "own_samples", "samples_of", "shared_microbatches", "split_batch",
]  # fmt: skip


def as_batch(program: Program, inputs: Any, targets: Any = None) -> Batch:
    """A batch whose tensors have their samples where the program's have them."""
    if isinstance(inputs, Batch):
        return inputs
    dims = program.graph.input_dims
    if not dims:
        names = program.graph.input_variables
        dims = tuple(0 if program.graph.variables[k].shape else None for k in names)
    return Batch.of(inputs, targets, dims)


def split_batch(program: Program, inputs: Any, targets: Any = None) -> list[dict[str, Tensor]]:
    """Input variables of each micro-batch i, by name.

    Args:
        inputs: as docs/batches.md has them; or a whole `Batch`.

    Raises:
        NetSplitError: the batch does not have the shape the program was captured for.
    """
    batch = as_batch(program, inputs, targets)
    names = program.graph.input_variables
    if len(batch.tensors) != len(names):
        raise NetSplitError(f"the program takes {len(names)} tensors, the batch has {len(batch.tensors)}.")
    parts: list[dict[str, Tensor]] = []
    start = 0
    for graph in _graphs(program):
        count = max(min(graph.batch_size, batch.samples - start), 0)
        tensors = batch.cut(start, count)
        start += graph.batch_size
        for name, tensor, whole, dim in zip(names, tensors, batch.tensors, batch.dims, strict=True):
            _check(program, graph.variables[name], tensor, whole, dim)
        # Rows with a version of their own: a forward may write into them while others' backwards wait.
        own = [t.detach() if dim is None else t.data for t, dim in zip(tensors, batch.dims, strict=True)]
        parts.append(dict(zip(names, own, strict=True)))
    if start != batch.samples:
        raise NetSplitError(
            f"the batch has {batch.samples} samples (its first tensor has the shape "
            f"{tuple(batch.tensors[0].shape)}) but the program was captured for {start}: use batches of "
            f"{start} samples, or capture again."
        )
    return parts


def own_rows(program: Program, device: str) -> list[int]:
    """The samples, by their places in a batch, of the micro-batches that a device is fed of."""
    rows: list[int] = []
    start = 0
    for i, graph in enumerate(_graphs(program)):
        if program.fed(device, i):
            rows += range(start, start + graph.batch_size)
        start += graph.batch_size
    return rows


def own_parts(program: Program, device: str, batch: Batch) -> list[dict[str, Tensor]]:
    """What a device is fed of every micro-batch: copies, as they arrive where the controller feeds it.

    Args:
        batch: of the samples of `own_rows` alone, each tensor cut along its samples.
    """
    parts: list[dict[str, Tensor]] = []
    for i, (graph, part) in enumerate(
        zip(_graphs(program), own_samples(program, device, batch), strict=True)
    ):
        tensors = dict(zip(graph.input_variables, part.tensors, strict=True))
        parts.append({k: tensors[k].detach().clone() for k in program.fed(device, i)})
    return parts


def own_samples(program: Program, device: str, batch: Batch) -> list[Batch]:
    """The same samples by micro-batch, inputs and targets: none where the device is not fed of it."""
    parts: list[Batch] = []
    start = 0
    for i, graph in enumerate(_graphs(program)):
        count = graph.batch_size if program.fed(device, i) else 0
        parts.append(batch.rows(start, start + count))
        start += count
    return parts


def shared_microbatches(program: Program) -> list[int]:
    """Those of which several devices are fed, as one of the inputs and another of the targets."""
    every = range(program.microbatches)
    return [i for i in every if sum(bool(program.fed(name, i)) for name in program.devices) > 1]


def _check(program: Program, variable: Variable, tensor: Tensor, whole: Tensor, dim: int | None) -> None:
    if tensor.shape != variable.shape:
        samples = samples_of(program)
        wanted = tuple(samples if d == dim else n for d, n in enumerate(variable.shape))
        raise NetSplitError(
            f"the batch has a tensor of shape {tuple(whole.shape)} but the program was captured for "
            f"{wanted}: use batches of {samples} samples, or capture again."
        )
    if tensor.dtype is not getattr(torch, variable.dtype):
        raise NetSplitError(
            f"the batch has a tensor of {tensor.dtype} but the program was captured for "
            f"torch.{variable.dtype}: convert it."
        )


def samples_of(program: Program) -> int:
    """Samples in a batch of a program."""
    return sum(graph.batch_size for graph in _graphs(program))


def loss_fractions(program: Program, fraction: float = 1.0) -> list[float]:
    """Each micro-batch's part in what is minimised: by its samples, times the batch's own `fraction`.

    Where devices step within the batch, they take means themselves, and each micro-batch counts in full.
    """
    if program.asynchronous:
        return [fraction] * program.microbatches
    return [fraction * part for part in _sample_fractions(program)]


def mean_loss(program: Program, outputs: Mapping[tuple[str, int], float]) -> float:
    """The mean over a batch's samples of the micro-batches' mean losses, of the outputs by (variable, i)."""
    return _mean(program, outputs, program.graph.output_variables[0])


def mean_metrics(program: Program, outputs: Mapping[tuple[str, int], float]) -> Any:
    """The means of what the loss returned beside the loss, in its own structure; None if there was nothing.

    Numbers that were no tensors are as a whole micro-batch has them.
    """
    spec = program.graph.output_spec
    if spec is None:
        return None
    return spec.build([_mean(program, outputs, k) for k in program.graph.output_variables[1:]])


def _mean(program: Program, outputs: Mapping[tuple[str, int], float], k: str) -> float:
    return sum(part * outputs[k, i] for i, part in enumerate(_sample_fractions(program)))


def _sample_fractions(program: Program) -> list[float]:
    sizes = [graph.batch_size for graph in _graphs(program)]
    return [size / sum(sizes) for size in sizes]


def _graphs(program: Program) -> list[Graph]:
    """The graph of every micro-batch."""
    return [program.graph] * (program.microbatches - 1) + [program.tail or program.graph]
