"""A batch cut up, and the user's model and loss on what is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from netsplit.graph.autocast import autocast_of
from netsplit.graph.batches.batch import Batch
from netsplit.graph.batches.calls import Loss
from netsplit.graph.checks.copies import copies
from netsplit.graph.checks.plain import stance, tensors_kept
from netsplit.graph.ir import Graph
from netsplit.graph.random_draws import seed_generators
from netsplit.graph.recording.step import TrainingStep

__all__ = [
    "COARSE",
    "FINE",
    "PLAIN",
    "allowed_apart",
    "cut_up",
    "ends",
    "loss_of",
    "samples_again",
    "without_draws",
]

PLAIN, COARSE, FINE = 1e-3, 3e-2, 1e-7  # relative; of losses in some digits, in few, and in many
_QUIET = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd, nn.MultiheadAttention, nn.RNNBase)


def cut_up(whole: Batch, size: int) -> dict[int, Batch]:
    """Micro-batches by their number, from 1."""
    starts = range(0, whole.samples, size)
    return {i: whole.rows(at, min(at + size, whole.samples)) for i, at in enumerate(starts, 1)}


def ends(whole: Batch, size: int) -> tuple[Batch, dict[int, Batch]]:
    """Two micro-batches, the first samples and the last: at once, and by their number.

    The first two of a batch with gaps in memory, which samples that were joined would not have.
    """
    if whole.samples <= 2 * size:
        return whole, cut_up(whole, size)
    if not all(tensor.is_contiguous() for tensor in whole.tensors):
        first = whole.rows(0, 2 * size)
        return first, cut_up(first, size)
    first, last = whole.rows(0, size), whole.rows(whole.samples - size, whole.samples)
    return samples_joined([first, last]), {1: first, -(-whole.samples // size): last}


def samples_joined(batches: Sequence[Batch]) -> Batch:
    first = batches[0]
    tensors = [
        tensor if dim is None else torch.cat([each.tensors[j] for each in batches], dim)
        for j, (tensor, dim) in enumerate(zip(first.tensors, first.dims, strict=True))
    ]
    return replace(first, tensors=tuple(tensors), samples=sum(each.samples for each in batches))


def samples_again(batch: Batch, times: int) -> Batch:
    return samples_joined([batch] * times)


def loss_of(model: nn.Module, loss: Loss | None, graph: Graph, batch: Batch, seed: int) -> float:
    """Where modules that draw, or take statistics of the batch, do not."""
    step = without_draws(TrainingStep(model, loss, batch))
    try:
        with torch.no_grad():
            return _run(step, graph, batch, seed)
    except Exception:  # code that differentiates
        return _run(step, graph, batch, seed)


def without_draws(step: TrainingStep) -> TrainingStep:
    for module in step.modules():
        if isinstance(module, _QUIET):
            module.training = False
    return step


def _run(step: TrainingStep, graph: Graph, batch: Batch, seed: int) -> float:
    seed_generators(seed)
    with tensors_kept(step), stance(graph), autocast_of(graph, "cpu"):
        return float(step(*copies(batch.tensors))[0])


def allowed_apart(graph: Graph) -> float:
    """By how much of the loss rounding may set it apart."""
    dtypes = {variable.dtype for variable in graph.variables.values()}
    if graph.autocast is not None or dtypes & {"float16", "bfloat16"}:
        return COARSE
    return PLAIN if "float32" in dtypes else FINE
