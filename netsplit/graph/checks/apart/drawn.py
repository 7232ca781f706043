"""Batches of drawn values: those at hand with noise, and whole numbers and flags that they have none of.

    y ──cross_entropy of 10 classes──► 0 ... 9        y == 7 ──► 7 and its neighbours, half of all
    x > 3.5 ──► 3.5, and as far above and below as x varies

What a loss does with a class, or above a limit, shows on no batch that has none of it; the operators that
read an input say which numbers it may have, and which of them are told from others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, floor, inf, isfinite
from typing import Any

import torch
from torch import Tensor

from netsplit.graph.arguments import argument, references
from netsplit.graph.batches.batch import Batch
from netsplit.graph.ir import Graph, Node

__all__ = ["NumbersRead", "drawn_batch", "numbers_read"]

_AS_IT_IS = (
    "view", "reshape", "flatten", "squeeze", "unsqueeze", "select", "slice", "transpose", "permute", "expand",
    "contiguous", "clone", "to", "_to_copy", "type_as", "alias", "detach", "unbind", "split", "chunk", "t",
)  # fmt: skip
_PASSED_ON = (
    *_AS_IT_IS, "mul", "add", "sub", "rsub", "div", "neg", "where", "floor_divide", "remainder", "fmod",
    "clamp", "clamp_min", "clamp_max", "abs", "maximum", "minimum", "bitwise_and", "bitwise_or",
    "bitwise_right_shift",
)  # fmt: skip
_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
_ANY = (*_COMPARED, "isin", "bincount")
_CLASSES = ("cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d")
_ALONG = (
    "gather", "index_select", "index_add", "index_copy", "index_fill", "index_reduce", "scatter",
    "scatter_add", "scatter_reduce",
)  # fmt: skip
_CHECKED = (*_ANY, *_CLASSES, *_ALONG, "embedding", "one_hot", "index")
"""What refuses whole numbers that are out of its bounds, or has none."""
_PART = 0.25  # of numbers that are none of classes: how many become those that they are compared with


@dataclass(frozen=True)
class NumbersRead:
    """What is known of the numbers of an input by the operators that read it.

    Args:
        checked: a whole number that is too great is an error, and no access to other memory.
        below: whole numbers from 0 to this one, without it, are in the bounds of all that look things up by
            them; infinite: nothing does; None: it is not known.
        compared: with what they are.
    """

    checked: bool
    below: float | None = None
    compared: tuple[float, ...] = ()

    @property
    def looks_up(self) -> bool:
        """Whether something is looked up by them, as far as is known."""
        return not self.checked or self.below != inf


def numbers_read(graph: Graph, tensors: Mapping[str, Tensor]) -> dict[str, NumbersRead]:
    """Of every input.

    Args:
        tensors: of the model and the loss, by the names of initializers.
    """
    return {k: _read(graph, k, tensors) for k in graph.input_variables}


def _read(graph: Graph, k: str, tensors: Mapping[str, Tensor]) -> NumbersRead:
    own, checked, sure = {k: True}, True, True  # whether a variable has the input's numbers as they are
    bounds, compared = list[int](), dict[float, None]()
    for node in graph:
        mine = [name for name in node.inputs if name in own]
        if not mine:
            continue
        as_it_is = all(own[name] for name in mine)
        kind = node.kind.rstrip("_")  # in place, too
        if kind in _PASSED_ON or node.kind in _PASSED_ON:
            kept = as_it_is and node.kind in _AS_IT_IS
            own |= {name: kept for name in node.outputs if kept or "int" in graph.variables[name].dtype}
            continue
        if any("int" in graph.variables[name].dtype for name in mine):
            checked = checked and kind in _CHECKED
            bound = _bound(graph, node, mine)
            if kind not in _ANY:
                sure = sure and as_it_is and bound is not None
            if bound is not None:
                bounds.append(bound)
        if as_it_is and kind in _COMPARED:
            compared |= dict.fromkeys(_constants(node, tensors))
    return NumbersRead(checked, min(bounds, default=inf) if sure else None, tuple(compared))


def _bound(graph: Graph, node: Node, mine: list[str]) -> int | None:
    """Below which whole numbers are in bounds; None: it looks nothing up by them."""

    def shape(template: Any) -> tuple[int, ...]:
        tag, name = next(iter(references(template)))
        return graph.variables[name].shape if tag == "var" else graph.initializers[name].shape

    def reads(template: Any) -> bool:
        return any(tag == "var" and name in mine for tag, name in references(template))

    first = argument(node, 0, "self")
    if node.kind in _CLASSES and reads(argument(node, 1, "target")):
        scores = shape(first)
        return scores[1] if len(scores) > 1 else scores[0]
    if node.kind == "embedding":
        return shape(argument(node, 0, "weight"))[0]
    if node.kind == "one_hot":
        classes = argument(node, 1, "num_classes")
        return classes if isinstance(classes, int) and classes > 0 else None
    if node.kind.rstrip("_") in _ALONG and reads(argument(node, 2, "index")):
        dim = argument(node, 1, "dim")
        return shape(first)[dim] if isinstance(dim, int) and shape(first) else None
    if node.kind == "index":
        read = [i for i, each in enumerate(argument(node, 1, "indices") or ()) if each and reads(each)]
        return min((shape(first)[i] for i in read), default=None)
    return None


def _constants(node: Node, tensors: Mapping[str, Tensor]) -> list[float]:
    other = argument(node, 1, "other")
    if isinstance(other, int | float) and not isinstance(other, bool):
        return [float(other)] if isfinite(other) else []
    values = [tensors[name] for tag, name in references(other) if tag == "init" and name in tensors]
    single = [float(each.detach()) for each in values if each.numel() == 1 and not each.is_meta]
    return [each for each in single if isfinite(each)]


def drawn_batch(
    few: Batch, wanted: Mapping[str, NumbersRead], turn: int, further: bool, signs: bool
) -> Batch:
    """Tensors of a kind with which numbers cannot be drawn, as sparse ones, are left as they are.

    Args:
        wanted: of the graph's inputs, in order.
        turn: which of several draws; each prefers another of the numbers.
        further: where their bounds are not known, whole numbers that the batch has not, too.
        signs: no number gets the other sign, as those that a logarithm is taken of.
    """
    generator = torch.Generator().manual_seed(turn)
    drawn = list[Tensor]()
    for tensor, numbers in zip(few.tensors, wanted.values(), strict=True):
        try:
            drawn.append(_drawn(tensor, numbers, turn, further, signs, generator))
        except (RuntimeError, NotImplementedError, TypeError):
            drawn.append(tensor)
    return replace(few, tensors=tuple(drawn))


def _drawn(
    tensor: Tensor, numbers: NumbersRead, turn: int, further: bool, signs: bool, generator: torch.Generator
) -> Tensor:
    """Numbers with as much noise as they vary; of whole ones and of flags, half are one and the same."""
    if not tensor.numel() or tensor.is_complex():
        return tensor
    if tensor.dtype == torch.bool:
        return torch.rand(tensor.shape, generator=generator).to(tensor.device) < 0.5
    if tensor.is_floating_point():
        if numbers.looks_up:
            return tensor
        noisy = _noisy(tensor, numbers.compared, turn, generator)
        return torch.where(noisy * tensor >= 0, noisy, tensor) if signs else noisy
    if not numbers.checked:
        return tensor
    least, most = max(int(tensor.min()), 0), int(tensor.max())
    if most < 0:  # all of it is left out
        return tensor
    own = torch.randint(least, most + 1, tensor.shape, generator=generator)
    below = numbers.below
    if below is None:
        below = inf if further else most + 1
    elif below < inf:
        rounds = torch.arange(tensor.numel()) % int(below)
        own = rounds[torch.randperm(len(rounds), generator=generator)].view(tensor.shape)
    wanted = [most + 1, *_next_to(numbers.compared)]
    preferred = [each for each in wanted if (each >= 0 or numbers.below == inf) and each < below] or [most]
    own[torch.rand(tensor.shape, generator=generator) < 0.5] = preferred[turn % len(preferred)]
    return torch.where(tensor < 0, tensor, own.to(tensor))


def _next_to(compared: tuple[float, ...]) -> list[int]:
    """The constants, then whole numbers above and below."""
    exact = [floor(c) for c in compared]
    return list(dict.fromkeys([*exact, *(n + 1 for n in exact), *(ceil(c) - 1 for c in compared)]))


def _noisy(tensor: Tensor, compared: tuple[float, ...], turn: int, generator: torch.Generator) -> Tensor:
    noise = torch.randn(tensor.shape, generator=generator).to(tensor)
    spread = tensor.std() if tensor.numel() > 1 else tensor.new_ones(())
    spread = torch.where(spread > 0, spread, 1.0)
    drawn = tensor + noise * spread
    if not compared:
        return drawn
    beside = torch.randint(-1, 2, tensor.shape, generator=generator).to(tensor) * spread
    chosen = torch.rand(tensor.shape, generator=generator).to(tensor.device) < _PART
    return torch.where(chosen, compared[turn % len(compared)] + beside, drawn)
