"""Reductions over axes, which older operator sets have as an attribute and newer ones as an input."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from netsplit.graph.onnx.call import OnnxCall

__all__ = ["REDUCTIONS"]


def _log_sum(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return torch.log(torch.sum(x, axes, keepdim=keep))


def _prod(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in sorted((a % x.ndim for a in axes), reverse=True):
        x = torch.prod(x, axis, keepdim=keep)
    return x


_FUNCTIONS: dict[str, Callable[[Tensor, list[int], bool], Tensor]] = {
    "ReduceSum": lambda x, axes, keep: torch.sum(x, axes, keepdim=keep, dtype=x.dtype),
    "ReduceMean": lambda x, axes, keep: torch.mean(x, axes, keepdim=keep),
    "ReduceMax": lambda x, axes, keep: torch.amax(x, axes, keepdim=keep),
    "ReduceMin": lambda x, axes, keep: torch.amin(x, axes, keepdim=keep),
    "ReduceProd": _prod,
    "ReduceL1": lambda x, axes, keep: torch.sum(torch.abs(x), axes, keepdim=keep),
    "ReduceL2": lambda x, axes, keep: torch.linalg.vector_norm(x, 2, axes, keepdim=keep),
    "ReduceLogSum": _log_sum,
    "ReduceLogSumExp": lambda x, axes, keep: torch.logsumexp(x, axes, keepdim=keep),
    "ReduceSumSquare": lambda x, axes, keep: torch.sum(x * x, axes, keepdim=keep),
}


def _reduction(function: Callable[[Tensor, list[int], bool], Tensor]) -> Callable[[OnnxCall], Tensor]:
    def reduced(call: OnnxCall) -> Tensor:
        x, axes = call.tensor(0), call.axes(1)
        if not axes and call.attr("noop_with_empty_axes", 0):
            return x
        return function(x, axes or list(range(x.ndim)), bool(call.attr("keepdims", 1)))

    return reduced


def _arg(function: Callable[..., Tensor]) -> Callable[[OnnxCall], Tensor]:
    def arg_of(call: OnnxCall) -> Tensor:
        x, axis, keep = call.tensor(0), call.attr("axis", 0), bool(call.attr("keepdims", 1))
        if not call.attr("select_last_index", 0):
            return function(x, axis, keepdim=keep)
        return x.shape[axis] - 1 - function(x.flip(axis), axis, keepdim=keep)

    return arg_of


REDUCTIONS: dict[str, Callable[[OnnxCall], Tensor]] = {
    **{op: _reduction(function) for op, function in _FUNCTIONS.items()},
    "ArgMax": _arg(torch.argmax),
    "ArgMin": _arg(torch.argmin),
}
