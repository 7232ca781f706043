"""Matrix products: by rows, by columns, by batch, and by what is summed over, which leaves partial sums."""

from __future__ import annotations

from netsplit.rewrite.ways import (
    Axis,
    Cat,
    PartialSum,
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


def _linear(call: SplitCall) -> Ways:
    """y[..., o] = sum over i of x[..., i] w[o, i], + b[o], or another b that broadcasts"""
    inner = call.rank("input") - 1
    if call.rank("weight") == 1:
        return {}

    def along(axis: int, place: Place, dim: int) -> Way:
        own = broadcast(call, "bias", axis) if call.has("bias") else None
        return even(call, axis, {place: dim, **({} if own is None else {"bias": own})})

    ways: Ways = {d: along(d, "input", d) for d in range(inner)}
    ways[inner] = along(inner, "weight", 0)
    ways[f"input.{inner}"] = Way(
        call.shape("input")[inner],
        {"input": Where(inner), "weight": Where(1)},
        (PartialSum(),),
        once=frozenset({"bias"}),
    )
    return ways


def _product(first: str, second: str, batched: bool) -> Rule:
    """[b,] m k times [b,] k n."""

    def rule(call: SplitCall) -> Ways:
        b = int(batched)
        ways: Ways = {
            b: even(call, b, {first: b}),
            b + 1: even(call, b + 1, {second: b + 1}),
            f"{first}.{b + 1}": Way(
                call.shape(first)[b + 1], {first: Where(b + 1), second: Where(b)}, (PartialSum(),)
            ),
        }
        if batched:
            ways[0] = even(call, 0, {first: 0, second: 0})
        return ways

    return rule


def _with_addend(first: str, second: str, batched: bool) -> Rule:
    """A product to which a tensor is added, that broadcasts."""
    product = _product(first, second, batched)

    def rule(call: SplitCall) -> Ways:
        ways: Ways = {}
        for axis, way in product(call).items():
            if isinstance(axis, str) or isinstance(way, str):
                ways[axis] = "every part would add the addend: split the product and the sum one by one"
                continue
            own = broadcast(call, "self", axis)
            ways[axis] = Way(
                way.size, {**way.cut, **({"self": Where(own)} if own is not None else {})}, way.joined
            )
        return ways

    return rule


def _matmul(call: SplitCall) -> Ways:
    """Cuts a product as numpy has it: the last two dimensions are matrices, those before broadcast."""
    left, right = call.rank("self"), call.rank("other")
    if min(left, right) < 2:
        return {}
    rank = len(call.output)
    row, column = rank - 2, rank - 1
    ways: Ways = {row: even(call, row, {"self": left - 2}), column: even(call, column, {"other": right - 1})}
    for axis in range(row):
        dims = {place: broadcast(call, place, axis) for place in ("self", "other")}
        ways[axis] = even(call, axis, {place: d for place, d in dims.items() if d is not None})
    inner: dict[Place, Where] = {"self": Where(left - 1), "other": Where(right - 2)}
    ways[f"self.{left - 1}"] = Way(call.shape("self")[-1], inner, (PartialSum(),))
    return ways


def _einsum(call: SplitCall) -> Ways:
    """Cuts by every letter; those that are summed over leave partial sums."""
    inside, _, outside = str(call["equation"]).replace(" ", "").partition("->")
    if "." in inside:
        return {}
    terms, places = inside.split(","), call.tensors
    if "->" not in str(call["equation"]):
        outside = "".join(sorted(k for k in set(inside) - {","} if inside.count(k) == 1))
    ways: Ways = {}
    for letter in dict.fromkeys(inside.replace(",", "")):
        axis: Axis = outside.index(letter) if letter in outside else letter
        if any(term.count(letter) > 1 for term in terms):
            ways[axis] = "it is a diagonal of one of them"
            continue
        dims = {
            place: term.index(letter) for place, term in zip(places, terms, strict=True) if letter in term
        }
        size = max(call.shape(place)[d] for place, d in dims.items())
        cut = {place: Where(d) for place, d in dims.items() if call.shape(place)[d] == size}
        joined = Cat(Where(axis)) if isinstance(axis, int) else PartialSum()
        ways[axis] = Way(size, cut, (joined,))
    return ways


RULES: dict[str, Rule] = {
    "aten.einsum.default": _einsum,
    "aten.linear.default": _linear,
    "aten.mm.default": _product("self", "mat2", False),
    "aten.bmm.default": _product("self", "mat2", True),
    "aten.addmm.default": _with_addend("mat1", "mat2", False),
    "aten.baddbmm.default": _with_addend("batch1", "batch2", True),
    "aten.matmul.default": _matmul,
}
