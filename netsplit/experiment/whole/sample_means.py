"""Whether a loss is, as its graph says, the mean of what every sample makes by itself: nothing is computed.

    inputs ──samples in a dimension of each──► operators that take every sample by itself ──► a mean ──► loss

The rules are those by which `rewrite` cuts operators along their samples. What depends on how many samples
there are (a sum divided by a batch's size, targets that are counted) shows in a graph of another number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from netsplit.graph.arguments import read_by, references
from netsplit.graph.ir import CALL, Graph, Node
from netsplit.graph.operators import over_the_batch, resolve, written_references
from netsplit.rewrite.data_parallel import SampleRows, rows_of_samples, samples_in_outputs
from netsplit.rewrite.rules.table import has_rule, ways_of
from netsplit.rewrite.ways import PartialSum, SplitCall, Way

__all__ = ["mean_over_samples"]

_VIEWS = ("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default", "aten.unflatten.int")
_FILLED = (
    "aten.expand.default", "aten.zeros.default", "aten.ones.default", "aten.full.default",
    "aten.new_zeros.default", "aten.new_ones.default", "aten.new_full.default",
)  # fmt: skip
_SIZED = (*_VIEWS, *_FILLED)
"""Whose lists of whole numbers are the sizes of what they make."""
_HANDED_ON = (
    *_VIEWS, "aten.flatten.using_ints", "aten.squeeze.default", "aten.squeeze.dim", "aten.unsqueeze.default",
    "aten.slice.Tensor", "aten.select.int", "aten.permute.default", "aten.transpose.int",
    "aten.contiguous.default", "aten.clone.default", "aten.alias.default", "aten.detach.default",
)  # fmt: skip
"""Whose outputs have no elements but those of their input."""
_SUMS = ("aten.add.Tensor", "aten.sub.Tensor")
_PRODUCTS = ("aten.mul.Tensor", "aten.mul.Scalar", "aten.div.Tensor", "aten.div.Scalar")
_MEAN = 1  # as losses have their argument `reduction`


def mean_over_samples(graph: Graph, other: Graph, norms: Collection[str]) -> dict[int, set[int]] | None:
    """None where it cannot be told; else what is not to be among the inputs, as such targets do not count.

    Args:
        graph, other: one step at two numbers of samples, two or more.
        norms: paths of batch normalisations, which are taken as they are in evaluation.

    Returns:
        Place among the inputs -> numbers of classes.
    """
    fewest = min(graph.batch_size, other.batch_size)
    if fewest < 2 or graph.batch_size == other.batch_size or list(graph.nodes) != list(other.nodes):
        return None
    made, again = _SampleWalk.of(graph, other, norms), _SampleWalk.of(other, graph, norms)
    if not (made.follow() and again.follow()) or made.ignored != again.ignored:
        return None
    return {graph.input_variables.index(k): classes for k, classes in made.ignored.items()}


@dataclass
class _SampleWalk:
    """Where the samples lie in every variable; those in neither `lies` nor `means` are the same for all."""

    graph: Graph
    other: Graph
    norms: Collection[str]
    lies: dict[str, SampleRows]
    means: set[str] = field(default_factory=set)  # over samples, of what each makes by itself
    ignored: dict[str, set[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph, other: Graph, norms: Collection[str]) -> _SampleWalk:
        names = graph.input_variables
        dims = graph.input_dims or (0,) * len(names)
        lies = {k: SampleRows(d, 1) for k, d in zip(names, dims, strict=True) if d is not None}
        return cls(graph, other, norms, lies)

    def follow(self) -> bool:
        """Whether the loss is such a mean, or the same for all."""
        for node in self._towards_the_loss():
            if not self._follows(node, self.other.nodes[node.name]):
                return False
        return self.graph.output_variables[0] in self.means

    def _towards_the_loss(self) -> list[Node]:
        """What the loss comes of, and all that writes into a tensor."""
        wanted, nodes = {self.graph.output_variables[0]}, list[Node]()
        for node in reversed(list(self.graph)):
            written = not node.op.startswith(CALL) and written_references(self.graph, node)
            if written or not wanted.isdisjoint(node.outputs):
                wanted.update(node.inputs)
                nodes.append(node)
        return nodes[::-1]

    def _follows(self, node: Node, again: Node) -> bool:
        if node.op.startswith(CALL) or node.op != again.op or _arguments(node) != _arguments(again):
            return False
        if {k for tag, k in read_by(node) if tag == "var"} != {*node.inputs}:
            return False
        if not self.means.isdisjoint(node.inputs):
            return self._is_still_a_mean(node)
        if self.lies.keys().isdisjoint(node.inputs):
            return self._filled(node, again)
        if node.module in self.norms and over_the_batch(node):
            return self._normalised(node)
        return self._may_write(node) and self._by_samples(node)

    def _by_samples(self, node: Node) -> bool:
        """Whether an operator takes every sample by itself, or makes a mean over them."""
        node = _not_in_place(node)
        call = SplitCall(node, self.graph.variables, self.graph.initializers)
        ways = (way for way in ways_of(call).values() if isinstance(way, Way))
        fitting = ((way, rows_of_samples(call, way, self.lies, self.graph.batch_size)) for way in ways)
        way, rows = next(((way, rows) for way, rows in fitting if rows), (None, 0))
        if way is None:
            return False
        made = samples_in_outputs(call, way, rows)
        if made.keys() != {*filter(None, node.outputs)}:
            return self._is_a_mean(call, way)
        self.lies |= made
        return True

    def _is_a_mean(self, call: SplitCall, way: Way) -> bool:
        if way.joined == (PartialSum(mean=True),):
            self.means.update(call.node.outputs)
            return True
        if way.last is None or not call.has("target") or call["reduction"] != _MEAN:
            return False
        source = self._source(call["target"])
        if source is None:
            return False
        self.ignored.setdefault(source, set()).add(call.number("ignore_index"))
        self.means.update(call.node.outputs)
        return True

    def _source(self, template: Any) -> str | None:
        """The input whose elements a tensor has; None: it has others."""
        ((tag, k),) = references(template)
        while tag == "var" and k not in self.graph.input_variables:
            node = self.graph.nodes[self.graph.variables[k].producer or ""]
            if node.op not in _HANDED_ON:
                return None
            ((tag, k),) = read_by(node)
        return k if tag == "var" else None

    def _is_still_a_mean(self, node: Node) -> bool:
        """Sums of such means and of what is the same for all, and products with that."""
        read = [k for tag, k in read_by(node) if tag == "var"]
        if not self.lies.keys().isdisjoint(read) or written_references(self.graph, node):
            return False
        factor = node.op in _PRODUCTS and sum(k in self.means for k in read) == 1
        if factor and "div" in node.op:
            factor = self.means.issuperset(k for _, k in references(node.args[0]))
        if not (factor or node.op in _SUMS):
            return False
        self.means.update(node.outputs)
        return True

    def _filled(self, node: Node, again: Node) -> bool:
        """What reads no sample is the same for all, or has in every sample the same."""
        for k, other in zip(node.outputs, again.outputs, strict=True):
            if not k:
                continue
            shape, there = self.graph.variables[k].shape, self.other.variables[other].shape
            unlike = [d for d, (one, two) in enumerate(zip(shape, there, strict=False)) if one != two]
            if len(shape) != len(there) or len(unlike) > 1 or (unlike and node.op not in _FILLED):
                return False
            for d in unlike:
                rows, rest = divmod(shape[d], self.graph.batch_size)
                if rest or there[d] != rows * self.other.batch_size:
                    return False
                self.lies[k] = SampleRows(d, rows)
        return True

    def _normalised(self, node: Node) -> bool:
        """By statistics that are not those of the batch, in evaluation: channels are the second dimension."""
        own = [self.lies.get(k) for k in node.inputs]
        if len(own) != 1 or own[0] is None or own[0].dim == 1:
            return False
        self.lies.update((k, own[0]) for k in node.outputs if k)
        return True

    def _may_write(self, node: Node) -> bool:
        """What depends on samples is written to where samples lie already, and not to a buffer."""
        return all(tag == "var" and k in self.lies for tag, k in written_references(self.graph, node))


def _arguments(node: Node) -> tuple[list[Any], Mapping[str, Any]]:
    """Those that may not depend on how many samples there are."""
    if node.op not in _SIZED:
        return list(node.args), node.kwargs
    args = [each for each in node.args if not _are_sizes(each)]
    return args, {name: each for name, each in node.kwargs.items() if not _are_sizes(each)}


def _are_sizes(template: Any) -> bool:
    return isinstance(template, list | tuple) and all(type(each) is int for each in template)


def _not_in_place(node: Node) -> Node:
    """The node as if it made another tensor, where it writes in place by an operator that has such a form."""
    if has_rule(node.op):
        return node
    return next((replace(node, op=op) for op in _forms(node.op)), node)


def _forms(op: str) -> Iterator[str]:
    space, name, overload = op.split(".")
    if name.endswith("_"):
        other = f"{space}.{name.rstrip('_')}.{overload}"
        try:
            resolve(other)
        except AttributeError:
            return
        yield other
