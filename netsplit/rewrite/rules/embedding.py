"""Looking up rows of a table: by indices, by width, and by vocabulary: each part knows words of its own."""

from __future__ import annotations

from collections.abc import Callable

from netsplit.rewrite.ways import (
    Arguments,
    Cat,
    Emit,
    OperatorPart,
    PartialSum,
    Rule,
    SplitCall,
    Way,
    Ways,
    Where,
    even,
)

__all__ = ["RULES"]


def _embedding(call: SplitCall) -> Ways:
    """y[..., w] = table[index[...], w]"""
    if call["sparse"]:
        return {}
    rank, (words, width) = call.rank("indices"), call.shape("weight")
    ways: Ways = {d: even(call, d, {"indices": d}) for d in range(rank)}
    if call["scale_grad_by_freq"]:
        why = "gradients are divided by how often a word is in the whole of it (scale_grad_by_freq)"
        ways = dict.fromkeys(range(rank), why)
    ways[rank] = Way(width, {"weight": Where(1)}, (Cat(Where(rank)),))
    if not call["scale_grad_by_freq"]:
        ways["weight.0"] = Way(
            words,
            {"weight": Where(0)},
            (PartialSum(),),
            changed=_padding(call),
            in_one=True,
            before=_own_words,
            after=_only_own,
        )
    return ways


def _padding(call: SplitCall) -> Callable[[OperatorPart], Arguments]:
    padding = int(call["padding_idx"])

    def changed(part: OperatorPart) -> Arguments:
        own = padding - part.start
        return {"padding_idx": own if padding >= 0 and 0 <= own < part.size else -1}

    return changed


def _own_words(emit: Emit, part: OperatorPart, arguments: Arguments) -> Arguments:
    """Indices counted from the part's first word; those of others are taken to its own, and masked later.

    What is no word at all reaches the operator of the first or the last part, which refuses it.
    """
    moved = emit("aten.sub.Tensor", arguments["indices"], part.start)
    low = 0 if part.index else None
    high = part.size - 1 if part.start + part.size < part.of else None
    return arguments | {"indices": emit("aten.clamp.default", moved, low, high), "given": moved}


def _only_own(emit: Emit, part: OperatorPart, arguments: Arguments, output: dict[str, str]) -> dict[str, str]:
    """Zero where the word is another part's: nothing goes back from there."""
    moved = arguments["given"]
    low, high = emit("aten.lt.Scalar", moved, 0), emit("aten.ge.Scalar", moved, part.size)
    others = emit("aten.unsqueeze.default", emit("aten.logical_or.default", low, high), -1)
    return emit("aten.masked_fill.Scalar", output, others, 0)


RULES: dict[str, Rule] = {"aten.embedding.default": _embedding}
