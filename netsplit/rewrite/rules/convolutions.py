"""Convolutions: by batch, by channels out, by channels in as partial sums, and by groups."""

from __future__ import annotations

from netsplit.rewrite.ways import (
    Arguments,
    Cat,
    OperatorPart,
    PartialSum,
    Place,
    Rule,
    SplitCall,
    Way,
    Ways,
    Where,
    even,
)

__all__ = ["RULES"]


def _convolution(transposed: bool | None) -> Rule:
    """The rule for weights [out, in of a group, ...], or, transposed, [in, out of a group, ...].

    `transposed`: None: its arguments say it.
    """

    def rule(call: SplitCall) -> Ways:
        turned = bool(call["transposed"]) if transposed is None else transposed
        if call.rank("input") != call.rank("weight"):
            return {}  # a sample without its batch
        ways: Ways = {0: even(call, 0, {"input": 0})}
        ways |= dict.fromkeys(range(2, call.rank("input")), "parts would need the edges of their neighbours")
        groups = call.number("groups")
        return ways | (_grouped(call, groups) if groups > 1 else _dense(call, turned))

    return rule


def _dense(call: SplitCall, turned: bool) -> Ways:
    bias: dict[Place, Where] = {"bias": Where(0)} if call.has("bias") else {}
    out, inside = (1, 0) if turned else (0, 1)
    return {
        1: Way(call.output[1], {"weight": Where(out), **bias}, (Cat(Where(1)),)),
        "input.1": Way(
            call.shape("input")[1],
            {"input": Where(1), "weight": Where(inside)},
            (PartialSum(),),
            once=frozenset({"bias"}),
        ),
    }


def _grouped(call: SplitCall, groups: int) -> Ways:
    """Parts have groups of their own: each group's channels lie together, in, out and in the weight."""

    def of(size: int, dim: int) -> Where:
        return Where(dim, times=size // groups)

    cut: dict[Place, Where] = {
        "input": of(call.shape("input")[1], 1),
        "weight": of(call.shape("weight")[0], 0),
    }
    if call.has("bias"):
        cut["bias"] = of(call.shape("bias")[0], 0)
    return {
        1: "its channels are in groups: split along 'groups'",
        "groups": Way(groups, cut, (Cat(of(call.output[1], 1)),), changed=_groups_of),
    }


def _groups_of(part: OperatorPart) -> Arguments:
    return {"groups": part.whole_size}


RULES: dict[str, Rule] = {
    **{
        f"aten.conv{d}d.{overload}": _convolution(False)
        for d in (1, 2, 3)
        for overload in ("default", "padding")
    },
    "aten.conv_transpose1d.default": _convolution(True),
    "aten.conv_transpose2d.input": _convolution(True),
    "aten.conv_transpose3d.input": _convolution(True),
    "aten.convolution.default": _convolution(None),
}
