"""What takes elements of a tensor from other places of a dimension: along all dimensions but that one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from netsplit.rewrite.ways import Arguments, Cat, OperatorPart, Rule, SplitCall, Way, Ways, Where, even

__all__ = ["RULES"]

_OVER = "elements come from all of it"


def _in_other_order(call: SplitCall) -> Ways:
    """`flip` and `roll`, whose dimensions are a list."""
    rank = call.rank("self")
    over = {d % rank for d in call["dims"]}
    if not over:
        return {}
    return {d: _OVER if d in over else even(call, d, {"self": d}) for d in range(rank)}


def _index_select(call: SplitCall) -> Ways:
    rank = call.rank("self")
    if not rank or not call.rank("index"):
        return {}
    over = call.number("dim") % rank
    return {d: even(call, d, {"index": 0} if d == over else {"self": d}) for d in range(rank)}


def _gather(call: SplitCall) -> Ways:
    """What `index` says along one dimension; along others it may be shorter than what it is taken of."""
    shape, index = call.shape("self"), call.shape("index")
    if not shape or len(shape) != len(index):
        return {}
    over = call.number("dim") % len(shape)
    ways: Ways = {}
    for d, size in enumerate(index):
        if d == over:
            ways[d] = even(call, d, {"index": d})
        elif shape[d] == size:
            ways[d] = even(call, d, {"index": d, "self": d})
    return ways


def _repeated(call: SplitCall) -> Ways:
    """Each element several times: a part has its own elements' repetitions."""
    rank = call.rank("self")
    if call["dim"] is None or not rank:
        return {}
    over, times = call.number("dim") % rank, call.number("repeats")
    if call["output_size"] is not None or times < 1:
        return {}
    return {
        d: Way(size, {"self": Where(d)}, (Cat(Where(d, times=times if d == over else 1)),))
        for d, size in enumerate(call.shape("self"))
    }


def _pixel_shuffle(call: SplitCall) -> Ways:
    """[..., c * r * r, h, w] -> [..., c, h * r, w * r]"""
    channels = call.rank("self") - 3
    ways = {d: even(call, d, {"self": d}) for d in range(channels)}
    times = call.number("upscale_factor") ** 2
    ways[channels] = Way(
        call.output[channels], {"self": Where(channels, times=times)}, (Cat(Where(channels)),)
    )
    # torch has no gradient where there is no sample
    empty = "aten.view_copy.default"
    return {
        d: replace(way, empty=empty, changed=partial(_size_of, call.output, d)) for d, way in ways.items()
    }


def _size_of(output: tuple[int, ...], axis: int, part: OperatorPart) -> Arguments:
    return {"size": part.sizes(output, axis)}


RULES: dict[str, Rule] = {
    "aten.flip.default": _in_other_order,
    "aten.roll.default": _in_other_order,
    "aten.index_select.default": _index_select,
    "aten.gather.default": _gather,
    "aten.repeat_interleave.self_int": _repeated,
    "aten.pixel_shuffle.default": _pixel_shuffle,
}
