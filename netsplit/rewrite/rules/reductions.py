"""Pooling, softmax, sums and means: along what they do not go over; sums and means over that, too."""

from __future__ import annotations

from netsplit.rewrite.ways import PartialSum, Rule, SplitCall, Way, Ways, Where, even

__all__ = ["RULES"]

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
    return ways | {over: "it goes over all of it"}


def _reduction(call: SplitCall) -> Ways:
    """Cuts by what is kept; sums and means also by what they go over, which leaves partial ones."""
    rank = call.rank("self")
    dims = call["dim"]
    dims = [dims] if isinstance(dims, int) else dims
    over = {d % rank for d in dims} if dims else set(range(rank))
    keepdim = bool(call["keepdim"])
    ways: Ways = {}
    axis = 0
    for d in range(rank):
        if d not in over:
            ways[axis] = even(call, axis, {"self": d})
        elif call.node.op in _SUMS:
            mean = call.node.op in _MEANS
            empty = _MEANS.get(call.node.op, "")
            ways[f"self.{d}"] = Way(
                call.shape("self")[d], {"self": Where(d)}, (PartialSum(mean),), empty=empty
            )
        axis += d not in over or keepdim
    return ways


_POOLS = (
    "max_pool{}d",
    "avg_pool{}d",
    "adaptive_avg_pool{}d",
    "adaptive_max_pool{}d",
    "max_pool{}d_with_indices",
)
_REDUCTIONS = (
    *_SUMS, "aten.amax.default", "aten.amin.default", "aten.logsumexp.default", "aten.var.correction",
    "aten.std.correction", "aten.var.dim", "aten.std.dim", "aten.max.dim", "aten.min.dim", "aten.median.dim",
    "aten.argmax.default", "aten.argmin.default", "aten.prod.dim_int", "aten.any.dim", "aten.all.dim",
    "aten.linalg_vector_norm.default",
)  # fmt: skip

_ALONG = (
    "aten.cumsum.default", "aten.cumprod.default", "aten.logcumsumexp.default", "aten.sort.default",
    "aten.topk.default",
)  # fmt: skip

RULES: dict[str, Rule] = {
    **{f"aten.{name.format(d)}.default": _pooling(d) for name in _POOLS for d in (1, 2, 3)},
    **dict.fromkeys(
        ("aten.softmax.int", "aten.log_softmax.int", "aten._softmax.default", "aten._log_softmax.default"),
        _softmax,
    ),
    **dict.fromkeys(_ALONG, _softmax),
    **dict.fromkeys(_REDUCTIONS, _reduction),
}
