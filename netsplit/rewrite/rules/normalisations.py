"""Normalisations: along what their statistics are not taken over."""

from __future__ import annotations

from dataclasses import replace

from netsplit.rewrite.ways import Arguments, Cat, OperatorPart, Place, Rule, SplitCall, Way, Ways, Where, even

__all__ = ["RULES", "WRITERS"]

_OVER = "its statistics are taken over all of it"


def _layer_norm(call: SplitCall) -> Ways:
    normalised, rank = len(call["normalized_shape"]), call.rank("input")
    ways: Ways = {d: even(call, d, {"input": d}) for d in range(rank - normalised)}
    return ways | dict.fromkeys(range(rank - normalised, rank), _OVER)


def _group_norm(call: SplitCall) -> Ways:
    groups, channels = call.number("num_groups"), call.shape("input")[1]
    cut: dict[Place, Where] = {"input": Where(1, times=channels // groups)}
    cut |= {k: Where(0, times=channels // groups) for k in ("weight", "bias") if call.has(k)}
    own = Way(groups, cut, (Cat(Where(1, times=channels // groups)),), changed=_groups_of)
    return {
        0: even(call, 0, {"input": 0}),
        1: "its channels are in groups: split along 'groups'",
        "groups": own,
        **dict.fromkeys(range(2, call.rank("input")), _OVER),
    }


def _groups_of(part: OperatorPart) -> Arguments:
    return {"num_groups": part.whole_size}


_OF_CHANNELS = ("weight", "bias", "running_mean", "running_var")


def _by_channel(call: SplitCall) -> dict[Place, int]:
    dims: dict[Place, int] = {"input": 1}
    return dims | {k: 0 for k in _OF_CHANNELS if call.has(k)}


def _batch_norm(call: SplitCall) -> Ways:
    """Cuts by channel; parts write their own part of the running statistics, on one device."""
    if _are_parts(call):
        return {}
    dims = _by_channel(call)
    ways: Ways = {1: even(call, 1, dims)}
    others = [0, *range(2, call.rank("input"))]
    if call["training"]:
        why = "its statistics are taken over the whole batch, and parts would have others"
        return ways | dict.fromkeys(others, why)
    return ways | {d: even(call, d, {"input": d}) for d in others}


def _instance_norm(call: SplitCall) -> Ways:
    if _are_parts(call):
        return {}
    dims = _by_channel(call)
    over: Ways = dict.fromkeys(range(2, call.rank("input")), _OVER)
    if call.has("running_mean"):
        return {1: even(call, 1, dims), **over, 0: "its running statistics are means over the whole batch"}
    channels = call.shape("input")[1]
    # torch has none of no sample; a group for each channel is the same, of any number of samples
    empty = "aten.group_norm.default"
    by_channel = replace(even(call, 1, dims), empty=empty, changed=_groups_of)
    along = replace(even(call, 0, {"input": 0}), empty=empty, changed=lambda _: {"num_groups": channels})
    return {1: by_channel, **over, 0: along}


def _are_parts(call: SplitCall) -> bool:
    """Whether it keeps a part of running statistics already."""
    return call.has("running_mean") and "init" not in call["running_mean"]


WRITERS = frozenset(["aten.batch_norm.default", "aten.instance_norm.default"])
"""Those that write statistics into buffers."""

RULES: dict[str, Rule] = {
    "aten.layer_norm.default": _layer_norm,
    "aten.rms_norm.default": _layer_norm,
    "aten.group_norm.default": _group_norm,
    "aten.batch_norm.default": _batch_norm,
    "aten.instance_norm.default": _instance_norm,
}
