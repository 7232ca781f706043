"""Operators that make of one sample something that depends on others."""

from __future__ import annotations

from collections.abc import Mapping

from netsplit.graph.arguments import references
from netsplit.graph.ir import CALL, Graph
from netsplit.rewrite.rules.elementwise import is_elementwise
from netsplit.rewrite.rules.table import has_rule
from netsplit.rewrite.samples.rows import SampleRows, variable_at
from netsplit.rewrite.ways import SplitCall

__all__ = [
    "ALONG",
    "NO_SUMS",
    "OF_CLASSES",
    "OF_MATRICES",
    "OF_TWO",
    "POOLED",
    "RECURRENT",
    "crosses_samples",
    "dims_of",
    "first_tensor",
    "operator_kinds",
    "pooled_dims",
]  # fmt: skip


def operator_kinds(words: str) -> frozenset[str]:
    """Of operators, as `Node.kind` has them."""
    return frozenset(words.split())


NO_SUMS = operator_kinds(
    "amax amin max min argmax argmin median nanmedian mode var std var_mean std_mean prod any all norm "
    "linalg_vector_norm linalg_norm logsumexp count_nonzero aminmax nansum nanmean"
)
"""Reductions that are not linear in what they go over."""
ALONG = operator_kinds(
    "softmax _softmax log_softmax _log_softmax cumsum cumprod logcumsumexp cummax cummin sort argsort msort "
    "topk kthvalue quantile nanquantile roll flip fliplr flipud unique_consecutive diff gradient renorm glu "
    "histc trapezoid trapz"
)
"""What makes something of a whole dimension, for every place in it."""
_PAIRS = operator_kinds("cdist _cdist_forward _euclidean_dist pdist _pdist_forward outer ger kron")
OF_MATRICES = operator_kinds(
    "tril triu tril_ triu_ cov corrcoef nuclear_norm det logdet slogdet inverse pinverse matrix_exp "
    "matrix_power cholesky cholesky_solve cholesky_inverse qr svd lu_solve triangular_solve logm"
)
_BY_PLACE = operator_kinds("diagonal linalg_diagonal trace diag")
_OF_VECTORS = operator_kinds("linalg_vector_norm linalg_norm linalg_vecdot linalg_cross linalg_multi_dot")
"""Of those of linear algebra what is told which dimensions to go over."""
_PICKS = operator_kinds("index index_select take take_along_dim masked_select")
_IN_ORDER = operator_kinds("arange")
_AS_IT_COMES = operator_kinds("unsqueeze view reshape expand to _to_copy")
_OWN_DIM = {"diff": -1, "flipud": 0, "fliplr": 1}
"""Of what goes over one dimension without being told."""
OF_TWO = operator_kinds(
    "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div "
    "soft_margin_loss poisson_nll_loss broadcast_tensors cosine_similarity pairwise_distance"
)
"""Of two tensors, element by element or row by row."""
OF_CLASSES = operator_kinds("cross_entropy_loss nll_loss nll_loss_nd nll_loss2d")
RECURRENT = operator_kinds("lstm gru rnn_tanh rnn_relu")
POOLED = operator_kinds(
    "max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices "
    "max_pool3d_with_indices avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d "
    "adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d "
    "adaptive_max_pool3d fractional_max_pool2d fractional_max_pool3d max_unpool2d max_unpool3d "
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d "
    "upsample_bicubic2d upsample_trilinear3d "
    "_upsample_bilinear2d_aa _upsample_bicubic2d_aa"
)
"""Over the last dimensions, as many as their names say."""
_EVERY_PAIR = operator_kinds("isin meshgrid linalg_multi_dot chain_matmul inner addr addr_")
_REDUCED = operator_kinds("scatter_reduce scatter_reduce_ index_reduce index_reduce_")
"""Of what they are told: a sum, or what is none."""
_IN_A_DIAGONAL = operator_kinds("diag diag_embed diagflat")
"""Of a vector a matrix, whose mean is over its zeros, too."""


def crosses_samples(graph: Graph, call: SplitCall, lies: Mapping[str, SampleRows]) -> bool:
    """Whether the operator is known to mix samples, other than by a sum or a mean over all of them.

    Args:
        call: an operator that has no way along the samples.
        lies: where the samples lie.
    """
    node = call.node
    if node.op.startswith(CALL):
        return node.kind in _PICKS and any(k in lies for k in node.inputs)
    if not (node.args or node.kwargs):
        return False
    own = first_tensor(call)
    if own in lies and _goes_over(graph, call, lies):
        return True
    if node.kind in _REDUCED:
        return call["reduce"] != "sum" and any(k in lies for k in node.inputs)
    lying = [k for tag, k in references(node.args) if tag == "var" and k in lies]  # one may be given twice
    if node.kind in _EVERY_PAIR or (node.kind == "linear" and call.has("weight")):
        return len(lying) > 1
    if is_elementwise(node.op) or node.kind in OF_TWO:  # the same samples are as far from the last dimension
        return len({len(graph.variables[k].shape) - lies[k].dim for k in lying}) > 1
    if node.kind == "tensordot":
        return _pairs_by_dims(call, lies)
    products = node.kind in ("matmul", "mm", "bmm") and has_rule(node.op)
    return products and _pairs(graph, lying, lies)


def first_tensor(call: SplitCall) -> str:
    """The name of what an operator is given first; "" of an initializer, or where that is no tensor."""
    given = next(iter(call.arguments.values()), None)
    return next((name for tag, name in references(given) if tag == "var"), "")


def _goes_over(graph: Graph, call: SplitCall, lies: Mapping[str, SampleRows]) -> bool:
    """Whether an operator of one tensor goes over the dimension of its samples."""
    own = lies[first_tensor(call)]
    kind, rank = call.node.kind, len(graph.variables[first_tensor(call)].shape)
    if kind in OF_CLASSES:
        return own.dim == (1 if rank > 1 else 0)
    if (
        kind.startswith("conv")
        and call.has("input")
        and call.has("weight")
        and call.rank("input") != call.rank("weight")
    ):
        return True  # over the samples as if they were a place or a channel
    if kind in POOLED:
        return own.dim >= rank - pooled_dims(kind)
    if kind == "as_strided" or (kind in _IN_A_DIAGONAL and rank == 1):
        return True
    if kind in ("renorm", "renorm_"):  # by the norm of all but this
        return own.dim not in dims_of(call, rank)
    if kind in NO_SUMS | ALONG or kind.startswith("fft_"):
        return not call.has("other") and own.dim in dims_of(call, rank)
    if kind in _PAIRS:
        return (own.dim == rank - 2 or rank == 1) and len(call.tensors) == _samples_of(call, lies)
    if kind in _BY_PLACE:
        firsts = [call[name] for name in ("dim1", "dim2")]
        return own.dim in {d % rank for d in (firsts if None not in firsts else (0, 1)) if rank > 1}
    if kind in OF_MATRICES or (kind.startswith("linalg_") and kind not in _OF_VECTORS):
        return own.dim >= rank - 2
    if kind == "index":
        indices = list(call["indices"])
        return own.dim < len(indices) and not _rows_first(graph, indices, own.dim)
    told = call["dim"] is not None and own.dim in dims_of(call, rank)
    return told or kind in _PICKS - {"index_select", "take_along_dim"}


def _samples_of(call: SplitCall, lies: Mapping[str, SampleRows]) -> int:
    """How many of its tensors have samples, as points of a codebook have not."""
    return sum(variable_at(call, place) in lies for place in call.tensors)


def dims_of(call: SplitCall, rank: int) -> set[int]:
    """The dimensions that an operator is told to go over; all, where it is told none."""
    given = next((call[name] for name in ("dim", "dims") if call[name] is not None), None)
    dims = given if isinstance(given, list | tuple) else [given]
    if not dims or None in dims:
        own = _OWN_DIM.get(call.node.kind)
        return set(range(rank)) if own is None else {own % max(rank, 1)}
    return {int(str(d)) % max(rank, 1) for d in dims}


def pooled_dims(kind: str) -> int:
    """How many of the last dimensions a pooling or an interpolation goes over, by its kind."""
    return int(next(c for c in kind if c.isdigit()))


def _rows_first(graph: Graph, indices: list[object], dim: int) -> bool:
    """Whether all samples are taken as they come, and lie along the first dimension of the indices."""
    if not _in_order(graph, indices[dim]):
        return False
    shapes = [graph.variables[k].shape for index in indices for tag, k in references(index) if tag == "var"]
    own = [graph.variables[k].shape for tag, k in references(indices[dim]) if tag == "var"]
    return all(len(shape) == max(map(len, shapes)) and set(shape[1:]) <= {1} for shape in own)


def _in_order(graph: Graph, index: object) -> bool:
    """Whether all samples are taken as they come: by their numbers, or where there is no index."""
    names = [name for tag, name in references(index) if tag == "var"]
    makers = [graph.nodes.get(graph.variables[name].producer or "") for name in names]
    return all(
        maker is not None
        and (maker.kind in _IN_ORDER or (maker.kind in _AS_IT_COMES and _in_order(graph, maker.args)))
        for maker in makers
    )


def _pairs_by_dims(call: SplitCall, lies: Mapping[str, SampleRows]) -> bool:
    """Whether both tensors of a product have samples, and it does not go over those of both."""
    summed = []
    for tensor, dims in (("self", "dims_self"), ("other", "dims_other")):
        name = next((k for tag, k in references(call[tensor]) if tag == "var"), "")
        if name not in lies:
            return False
        summed.append(lies[name].dim in {d % len(call.layouts[name].shape) for d in call[dims]})
    return not all(summed)


def _pairs(graph: Graph, lying: list[str], lies: Mapping[str, SampleRows]) -> bool:
    """Whether a product has samples in its rows and in its columns."""
    ends = {len(graph.variables[k].shape) - lies[k].dim for k in lying}
    return len(lying) == 2 and ends == {1, 2}
