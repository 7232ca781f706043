"""Losses of micro-batches on other values than those at hand, for which a term may be 0 by chance."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from netsplit.graph.batches.batch import Batch
from netsplit.graph.batches.calls import Loss
from netsplit.graph.checks.apart.cut_apart import OTHERWISE, CutApart
from netsplit.graph.checks.apart.drawn import drawn_batch, numbers_read
from netsplit.graph.checks.apart.gradients import gradients_apart
from netsplit.graph.checks.apart.losses import FEW, losses_apart
from netsplit.graph.ir import Graph
from netsplit.graph.recording.stand_ins import named_tensors

__all__ = ["elsewhere_apart"]

_LARGER = (1e3, 30.0)
"""Times the outputs of the model, or its inputs; the second where the first give no number."""
_DRAWN = 8  # samples of micro-batches of drawn values
_DRAWS, _MOST_DRAWS = 3, 6  # the latter where inputs are compared with many constants
_MOST_BYTES = 2**29  # of their activations
_WRITTEN = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_UNTOLD = ("unknown", "no number")


def elsewhere_apart(
    model: nn.Module, loss: Loss | None, whole: Batch, graph: Graph, several: bool = True
) -> CutApart | None:
    """How the loss of a few samples at once is apart from that of each on other values than those at hand.

    Were the model's outputs much larger, or what it is given; and on drawn values: classes that the batch has
    none of, numbers that are 0 in it.

    None: it is not, or cannot be computed so; arguments as of `loss_apart`.

    Args:
        several: the loss has more than one term, any of which may be 0 below a threshold.
    """
    size = min(graph.batch_size, FEW)
    # Without a loss outputs are the loss; and TorchScript takes no hook.
    outputs = loss is not None and not isinstance(model, torch.jit.ScriptModule)
    scaled = ("outputs", "inputs") if outputs else ("inputs",)
    for what in scaled if several else ():
        for sign in (1.0, -1.0):
            for factor in _LARGER:
                scale = sign * factor
                batch = whole if what == "outputs" else _times_larger(whole, scale, graph)
                if batch is None:
                    break
                with _outputs_times(model, scale if what == "outputs" else 1.0):
                    apart = losses_apart(model, loss, batch, graph, size, every=False)
                if apart is None:
                    break
                if apart.kind not in _UNTOLD:
                    times = f"{factor:,.0f} times as large{' and of the other sign' * (sign < 0)}"
                    return CutApart("other", f"with {what} {times}, {apart.words}", OTHERWISE)
    return _drawn_apart(model, loss, whole, graph, several)


def _drawn_apart(
    model: nn.Module, loss: Loss | None, whole: Batch, graph: Graph, several: bool
) -> CutApart | None:
    each = sum(v.nbytes for v in graph.variables.values()) / max(graph.batch_size, 1)
    size = min(_DRAWN if 2 * _DRAWN * each <= _MOST_BYTES else FEW, whole.samples // 2)
    if not size:
        return None
    few, wanted = whole.rows(0, 2 * size), numbers_read(graph, named_tensors(model, loss))
    on_cpu = all(tensor.device.type == "cpu" for tensor in whole.tensors)
    # the next class may be none of the model's; a number of the other sign, none that its logarithm takes
    furthest = (True, False) if on_cpu else (False,)
    variants = [(further, signs) for further in furthest for signs in (False, True)]
    compared = max((1 + len(each.compared) for each in wanted.values()), default=0)
    for turn in range(max(_DRAWS, min(_MOST_DRAWS, compared))):
        for further, signs in variants:
            drawn = drawn_batch(few, wanted, turn, further, signs)
            with _switched_on(model, loss):
                apart = losses_apart(model, loss, drawn, graph, size, every=False)
                for each in sorted({min(size, FEW), size}) if several else ():
                    apart = apart or gradients_apart(model, loss, drawn, graph, each)
            if apart is None:
                break
            if apart.kind not in _UNTOLD:
                return CutApart("other", f"on drawn values, {apart.words}", OTHERWISE)
    return None


@contextmanager
def _switched_on(model: nn.Module, loss: Loss | None) -> Iterator[None]:
    """Single numbers that the model and the loss have, and are 0 now, as weights that are still to rise."""
    single = [
        tensor
        for tensor in named_tensors(model, loss).values()
        if tensor.dtype in _WRITTEN and tensor.numel() == 1 and not (tensor.is_meta or tensor.is_inference())
        if float(tensor.detach()) == 0.0
    ]
    before = [tensor.detach().clone() for tensor in single]  # of either sign
    for tensor in single:
        tensor.data.fill_(1.0)
    try:
        yield
    finally:
        for tensor, value in zip(single, before, strict=True):
            tensor.data.copy_(value)


def _times_larger(whole: Batch, factor: float, graph: Graph) -> Batch | None:
    """But for numbers that something is looked up by. None: of numbers that cannot be multiplied, as those of
    8 bits."""
    read = numbers_read(graph, {}).values()
    try:
        tensors = [
            each * factor if each.is_floating_point() and not numbers.looks_up else each
            for each, numbers in zip(whole.tensors, read, strict=True)
        ]
    except (RuntimeError, NotImplementedError):
        return None
    return replace(whole, tensors=tuple(tensors))


@contextmanager
def _outputs_times(model: nn.Module, factor: float) -> Iterator[None]:
    if factor == 1.0:
        yield
        return

    def stretched(value: Any) -> Any:
        floats = isinstance(value, Tensor) and value.is_floating_point()
        return value * factor if floats else value

    hook = model.register_forward_hook(lambda _, __, outputs: tree_map(stretched, outputs))
    try:
        yield
    finally:
        hook.remove()
