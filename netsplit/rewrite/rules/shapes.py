"""Views, and what puts tensors together or takes them apart: along dimensions that stay themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod

from netsplit.rewrite.ways import (
    Arguments,
    Cat,
    OperatorPart,
    Place,
    Rule,
    SplitCall,
    Way,
    Ways,
    Where,
    broadcast,
    even,
)

__all__ = ["RULES"]


def _reshape(call: SplitCall) -> Ways:
    """Dimensions are matched in groups of equal products; a part's shape is given as numbers.

    What an output dimension is unflattened from is cut there. One that is flattened of several is counted in
    the first of them; each of the others is an axis by its own name.
    """
    before, after = call.shape("self"), call.output
    ways: Ways = {}
    for old_dims, new_dims in _groups(before, after):
        for axis in new_dims:
            inner = _inner_size(after, new_dims, axis)
            for d in old_dims:
                if where := _lies_in(after[axis], inner, before[d], _inner_size(before, old_dims, d), d):
                    ways[axis] = _reshaped(after, after[axis], where, Where(axis))
                    break
            else:
                ways |= _of_several(before, after, old_dims, axis, inner)
    return ways


def _of_several(
    before: Sequence[int], after: Sequence[int], own: Sequence[int], axis: int, inner: int
) -> Ways:
    ways: Ways = {}
    for d in own:
        where = _lies_in(before[d], _inner_size(before, own, d), after[axis], inner, axis)
        if where and before[d] > 1:
            key = f"self.{d}" if axis in ways else axis
            ways[key] = _reshaped(after, before[d], Where(d), where)
    return ways or {axis: "it is made of several dimensions that lie across it"}


def _groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Dimensions of both that have the same elements, from the first to the last."""
    groups = []
    i = j = 0
    while i < len(before) or j < len(after):
        old_dims, new_dims = list(range(i, min(i + 1, len(before)))), list(range(j, min(j + 1, len(after))))
        i, j = i + len(old_dims), j + len(new_dims)
        while (p := prod(before[d] for d in old_dims)) != (q := prod(after[d] for d in new_dims)):
            if p < q:
                old_dims.append(i)
                i += 1
            else:
                new_dims.append(j)
                j += 1
        groups.append((old_dims, new_dims))
    return groups


def _inner_size(shape: Sequence[int], group: Sequence[int], dim: int) -> int:
    """Elements of a group from one index of a dimension to the next."""
    return prod(shape[d] for d in group if d > dim)


def _lies_in(size: int, stride: int, other: int, step: int, dim: int) -> Where | None:
    """Where a dimension lies in one of the other shape, by both strides within their group; None: nowhere."""
    times, rest = divmod(stride, step)
    if rest or not times:
        return None
    blocks, rest = divmod(other, size * times)
    return None if rest or not blocks else Where(dim, blocks, times)


def _reshaped(after: Sequence[int], size: int, cut: Where, joined: Where) -> Way:
    changed = partial(_shape, tuple(after), joined.dim)
    return Way(size, {"self": cut}, (Cat(joined),), changed=changed, op="aten.reshape.default")


def _shape(shape: tuple[int, ...], axis: int, part: OperatorPart) -> Arguments:
    return {"shape": part.sizes(shape, axis)}


def _permuted(call: SplitCall, dims: Sequence[int]) -> Ways:
    """`dims`: of every dimension of the output that of the input."""
    return {axis: even(call, axis, {"self": d}) for axis, d in enumerate(dims)}


def _permute(call: SplitCall) -> Ways:
    return _permuted(call, [d % call.rank("self") for d in call["dims"]])


def _transpose(call: SplitCall) -> Ways:
    dims = list(range(call.rank("self")))
    a, b = (call.number(name) for name in ("dim0", "dim1", "axis0", "axis1") if name in call.arguments)
    dims[a], dims[b] = dims[b], dims[a]
    return _permuted(call, dims)


def _moved(call: SplitCall) -> Ways:
    rank = call.rank("self")
    source, target = ([d % rank for d in _numbers(call[name])] for name in ("source", "destination"))
    place = dict(zip(target, source, strict=True))
    left = iter([d for d in range(rank) if d not in source])
    return _permuted(call, [place[axis] if axis in place else next(left) for axis in range(rank)])


def _numbers(given: int | Sequence[int]) -> Sequence[int]:
    return [given] if isinstance(given, int) else given


def _reversed(call: SplitCall) -> Ways:
    return _permuted(call, range(call.rank("self"))[::-1])


def _turned(call: SplitCall) -> Ways:
    dims = list(range(call.rank("self")))
    return _permuted(call, [*dims[:-2], *dims[:-3:-1]] if len(dims) > 1 else dims)


def _expand(call: SplitCall) -> Ways:
    ways: Ways = {}
    for axis, size in enumerate(call.output):
        own = broadcast(call, "self", axis)
        cut: dict[Place, Where] = {} if own is None else {"self": Where(own)}
        changed = partial(_expanded, call.output, axis)
        ways[axis] = Way(size, cut, (Cat(Where(axis)),), changed=changed)
    return ways


def _expanded(shape: tuple[int, ...], axis: int, part: OperatorPart) -> Arguments:
    return {"size": part.sizes(shape, axis)}


def _but_one(removed: bool) -> Rule:
    """Along all dimensions but `dim`, which the outputs have no more where it is `removed`."""

    def rule(call: SplitCall) -> Ways:
        rank = call.rank("self")
        over = call.number("dim") % rank
        ways: Ways = {}
        for d in range(rank):
            if d != over:
                axis = d - (removed and d > over)
                ways[axis] = even(call, axis, {"self": d})
        return ways if removed else ways | {over: "it is what this operator takes apart"}

    return rule


def _taken_apart(call: SplitCall) -> Ways:
    """Cuts as `_but_one`; equal pieces along `dim` can be cut alike, each one."""
    ways = _but_one(False)(call)
    over = call.number("dim") % call.rank("self")
    pieces = {shape[over] for shape in call.outputs()}
    if len(pieces) == 1:
        (size,), count = pieces, len(call.node.outputs)
        joined = tuple(Cat(Where(over)) for _ in range(count))
        changed = partial(_piece_sizes, call, size)
        ways[over] = Way(size, {"self": Where(over, blocks=count)}, joined, changed=changed)
    return ways


def _piece_sizes(call: SplitCall, size: int, part: OperatorPart) -> Arguments:
    own = size // part.of * part.size
    if call.node.op == "aten.chunk.default":
        return {}
    if call.node.op == "aten.split.Tensor":
        return {"split_size": own}
    key = "split_size" if call.node.op == "aten.split.sizes" else "split_sizes"
    return {key: [own] * len(call.node.outputs)}


def _together(new: bool) -> Rule:
    """What puts tensors together along `dim`, which is `new` where they are stacked."""

    def rule(call: SplitCall) -> Ways:
        rank = len(call.output)
        over = call.number("dim") % rank
        ranks = {call.rank(place) for place in call.tensors}
        if ranks != {rank - new}:
            return {}
        ways: Ways = {over: "it is what this operator puts together"}
        for axis in range(rank):
            if axis != over:
                ways[axis] = even(call, axis, dict.fromkeys(call.tensors, axis - (new and axis > over)))
        return ways

    return rule


def _edges(call: SplitCall) -> Ways:
    """What changes the last dimensions alone: samples and channels stay."""
    name = "self" if "self" in call.arguments else "input"
    last = len(call["pad"]) // 2 if "pad" in call.arguments else call.rank(name) - 2
    empty = _NEAREST.get(call.node.op, "")
    ways: Ways = {}
    for d in range(call.rank(name) - last):
        way = even(call, d, {name: d})
        ways[d] = replace(way, empty=empty, changed=_no_corners) if empty else way
    return ways


def _no_corners(_: OperatorPart) -> Arguments:
    return {"align_corners": False}


def _triangle(call: SplitCall) -> Ways:
    """Rows and columns have their places in it: matrices are cut from one another alone."""
    return {d: even(call, d, {"self": d}) for d in range(call.rank("self") - 2)}


_RESHAPES = (
    "aten.view.default", "aten.reshape.default", "aten._unsafe_view.default", "aten.flatten.using_ints",
    "aten.unflatten.int", "aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims",
    "aten.unsqueeze.default",
)  # fmt: skip
_APART = (
    "aten.split.Tensor", "aten.split.sizes", "aten.split_with_sizes.default", "aten.chunk.default",
)  # fmt: skip
_EDGES = (
    "aten.constant_pad_nd.default", "aten.pad.default",
    "aten.upsample_nearest2d.default", "aten.upsample_bilinear2d.default", "aten.upsample_bicubic2d.vec",
    *(f"aten.upsample_nearest{d}d.vec" for d in (1, 2, 3)),
    *(f"aten.upsample_{name}.vec" for name in ("linear1d", "bilinear2d", "trilinear3d")),
)  # fmt: skip

_NEAREST = {
    "aten.upsample_nearest2d.default": "aten.upsample_bilinear2d.default",
    "aten.upsample_nearest1d.vec": "aten.upsample_linear1d.vec",
    "aten.upsample_nearest2d.vec": "aten.upsample_bilinear2d.vec",
    "aten.upsample_nearest3d.vec": "aten.upsample_trilinear3d.vec",
}
"""What makes of no sample as much: of these torch cannot tell it without data."""

RULES: dict[str, Rule] = {
    **dict.fromkeys(_RESHAPES, _reshape),
    "aten.permute.default": _permute,
    **dict.fromkeys(("aten.transpose.int", "aten.swapaxes.default", "aten.swapdims.default"), _transpose),
    **dict.fromkeys(
        ("aten.movedim.int", "aten.movedim.intlist", "aten.moveaxis.int", "aten.moveaxis.intlist"), _moved
    ),
    **dict.fromkeys(("aten.t.default", "aten.mT.default"), _turned),
    "aten.numpy_T.default": _reversed,
    "aten.expand.default": _expand,
    **dict.fromkeys(("aten.select.int", "aten.unbind.int"), _but_one(True)),
    **dict.fromkeys(("aten.slice.Tensor", "aten.narrow.default"), _but_one(False)),
    **dict.fromkeys(_APART, _taken_apart),
    "aten.cat.default": _together(False),
    "aten.stack.default": _together(True),
    **dict.fromkeys(_EDGES, _edges),
    **dict.fromkeys(("aten.tril.default", "aten.triu.default"), _triangle),
}
