"""Whether what is of no sample has others for each place in the batch, where its values are not known, too.

rand(n, d), zeros(n, 1) ──► all alike, as far as places go      rand(n).sort(), arange(n) ──► by place
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from netsplit.graph.ir import CALL, Graph, Node, once_of
from netsplit.graph.operators import written_storages
from netsplit.graph.storage import storage_of
from netsplit.rewrite.layouts import MemoryLayout
from netsplit.rewrite.rules.elementwise import is_elementwise
from netsplit.rewrite.samples.crossing import ALONG, NO_SUMS, dims_of, first_tensor, operator_kinds
from netsplit.rewrite.samples.of_no_sample import of_no_sample, unlike_along
from netsplit.rewrite.samples.rows import CutAlong, SampleRows, variable_at
from netsplit.rewrite.ways import SplitCall

__all__ = ["ONE_NUMBER", "alike_at", "alike_by_place", "by_place", "cut_by_place"]

ONE_NUMBER = operator_kinds(
    "zeros ones full empty zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty"
)
"""What makes a tensor of a single number, or of any."""
_DRAWN_APART = operator_kinds(
    "rand randn randint rand_like randn_like randint_like bernoulli bernoulli_ normal normal_ uniform_ "
    "random_ exponential_ geometric_ cauchy_ log_normal_ dropout native_dropout"
)
"""What draws every element alone, of numbers that are the same for all."""
_SAME_PLACES = operator_kinds("view reshape to _to_copy type_as contiguous clone detach alias")
_FROM_THE_LAST = operator_kinds("expand expand_as broadcast_to")
_ROWS_KEPT = operator_kinds("argsort argmax argmin")


def _differs(graph: Graph, k: str, dim: int, samples: int) -> bool | None:
    """None: it is not known.

    Args:
        k: a variable that has no sample.
        dim: of k, along which it lies beside the samples, or other places.
    """
    left, seen = [(k, dim)], set[tuple[str, int]]()
    while left:
        name, own = left.pop()
        shape = graph.variables[name].shape
        if (name, own) in seen or own < 0 or shape[own] == 1:
            continue
        seen.add((name, own))
        value = of_no_sample(graph).value(name)
        if value is not None:
            if unlike_along(value, own, samples):
                return True
            continue
        node = graph.nodes.get(graph.variables[name].producer or "")
        before = None if node is None or node.op.startswith(CALL) else _before(graph, node, name, own)
        if before is None:
            return None
        left += before
    return False


def _before(graph: Graph, node: Node, k: str, dim: int) -> list[tuple[str, int]] | None:
    """The inputs of which an output is made place by place, and along which dimensions; None: not known."""
    if node.kind in ONE_NUMBER:
        return [] if _written_as_a_whole(graph, k) else None
    if node.kind in _DRAWN_APART:
        return []
    rank = len(graph.variables[k].shape)
    if is_elementwise(node.op) or node.kind in _FROM_THE_LAST:
        given = [first_tensor(_call(graph, node))] if node.kind in _FROM_THE_LAST else node.inputs
        return [(name, dim - rank + len(graph.variables[name].shape)) for name in given if name]
    name = first_tensor(_call(graph, node))
    if not name:
        return None
    shape, made = graph.variables[name].shape, graph.variables[k].shape
    if node.kind in _SAME_PLACES:
        own = _before_reshaping(shape, made, dim)
        return None if own is None else [(name, own)]
    if node.kind == "unsqueeze":
        at = _call(graph, node).number("dim") % rank
        return [] if at == dim else [(name, dim - (at < dim))]
    if node.kind in NO_SUMS | ALONG | _ROWS_KEPT and len(shape) == rank:
        return None if dim in dims_of(_call(graph, node), rank) else [(name, dim)]
    return None


def _before_reshaping(shape: tuple[int, ...], made: tuple[int, ...], dim: int) -> int | None:
    """The dimension that begins where one of the same elements in other dimensions does, of which it is a
    part, or which is a part of it."""
    for own, size in enumerate(shape):
        if size > 1 and prod(shape[:own]) == prod(made[:dim]):
            return own if not (size % made[dim] and made[dim] % size) else None
    return None


def _call(graph: Graph, node: Node) -> SplitCall:
    layouts = {
        k: MemoryLayout(each.shape, each.strides, each.dtype, each.requires_grad, k)
        for k in (*node.inputs, *filter(None, node.outputs))
        for each in (graph.variables[k],)
    }
    return SplitCall(node, layouts, graph.initializers)


def _written_as_a_whole(graph: Graph, k: str) -> bool:
    """Whether nothing writes into a part of it what has no samples."""
    root, shape = storage_of(graph, k), graph.variables[k].shape
    for node in graph:
        if root not in written_storages(graph, node) or not node.inputs:
            continue
        whole = graph.variables[node.inputs[0]].shape == shape
        alone = is_elementwise(node.op) or node.kind in _DRAWN_APART | operator_kinds("fill_ zero_")
        if not (whole and alone) and _of_inputs(graph).isdisjoint(node.inputs[1:]):
            return False
    return True


@once_of
def _of_inputs(graph: Graph) -> frozenset[str]:
    """All that is made of what the graph is given."""
    made = set(graph.input_variables)
    for node in graph:
        if not made.isdisjoint(node.inputs):
            made.update(node.outputs)
    return frozenset(made)


def by_place(graph: Graph, call: SplitCall, lies: Mapping[str, SampleRows], samples: int) -> bool | None:
    """Whether an operator gives each sample what goes by its place in the batch and is no sample's; None: it
    is not known.

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
    beside = [(k, len(graph.variables[k].shape) - from_last) for k in call.node.inputs if k not in lies]
    return _any(
        _differs(graph, k, dim, samples)
        for k, dim in beside
        if dim >= 0 and graph.variables[k].shape[dim] == samples * rows
    )


def cut_by_place(graph: Graph, cut: CutAlong, lies: Mapping[str, SampleRows], samples: int) -> bool | None:
    """Whether an operator's parts along the samples are given what goes by their place and is no sample's;
    None: it is not known."""
    beside = [(variable_at(cut.call, place), where.dim) for place, where in cut.way.cut.items()]
    return _any(
        _differs(graph, k, dim, samples)
        for k, dim in beside
        if k and k not in lies and samples > 1 and graph.variables[k].shape[dim] % samples == 0
    )


def alike_by_place(graph: Graph, k: str, laid: Mapping[str, SampleRows], samples: int) -> bool:
    """Whether a variable is known to have the same for every place in the batch.

    One that has samples is not looked at.

    Args:
        laid: where others that are computed with have the samples.
    """
    if k in laid or samples < 2:
        return True
    sizes = {samples * each.rows for each in laid.values()}
    dims = [dim for dim, size in enumerate(graph.variables[k].shape) if size in sizes]
    return all(_differs(graph, k, dim, samples) is False for dim in dims)


def alike_at(graph: Graph, k: str, dim: int, places: int) -> bool:
    """Whether what is of no sample is known to have the same at each of so many places along a dimension."""
    shape = graph.variables[k].shape
    return dim < len(shape) and not shape[dim] % places and _differs(graph, k, dim, places) is False


def _any(differ: Iterable[bool | None]) -> bool | None:
    """Whether one does; None: none is known to, but of one it is not known."""
    each = set(differ)
    return True if True in each else None if None in each else False
