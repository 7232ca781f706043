"""What modules that stay whole return, seen by running the model as it is on real values.

Twice, on different values: only what both times has the same shape can be one operator's output.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from netsplit.errors import CaptureError, NetSplitError
from netsplit.graph.batches.strides import Strides, copy_as_it_lies
from netsplit.graph.batches.tree import Tree, flatten
from netsplit.graph.random_draws import marked
from netsplit.graph.surroundings.keep import kept

__all__ = ["Observation", "Observed", "ResultKind", "observe", "other_values", "valid_other_values"]


@dataclass(frozen=True)
class ResultKind:
    """A tensor that a module returned: what it is, and how it lies in memory."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    carries: bool  # a gradient
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Observation:
    """One call of a module: what it returned, and whether it wrote into its arguments."""

    tree: Tree
    kinds: tuple[ResultKind, ...]
    writes_arguments: bool

    def like(self, other: Observation) -> bool:
        """Whether a capture may take one for the other."""
        try:
            return self.kinds == other.kinds and bool(self.tree.key == other.tree.key)
        except NetSplitError:  # something in it cannot be compared
            return False


Observed = dict[int, list[Observation]]
"""Module id -> its calls in order."""


def observe(step: nn.Module, batch: tuple[Tensor, ...], modules: Collection[int]) -> list[Observed]:
    """Run the step on its batch and on one of other values; the model is left as it was.

    Raises:
        CaptureError: the model has no values, or sets torch's generator.
    """
    if any(tensor.is_meta for tensor in (*step.parameters(), *step.buffers(), *batch)):
        raise CaptureError("it has no values here to run it with")
    observed = []
    with kept(*step.children()):
        for values in (batch, valid_other_values(step, batch)):
            mark = marked()
            observed.append(_one(step, values, modules))
            if torch.default_generator.initial_seed() != mark:
                raise CaptureError("its forward sets torch's generator: draw without setting its seed")
    return observed


def _one(step: nn.Module, batch: tuple[Tensor, ...], modules: Collection[int]) -> Observed:
    observed: Observed = {}
    given: dict[int, list[tuple[Tensor, int, Tensor]]] = {}

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        tensors = flatten((args, kwargs))[0]
        given[id(module)] = [(tensor, tensor._version, tensor.detach().clone()) for tensor in tensors]

    def after(module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        arguments = given.pop(id(module))
        writes = any(t._version != version or not _same(t, before) for t, version, before in arguments)
        tensors, tree, _ = flatten(result)
        kinds = tuple(ResultKind(tuple(t.shape), t.dtype, t.requires_grad, t.stride()) for t in tensors)
        observed.setdefault(id(module), []).append(Observation(tree, kinds, writes))

    with ExitStack() as stack:
        for module in step.modules():
            if id(module) in modules:
                stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(after, with_kwargs=True).remove)
        step(*batch)
    return observed


def _same(tensor: Tensor, before: Tensor) -> bool:
    """Writes through ``.data`` are not counted."""
    return tensor.shape == before.shape and bool(((tensor == before) | (before != before)).all())


def valid_other_values(step: nn.Module, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The first of `other_values` that the model takes; else the batch as it is."""
    for candidate in other_values(batch):
        try:
            with kept(*step.children()):
                step(*map(copy_as_it_lies, candidate))
        except Exception:
            continue
        return candidate
    return tuple(map(copy_as_it_lies, batch))


def other_values(batch: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Batches of other values: all moved, and but for indices and lengths, which may have to stay."""
    moved = _moved(batch)
    still = (
        copy_as_it_lies(t) if not t.is_floating_point() else m for t, m in zip(batch, moved, strict=True)
    )
    return moved, tuple(still)


def _moved(batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """A batch of the same shapes and layouts with other values, each as plausible as the given ones.

    Numbers are moved by noise of their own spread; integers and booleans change places, all tensors'
    samples in the same order.
    """
    generator = torch.Generator().manual_seed(1)
    others = []
    for tensor in batch:
        moved = tensor.detach().clone()
        if moved.dim() and len(moved) > 1:
            moved = moved.roll(1, 0)
        if moved.is_floating_point() and moved.numel():
            spread = float(moved.float().std()) if moved.numel() > 1 else 1.0
            noise = torch.randn(moved.shape, generator=generator)
            moved = moved + (0.3 * (spread or 1.0) * noise).to(moved.dtype).to(moved.device)
        others.append(Strides.of(tensor).laid_out(moved))
    return tuple(others)
