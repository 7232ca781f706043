"""What makes a tensor of a shape and a number: along every dimension, as all of it is alike."""

from __future__ import annotations

from functools import partial

from netsplit.graph.arguments import references
from netsplit.rewrite.ways import Arguments, Cat, OperatorPart, Place, SplitCall, Way, Ways, Where

__all__ = ["RULES"]


def _of_shape(call: SplitCall) -> Ways:
    """zeros, ones and full of a size."""
    if call["size"] is None:  # of a file that has no arguments
        return {}
    return {axis: _way(call, axis, {}) for axis in range(len(call.output))}


def _of_a_tensor(call: SplitCall) -> Ways:
    """The same of a size with a tensor's dtype and device, of whose numbers nothing comes: where that has a
    dimension as long, it is cut there, so that a part needs no more of it than another operator of its part.
    """
    if call["size"] is None or not call.has("self"):
        return {}
    ((tag, _),) = references(call.template("self"))
    shape = call.shape("self") if tag == "var" else ()
    return {
        axis: _way(call, axis, {"self": Where(shape.index(size))} if size in shape else {})
        for axis, size in enumerate(call.output)
    }


def _way(call: SplitCall, axis: int, cut: dict[Place, Where]) -> Way:
    return Way(call.output[axis], cut, (Cat(Where(axis)),), changed=partial(_sized, call.output, axis))


def _sized(shape: tuple[int, ...], axis: int, part: OperatorPart) -> Arguments:
    return {"size": part.sizes(shape, axis)}


RULES = {
    **dict.fromkeys(("aten.zeros.default", "aten.ones.default", "aten.full.default"), _of_shape),
    **dict.fromkeys(
        ("aten.new_zeros.default", "aten.new_ones.default", "aten.new_full.default"), _of_a_tensor
    ),
}
