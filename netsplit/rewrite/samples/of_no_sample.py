"""What a step computes of no sample, and whether that has others for each place in the batch.

    weight[:n], arange(n), tril(ones(n, d)) ──► others by place    ones(n), bias.expand(n, d) ──► none

Of a micro-batch the places are others than they were in the batch. As weights may begin at 0, they are drawn.
"""

from __future__ import annotations

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
from netsplit.rewrite.samples.crossing import operator_kinds

__all__ = ["SHAPE_ALONE", "SHAPE_OF_OTHER", "OfNoSample", "of_no_sample", "read_by_shape", "unlike_along"]

SHAPE_ALONE = operator_kinds(
    "zeros_like ones_like full_like empty_like rand_like randn_like randint_like new_zeros new_ones new_full "
    "new_empty new_empty_strided"
)
"""What reads of its tensor the shape and type."""
SHAPE_OF_OTHER = operator_kinds("expand_as view_as reshape_as type_as")
"""And of another than its first."""
_ELEMENTS = 2**20  # of tensors that are computed; larger ones are not known
_ROUNDING = 1e-4  # relative: of products in single precision
_DRAWN_ELEMENTS = 2**24  # of weights and buffers, of which a part may be taken
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
            left += [k for k in node.inputs if not read_by_shape(node, k)]
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
        if read_by_shape(node, k):
            each = self.graph.variables[k]
            return torch.zeros((), dtype=getattr(torch, each.dtype)).expand(each.shape)
        return self.values.get(k)

    def _drawn(self, k: str) -> Tensor | None:
        """A literal as it is, weights and buffers at random; None: of whole numbers, which may be indices."""
        literal, each = self.graph.constants.get(k), self.graph.initializers.get(k)
        if isinstance(literal, Tensor):
            return None if literal.is_meta else literal.cpu()
        if each is None or prod(each.shape) > _DRAWN_ELEMENTS or INITIALIZER + k in self._written:
            return None
        dtype = getattr(torch, each.dtype)
        if not dtype.is_floating_point:
            return None
        return torch.rand(each.shape, generator=torch.Generator().manual_seed(crc32(k.encode()))).to(dtype)

    @cached_property
    def _written(self) -> set[str]:
        return {root for node in self.graph for root in written_storages(self.graph, node)}


@once_of
def of_no_sample(graph: Graph) -> OfNoSample:
    """What is known of it, computed once."""
    return OfNoSample(graph)


def unlike_along(value: Tensor, dim: int, samples: int) -> bool:
    """Whether samples have others than the first, but for rounding; no numbers aside."""
    each = value.unflatten(dim, (samples, -1)).movedim(dim, 0)
    if not each.is_floating_point():
        return bool((each != each[:1]).any())
    own = each.double().nan_to_num()
    return not torch.allclose(own, own[:1].expand_as(own), rtol=_ROUNDING, atol=0.0)


def read_by_shape(node: Node, k: str) -> bool:
    """Whether it reads of this variable the shape and type alone."""
    return node.kind in SHAPE_ALONE or (node.kind in SHAPE_OF_OTHER and node.args[:1] != ({"var": k},))
