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
from netsplit.graph.checks.apart.gradients import gradients_apart
from netsplit.graph.checks.apart.losses import FEW, losses_apart
from netsplit.graph.ir import Graph, Node
from netsplit.graph.recording.stand_ins import named_tensors

__all__ = ["elsewhere_apart"]

_LARGER = (1e3, 30.0)
"""Times the outputs of the model, or its inputs; the second where the first give no number."""
_DRAWN = 8  # samples of micro-batches of drawn values
_DRAWS = 3
_MOST_BYTES = 2**29  # of their activations
_PASSED_ON = (
    "view", "reshape", "flatten", "squeeze", "unsqueeze", "select", "slice", "transpose", "permute", "expand",
    "contiguous", "clone", "to", "mul", "add", "sub", "rsub", "div", "neg", "where", "type_as",
)  # fmt: skip
_CHECKED = (
    "embedding", "cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d", "one_hot", "gather", "index",
    "index_select", "index_add", "scatter", "scatter_add", "eq", "ne", "lt", "le", "gt", "ge",
)  # fmt: skip
"""What refuses whole numbers that are out of its bounds, or has none."""
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
    scaled = ("outputs", "inputs") if loss is not None else ("inputs",)  # else outputs are the loss
    for what in scaled if several else ():
        for sign in (1.0, -1.0):
            for factor in _LARGER:
                scale = sign * factor
                batch = whole if what == "outputs" else _times_larger(whole, scale)
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
    few, bounded = whole.rows(0, 2 * size), _bounded(graph)
    on_cpu = all(tensor.device.type == "cpu" for tensor in whole.tensors)
    more = (1, 0) if on_cpu else (0,)  # a class more than the batch has may be none of the model's
    for seed in range(_DRAWS):
        for further in more:
            drawn = _drawn_batch(few, graph, bounded, further, torch.Generator().manual_seed(seed))
            if drawn is None:
                return None
            with _switched_on(model, loss):
                apart = losses_apart(model, loss, drawn, graph, size, every=False)
                if apart is None and several:
                    apart = gradients_apart(model, loss, drawn, graph, min(size, FEW))
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
    for tensor in single:
        tensor.data.fill_(1.0)
    try:
        yield
    finally:
        for tensor in single:
            tensor.data.zero_()


def _bounded(graph: Graph) -> set[str]:
    """Inputs whose whole numbers go only where one too great is an error, and no access to other memory."""
    bounded = set[str]()
    for k in graph.input_variables:
        own, readers = {k}, list[Node]()
        for node in graph:
            if own.isdisjoint(node.inputs):
                continue
            if node.kind in _PASSED_ON:
                own.update(k for k in node.outputs if "int" in graph.variables[k].dtype)
            else:
                readers.append(node)
        if all(node.kind in _CHECKED for node in readers):
            bounded.add(k)
    return bounded


def _drawn_batch(
    few: Batch, graph: Graph, bounded: set[str], further: int, generator: torch.Generator
) -> Batch | None:
    """None: of a tensor of a kind with which numbers cannot be drawn, as sparse ones."""
    named = zip(graph.input_variables, few.tensors, strict=True)
    try:
        drawn = [_drawn(tensor, further if k in bounded else None, generator) for k, tensor in named]
    except (RuntimeError, NotImplementedError, TypeError):
        return None
    return replace(few, tensors=tuple(drawn))


def _drawn(tensor: Tensor, further: int | None, generator: torch.Generator) -> Tensor:
    """Numbers with as much noise as they vary; of whole ones that are at least 0, and of flags, half the
    greatest.

    Args:
        further: above the greatest that there is; None: whole numbers stay as they are.
    """
    if not tensor.numel() or tensor.is_complex():
        return tensor
    if tensor.dtype == torch.bool:
        return torch.rand(tensor.shape, generator=generator).to(tensor.device) < 0.5
    if tensor.is_floating_point():
        noise = torch.randn(tensor.shape, generator=generator).to(tensor)
        spread = tensor.std() if tensor.numel() > 1 else tensor.new_ones(())
        return tensor + noise * torch.where(spread > 0, spread, 1.0)
    if further is None:
        return tensor
    least, most = max(int(tensor.min()), 0), int(tensor.max())
    numbers = torch.randint(least, most + 1, tensor.shape, generator=generator)
    numbers[torch.rand(tensor.shape, generator=generator) < 0.5] = most + further
    return torch.where(tensor < 0, tensor, numbers.to(tensor))


def _times_larger(whole: Batch, factor: float) -> Batch | None:
    """None: of numbers that cannot be multiplied, as those of 8 bits."""
    try:
        tensors = [each * factor if each.is_floating_point() else each for each in whole.tensors]
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
