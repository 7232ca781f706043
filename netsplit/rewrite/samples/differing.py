"""Whether what is of no sample has others for each place in the batch, where its values are not known, too.

rand(n, d), zeros(n, 1) ──► all alike, as far as places go      rand(n).sort(), arange(n) ──► by place
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from netsplit.graph.arguments import references
from netsplit.graph.ir import CALL, Graph, Node, once_of
from netsplit.graph.operators import written_storages
from netsplit.graph.storage import storage_of
from netsplit.rewrite.layouts import MemoryLayout
from netsplit.rewrite.rules.elementwise import is_elementwise
from netsplit.rewrite.samples.crossing import ALONG, NO_SUMS, dims_of, first_tensor, operator_kinds
from netsplit.rewrite.samples.of_no_sample import SHAPE_ALONE, of_no_sample, unlike_along
from netsplit.rewrite.samples.rows import CutAlong, SampleRows, variable_at
from netsplit.rewrite.ways import SplitCall

__all__ = [
    "DRAWN_ALONE",
    "DRAWN_FOR_EACH",
    "ONE_NUMBER",
    "ROW_BY_ROW",
    "alike_at",
    "alike_by_place",
    "by_place",
    "cut_by_place",
    "has_all_rows",
    "of_inputs",
    "written_alike",
]

ONE_NUMBER = operator_kinds(
    "zeros ones full empty zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty"
)
"""What makes a tensor of a single number, or of any."""
DRAWN_ALONE = operator_kinds(
    "rand randn randint rand_like randn_like randint_like bernoulli_ normal_ uniform_ random_ exponential_ "
    "geometric_ cauchy_ log_normal_"
)
"""What draws every element alone, of numbers that are the same for all."""
DRAWN_FOR_EACH = operator_kinds("bernoulli normal dropout native_dropout")
"""What draws every element by what it is given there."""
_SAME_PLACES = operator_kinds("view reshape to _to_copy type_as contiguous clone detach alias")
_FROM_THE_LAST = operator_kinds("expand expand_as broadcast_to repeat")
ROW_BY_ROW = operator_kinds("linear layer_norm rms_norm native_layer_norm softmax log_softmax")
"""Over the last dimension alone; what they are told beside is for all rows."""
_PARTS_OF_OTHERS = operator_kinds("slice select narrow copy_")
_ONE_WRITTEN = operator_kinds("fill_ zero_")
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
        if value is not None and unlike_along(value, own, samples):
            return True
        if value is not None and name not in _of_weights(graph):
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
        return [] if written_alike(graph, k, dim) else None
    if node.kind in DRAWN_ALONE:
        return []
    rank = len(graph.variables[k].shape)
    if is_elementwise(node.op) or node.kind in _FROM_THE_LAST | DRAWN_FOR_EACH:
        given = [first_tensor(_call(graph, node))] if node.kind in _FROM_THE_LAST else node.inputs
        return [(name, dim - rank + len(graph.variables[name].shape)) for name in given if name]
    if node.kind == "embedding" and dim < rank - 1:
        return [(k, dim) for tag, k in references(_call(graph, node)["indices"]) if tag == "var"] or None
    name = first_tensor(_call(graph, node))
    if not name:
        return None
    shape, made = graph.variables[name].shape, graph.variables[k].shape
    if node.kind in _SAME_PLACES:
        return [(name, own) for own in dims] if (dims := _before_reshaping(shape, made, dim)) else None
    if node.kind in ROW_BY_ROW and dim < rank - 1:
        return [(name, dim)]
    if node.kind == "unsqueeze":
        at = _call(graph, node).number("dim") % rank
        return [] if at == dim else [(name, dim - (at < dim))]
    if node.kind in NO_SUMS | ALONG | _ROWS_KEPT and len(shape) == rank:
        return None if dim in dims_of(_call(graph, node), rank) else [(name, dim)]
    return None


def _before_reshaping(shape: tuple[int, ...], made: tuple[int, ...], dim: int) -> list[int]:
    """The dimensions of the same elements before, of which one of theirs is a part, or that are parts of it;
    empty: it is none such."""
    begin = next(
        (d for d, size in enumerate(shape) if size > 1 and prod(shape[:d]) == prod(made[:dim])), None
    )
    if begin is None:
        return []
    if shape[begin] % made[dim] == 0:
        return [begin]
    ends = (end for end in range(begin + 1, len(shape) + 1) if prod(shape[begin:end]) == made[dim])
    end = next(ends, None)
    return [] if end is None else list(range(begin, end))


def _call(graph: Graph, node: Node) -> SplitCall:
    layouts = {
        k: MemoryLayout(each.shape, each.strides, each.dtype, each.requires_grad, k)
        for k in (*node.inputs, *filter(None, node.outputs))
        for each in (graph.variables[k],)
    }
    return SplitCall(node, layouts, graph.initializers)


def written_alike(graph: Graph, k: str, dim: int) -> bool:
    """Of a tensor of one number: whether nothing is written into it that has no samples, and is not the same
    in all places along a dimension.
    """
    root, shape = storage_of(graph, k), graph.variables[k].shape
    for node in graph:
        if root not in written_storages(graph, node) or not node.inputs:
            continue
        if not of_inputs(graph).isdisjoint(node.inputs[1:]):
            continue
        own = node.inputs[0]
        alone = is_elementwise(node.op) or node.kind in DRAWN_ALONE | _ONE_WRITTEN
        numbers = node.inputs[1:]
        single = all(k in graph.constants and graph.constants[k].numel() == 1 for k in node.initializers)
        if not (alone or (node.kind == "copy_" and node.initializers)) or numbers or not single:
            return False
        if graph.variables[own].shape != shape and (dim or not has_all_rows(graph, own, root)):
            return False
    return True


def has_all_rows(graph: Graph, k: str, name: str) -> bool:
    """Whether a view has all of the first dimension of a tensor that it is a view of, and parts of others."""
    if graph.variables[k].shape[:1] != graph.variables[name].shape[:1]:
        return False
    while k != name:
        maker = graph.nodes.get(graph.variables[k].producer or "")
        if maker is None or maker.kind not in _PARTS_OF_OTHERS:
            return False
        call = SplitCall(maker, {}, {})
        k = first_tensor(call)
        if maker.kind == "select" and call.number("dim") % max(len(graph.variables[k].shape), 1) == 0:
            return False
    return True


@once_of
def of_inputs(graph: Graph) -> frozenset[str]:
    """All that is made of what the graph is given."""
    made = set(graph.input_variables)
    for node in graph:
        if node.kind not in SHAPE_ALONE and not made.isdisjoint(node.inputs):
            made.update(node.outputs)
    return frozenset(made)


@once_of
def _of_weights(graph: Graph) -> frozenset[str]:
    """All that is made of parameters and buffers, of whose values the drawn ones tell only what differs."""
    made = set[str]()
    for node in graph:
        if not made.isdisjoint(node.inputs) or any(k not in graph.constants for k in node.initializers):
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
