"""Whether a loss goes on with what is taken over all samples otherwise than a mean over samples can.

    loss ──sum──► total ──+, -, x constant──► still a mean of samples
                    └────l > total, l / total──► mixed: micro-batches would each have a total of their own

A loss may equal the mean of its micro-batches' on some samples all the same, where such a threshold leaves
none of them out; that it need not on others is seen here, without computing anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from netsplit.graph.arguments import references
from netsplit.graph.ir import CALL, Graph, Node, once_of
from netsplit.rewrite.layouts import MemoryLayout
from netsplit.rewrite.rules.table import ways_of
from netsplit.rewrite.samples.crossing import crosses_samples, operator_kinds
from netsplit.rewrite.samples.rows import (
    CutAlong,
    SampleRows,
    rows_given,
    rows_joined,
    rows_kept,
    rows_of,
)
from netsplit.rewrite.ways import PartialSum, SplitCall, Way

__all__ = ["SampleTotals", "sample_totals"]


class _Of(IntEnum):
    """What a variable is made of; an operator's outputs of what is the greatest among its inputs."""

    CONSTANT = 0  # nothing of the batch but its shape
    SAMPLES = 1
    TOTAL = 2  # linear in what is a sum or a mean over samples
    MIXED = 3


_VIEWS = operator_kinds(
    "view reshape _unsafe_view flatten unflatten squeeze unsqueeze permute transpose swapaxes swapdims "
    "movedim moveaxis t mT numpy_T expand expand_as broadcast_to select slice narrow unbind split "
    "split_with_sizes chunk index_select"
)
_LINEAR = _VIEWS | operator_kinds(
    "add add_ sub sub_ rsub subtract neg sum mean clone detach alias contiguous lift_fresh_copy cat stack"
)
_CASTS = operator_kinds("to _to_copy type_as")
_PRODUCTS = operator_kinds("mul mul_ multiply matmul mm bmm mv dot")
_QUOTIENTS = operator_kinds("div div_ divide true_divide")
_SHAPE_ALONE = operator_kinds(
    "zeros_like ones_like full_like empty_like rand_like randn_like new_zeros new_ones new_full"
)
_SCATTERED = operator_kinds(
    "index_add index_add_ scatter_add scatter_add_ scatter_reduce scatter_reduce_ bincount"
)


@dataclass(frozen=True)
class SampleTotals:
    """What a loss has that is taken over all samples.

    Args:
        mixed: the first operator that makes of a total something that is no mean over samples.
        terms: operators that take totals of samples; None where it is not known what the loss is made of, or
            not of every operator before whether it goes by samples.
        unread: code that stays whole and makes numbers of all samples, whatever they are.
    """

    mixed: Node | None
    terms: int | None
    unread: Node | None


@once_of
def sample_totals(graph: Graph) -> SampleTotals:
    """Of the loss of a training step, as it was captured.

    What is not known to be a total, as what Python code makes that stays whole, is taken for a value of
    samples.
    """
    layouts = {
        k: MemoryLayout(each.shape, each.strides, each.dtype, each.requires_grad, k)
        for k, each in graph.variables.items()
    }
    dims = zip(graph.input_variables, graph.input_dims, strict=False)
    lies = {k: SampleRows(dim, 1) for k, dim in dims if dim is not None} or rows_given(graph)
    made = dict.fromkeys(lies, _Of.SAMPLES)
    terms: dict[str, frozenset[str]] = {}  # total -> operators that take it, by their names
    first: dict[str, Node] = {}  # what is mixed -> where it became so
    unknown: set[str] = set()  # what is made by an operator that may not go by samples
    for node in graph:
        if _most(node.inputs, made) is _Of.CONSTANT or node.kind in _SHAPE_ALONE:
            continue
        call = SplitCall(node, layouts, graph.initializers)
        over = crosses_samples(graph, call, lies)
        known, totals = _totals(graph, call, lies)
        if not known or not unknown.isdisjoint(node.inputs):
            unknown.update(filter(None, node.outputs))
        own = frozenset[str]().union(*(terms.get(k, ()) for k in node.inputs))
        if any(made.get(k) is _Of.SAMPLES for k in node.inputs):
            own |= {node.name}
        for k in filter(None, node.outputs):
            made[k] = _Of.MIXED if over else _made(graph, call, k, made)
            if made[k] is _Of.SAMPLES and k in totals:
                made[k], terms[k] = _Of.TOTAL, frozenset([node.name])
            elif made[k] is _Of.TOTAL:
                terms[k] = own
            elif made[k] is _Of.MIXED:
                first[k] = next((first[each] for each in node.inputs if each in first), node)
    loss = next(iter(graph.output_variables), "")
    counted = loss in terms and loss not in unknown
    unread = (node for node in graph if node.op.startswith(CALL) and _makes_numbers(graph, node, lies))
    return SampleTotals(first.get(loss), len(terms[loss]) if counted else None, next(unread, None))


def _makes_numbers(graph: Graph, node: Node, lies: Mapping[str, SampleRows]) -> bool:
    given = any(k in lies for k in node.inputs)
    return given and any(k and not graph.variables[k].shape for k in node.outputs)


def _most(names: Iterable[str], made: Mapping[str, _Of]) -> _Of:
    return max((made.get(k, _Of.CONSTANT) for k in names), default=_Of.CONSTANT)


def _totals(graph: Graph, call: SplitCall, lies: dict[str, SampleRows]) -> tuple[bool, set[str]]:
    """Whether the operator is known to go by samples, and outputs that are taken over all samples of an
    input; `lies` gets where they lie in the others."""
    node = call.node
    cut = _along(call, lies, graph.batch_size)
    if cut is not None:
        lies |= rows_joined(cut)
        joined = zip(node.outputs, cut.way.joined, strict=True)
        return True, {k for k, how in joined if isinstance(how, PartialSum)}
    lying = any(k in lies for k in node.inputs)
    if node.kind in _VIEWS:
        return not lying, set()
    if node.kind in _SCATTERED and lying:
        return False, set(filter(None, node.outputs))
    lies |= rows_kept(graph, call, lies)
    scalars = {k for k in node.outputs if lying and k and not graph.variables[k].shape}
    return not lying or "batch_norm" in node.op, scalars


def _along(call: SplitCall, lies: Mapping[str, SampleRows], samples: int) -> CutAlong | None:
    """The operator along the samples, where it is known how that goes."""
    if call.node.op.startswith(CALL) or not (call.node.args or call.node.kwargs):
        return None
    for axis, way in ways_of(call).items():
        if isinstance(way, Way) and (rows := rows_of(call, way, lies, samples)):
            return CutAlong(call, axis, way, rows)
    return None


def _made(graph: Graph, call: SplitCall, k: str, made: Mapping[str, _Of]) -> _Of:
    """What an output is made of, if the operator itself takes no total."""
    node = call.node
    most = _most(node.inputs, made)
    if most is not _Of.TOTAL or node.op.startswith(CALL):
        return most
    dtype = graph.variables[k].dtype
    linear = node.kind in _LINEAR or (node.kind in _CASTS and "float" in dtype)
    if node.kind in _PRODUCTS:
        factors = (name for tag, name in references([*node.args, *node.kwargs.values()]) if tag == "var")
        linear = sum(made.get(each, _Of.CONSTANT) > _Of.CONSTANT for each in factors) == 1
    elif node.kind in _QUOTIENTS:
        linear = _of(call, "other", made) is _Of.CONSTANT
    elif node.kind == "where":
        linear = _of(call, "condition", made) is _Of.CONSTANT
    return _Of.TOTAL if linear else _Of.MIXED


def _of(call: SplitCall, argument: str, made: Mapping[str, _Of]) -> _Of:
    return _most((name for tag, name in references(call[argument]) if tag == "var"), made)
