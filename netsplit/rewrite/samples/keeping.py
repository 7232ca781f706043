"""Operators without a way along the samples that keep them apart all the same, and where these lie then.

    y ──one_hot──► [n, classes]     x ──max_pool2d──► of all dimensions but the last two

Of any other it is not known whether it goes sample by sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from netsplit.graph.arguments import references
from netsplit.graph.ir import CALL, Graph
from netsplit.graph.storage import storage_of
from netsplit.rewrite.rules.elementwise import is_elementwise
from netsplit.rewrite.samples.averaged import is_loss
from netsplit.rewrite.samples.crossing import (
    ALONG,
    NO_SUMS,
    OF_CLASSES,
    OF_MATRICES,
    OF_TWO,
    POOLED,
    RECURRENT,
    dims_of,
    first_tensor,
    operator_kinds,
    pooled_dims,
)
from netsplit.rewrite.samples.differing import (
    ONE_NUMBER,
    alike_at,
    alike_by_place,
    has_all_rows,
    written_alike,
)
from netsplit.rewrite.samples.of_no_sample import of_no_sample
from netsplit.rewrite.samples.operator_samples import Kept, OperatorSamples
from netsplit.rewrite.samples.rows import SampleRows
from netsplit.rewrite.samples.some import PIECES
from netsplit.rewrite.ways import SplitCall

__all__ = ["BESIDE", "first_of_all", "kept_apart"]

_ALIGNED = OF_TWO | operator_kinds(
    "poisson_nll_loss hinge_embedding_loss margin_ranking_loss soft_margin_loss bernoulli_ normal_ uniform_ "
    "random_ exponential_ geometric_ cauchy_ log_normal_ copy_ fill_ zero_ masked_fill masked_fill_ _conj "
    "_neg_view resolve_conj resolve_neg native_dropout dropout alpha_dropout to _to_copy type_as "
    "__and__ __or__ __xor__ __iand__ __ior__ "
    "floor_divide floor_divide_ where real imag rsub isclose isreal polar complex special_polygamma "
    "special_ndtr"
)
"""Of one or more tensors, element by element, and losses of such."""
_ROW_LOSSES = operator_kinds(
    "multi_margin_loss multilabel_margin_loss multilabel_margin_loss_forward cosine_embedding_loss "
    "triplet_margin_loss"
)
"""Of rows [samples, values]; one row alone has its values along the first dimension."""
BESIDE = _ALIGNED | _ROW_LOSSES
"""Of tensors that have samples in the same dimension."""
_OVER_LAST = operator_kinds("pairwise_distance")
_BY_FIRST = operator_kinds(
    "grid_sampler grid_sampler_2d grid_sampler_3d affine_grid_generator feature_dropout feature_dropout_ "
    "feature_alpha_dropout feature_alpha_dropout_ multinomial"
)
"""Whose first dimension is none of what they compute with, of tensors with several."""
_BUT_LAST = operator_kinds("bilinear _trilinear view_as_real view_as_complex one_hot")
_SCATTERED = operator_kinds(
    "gather scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_ index_select index_add "
    "index_fill index_copy take_along_dim"
)
_SIZED = operator_kinds("expand expand_as broadcast_to repeat tile")
_SIDE_BY_SIDE = {"hstack": 2, "column_stack": 1, "dstack": 3}
"""Of tensors with so many dimensions at least, along another than the first."""
_LOOKED_UP = {"isin": "elements", "bucketize": "self", "searchsorted": "self"}
"""Each number of one tensor in another."""
_UNBATCHED = {"im2col": 3, "col2im": 2, "stft": 1, "istft": 2, "channel_shuffle": 1, "pixel_unshuffle": 3}
"""How many dimensions they have of a single sample."""
_OVERWRITTEN = operator_kinds("copy_ fill_ zero_")
_BY_NUMBERS = operator_kinds("index")
_WEIGHED = operator_kinds("dot mv vdot inner")
_TWO_SETS = operator_kinds("cdist _cdist_forward _euclidean_dist")


def kept_apart(graph: Graph, call: SplitCall, lies: Mapping[str, SampleRows], samples: int) -> Kept | None:
    """Where samples lie in the outputs of an operator that knows nothing of one sample in another; those of
    a sum or a mean over them are not among these. None: it is not known to.

    Args:
        call: an operator that has no way along the samples.
        lies: where all or some of them lie, in order.
        samples: how many these are.
    """
    if call.node.op.startswith(CALL) or not (call.node.args or call.node.kwargs):
        return None
    looked = OperatorSamples(graph, call, lies, samples)
    kind, given = call.node.kind, call.node.inputs if call.node.kind not in _BY_NUMBERS else ()
    if kind in _OVERWRITTEN:
        given = given[1:]
    if not looked.laid or not all(alike_by_place(graph, k, looked.laid, samples) for k in given):
        return None
    for kinds, rule in _RULES:
        if kind in kinds:
            return rule(looked)
    if kind in _LOOKED_UP:
        return _looked_up(looked, _LOOKED_UP[kind])
    if kind in _SIDE_BY_SIDE or kind in _UNBATCHED:
        return _by_first(looked, _SIDE_BY_SIDE.get(kind) or 1 + _UNBATCHED[kind])
    if kind.startswith("conv"):
        return _by_own_filters(looked)
    if kind.startswith("fft_"):
        return _along_others(looked)
    if kind.startswith("linalg_") and kind != "linalg_diagonal":
        return _of_matrices(looked)
    return _aligned(looked) if is_elementwise(call.node.op) else None


def first_of_all(graph: Graph, k: str, name: str, rows: SampleRows | None) -> bool:
    """Whether what is written into k, a view of a tensor of one number, leaves samples in the first dimension
    of that: k has all of this dimension, and a part of others.

    Args:
        name: of the tensor, or a view of it that k is a view of.
        rows: where samples lie in k.
    """
    root = storage_of(graph, k)
    base = graph.nodes.get(graph.variables[root].producer or "") if root in graph.variables else None
    if rows is None or rows.dim or base is None or base.kind not in ONE_NUMBER:
        return False
    return has_all_rows(graph, k, name) and written_alike(graph, root, 0)


def _aligned(looked: OperatorSamples) -> Kept | None:
    """As the elements of one are those of another, counted from the last dimension."""
    ends = {(looked.rank(k) - rows.dim, rows.rows) for k, rows in looked.laid.items()}
    if len(ends) != 1:
        return None
    ((from_last, rows),) = ends
    if is_loss(looked.call) and looked.call["reduction"] not in (None, 0):
        return {}
    made: Kept = {}
    for k in filter(None, looked.call.node.outputs):
        dim = looked.rank(k) - from_last
        if dim < 0 or looked.shape(k)[dim] != looked.samples * rows:
            return None
        made[k] = SampleRows(dim, rows)
    return made


def _over_last(looked: OperatorSamples) -> Kept | None:
    rows = looked.same_rows
    if rows is None or rows.dim >= min(map(looked.rank, looked.laid)) - 1:
        return None
    return looked.kept(rows.dim, rows)


def _similarity(looked: OperatorSamples) -> Kept | None:
    """Of two tensors, over one dimension of both."""
    rows = looked.same_rows
    rank = max(map(looked.rank, looked.laid))
    over = looked.call.number("dim") % rank
    if rows is None or over == rows.dim:
        return None
    return looked.kept(rows.dim - (over < rows.dim), rows)


def _row_loss(looked: OperatorSamples) -> Kept | None:
    targets = looked.name("target")
    ranks = [looked.rank(k) for k in looked.laid if k != targets]
    if not looked.first_everywhere(1) or not ranks or min(ranks) < 2:
        return None
    return looked.of_loss(0, next(iter(looked.laid.values())))


def _of_probabilities(looked: OperatorSamples) -> Kept | None:
    """A cross entropy with a probability of every class for a target."""
    scores, targets = (looked.name(each) for each in ("self", "target"))
    if not {scores, targets} <= looked.laid.keys() or looked.shape(scores) != looked.shape(targets):
        return None
    return looked.of_loss(0, looked.laid[scores]) if looked.first_everywhere(2) else None


def _by_first(looked: OperatorSamples, least_rank: int = 2) -> Kept | None:
    alike = len(set(looked.laid.values())) == 1 and looked.first_everywhere(least_rank)
    return looked.kept(0, next(iter(looked.laid.values()))) if alike else None


def _looked_up(looked: OperatorSamples, argument: str) -> Kept | None:
    name = looked.name(argument)
    return looked.kept(looked.laid[name].dim, looked.laid[name]) if looked.laid.keys() == {name} else None


def _windows(looked: OperatorSamples) -> Kept | None:
    """Along another dimension, those of it last."""
    own, over = looked.own, looked.call.number("dimension") % looked.rank()
    return looked.kept(own.dim, own) if own is not None and own.dim != over else None


def _diagonal(looked: OperatorSamples) -> Kept | None:
    own = looked.own
    gone = {looked.call.number(name) % looked.rank() for name in ("dim1", "dim2")}
    return None if own is None or own.dim in gone else _without(looked, gone)


def _by_mask(looked: OperatorSamples) -> Kept | None:
    """`x[x > 5] = 0`: one number, where a mask says so."""
    call, masks = looked.call, list(looked.call["indices"])
    names = [k for each in masks for tag, k in references(each) if tag == "var"]
    value = looked.name("values")
    if len(names) != 1 or value in looked.laid or looked.graph.variables[names[0]].dtype != "bool":
        return None
    if call.rank("values") or looked.shape(names[0]) != call.shape("self")[: looked.rank(names[0])]:
        return None
    rows = looked.laid.get(names[0]) or next(iter(looked.laid.values()))
    return looked.kept(rows.dim, rows) if set(looked.laid.values()) == {rows} else None


def _but_last(looked: OperatorSamples) -> Kept | None:
    rows, kind = looked.rows_alike, looked.call.node.kind
    if rows is None or looked.name("weight") in looked.laid:
        return None
    if rows.dim >= looked.rank() - 1 and kind not in ("one_hot", "view_as_real"):
        return None
    return looked.kept(rows.dim, rows)


def _pool(looked: OperatorSamples) -> Kept | None:
    rows = looked.same_rows
    if rows is None or rows.dim >= looked.rank() - pooled_dims(looked.call.node.kind):
        return None
    return looked.kept(rows.dim, rows)


def _along_others(looked: OperatorSamples) -> Kept | None:
    """Over the dimensions that it is told, which may be gone then."""
    rank, made, over = looked.rank(), looked.rank(looked.call.node.outputs[0]), _others(looked)
    if over is None or made not in (rank, rank - len(over)):
        return None
    return _without(looked, over if made < rank else set())


def _piece(looked: OperatorSamples) -> Kept | None:
    over = _others(looked)
    gone = looked.call.node.kind in ("select", "unbind")
    return None if over is None else _without(looked, over if gone else set())


def _others(looked: OperatorSamples) -> set[int] | None:
    """The dimensions that it goes over, of one tensor, where these are others than that of the samples."""
    over = dims_of(looked.call, looked.rank())
    return None if looked.own is None or len(looked.laid) > 1 or looked.own.dim in over else over


def _without(looked: OperatorSamples, gone: set[int]) -> Kept | None:
    """As the first tensor has them, without some dimensions."""
    own = looked.own
    return None if own is None else looked.kept(own.dim - sum(d < own.dim for d in gone), own)


def _of_matrices(looked: OperatorSamples) -> Kept | None:
    """Of the last two dimensions of each."""
    rows = looked.same_rows
    return looked.kept(0, rows) if rows is not None and looked.first_everywhere(3) else None


def _two_sets(looked: OperatorSamples) -> Kept | None:
    """Distances of all points of two: of a sample to what is none's, or within each."""
    first, second = (looked.name(each) for each in list(looked.call.arguments)[:2])
    rows = [looked.laid.get(first), looked.laid.get(second)]
    if rows[1] is None and rows[0] is not None and rows[0].dim == looked.rank(first) - 2:
        return looked.kept(rows[0].dim, rows[0])
    if rows[0] is None and rows[1] is not None and rows[1].dim == looked.rank(second) - 2:
        return looked.kept(rows[1].dim + 1, rows[1])
    alike = looked.same_rows
    within = alike is not None and alike.dim < min(map(looked.rank, looked.laid)) - 2
    return looked.kept(alike.dim, alike) if alike is not None and within else None


def _sized(looked: OperatorSamples) -> Kept | None:
    """Repeated along other dimensions, counted from the last."""
    own = looked.own
    if own is None:
        return None
    dim = looked.rank(looked.call.node.outputs[0]) - looked.rank() + own.dim
    return looked.kept(dim, own) if dim >= 0 else None


def _scattered(looked: OperatorSamples) -> Kept | None:
    """By numbers along another dimension, each sample's own."""
    rows, call = looked.same_rows, looked.call
    if call.node.kind == "index_select" and looked.own is None:
        return looked.kept(call.number("dim") % looked.rank(), looked.laid[looked.name("index")])
    if rows is None or call["dim"] is None or rows.dim in dims_of(call, looked.rank()):
        return None
    if call.node.kind.startswith("index_"):
        return looked.kept(rows.dim, rows) if set(looked.laid) == {first_tensor(call)} else None
    if any(call.has(k) and looked.name(k) not in looked.laid for k in ("src", "source")):
        return None
    index, first = looked.name("index") or looked.name("indices"), first_tensor(call)
    own_rows = first in looked.laid or call.shape(call.tensors[0])[rows.dim] == 1
    written = (
        "scatter" in call.node.kind and first and alike_at(looked.graph, first, rows.dim, looked.samples)
    )
    return looked.kept(rows.dim, rows) if index in looked.laid and (own_rows or written) else None


def _picked(looked: OperatorSamples) -> Kept | None:
    """`x[arange(n), y]`, `table[y]`, `x[:, 3]`: by a number of each sample's own, or all by the same."""
    indices = list(looked.call["indices"])
    names = [next((k for tag, k in references(each) if tag == "var"), "") for each in indices]
    own, first = looked.own, first_tensor(looked.call)
    told = [i for i, each in enumerate(indices) if next(references(each), None)]
    with_samples = [name for name in names if name in looked.laid]
    if any(looked.laid[name].dim for name in with_samples):
        return None
    if own is None or first in with_samples:
        if len(told) != 1 or first in with_samples:
            return None
        return looked.kept(told[0], looked.laid[names[told[0]]])
    if own.dim in told:
        return looked.kept(own.dim, own) if _in_rows(looked, names, told) else None
    if with_samples or len(told) != 1:
        return None
    rank = (
        looked.rank(names[told[0]])
        if names[told[0]]
        else looked.rank(looked.call.node.outputs[0]) - looked.rank() + 1
    )
    return looked.kept(own.dim if own.dim < told[0] else own.dim - 1 + rank, own)


def _in_rows(looked: OperatorSamples, names: list[str], told: list[int]) -> bool:
    """Whether the samples are picked as they come, along the first dimension of all indices."""
    own = looked.own
    if own is None or own.rows != 1 or told != list(range(own.dim, own.dim + len(told))):
        return False
    if not all(names[i] for i in told):
        return False
    shapes = {i: looked.shape(names[i]) for i in told}
    alike = all(
        shapes[i][0] == 1 or alike_at(looked.graph, names[i], 0, looked.samples)
        for i in told
        if i != own.dim and names[i] not in looked.laid and shapes[i]
    )
    ranks = {len(shape) for shape in shapes.values()}
    apart = set(shapes[own.dim][1:]) <= {1} and len(ranks) == 1
    return alike and apart and _is_in_order(looked, names[own.dim])


def _is_in_order(looked: OperatorSamples, k: str) -> bool:
    """Whether these are the numbers of all samples as they come."""
    value = of_no_sample(looked.graph).value(k) if k else None
    return value is not None and torch.equal(value.flatten(), torch.arange(looked.samples))


def _weighed(looked: OperatorSamples) -> Kept | None:
    """A sum of vectors' elements, or rows, times numbers that are no sample's."""
    return {} if len(looked.laid) == 1 and looked.own is not None and looked.rank() == 1 else None


def _recurrent(looked: OperatorSamples) -> Kept | None:
    own, call = looked.own, looked.call
    if own is None or own.dim != (0 if call["batch_first"] else 1):
        return None
    first, *states = call.node.outputs
    # states come by layers, then samples
    return {first: own} | {k: SampleRows(1, own.rows) for k in states if k}


def _by_own_filters(looked: OperatorSamples) -> Kept | None:
    """A convolution in which every sample has groups of its own."""
    own, call = looked.own, looked.call
    if own is None or own.dim != 1 or call["groups"] is None:
        return None
    filters = looked.laid.get(looked.name("weight"))
    rows, rest = divmod(call.output[1], looked.samples)
    apart = not rest and call.number("groups") % looked.samples == 0 and (not filters or filters.dim == 0)
    return {call.node.outputs[0]: SampleRows(1, rows)} if apart else None


def _normalised(looked: OperatorSamples) -> Kept | None:
    own = looked.own
    return looked.kept(0, own) if own is not None and own.dim == 0 else None


_RULES: Sequence[tuple[frozenset[str], Callable[[OperatorSamples], Kept | None]]] = (
    (RECURRENT, _recurrent),
    (operator_kinds("instance_norm"), _normalised),
    (operator_kinds("cosine_similarity"), _similarity),
    (_OVER_LAST, _over_last),
    (OF_CLASSES, _of_probabilities),
    (_ROW_LOSSES, _row_loss),
    (_ALIGNED, _aligned),
    (_BY_FIRST, _by_first),
    (_BUT_LAST, _but_last),
    (POOLED, _pool),
    (PIECES, _piece),
    (NO_SUMS | ALONG, _along_others),
    (OF_MATRICES, _of_matrices),
    (_TWO_SETS, _two_sets),
    (_SIZED, _sized),
    (_SCATTERED, _scattered),
    (_BY_NUMBERS, _picked),
    (_WEIGHED, _weighed),
    (operator_kinds("unfold"), _windows),
    (operator_kinds("diagonal linalg_diagonal"), _diagonal),
    (operator_kinds("index_put index_put_"), _by_mask),
)
