"""What keeps or moves elements: element-wise operators, views, selections, tensors of one number.

Along dimensions that stay themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import torch

from netsplit.graph.arguments import decoded, references
from netsplit.graph.operators import node_draws, resolve
from netsplit.rewrite.ways import (
    Arguments,
    Cat,
    Emit,
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

__all__ = ["DRAWING", "FACTORIES", "RULES", "elementwise", "is_elementwise"]


def _sized(name: str, call: SplitCall, axis: int) -> Callable[[OperatorPart], Arguments]:
    """The argument with the shape of what a part makes."""
    output = call.output
    return lambda part: {name: part.sizes(output, axis)}


def is_elementwise(op: str) -> bool:
    """Whether torch tags the operator as pointwise."""
    return op.count(".") == 2 and torch.Tag.pointwise in resolve(op).tags


def elementwise(call: SplitCall) -> Ways:
    """Along every dimension, with broadcasting."""
    ways: Ways = {}
    for axis in range(len(call.output)):
        dims = {place: broadcast(call, place, axis) for place in call.tensors}
        ways[axis] = even(call, axis, {place: d for place, d in dims.items() if d is not None})
    return ways


def _dropout(call: SplitCall) -> Ways:
    """Cuts it along every dimension: each part draws for the whole, and takes its own."""
    if not node_draws(call.node):
        return elementwise(call)
    ways: Ways = {}
    for axis in range(len(call.output)):
        mask = partial(_own_mask, axis, call.output)
        ways[axis] = even(call, axis, {"input": axis}, op="aten.mul.Tensor", in_one=True, before=mask)
    return ways


def _own_mask(
    axis: int, shape: tuple[int, ...], emit: Emit, part: OperatorPart, arguments: Arguments
) -> Arguments:
    """The arguments of a product; of a part that is cut again they are those already."""
    mask = arguments.get("other")
    if mask is None:
        ones = emit("aten.new_ones.default", arguments["input"], list(part.output or shape))
        mask = emit("aten.dropout.default", ones, arguments["p"], True)
    own = emit("aten.slice.Tensor", mask, axis, part.start, part.start + part.size)
    return {"self": arguments.get("self", arguments.get("input")), "other": own}


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


def _reshape(call: SplitCall) -> Ways:
    """Dimensions are matched in groups of equal products; a part's shape is given as numbers.

    A dimension flattened from several is an axis of the first of them; each of the others is an axis by its
    own name.
    """
    before, after = call.shape("self"), call.output

    def way(size: int, cut: Where, joined: Where) -> Way:
        changed = _sized("shape", call, joined.dim)
        return Way(size, {"self": cut}, (Cat(joined),), changed=changed, op="aten.reshape.default")

    ways: Ways = {}
    for old_dims, new_dims in _groups(before, after):
        old = {d: (before[d], prod(before[e] for e in old_dims if e > d)) for d in old_dims}
        for axis in new_dims:
            size, inner = after[axis], prod(after[e] for e in new_dims if e > axis)
            cuts = (_lies_in(size, inner, *old[d], d) for d in old_dims)
            if where := next(filter(None, cuts), None):
                ways[axis] = way(size, where, Where(axis))
                continue
            for d, (length, step) in old.items():
                where = _lies_in(length, step, size, inner, axis)
                if where and length > 1:
                    ways[f"self.{d}" if axis in ways else axis] = way(length, Where(d), where)
            ways.setdefault(axis, "no cut of its input is a cut along it")
    return ways


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


def _lies_in(size: int, stride: int, other: int, step: int, dim: int) -> Where | None:
    """Where a dimension lies in one of the other shape, by strides within their group; None: nowhere."""
    times, rest = divmod(stride, step)
    if rest or not times:
        return None
    blocks, rest = divmod(other, size * times)
    return None if rest or not blocks else Where(dim, blocks, times)


def _permuted(call: SplitCall) -> Ways:
    """Cuts by where each dimension goes, as a meta tensor with numbered sizes shows."""
    numbered = torch.empty(tuple(range(1, call.rank("self") + 1)), device="meta")
    args, kwargs = decoded(call.node, lambda *_: numbered)
    sizes = resolve(call.node.op)(*args, **kwargs).shape
    return {axis: even(call, axis, {"self": size - 1}) for axis, size in enumerate(sizes)}


def _expand(call: SplitCall) -> Ways:
    dims = {axis: broadcast(call, "self", axis) for axis in range(len(call.output))}
    return {
        axis: even(call, axis, {} if d is None else {"self": d}, changed=_sized("size", call, axis))
        for axis, d in dims.items()
    }


def _but_one(removed: bool) -> Rule:
    """Along all dimensions but `dim`, which outputs lack where it is `removed`."""

    def rule(call: SplitCall) -> Ways:
        rank = call.rank("self")
        over = call.number("dim") % rank
        axes = {d - (removed and d > over): d for d in range(rank) if d != over}
        ways: Ways = {axis: even(call, axis, {"self": d}) for axis, d in axes.items()}
        return ways if removed else ways | {over: "this operator splits along it"}

    return rule


def _taken_apart(call: SplitCall) -> Ways:
    """Cuts as `_but_one`; equal pieces along `dim` can be cut alike, each one."""
    over, count = call.number("dim") % call.rank("self"), len(call.node.outputs)
    pieces = {shape[over] for shape in call.outputs()}
    if len(pieces) > 1:
        return _but_one(False)(call)
    (size,) = pieces

    def changed(part: OperatorPart) -> Arguments:
        own = size // part.of * part.size
        if call.node.op == "aten.split.Tensor":
            return {"split_size": own}
        return {k: [own] * count for k in ("split_size", "split_sizes") if k in call.arguments}

    joined = tuple(Cat(Where(over)) for _ in range(count))
    each = Way(size, {"self": Where(over, blocks=count)}, joined, changed=changed)
    return _but_one(False)(call) | {over: each}


def _together(new: bool) -> Rule:
    """Cuts of what puts tensors together along `dim`, which is `new` where they are stacked."""

    def rule(call: SplitCall) -> Ways:
        rank = len(call.output)
        over = call.number("dim") % rank
        if {call.rank(place) for place in call.tensors} != {rank - new}:
            return {}
        ways: Ways = {over: "this operator concatenates along it"}
        for axis in range(rank):
            if axis != over:
                ways[axis] = even(call, axis, dict.fromkeys(call.tensors, axis - (new and axis > over)))
        return ways

    return rule


_SMOOTH = {"nearest1d": "linear1d", "nearest2d": "bilinear2d", "nearest3d": "trilinear3d"}
"""What makes of no sample as much: of nearest ones torch cannot tell it without data."""


def _edges(call: SplitCall) -> Ways:
    """What changes the last dimensions alone: samples and channels stay."""
    name = "self" if "self" in call.arguments else "input"
    last = len(call["pad"]) // 2 if "pad" in call.arguments else call.rank(name) - 2
    kind, empty = call.node.kind.removeprefix("upsample_"), dict[str, Any]()
    if kind in _SMOOTH:
        op = call.node.op.replace(kind, _SMOOTH[kind])
        empty = {"empty": op, "changed": lambda _: {"align_corners": False}}
    return {d: even(call, d, {name: d}, **empty) for d in range(call.rank(name) - last)}


def _triangle(call: SplitCall) -> Ways:
    """Rows and columns have their places in it: matrices are cut from one another alone."""
    return {d: even(call, d, {"self": d}) for d in range(call.rank("self") - 2)}


def _in_other_order(call: SplitCall) -> Ways:
    """`flip` and `roll`, whose dimensions are a list."""
    rank = call.rank("self")
    over = {d % rank for d in call["dims"]}
    why = "elements come from all of it"
    return {d: why if d in over else even(call, d, {"self": d}) for d in range(rank)} if over else {}


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
    return {
        d: even(call, d, {"index": d} if d == over else {"index": d, "self": d})
        for d, size in enumerate(index)
        if d == over or shape[d] == size
    }


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
    channels, times = call.rank("self") - 3, call.number("upscale_factor") ** 2
    return {  # torch has no gradient where there is no sample
        d: Way(
            call.output[d], {"self": Where(d, times=times if d == channels else 1)}, (Cat(Where(d)),),
            empty="aten.view_copy.default", changed=_sized("size", call, d),
        )
        for d in range(channels + 1)
    }  # fmt: skip


def _of_one_number(call: SplitCall) -> Ways:
    """Along every dimension of `zeros`, `ones` and `full`, and of those with a tensor's dtype and device.

    Where that has a dimension as long, it is cut there, so that a part needs no more of it than another
    operator of its part.
    """
    if call["size"] is None or ("self" in call.arguments and not call.has("self")):  # of a file
        return {}
    ((tag, _),) = references(call.template("self")) if call.has("self") else (("", ""),)
    shape = call.shape("self") if tag == "var" else ()

    def way(axis: int, size: int) -> Way:
        cut: dict[Place, int] = {"self": shape.index(size)} if size in shape else {}
        return even(call, axis, cut, changed=_sized("size", call, axis))

    return {axis: way(axis, size) for axis, size in enumerate(call.output)}


_ELEMENTWISE = (
    "feature_dropout.default", "alpha_dropout.default", "to.dtype", "to.dtype_layout",
    "_to_copy.default", "to.other", "type_as.default", "contiguous.default", "detach.default",
    "alias.default", "hardswish.default", "multiply.Tensor", "subtract.Tensor", "divide.Tensor",
    "multiply.Scalar", "subtract.Scalar", "divide.Scalar", "clip.default", "log_sigmoid.default",
    "zeros_like.default", "ones_like.default", "full_like.default", "softplus.default",
    "lift_fresh_copy.default", "selu.default", "celu.default",
)  # fmt: skip
"""Those that torch does not tag; dropout, where it drops nothing; what is made of a tensor's shape alone."""
_RESHAPES = (
    "view.default", "reshape.default", "_unsafe_view.default", "flatten.using_ints", "unflatten.int",
    "squeeze.default", "squeeze.dim", "squeeze.dims", "unsqueeze.default",
)  # fmt: skip
_PERMUTATIONS = (
    "permute.default", "transpose.int", "swapaxes.default", "swapdims.default", "movedim.int",
    "movedim.intlist", "moveaxis.int", "moveaxis.intlist", "t.default", "mT.default", "numpy_T.default",
)  # fmt: skip
_APART = ("split.Tensor", "split.sizes", "split_with_sizes.default", "chunk.default")
_EDGES = (
    "constant_pad_nd.default", "pad.default", "upsample_nearest2d.default", "upsample_bilinear2d.default",
    "upsample_bicubic2d.vec", *(f"upsample_nearest{d}d.vec" for d in (1, 2, 3)),
    *(f"upsample_{name}.vec" for name in ("linear1d", "bilinear2d", "trilinear3d")),
)  # fmt: skip

FACTORIES = frozenset(
    f"aten.{new}{name}.default" for new in ("", "new_") for name in ("zeros", "ones", "full")
)
"""Operators that need no tensor."""

DRAWING = frozenset(["aten.dropout.default"])
"""Operators that draw random numbers, and whose parts draw the same."""

RULES: dict[str, Rule] = {
    **{f"aten.{name}": elementwise for name in _ELEMENTWISE},
    "aten.dropout.default": _dropout,
    "aten.prelu.default": _prelu,
    "aten.glu.default": _glu,
    **{f"aten.{name}": _reshape for name in _RESHAPES},
    **{f"aten.{name}": _permuted for name in _PERMUTATIONS},
    "aten.expand.default": _expand,
    **{f"aten.{name}": _but_one(True) for name in ("select.int", "unbind.int")},
    **{f"aten.{name}": _but_one(False) for name in ("slice.Tensor", "narrow.default")},
    **{f"aten.{name}": _taken_apart for name in _APART},
    "aten.cat.default": _together(False),
    "aten.stack.default": _together(True),
    **{f"aten.{name}": _edges for name in _EDGES},
    **{f"aten.{name}.default": _triangle for name in ("tril", "triu")},
    **{f"aten.{name}.default": _in_other_order for name in ("flip", "roll")},
    "aten.index_select.default": _index_select,
    "aten.gather.default": _gather,
    "aten.repeat_interleave.self_int": _repeated,
    "aten.pixel_shuffle.default": _pixel_shuffle,
    **dict.fromkeys(FACTORIES, _of_one_number),
}
