"""What makes every element of its output of the elements in the same place, with broadcasting."""

from __future__ import annotations

import torch

from netsplit.graph.operators import resolve
from netsplit.rewrite.ways import Cat, Place, Rule, SplitCall, Way, Ways, Where, broadcast, even

__all__ = ["RULES", "elementwise", "is_elementwise"]

_ALSO = (
    "aten.dropout.default", "aten.feature_dropout.default", "aten.alpha_dropout.default",
    "aten.to.dtype", "aten.to.dtype_layout", "aten._to_copy.default", "aten.to.other", "aten.type_as.default",
    "aten.contiguous.default", "aten.detach.default", "aten.alias.default", "aten.hardswish.default",
    "aten.multiply.Tensor", "aten.subtract.Tensor", "aten.divide.Tensor", "aten.multiply.Scalar",
    "aten.subtract.Scalar", "aten.divide.Scalar", "aten.clip.default", "aten.log_sigmoid.default",
    "aten.zeros_like.default", "aten.ones_like.default", "aten.full_like.default",
    "aten.softplus.default", "aten.lift_fresh_copy.default", "aten.selu.default", "aten.celu.default",
)  # fmt: skip
"""Those that torch does not tag; dropout, where it drops nothing; what is made of a tensor's shape alone."""


def is_elementwise(op: str) -> bool:
    """Whether torch tags the operator as pointwise."""
    return op.count(".") == 2 and torch.Tag.pointwise in resolve(op).tags


def elementwise(call: SplitCall) -> Ways:
    """Along every dimension."""
    ways: Ways = {}
    for axis in range(len(call.output)):
        dims = {place: broadcast(call, place, axis) for place in call.tensors}
        ways[axis] = even(call, axis, {place: d for place, d in dims.items() if d is not None})
    return ways


def _prelu(call: SplitCall) -> Ways:
    """Cuts a PReLU of one slope, or of one for every channel."""
    if call.rank("self") < 2:
        return {}
    own: dict[Place, int] = {} if call.shape("weight") in ((), (1,)) else {"weight": 0}
    return {d: even(call, d, {"self": d, **(own if d == 1 else {})}) for d in range(call.rank("self"))}


def _glu(call: SplitCall) -> Ways:
    """One half of a dimension, with the other as its gate."""
    over = call.number("dim") % call.rank("self")
    return {
        d: Way(size, {"self": Where(d, blocks=2 if d == over else 1)}, (Cat(Where(d)),))
        for d, size in enumerate(call.output)
    }


RULES: dict[str, Rule] = {
    **dict.fromkeys(_ALSO, elementwise),
    "aten.prelu.default": _prelu,
    "aten.glu.default": _glu,
}
