"""Operators that make of one sample something that depends on others."""

from __future__ import annotations

from collections.abc import Mapping

from netsplit.graph.arguments import references
from netsplit.graph.ir import CALL, Graph
from netsplit.rewrite.rules.elementwise import is_elementwise
from netsplit.rewrite.rules.table import has_rule
from netsplit.rewrite.samples.rows import SampleRows
from netsplit.rewrite.ways import SplitCall

__all__ = ["crosses_samples", "operator_kinds"]


def operator_kinds(words: str) -> frozenset[str]:
    """Of operators, as `Node.kind` has them."""
    return frozenset(words.split())


_NO_SUMS = operator_kinds(
    "amax amin max min argmax argmin median nanmedian mode var std var_mean std_mean prod any all norm "
    "linalg_vector_norm logsumexp count_nonzero aminmax"
)
"""Reductions that are not linear in what they go over."""
_ALONG = operator_kinds(
    "softmax _softmax log_softmax _log_softmax cumsum cumprod logcumsumexp cummax cummin sort argsort msort "
    "topk kthvalue quantile nanquantile roll flip unique_consecutive diff renorm glu"
)
"""What makes something of a whole dimension, for every place in it."""
_PAIRS = operator_kinds("cdist _cdist_forward _euclidean_dist pdist _pdist_forward")
_OF_MATRICES = operator_kinds(
    "cov corrcoef linalg_svdvals linalg_svd linalg_qr linalg_eigvalsh linalg_matrix_norm nuclear_norm histc"
)
_PICKS = operator_kinds("index index_select take take_along_dim masked_select")
_IN_ORDER = operator_kinds("arange")


def crosses_samples(graph: Graph, call: SplitCall, lies: Mapping[str, SampleRows]) -> bool:
    """Whether it is known that it does, otherwise than by a sum or a mean over all of them."""
    node = call.node
    if node.op.startswith(CALL):
        return node.kind in _PICKS and any(k in lies for k in node.inputs)
    if not (node.args or node.kwargs):
        return False
    own = _first(call)
    if own in lies and _goes_over(graph, call, lies[own]):
        return True
    lying = [k for k in node.inputs if k in lies]
    if is_elementwise(node.op):  # broadcast: the same samples are as far from the last dimension
        return len({len(graph.variables[k].shape) - lies[k].dim for k in lying}) > 1
    products = node.kind in ("matmul", "mm", "bmm") and has_rule(node.op)
    return products and _pairs(graph, lying, lies)


def _first(call: SplitCall) -> str:
    given = next(iter(call.arguments.values()), None)
    return next((name for tag, name in references(given) if tag == "var"), "")


def _goes_over(graph: Graph, call: SplitCall, own: SampleRows) -> bool:
    """Whether an operator of one tensor goes over the dimension of its samples."""
    kind, rank = call.node.kind, len(graph.variables[_first(call)].shape)
    if kind in _NO_SUMS | _ALONG:
        return not call.has("other") and own.dim in _dims(call, rank)
    if kind in _PAIRS:
        return own.dim == rank - 2 or rank == 1
    if kind in _OF_MATRICES:
        return own.dim >= rank - 2
    if kind == "index":
        indices = list(call["indices"])
        return own.dim < len(indices) and not _in_order(graph, indices[own.dim])
    if kind in ("index_select", "take_along_dim"):
        return own.dim in _dims(call, rank)
    return kind in _PICKS


def _dims(call: SplitCall, rank: int) -> set[int]:
    given = next((call[name] for name in ("dim", "dims") if call[name] is not None), None)
    dims = given if isinstance(given, list | tuple) else [given]
    if not dims or None in dims:
        return set(range(rank)) if call.node.kind != "diff" else {rank - 1}
    return {int(str(d)) % max(rank, 1) for d in dims}


def _in_order(graph: Graph, index: object) -> bool:
    """Whether all samples are taken as they come: by their numbers, or where there is no index."""
    names = [name for tag, name in references(index) if tag == "var"]
    makers = (graph.variables[name].producer for name in names)
    return all(maker is not None and graph.nodes[maker].kind in _IN_ORDER for maker in makers)


def _pairs(graph: Graph, lying: list[str], lies: Mapping[str, SampleRows]) -> bool:
    """Whether a product has samples in its rows and in its columns."""
    ends = {len(graph.variables[k].shape) - lies[k].dim for k in lying}
    return len(lying) == 2 and ends == {1, 2}
