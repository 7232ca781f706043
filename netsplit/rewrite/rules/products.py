"""What multiplies by weights: products, convolutions, attention, recurrences, and looking up rows of a table.

They are cut by samples, by what they make, and by what they sum over, which leaves partial sums.
"""

from __future__ import annotations

from netsplit.rewrite.ways import (
    Arguments,
    Axis,
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
    cut: dict[Place, Where] = {"input": Where(inner), "weight": Where(1)}
    summed = Way(call.shape("input")[inner], cut, (PartialSum(),), once=frozenset({"bias"}))
    return ways | {inner: along(inner, "weight", 0), f"input.{inner}": summed}


def _product(first: str, second: str, batched: bool) -> Rule:
    """[b,] m k times [b,] k n."""

    def rule(call: SplitCall) -> Ways:
        b = int(batched)
        inner: dict[Place, Where] = {first: Where(b + 1), second: Where(b)}
        ways: Ways = {
            b: even(call, b, {first: b}),
            b + 1: even(call, b + 1, {second: b + 1}),
            f"{first}.{b + 1}": Way(call.shape(first)[b + 1], inner, (PartialSum(),)),
        }
        return ways | ({0: even(call, 0, {first: 0, second: 0})} if batched else {})

    return rule


def _with_addend(first: str, second: str, batched: bool) -> Rule:
    """A product to which a tensor is added, that broadcasts."""
    product = _product(first, second, batched)

    def rule(call: SplitCall) -> Ways:
        ways: Ways = {}
        for axis, way in product(call).items():
            if isinstance(axis, str) or isinstance(way, str):
                ways[axis] = "every part would add the addend: split the product and the sum separately"
                continue
            own = broadcast(call, "self", axis)
            added: dict[Place, Where] = {} if own is None else {"self": Where(own)}
            ways[axis] = Way(way.size, {**way.cut, **added}, way.joined)
        return ways

    return rule


def _matmul(call: SplitCall) -> Ways:
    """Cuts a product as numpy has it: the last two dimensions are matrices, those before broadcast."""
    left, right = call.rank("self"), call.rank("other")
    if min(left, right) < 2:
        return {}
    row = len(call.output) - 2
    ways: Ways = {
        row: even(call, row, {"self": left - 2}), row + 1: even(call, row + 1, {"other": right - 1})
    }  # fmt: skip
    for axis in range(row):
        dims = {place: broadcast(call, place, axis) for place in ("self", "other")}
        ways[axis] = even(call, axis, {place: d for place, d in dims.items() if d is not None})
    inner: dict[Place, Where] = {"self": Where(left - 1), "other": Where(right - 2)}
    return ways | {f"self.{left - 1}": Way(call.shape("self")[-1], inner, (PartialSum(),))}


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
        dims = {p: term.index(letter) for p, term in zip(places, terms, strict=True) if letter in term}
        size = max(call.shape(place)[d] for place, d in dims.items())
        cut = {place: Where(d) for place, d in dims.items() if call.shape(place)[d] == size}
        ways[axis] = Way(size, cut, (Cat(Where(axis)) if isinstance(axis, int) else PartialSum(),))
    return ways


def _convolution(transposed: bool | None) -> Rule:
    """The rule for weights [out, in of a group, ...], or, transposed, [in, out of a group, ...].
    `transposed`: None: its arguments say it."""

    def rule(call: SplitCall) -> Ways:
        turned, groups = bool(call["transposed"]) if transposed is None else transposed, call.number("groups")
        if call.rank("input") != call.rank("weight"):
            return {}  # a sample without its batch
        ways: Ways = {0: even(call, 0, {"input": 0})}
        ways |= dict.fromkeys(range(2, call.rank("input")), "parts would need the edges of their neighbours")
        return ways | (_of_groups(call, groups) if groups > 1 else _dense(call, turned))

    return rule


def _dense(call: SplitCall, turned: bool) -> Ways:
    bias: dict[Place, int] = {"bias": 0} if call.has("bias") else {}
    out, inside = (1, 0) if turned else (0, 1)
    cut: dict[Place, Where] = {"input": Where(1), "weight": Where(inside)}
    summed = Way(call.shape("input")[1], cut, (PartialSum(),), once=frozenset({"bias"}))
    return {1: even(call, 1, {"weight": out, **bias}), "input.1": summed}


def _of_groups(call: SplitCall, groups: int) -> Ways:
    """Parts have groups of their own: each group's channels lie together, in, out and in the weight."""
    dims = {"input": 1, "weight": 0, **({"bias": 0} if call.has("bias") else {})}
    cut: dict[Place, Where] = {k: Where(d, times=call.shape(k)[d] // groups) for k, d in dims.items()}
    joined = Cat(Where(1, times=call.output[1] // groups))
    return {
        1: "its channels are in groups: split along 'groups'",
        "groups": Way(groups, cut, (joined,), changed=lambda part: {"groups": part.whole_size}),
    }


def _attention(call: SplitCall) -> Ways:
    """q [..., l, e], k [..., s, e], v [..., s, f], mask [..., l, s]

    Where several heads of queries have one of keys and values, these are groups.
    """
    rank, out = call.rank("query"), call.output
    if len(out) != rank or {call.rank("key"), call.rank("value")} != {rank}:
        return {}
    mask = call.shape("attn_mask") if call.has("attn_mask") else ()

    def masked(axis: int, times: int = 1) -> dict[Place, Where]:
        own = axis - rank + len(mask)
        return {"attn_mask": Where(own, times=times)} if own >= 0 and mask[own] > 1 else {}

    def way(axis: int, *places: Place) -> Way:
        cut: dict[Place, Where] = {place: Where(axis) for place in places}
        return Way(out[axis], cut | masked(axis), (Cat(Where(axis)),))

    inputs: tuple[Place, ...] = ("query", "key", "value")
    ways: Ways = {d: way(d, *(k for k in inputs if call.shape(k)[d] == out[d])) for d in range(rank - 2)}
    heads = rank - 3
    few, of_values = [call.shape(k)[heads] if rank > 2 else 1 for k in ("key", "value")]
    if call["enable_gqa"] and few != of_values:
        ways[heads] = "its keys and values have different numbers of heads"
    elif call["enable_gqa"] and 1 < few < out[heads]:
        times = out[heads] // few
        own: dict[Place, Where] = {k: Where(heads, times=times if k == "query" else 1) for k in inputs}
        ways[heads] = "its heads share keys and values: split along 'groups' of them"
        ways["groups"] = Way(few, own | masked(heads, times), (Cat(Where(heads, times=times)),))
    ways[rank - 2] = way(rank - 2, "query")
    if call["is_causal"]:
        ways[rank - 2] = "it is causal, and each part of the queries would start its mask at the first key"
    return ways | {rank - 1: even(call, rank - 1, {"value": rank - 1})}


def _states(call: SplitCall) -> list[Place]:
    return [place for place in call.tensors if place == "hx" or place[0] == "hx"]


def _recurrence(call: SplitCall) -> Ways:
    """Cuts by samples: the output has them in one dimension, states in their second."""
    if call.rank("input") != 3:
        return {}
    samples = 0 if call["batch_first"] else 1
    cut: dict[Place, Where] = {"input": Where(samples), **dict.fromkeys(_states(call), Where(1))}
    joined = (Cat(Where(samples)), *(Cat(Where(1)) for _ in call.node.outputs[1:]))
    return {
        samples: Way(call.output[samples], cut, joined),
        1 - samples: "every step needs the previous one",
        2: "every step needs all of the state before",
    }


def _cell(call: SplitCall) -> Ways:
    """One step of a recurrence, by samples."""
    if call.rank("input") != 2:
        return {}
    dims = dict.fromkeys(["input", *_states(call)], 0)
    return {0: even(call, 0, dims), 1: "it needs all of the state before"}


def _embedding(call: SplitCall) -> Ways:
    """y[..., w] = table[index[...], w]; by vocabulary each part knows words of its own"""
    if call["sparse"]:
        return {}
    rank, padding = call.rank("indices"), int(call["padding_idx"])
    by_width: Ways = {rank: even(call, rank, {"weight": 1})}
    if call["scale_grad_by_freq"]:
        why = "gradients are divided by word counts over all of it (scale_grad_by_freq)"
        return dict.fromkeys(range(rank), why) | by_width

    def changed(part: OperatorPart) -> Arguments:
        own = padding - part.start
        return {"padding_idx": own if padding >= 0 and 0 <= own < part.size else -1}

    by_words = Way(
        call.shape("weight")[0], {"weight": Where(0)}, (PartialSum(),),
        changed=changed, in_one=True, before=_own_words, after=_only_own,
    )  # fmt: skip
    return {d: even(call, d, {"indices": d}) for d in range(rank)} | by_width | {"weight.0": by_words}


def _own_words(emit: Emit, part: OperatorPart, arguments: Arguments) -> Arguments:
    """Indices counted from the part's first word; those of other parts are clamped, and masked later.

    An invalid index reaches the first or the last part's operator, which refuses it.
    """
    moved = emit("aten.sub.Tensor", arguments["indices"], part.start)
    low = 0 if part.index else None
    high = part.size - 1 if part.start + part.size < part.of else None
    return arguments | {"indices": emit("aten.clamp.default", moved, low, high), "given": moved}


def _only_own(emit: Emit, part: OperatorPart, arguments: Arguments, output: dict[str, str]) -> dict[str, str]:
    """Zero where the word is another part's, so that nothing goes back from there."""
    moved = arguments["given"]
    low, high = emit("aten.lt.Scalar", moved, 0), emit("aten.ge.Scalar", moved, part.size)
    others = emit("aten.unsqueeze.default", emit("aten.logical_or.default", low, high), -1)
    return emit("aten.masked_fill.Scalar", output, others, 0)


_KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")

RULES: dict[str, Rule] = {
    "aten.einsum.default": _einsum,
    "aten.linear.default": _linear,
    "aten.mm.default": _product("self", "mat2", False),
    "aten.bmm.default": _product("self", "mat2", True),
    "aten.addmm.default": _with_addend("mat1", "mat2", False),
    "aten.baddbmm.default": _with_addend("batch1", "batch2", True),
    "aten.matmul.default": _matmul,
    **{f"aten.conv{d}d.{kind}": _convolution(False) for d in (1, 2, 3) for kind in ("default", "padding")},
    "aten.conv_transpose1d.default": _convolution(True),
    **{f"aten.conv_transpose{d}d.input": _convolution(True) for d in (2, 3)},
    "aten.convolution.default": _convolution(None),
    "aten.scaled_dot_product_attention.default": _attention,
    **{f"aten.{kind}.input": _recurrence for kind in _KINDS},
    **{f"aten.{kind}_cell.default": _cell for kind in _KINDS},
    "aten.embedding.default": _embedding,
}
