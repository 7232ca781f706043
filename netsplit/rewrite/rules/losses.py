"""Losses: by what they go over. A mean over targets that count is a sum, divided by how many count."""

from __future__ import annotations

from typing import Any

from netsplit.graph.ir import COUNTED
from netsplit.rewrite.rules.elementwise import elementwise
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
)

__all__ = ["RULES"]

_NONE, _MEAN, _SUM = 0, 1, 2  # as operators have their argument `reduction`


def _of_pairs(call: SplitCall) -> Ways:
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
        ways[f"self.{d}"] = Way(size, cut, (joined,), changed=_sum_of_nothing)
    return ways


def _of_classes(call: SplitCall) -> Ways:
    """Cuts a loss of scores [samples, classes, ...] and the numbers of classes [samples, ...]."""
    rank = call.rank("self")
    if rank < 2 or call.rank("target") != rank - 1:
        return {"self.0": "its targets are probabilities, or a single one"} if rank >= 2 else {}
    dims = {0: 0} | {d: d - 1 for d in range(2, rank)}  # of the scores -> of the targets
    over: Ways = {}
    for d, own in dims.items():
        cut: dict[Place, Where] = {"self": Where(d), "target": Where(own)}
        size = call.shape("self")[d]
        if call["reduction"] == _NONE:
            over[own] = _kept(call, own, cut)
        elif call["reduction"] == _SUM:
            over[f"self.{d}"] = Way(size, cut, (PartialSum(),))
        elif call.has("weight"):
            over[f"self.{d}"] = "it is a mean by weights of classes: give reduction='sum', or no weights"
        else:
            over[f"self.{d}"] = Way(size, cut, (PartialSum(),), changed=_summed, last=_by_count)
    return over | {"self.1": "it goes over all classes"}


def _kept(call: SplitCall, axis: int, cut: dict[Place, Where]) -> Way:
    return Way(call.output[axis], cut, (Cat(Where(axis)),))


def _summed(_: OperatorPart) -> Arguments:
    return {"reduction": _SUM}


def _sum_of_nothing(part: OperatorPart) -> Arguments:
    return {} if part.size else {"reduction": _SUM}


def _by_count(emit: Emit, whole: Arguments, total: dict[str, str]) -> tuple[Any, ...]:
    counting = emit("aten.ne.Scalar", whole["target"], whole["ignore_index"])
    return "aten.div.Tensor", total, emit("aten.sum.default", counting, name=COUNTED)


_PAIRS = (
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "soft_margin_loss", "kl_div",
)  # fmt: skip

RULES: dict[str, Rule] = {
    **{f"aten.{name}.default": _of_pairs for name in _PAIRS},
    **{
        f"aten.{name}.default": _of_classes
        for name in ("cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d")
    },
}
