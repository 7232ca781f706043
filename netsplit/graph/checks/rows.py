"""Whether a batch may be predicted in micro-batches: whether the outputs of a sample depend on no other.

samples ──at once─────────► rows of all ┐
   └────in micro-batches──► their rows ─┴─ equal? with other weights too
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Hashable, Mapping

import psutil
import torch
from torch import Tensor, nn

from netsplit.graph.autocast import autocast_of
from netsplit.graph.batches.batch import Batch
from netsplit.graph.checks.difference import difference
from netsplit.graph.checks.evaluation import move_weights
from netsplit.graph.checks.plain import MOST_OF_MEMORY, copies, has_values, holding, stance
from netsplit.graph.code_places import line_of
from netsplit.graph.ir import Graph
from netsplit.graph.recording.step import Inference

__all__ = ["OutputDims", "output_dims"]

log = logging.getLogger(__name__)

OutputDims = tuple[int, ...] | None
"""The dimension of every output along which each sample has its own rows; None: not all have one."""

_COPIES = 3  # of parameters: a model that had no values, those that are put back, and the present ones
_NOISE = 0.1  # of a parameter's largest element: a weight of what mixes samples may still be 0


class _Mixed(Exception):
    """Why a batch is predicted whole."""


def output_dims(
    model: nn.Module, graph: Graph, batch: Batch, size: int, values: Mapping[str, Tensor]
) -> OutputDims:
    """By two micro-batches of this batch in evaluation mode, at once and one by one; None is logged, and why.

    Args:
        model: left as it is.
        graph: of the first `size` samples of `batch`, which has more.
        values: the present ones, by initializer.
    """
    try:
        if graph.calls:
            whole = ", ".join(sorted({call.__name__ for call in graph.calls.values()}))
            raise _Mixed(f"{whole} stays whole, so what it takes of other samples is not seen")
        nbytes = _COPIES * sum(i.nbytes for i in graph.initializers.values())
        nbytes += 2 * sum(v.nbytes for v in graph.variables.values())
        if nbytes > MOST_OF_MEMORY * psutil.virtual_memory().available:
            raise _Mixed(f"comparing them with micro-batches would need {nbytes / 2**30:.1f} GiB here")
        held = model if has_values(model, None) else copy.deepcopy(model).to_empty(device="cpu")
        with holding(held, values), torch.no_grad(), stance(graph), autocast_of(graph, "cpu"):
            held.eval()
            example = batch.rows(0, 2 * size).own().without_targets
            dims = _dims(held, example, size)
            move_weights(held, _NOISE)
            _dims(held, example, size)
            return dims
    except _Mixed as mixed:
        reason = str(mixed)
    except Exception as error:
        reason = f"comparing them with micro-batches failed ({line_of(error)})"
    name = type(model).__name__
    log.info("%s: more than %d samples are predicted whole, not in micro-batches: %s", name, size, reason)
    return None


def _dims(model: nn.Module, batch: Batch, size: int) -> tuple[int, ...]:
    """Raises _Mixed: outputs are others at once than in micro-batches."""
    whole, kind = _run(model, batch)
    dims, start = list[int](), 0
    while start < batch.samples:
        part = batch.rows(start, start + size)
        tensors, own_kind = _run(model, part)
        if own_kind != kind or len(tensors) != len(whole):
            raise _Mixed("its output has another structure, or other numbers, on a part of a batch")
        dims = dims or [_grown(a, b, size, batch.samples) for a, b in zip(tensors, whole, strict=True)]
        for ours, all_rows, dim in zip(tensors, whole, dims, strict=True):
            rows = all_rows.shape[dim] // batch.samples
            plain = all_rows.narrow(dim, rows * start, rows * part.samples)
            apart = difference(plain, ours)
            if apart is not None:
                raise _Mixed(f"an output for some samples depends on others of the batch ({apart})")
        start += size
    return tuple(dims)


def _grown(part: Tensor, whole: Tensor, size: int, samples: int) -> int:
    """The dimension with so many rows a sample."""
    before, after = part.shape, whole.shape
    grown = [d for d, (m, n) in enumerate(zip(before, after, strict=False)) if m != n]
    if len(before) == len(after) and len(grown) == 1:
        rows, rest = divmod(before[grown[0]], size)
        if not rest and after[grown[0]] == rows * samples:
            return grown[0]
    raise _Mixed(f"an output of shape {tuple(after)} has no rows for each sample")


def _run(model: nn.Module, batch: Batch) -> tuple[list[Tensor], Hashable]:
    """Outputs, and the structure around them."""
    step, drawn = Inference(model, batch), torch.get_rng_state()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    outputs = [tensor.clone() for tensor in step(*copies(batch.tensors))]
    if not torch.equal(drawn, torch.get_rng_state()):
        raise _Mixed("the forward draws random numbers in evaluation mode")
    for name, buffer in model.named_buffers():
        if difference(before.get(name), buffer) is not None:
            raise _Mixed(f"the forward writes '{name}' in evaluation mode")
    assert step.structure.tree is not None
    return outputs, step.structure.tree.key
