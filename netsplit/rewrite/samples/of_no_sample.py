"""What a step computes of no sample, and whether that has others for each place in the batch.

    weight[:n], arange(n), tril(ones(n, d)) ──► others by place    ones(n), bias.expand(n, d) ──► none

Of a micro-batch the places are others than they were in the batch. As weights may begin at 0, they are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from zlib import crc32

import torch
from torch import Tensor

from netsplit.graph.ir import CALL, INITIALIZER, Graph, Node, once_of
from netsplit.graph.operators import in_its_mode, resolve, written_storages
from netsplit.graph.random_draws import node_draws
from netsplit.graph.storage import storage_of
from netsplit.graph.template import decoded
from netsplit.rewrite.rules.elementwise import is_elementwise
from netsplit.rewrite.samples.crossing import operator_kinds
from netsplit.rewrite.samples.rows import CutAlong, SampleRows, variable_at
from netsplit.rewrite.ways import SplitCall

__all__ = ["SHAPE_ALONE", "OfNoSample", "alike_by_place", "by_place", "cut_by_place", "of_no_sample"]

SHAPE_ALONE = operator_kinds(
    "zeros_like ones_like full_like empty_like rand_like randn_like randint_like new_zeros new_ones new_full "
    "new_empty new_empty_strided"
)
"""What reads of its tensor the shape and type."""
_ELEMENTS = 2**20  # of tensors that are computed; larger ones are not known
_EMPTY = operator_kinds("empty empty_like new_empty empty_strided new_empty_strided")


@dataclass(frozen=True)
class OfNoSample:
    """Values of a graph's variables that are made of none of its inputs, computed when they are asked for."""

    graph: Graph
    values: dict[str, Tensor | None] = field(default_factory=dict)

    def value(self, k: str) -> Tensor | None:
        """Of a variable; None: of samples, drawn, written in place, too large, or made by Python code."""
        for node in self._behind(k):
            made = self._run(node)
            self.values.update((name, made[j] if made else None) for j, name in enumerate(node.outputs))
        return self.values.get(k)

    def _behind(self, k: str) -> list[Node]:
        """The nodes that are not computed yet, in order."""
        behind: dict[str, Node] = {}
        left = [k]
        while left:
            name = left.pop()
            producer = self.graph.variables[name].producer
            if name in self.values or producer is None or producer in behind:
                continue
            node = behind[producer] = self.graph.nodes[producer]
            left += [] if node.kind in SHAPE_ALONE else node.inputs
        return [node for node in self.graph if node.name in behind]

    def _run(self, node: Node) -> list[Tensor] | None:
        shapes = [self.graph.variables[k].shape for k in node.outputs if k]
        if node.op.startswith(CALL) or node.kind in _EMPTY or node_draws(node):
            return None
        roots = {storage_of(self.graph, k) for k in (*node.inputs, *filter(None, node.outputs))}
        if not self._written.isdisjoint(roots) or max(map(prod, shapes), default=0) > _ELEMENTS:
            return None
        given = {("var", k): self._given(node, k) for k in node.inputs}
        given |= {("init", k): self._drawn(k) for k in node.initializers}
        if any(each is None for each in given.values()):
            return None
        args, kwargs = decoded(node, lambda tag, k: given[tag, k], "cpu")
        try:
            with torch.no_grad():
                made = in_its_mode(node, resolve(node.op), "cpu")(*args, **kwargs)
        except (RuntimeError, IndexError, NotImplementedError):
            return None  # not for these numbers, or not on the processor
        return [made] if isinstance(made, Tensor) else list(made)

    def _given(self, node: Node, k: str) -> Tensor | None:
        if node.kind in SHAPE_ALONE:
            each = self.graph.variables[k]
            return torch.zeros((), dtype=getattr(torch, each.dtype)).expand(each.shape)
        return self.values.get(k)

    def _drawn(self, k: str) -> Tensor | None:
        """A literal as it is, weights and buffers at random; whole numbers, which may be indices, 0."""
        literal, each = self.graph.constants.get(k), self.graph.initializers.get(k)
        if isinstance(literal, Tensor):
            return None if literal.is_meta else literal.cpu()
        if each is None or prod(each.shape) > _ELEMENTS or INITIALIZER + k in self._written:
            return None
        dtype = getattr(torch, each.dtype)
        if not dtype.is_floating_point:
            return torch.zeros(each.shape, dtype=dtype)
        return torch.rand(each.shape, generator=torch.Generator().manual_seed(crc32(k.encode()))).to(dtype)

    @cached_property
    def _written(self) -> set[str]:
        return {root for node in self.graph for root in written_storages(self.graph, node)}


@once_of
def of_no_sample(graph: Graph) -> OfNoSample:
    """What is known of it, computed once."""
    return OfNoSample(graph)


def by_place(graph: Graph, call: SplitCall, lies: Mapping[str, SampleRows], samples: int) -> bool:
    """Whether an operator gives each sample what goes by its place in the batch and is no sample's.

    Args:
        call: an operator; one that goes element by element is looked at alone.
        lies: where the samples lie, all of them in order.
    """
    if samples < 2 or call.node.op.startswith(CALL) or not is_elementwise(call.node.op):
        return False
    own = {k: len(graph.variables[k].shape) - lies[k].dim for k in call.node.inputs if k in lies}
    laid = {(from_last, lies[k].rows) for k, from_last in own.items()}
    if len(laid) != 1:
        return False
    ((from_last, rows),) = laid
    for k in call.node.inputs:
        shape = graph.variables[k].shape
        dim = len(shape) - from_last
        if k in lies or dim < 0 or shape[dim] != samples * rows:
            continue
        value = of_no_sample(graph).value(k)
        if value is not None and _unlike(value, dim, samples):
            return True
    return False


def cut_by_place(graph: Graph, cut: CutAlong, lies: Mapping[str, SampleRows], samples: int) -> bool:
    """Whether an operator's parts along the samples are given what goes by their place and is no sample's."""
    if samples < 2:
        return False
    for place, where in cut.way.cut.items():
        name = variable_at(cut.call, place)
        if name and name not in lies and graph.variables[name].shape[where.dim] % samples == 0:
            value = of_no_sample(graph).value(name)
            if value is not None and _unlike(value, where.dim, samples):
                return True
    return False


def alike_by_place(graph: Graph, k: str, lies: Mapping[str, SampleRows], samples: int) -> bool:
    """Whether a variable has the same for every place in the batch, as far as its values are known.

    One that has samples is not looked at.
    """
    shape = graph.variables[k].shape
    dims = [] if k in lies or samples < 2 else [dim for dim, size in enumerate(shape) if size == samples]
    value = of_no_sample(graph).value(k) if dims else None
    return value is None or not any(_unlike(value, dim, samples) for dim in dims)


def _unlike(value: Tensor, dim: int, samples: int) -> bool:
    """Whether samples have others than the first, no numbers aside."""
    each = value.unflatten(dim, (samples, -1)).movedim(dim, 0)
    return bool((each.nan_to_num() != each[:1].nan_to_num()).any())
