"""What takes numbers together: normalisations, pooling, softmax, sums, means, losses: along all else.

Sums and means along what they go over, too. A mean of targets that count is a sum, divided by how many do.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from netsplit.graph.ir import COUNTED
from netsplit.rewrite.rules.shapes import elementwise
from netsplit.rewrite.ways import (
    Arguments,
    Cat,
    Emit,
    OperatorPart,
    PartialSum,
    Place,
    Rule,
    SplitCall,
    Way,
    Ways,
    Where,
    even,
)

__all__ = ["RULES", "WRITERS"]

_OVER = "its statistics span all of it"


def _layer_norm(call: SplitCall) -> Ways:
    rank = call.rank("input")
    kept = rank - len(call["normalized_shape"])
    return {d: even(call, d, {"input": d}) if d < kept else _OVER for d in range(rank)}


def _group_norm(call: SplitCall) -> Ways:
    groups, channels = call.number("num_groups"), call.shape("input")[1]
    cut: dict[Place, Where] = {"input": Where(1, times=channels // groups)}
    cut |= {k: Where(0, times=channels // groups) for k in ("weight", "bias") if call.has(k)}
    joined = (Cat(Where(1, times=channels // groups)),)
    return {
        0: even(call, 0, {"input": 0}),
        1: "its channels are in groups: split along 'groups'",
        "groups": Way(groups, cut, joined, changed=_own_groups),
        **dict.fromkeys(range(2, call.rank("input")), _OVER),
    }


def _own_groups(part: OperatorPart) -> Arguments:
    return {"num_groups": part.whole_size}


def _by_channel(call: SplitCall) -> dict[Place, int] | None:
    """None: it keeps a part of running statistics already."""
    if call.has("running_mean") and "init" not in call["running_mean"]:
        return None
    own: list[Place] = [k for k in ("weight", "bias", "running_mean", "running_var") if call.has(k)]
    return {"input": 1, **dict.fromkeys(own, 0)}


def _batch_norm(call: SplitCall) -> Ways:
    """Cuts by channel; parts write their own part of the running statistics, on one device."""
    dims, others = _by_channel(call), [0, *range(2, call.rank("input"))]
    if dims is None:
        return {}
    ways: Ways = {1: even(call, 1, dims)}
    if call["training"]:
        why = "its statistics span the whole batch, and those of parts would differ"
        return ways | dict.fromkeys(others, why)
    return ways | {d: even(call, d, {"input": d}) for d in others}


def _instance_norm(call: SplitCall) -> Ways:
    dims = _by_channel(call)
    if dims is None:
        return {}
    over: Ways = dict.fromkeys(range(2, call.rank("input")), _OVER)
    if call.has("running_mean"):
        return {1: even(call, 1, dims), **over, 0: "its running statistics span the whole batch"}
    channels = call.shape("input")[1]
    # torch has none of no sample; a group for each channel is the same, of any number of samples
    empty = "aten.group_norm.default"
    along = even(call, 0, {"input": 0}, empty=empty, changed=lambda _: {"num_groups": channels})
    return {1: even(call, 1, dims, empty=empty, changed=_own_groups), **over, 0: along}


WRITERS = frozenset(["aten.batch_norm.default", "aten.instance_norm.default"])
"""Those that write statistics into buffers."""

_MEANS = {"aten.mean.dim": "aten.sum.dim_IntList", "aten.mean.default": "aten.sum.default"}
"""And the sum of nothing, whose mean is no number."""

_SUMS = (*_MEANS.values(), *_MEANS)


def _pooling(spatial: int) -> Rule:
    def rule(call: SplitCall) -> Ways:
        if call.rank("self") != spatial + 2:
            return {}
        ways: Ways = {d: even(call, d, {"self": d}) for d in (0, 1)}
        return ways | dict.fromkeys(range(2, spatial + 2), "parts would need the edges of their neighbours")

    return rule


def _softmax(call: SplitCall) -> Ways:
    rank = call.rank("self")
    over = call.number("dim") % max(rank, 1)
    ways: Ways = {d: even(call, d, {"self": d}) for d in range(rank) if d != over}
    return ways | {over: "it needs all of it"}


def _reduction(call: SplitCall) -> Ways:
    """Cuts by what is kept; sums and means also by what they go over, which leaves partial ones."""
    rank, dims, op = call.rank("self"), call["dim"], call.node.op
    dims = [dims] if isinstance(dims, int) else dims
    over = {d % rank for d in dims} if dims else set(range(rank))
    ways: Ways = {}
    axis = 0
    for d, size in enumerate(call.shape("self")):
        if d not in over:
            ways[axis] = even(call, axis, {"self": d})
        elif op in _SUMS:
            joined = (PartialSum(mean=op in _MEANS),)
            ways[f"self.{d}"] = Way(size, {"self": Where(d)}, joined, empty=_MEANS.get(op, ""))
        axis += d not in over or bool(call["keepdim"])
    return ways


_NONE, _MEAN, _SUM = 0, 1, 2  # as losses have their argument `reduction`
_SUMMED = {"reduction": _SUM}


def _loss_of_pairs(call: SplitCall) -> Ways:
    """Cuts a loss of an input and a target of one shape along any dimension."""
    if call.shape("self") != call.shape("target"):
        return {}
    if call["reduction"] == _NONE:
        return elementwise(call)
    joined = PartialSum(mean=call["reduction"] == _MEAN)
    places = [k for k in ("self", "target", "weight", "pos_weight") if call.has(k)]
    shape = call.shape("self")
    if any(call.rank(k) > len(shape) for k in places):
        return {}
    ways: Ways = {}
    for d, size in enumerate(shape):
        own = {k: d - len(shape) + call.rank(k) for k in places}  # weights broadcast
        cut: dict[Place, Where] = {k: Where(e) for k, e in own.items() if e >= 0 and call.shape(k)[e] == size}
        ways[f"self.{d}"] = Way(size, cut, (joined,), changed=lambda n: {} if n.size else _SUMMED)
    return ways


def _loss_of_classes(call: SplitCall) -> Ways:
    """Cuts a loss of scores [samples, classes, ...] and the numbers of classes [samples, ...]."""
    rank, reduction = call.rank("self"), call["reduction"]
    if rank < 2 or call.rank("target") != rank - 1:
        return {"self.0": "its targets are probabilities, or a single one"} if rank >= 2 else {}
    ways: Ways = {"self.1": "it needs all classes"}
    if call.node.kind == "cross_entropy_loss" and call["label_smoothing"] == 0 and not call.has("weight"):
        ways["self.1"] = Way(
            call.shape("self")[1], {"self": Where(1)}, (PartialSum(),), op="aten.logsumexp.default",
            in_one=True, before=_over_classes, after=partial(_own_terms, rank), last=_of_terms,
        )  # fmt: skip
    for d, own in {0: 0, **{d: d - 1 for d in range(2, rank)}}.items():  # of the scores, of the targets
        cut: dict[Place, Where] = {"self": Where(d), "target": Where(own)}
        size = call.shape("self")[d]
        if reduction == _NONE:
            ways[own] = even(call, own, {"self": d, "target": own})
        elif reduction == _SUM:
            ways[f"self.{d}"] = Way(size, cut, (PartialSum(),))
        elif call.has("weight"):
            ways[f"self.{d}"] = "it is a mean weighted by class: give reduction='sum', or no weights"
        else:
            ways[f"self.{d}"] = Way(size, cut, (PartialSum(),), changed=lambda _: _SUMMED, last=_by_count)
    return ways


def _over_classes(emit: Emit, part: OperatorPart, arguments: Arguments) -> Arguments:
    return {**arguments, "dim": [1], "keepdim": True}


def _own_terms(
    rank: int, emit: Emit, part: OperatorPart, arguments: Arguments, output: dict[str, str]
) -> dict[str, str]:
    """[n, 1 + parts, ...] of which the sum has the targets' scores, and each part's logarithm of a sum."""
    scores, own = arguments["self"], emit("aten.sub.Tensor", arguments["target"], part.start)
    low, high = emit("aten.lt.Scalar", own, 0), emit("aten.ge.Scalar", own, part.size)
    others = emit("aten.unsqueeze.default", emit("aten.logical_or.default", low, high), 1)
    index = emit("aten.unsqueeze.default", emit("aten.clamp.default", own, 0, part.size - 1), 1)
    picked = emit("aten.masked_fill.Scalar", emit("aten.gather.default", scores, 1, index), others, 0)
    place = [0, 0] * (rank - 2) + [part.index, part.count - 1 - part.index]
    return emit("aten.cat.default", [picked, emit("aten.constant_pad_nd.default", output, place)], 1)


def _of_terms(emit: Emit, whole: Arguments, total: dict[str, str]) -> tuple[Any, ...]:
    picked = emit("aten.select.int", total, 1, 0)
    every = emit("aten.logsumexp.default", emit("aten.slice.Tensor", total, 1, 1), [1])
    ignored = emit("aten.eq.Scalar", whole["target"], whole["ignore_index"])
    terms = emit("aten.sub.Tensor", every, picked), ignored, 0
    if whole["reduction"] == _NONE:
        return "aten.masked_fill.Scalar", *terms
    counted = emit("aten.masked_fill.Scalar", *terms)
    if whole["reduction"] == _SUM:
        return "aten.sum.default", counted
    return _by_count(emit, whole, emit("aten.sum.default", counted))


def _by_count(emit: Emit, whole: Arguments, total: dict[str, str]) -> tuple[Any, ...]:
    counting = emit("aten.ne.Scalar", whole["target"], whole["ignore_index"])
    return "aten.div.Tensor", total, emit("aten.sum.default", counting, name=COUNTED)


_POOLS = (
    "max_pool{}d",
    "avg_pool{}d",
    "adaptive_avg_pool{}d",
    "adaptive_max_pool{}d",
    "max_pool{}d_with_indices",
)
_ALONG = (
    "softmax.int", "log_softmax.int", "_softmax.default", "_log_softmax.default", "cumsum.default",
    "cumprod.default", "logcumsumexp.default", "sort.default", "topk.default",
)  # fmt: skip
_REDUCTIONS = (
    "amax.default", "amin.default", "logsumexp.default", "var.correction", "std.correction", "var.dim",
    "std.dim", "max.dim", "min.dim", "median.dim", "argmax.default", "argmin.default", "prod.dim_int",
    "any.dim", "all.dim", "linalg_vector_norm.default",
)  # fmt: skip
_PAIRS = (
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "soft_margin_loss", "kl_div",
)  # fmt: skip
_CLASSES = ("cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d")

RULES: dict[str, Rule] = {
    **{f"aten.{name}.default": _layer_norm for name in ("layer_norm", "rms_norm")},
    "aten.group_norm.default": _group_norm,
    "aten.batch_norm.default": _batch_norm,
    "aten.instance_norm.default": _instance_norm,
    **{f"aten.{name.format(d)}.default": _pooling(d) for name in _POOLS for d in (1, 2, 3)},
    **{f"aten.{name}": _softmax for name in _ALONG},
    **dict.fromkeys((*_SUMS, *(f"aten.{name}" for name in _REDUCTIONS)), _reduction),
    **{f"aten.{name}.default": _loss_of_pairs for name in _PAIRS},
    **{f"aten.{name}.default": _loss_of_classes for name in _CLASSES},
}
