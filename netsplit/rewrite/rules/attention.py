"""Attention by samples, by heads and by queries; recurrences by samples."""

from __future__ import annotations

from netsplit.rewrite.ways import Cat, Place, Rule, SplitCall, Way, Ways, Where, even

__all__ = ["RULES"]


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

    def inputs_with(axis: int) -> list[Place]:
        return [k for k in ("query", "key", "value") if call.shape(k)[axis] == out[axis]]

    ways: Ways = {d: way(d, *inputs_with(d)) for d in range(rank - 2)}
    heads = rank - 3
    few, of_values = [call.shape(k)[heads] if rank > 2 else 1 for k in ("key", "value")]
    if call["enable_gqa"] and few != of_values:
        ways[heads] = "its keys have other heads than its values"
    elif call["enable_gqa"] and 1 < few < out[heads]:
        times = out[heads] // few
        own: dict[Place, Where] = {
            "query": Where(heads, times=times),
            "key": Where(heads),
            "value": Where(heads),
        }
        ways[heads] = "its heads share keys and values: split along 'groups' of them"
        ways["groups"] = Way(few, own | masked(heads, times), (Cat(Where(heads, times=times)),))
    ways[rank - 2] = way(rank - 2, "query")
    if call["is_causal"]:
        ways[rank - 2] = "it is causal: parts of the queries would see keys from the first one on"
    ways[rank - 1] = even(call, rank - 1, {"value": rank - 1})
    return ways


def _recurrence(call: SplitCall) -> Ways:
    """Cuts by samples: the output has them in one dimension, states in their second."""
    if call.rank("input") != 3:
        return {}
    samples = 0 if call["batch_first"] else 1
    cut: dict[Place, Where] = {"input": Where(samples)}
    states = [place for place in call.tensors if place == "hx" or place[0] == "hx"]
    cut |= {place: Where(1) for place in states}
    joined = (Cat(Where(samples)), *(Cat(Where(1)) for _ in call.node.outputs[1:]))
    steps = "every step needs the one before"
    return {
        samples: Way(call.output[samples], cut, joined),
        1 - samples: steps,
        2: "every step needs all of the state before",
    }


def _cell(call: SplitCall) -> Ways:
    """One step of a recurrence, by samples."""
    states = [place for place in call.tensors if place == "hx" or place[0] == "hx"]
    if call.rank("input") != 2:
        return {}
    return {0: even(call, 0, dict.fromkeys(["input", *states], 0)), 1: "it needs all of the state before"}


RULES: dict[str, Rule] = {
    "aten.scaled_dot_product_attention.default": _attention,
    **dict.fromkeys(
        ("aten.lstm.input", "aten.gru.input", "aten.rnn_tanh.input", "aten.rnn_relu.input"), _recurrence
    ),
    **dict.fromkeys(
        (
            "aten.lstm_cell.default",
            "aten.gru_cell.default",
            "aten.rnn_tanh_cell.default",
            "aten.rnn_relu_cell.default",
        ),
        _cell,
    ),
}
