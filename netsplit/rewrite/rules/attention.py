"""Attention by samples, by heads and by queries; recurrences by samples."""

from __future__ import annotations

from netsplit.rewrite.ways import Cat, Place, Rule, SplitCall, Way, Ways, Where, even

__all__ = ["RULES"]


def _attention(call: SplitCall) -> Ways:
    """q [..., l, e], k [..., s, e], v [..., s, f], mask [..., l, s]"""
    rank = call.rank("query")
    outer = {call.shape(k)[:-2] for k in ("query", "key", "value")}
    if len(outer) != 1:
        return {}  # of fewer heads for keys and values, or broadcast
    mask = call.shape("attn_mask") if call.has("attn_mask") else ()

    def way(axis: int, dims: dict[Place, int]) -> Way:
        own = axis - rank + len(mask)
        masked: dict[Place, int] = {"attn_mask": own} if own >= 0 and mask[own] > 1 else {}
        return even(call, axis, dims | masked)

    ways: Ways = {d: way(d, {"query": d, "key": d, "value": d}) for d in range(rank - 2)}
    ways[rank - 2] = way(rank - 2, {"query": rank - 2})
    if call["is_causal"]:
        ways[rank - 2] = "it is causal: parts of the queries would see keys from the first one on"
    ways[rank - 1] = even(call, rank - 1, {"value": rank - 1})
    return ways


def _recurrence(call: SplitCall) -> Ways:
    """By samples: the output has them in one dimension, states in their second."""
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


RULES: dict[str, Rule] = {
    "aten.scaled_dot_product_attention.default": _attention,
    **dict.fromkeys(
        ("aten.lstm.input", "aten.gru.input", "aten.rnn_tanh.input", "aten.rnn_relu.input"), _recurrence
    ),
}
