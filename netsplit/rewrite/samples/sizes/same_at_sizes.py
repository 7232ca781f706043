"""Whether a step computes the same of a sample whatever their number, as far as two captures of it tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from netsplit.graph.arguments import references
from netsplit.graph.ir import CALL, Graph, Node
from netsplit.graph.random_draws import node_draws
from netsplit.rewrite.rules.elementwise import is_elementwise
from netsplit.rewrite.samples.averaged import is_summed
from netsplit.rewrite.samples.crossing import dims_of, first_tensor, operator_kinds
from netsplit.rewrite.samples.differing import (
    DRAWN_ALONE,
    DRAWN_FOR_EACH,
    ONE_NUMBER,
    ROW_BY_ROW,
    written_alike,
)
from netsplit.rewrite.samples.keeping import BESIDE
from netsplit.rewrite.samples.made_of import PRODUCTS, QUOTIENTS, VIEWS
from netsplit.rewrite.samples.mixing import SampleReading, cut_along, read_samples
from netsplit.rewrite.samples.of_no_sample import of_no_sample, read_by_shape
from netsplit.rewrite.samples.rows import variable_at
from netsplit.rewrite.samples.some import PIECES
from netsplit.rewrite.ways import SplitCall

__all__ = ["shaped_by_size", "told_by_size"]

_BY_SHAPE = VIEWS | operator_kinds(
    "repeat tile repeat_interleave unfold zeros ones full empty affine_grid_generator"
)
"""Told sizes, which the shapes show."""
_PLACES = VIEWS | operator_kinds(
    "expand expand_as broadcast_to repeat unsqueeze to _to_copy contiguous clone"
)
_IN_ORDER = operator_kinds("index")


def shaped_by_size(graph: Graph, other: Graph) -> Node | None:
    """The first operator of which it is not known that it computes the same of a sample at both sizes: told
    something else, given what is no sample's and another, or of another shape but for the samples.

    Args:
        graph, other: of one step at unlike numbers of samples, with the same operators.
    """
    both = _Both(read_samples(graph), read_samples(other))
    for node, same in zip(graph, other, strict=True):
        of_samples = any(both.first.of_samples(k) or both.second.of_samples(k) for k in node.outputs if k)
        if of_samples and not node.op.startswith(CALL) and not both.is_same(node, same):
            return node
    return None


def told_by_size(graph: Graph, other: Graph) -> Node | None:
    """The first operator that is told something else at the other size, which may be a single sample.

    Args:
        graph: of several samples.
        other: of the same step, with the same operators.
    """
    both = _Both(read_samples(graph), read_samples(other))
    return next((v for v, same in zip(graph, other, strict=True) if not both.is_told_alike(v, same)), None)


@dataclass
class _Both:
    """One step at two sizes."""

    first: SampleReading
    second: SampleReading
    known: dict[str, bool] = field(default_factory=dict)  # variables of no sample that are the same in both

    def is_same(self, node: Node, same: Node) -> bool:
        if node.inputs != same.inputs or node.initializers != same.initializers:
            return False
        call = SplitCall(node, self.first.layouts, self.first.graph.initializers)
        if not self._told_alike(node, same, call) or not self._shaped_alike(node):
            return False
        beside = self._beside(node, call)
        for k in node.inputs:
            if self.first.of_samples(k) or self.second.of_samples(k):
                continue
            if not self._is_same(k) or not self._lies_beside(k, beside.get(k)):
                return False
        return True

    def is_told_alike(self, node: Node, same: Node) -> bool:
        """Whether an operator of samples is; others may be."""
        if node.op.startswith(CALL) or not any(self.first.of_samples(k) for k in node.outputs if k):
            return True
        return self._told_alike(
            node, same, SplitCall(node, self.first.layouts, self.first.graph.initializers)
        )

    def _told_alike(self, node: Node, same: Node, call: SplitCall) -> bool:
        """Whether the words and numbers that both are told are the same, but for sizes."""
        if node.kind in PRODUCTS | QUOTIENTS and is_elementwise(node.op):  # `number_by_size` says more
            return node.kwargs == same.kwargs
        if node.kind.startswith("conv"):  # every sample may have groups of its own
            a, b = (SplitCall(v, {}, {}).arguments for v in (node, same))
            return all(_words(a[k]) == _words(b[k]) for k in a if k != "groups")
        rows = self.first.some.lies.get(first_tensor(call))
        if node.kind in PIECES and rows is not None:
            if rows.dim in dims_of(call, len(self.first.graph.variables[first_tensor(call)].shape)):
                return True  # which samples those are is known
        elif node.kind in _BY_SHAPE:
            return _texts(node) == _texts(same)
        return [_words(each) for each in (*node.args, *node.kwargs.values())] == [
            _words(each) for each in (*same.args, *same.kwargs.values())
        ]

    def _shaped_alike(self, node: Node) -> bool:
        for k in filter(None, node.outputs):
            shapes = [_beside_samples(reading, k) for reading in (self.first, self.second)]
            if None not in shapes and shapes[0] != shapes[1]:
                return False
        return True

    def _beside(self, node: Node, call: SplitCall) -> Mapping[str, int]:
        """Of what is of no sample, along which dimension it lies beside the samples."""
        lies, graph = self.first.some.lies, self.first.graph
        if is_elementwise(node.op):
            ends = {len(graph.variables[k].shape) - lies[k].dim for k in node.inputs if k in lies}
            return {k: len(graph.variables[k].shape) - min(ends, default=0) for k in node.inputs}
        if node.kind in _IN_ORDER:
            return dict.fromkeys(node.inputs, 0)
        if node.kind in BESIDE:
            return dict.fromkeys(node.inputs, min(lies[k].dim for k in node.inputs if k in lies))
        cut = cut_along(call, lies, graph.batch_size)
        where = {} if cut is None else cut.way.cut
        return {k: each.dim for place, each in where.items() if (k := variable_at(call, place))}

    def _lies_beside(self, k: str, dim: int | None) -> bool:
        """Whether all its other dimensions have one size."""
        shapes = [reading.graph.variables[k].shape for reading in (self.first, self.second)]
        return all(a == b or d == dim for d, (a, b) in enumerate(zip(*shapes, strict=True)))

    def _is_same(self, k: str) -> bool:
        """Asks for what it is made of first, in order: chains may be long."""
        behind, left = set[str](), [k]
        while left:
            name = left.pop()
            if name in behind or name in self.known:
                continue
            behind.add(name)
            node = self.first.graph.nodes.get(self.first.graph.variables[name].producer or "")
            left += _read(node) if node else []
        for name in sorted(behind, key=self._places.__getitem__):
            self.known[name] = self._made_alike(name)
        return self.known[k]

    @cached_property
    def _places(self) -> dict[str, int]:
        """Of all variables, in the order in which they are made."""
        graph = self.first.graph
        places = dict.fromkeys(graph.variables, -1)
        return places | {k: i for i, node in enumerate(graph) for k in node.outputs if k}

    def _made_alike(self, k: str) -> bool:
        """Whether it has the same numbers at the same places in both, or such as are drawn alike."""
        graphs = self.first.graph, self.second.graph
        values = [of_no_sample(graph).value(k) for graph in graphs]
        if values[0] is not None and values[1] is not None:
            return _equal(values[0], values[1])
        node, same = (graph.nodes.get(graph.variables[k].producer or "") for graph in graphs)
        if node is None or same is None:
            return node is same  # an input that every micro-batch is given
        given = [[graph.variables[name].shape for name in (*node.inputs, k)] for graph in graphs]
        if given[0] == given[1] and not node_draws(node):
            return _texts(node, numbers=True) == _texts(same, numbers=True) and self._are_same(node)
        if node.op.startswith(CALL) or _texts(node) != _texts(same):
            return False
        if node.kind in ONE_NUMBER:
            return written_alike(graphs[0], k, 1)
        apart = is_elementwise(node.op) or node.kind in _PLACES | DRAWN_FOR_EACH | ROW_BY_ROW
        apart = apart or node.kind == "embedding"
        return node.kind in DRAWN_ALONE or (apart and self._are_same(node))

    def _are_same(self, node: Node) -> bool:
        return all(self.known[k] for k in _read(node))


def _read(node: Node) -> list[str]:
    """Of what it is given, all of which it reads more than the shape."""
    return [k for k in node.inputs if not read_by_shape(node, k)]


def _beside_samples(reading: SampleReading, k: str) -> tuple[int, ...] | None:
    """The shape of a value of samples but for these, or of a total; None: where they lie is not known."""
    shape, rows = reading.graph.variables[k].shape, reading.some.lies.get(k)
    if rows is not None:
        return (*shape[: rows.dim], rows.rows, *shape[rows.dim + 1 :])
    return shape if k in reading.averaged and is_summed(reading.averaged[k]) else None


def _equal(a: Tensor, b: Tensor) -> bool:
    """In the places that both have."""
    if a.dim() != b.dim() or a.dtype != b.dtype:
        return False
    for dim, (one, another) in enumerate(zip(a.shape, b.shape, strict=True)):
        a, b = a.narrow(dim, 0, min(one, another)), b.narrow(dim, 0, min(one, another))
    return bool((a.nan_to_num() == b.nan_to_num()).all())


def _words(template: Any) -> Any:
    """An argument but for the names of tensors."""
    return "tensors" if next(references(template), None) else template


def _leaves(node: Node) -> Iterator[Any]:
    left: list[Any] = [*node.kwargs.values(), *node.args]
    while left:
        each = left.pop()
        if isinstance(each, list | tuple):
            left += each
        elif not isinstance(each, dict):
            yield each


def _texts(node: Node, numbers: bool = False) -> list[Any]:
    """What it is told but for whole numbers, or all of it."""
    return [each for each in _leaves(node) if numbers or type(each) is not int]
