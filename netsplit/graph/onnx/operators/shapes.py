"""Operators that arrange, choose and fill: their sizes and axes are known before the data is."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from netsplit.graph.onnx.call import OnnxCall, as_tensor

__all__ = ["SHAPES"]

Function = Callable[[OnnxCall], Any]


def _shape(call: OnnxCall) -> np.ndarray[Any, Any]:
    sizes = tuple(call.tensor(0).shape)
    return np.array(sizes[call.attr("start", 0) : call.attr("end")], dtype=np.int64)


def _reshape(call: OnnxCall) -> Tensor:
    x = call.tensor(0)
    wanted = call.ints(1)
    if not call.attr("allowzero", 0):
        wanted = [x.shape[i] if size == 0 else size for i, size in enumerate(wanted)]
    return x.reshape(wanted)


def _flatten(call: OnnxCall) -> Tensor:
    x, axis = call.tensor(0), call.attr("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    if axis == 1 and x.ndim > 1:
        return x.flatten(1)
    return x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:]))


def _squeeze(call: OnnxCall) -> Tensor:
    x, axes = call.tensor(0), call.axes(1)
    axes = [d for d, size in enumerate(x.shape) if size == 1] if axes is None else axes
    for axis in axes:
        if x.shape[axis] != 1:
            raise call.refuse(f"it drops dimension {axis}, which has {x.shape[axis]} elements, not one.")
    return torch.squeeze(x, tuple(axes)) if axes else x


def _unsqueeze(call: OnnxCall) -> Tensor:
    x, axes = call.tensor(0), call.axes(1) or []
    rank = x.ndim + len(axes)
    for axis in sorted(a % rank for a in axes):
        x = x.unsqueeze(axis)
    return x


def _split(call: OnnxCall) -> tuple[Tensor, ...]:
    x, axis = call.tensor(0), call.attr("axis", 0)
    sizes = call.ints(1) if call.has(1) else None
    if sizes is None:
        parts = call.attr("num_outputs", len(call.node.outputs))
        each = -(-x.shape[axis] // parts)
        sizes = [each] * (parts - 1) + [x.shape[axis] - each * (parts - 1)]
    return torch.split(x, list(sizes), dim=axis)


def _slice(call: OnnxCall) -> Tensor:
    x = call.tensor(0)
    starts, ends = call.ints(1), call.ints(2)
    axes = call.ints(3) if call.has(3) else list(range(len(starts)))
    steps = call.ints(4) if call.has(4) else [1] * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        chosen = range(x.shape[axis])[start:end:step]
        if not chosen:
            x = x.narrow(axis, 0, 0)
        elif step > 0:
            whole = (slice(None),) * (axis % x.ndim)
            x = x[(*whole, slice(chosen[0], chosen[-1] + 1, step))]
        else:
            x = x.narrow(axis, chosen[-1], chosen[0] - chosen[-1] + 1).flip(axis)
            x = x[(*(slice(None),) * (axis % x.ndim), slice(None, None, -step))]
    return x


def _indices(call: OnnxCall, i: int, size: int) -> Tensor:
    """Indices of an axis with negative ones counted from its end."""
    value = call.values[i]
    if isinstance(value, np.ndarray):
        return as_tensor(np.where(value < 0, value + size, value), call.device)
    indices = call.tensor(i)
    return torch.where(indices < 0, indices + size, indices)


def _gather(call: OnnxCall) -> Tensor:
    """Whole rows of a matrix by an embedding's own operator, which takes no negative indices."""
    x, axis, where = call.tensor(0), call.attr("axis", 0), call.values[1]
    axis = axis % x.ndim
    if isinstance(where, np.ndarray) and where.ndim == 0:
        return x.select(axis, int(where))
    if x.ndim == 2 and axis == 0 and isinstance(where, Tensor) and x.is_floating_point():
        return F.embedding(where, x)
    indices = _indices(call, 1, x.shape[axis])
    rows = x.index_select(axis, indices.reshape(-1))
    return rows.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _scatter_elements(call: OnnxCall) -> Tensor:
    x, axis, how = call.tensor(0), call.attr("axis", 0), call.attr("reduction", "none")
    indices, updates = _indices(call, 1, x.shape[axis]), call.tensor(2)
    if how == "none":
        return torch.scatter(x, axis, indices, updates)
    return torch.scatter_reduce(x, axis, indices, updates, _REDUCTIONS[how])


def _scatter_nd(call: OnnxCall) -> Tensor:
    """Where an index comes twice without a reduction, ONNX leaves open which of the two stays."""
    x, indices, updates, how = call.tensor(0), call.tensor(1), call.tensor(2), call.attr("reduction", "none")
    if how not in ("none", "add"):
        raise call.refuse(f"its reduction '{how}' is not supported: only 'none' and 'add' are.")
    return torch.index_put(x, tuple(indices.unbind(-1)), updates, accumulate=how == "add")


def _pad(call: OnnxCall) -> Tensor:
    x, mode = call.tensor(0), call.attr("mode", "constant")
    pads = call.ints(1)
    axes = call.ints(3) if call.has(3) else list(range(x.ndim))
    n = len(axes)
    around = {axis % x.ndim: (pads[i], pads[i + n]) for i, axis in enumerate(axes)}
    if mode == "constant":
        value = call.number(2, 0.0)
        margins = [p for d in reversed(range(x.ndim)) for p in around.get(d, (0, 0))]
        while len(margins) > 2 and margins[-2:] == [0, 0]:
            margins = margins[:-2]
        return F.pad(x, margins, value=value)
    for axis, (before, after) in around.items():
        if before or after:
            places = np.arange(x.shape[axis])[max(-before, 0) : x.shape[axis] - max(-after, 0)]
            style: Any = mode
            places = np.pad(places, (max(before, 0), max(after, 0)), mode=style)
            x = x.index_select(axis, as_tensor(places, call.device))
    return x


def _trilu(call: OnnxCall) -> Tensor:
    k = int(call.number(1, 0))
    return (torch.triu if call.attr("upper", 1) else torch.tril)(call.tensor(0), k)


def _cum_sum(call: OnnxCall) -> Tensor:
    x, axis = call.tensor(0), int(call.number(1, 0))
    x = x.flip(axis) if call.attr("reverse", 0) else x
    sums = torch.cumsum(x, axis, dtype=x.dtype)
    sums = sums - x if call.attr("exclusive", 0) else sums
    return sums.flip(axis) if call.attr("reverse", 0) else sums


def _top_k(call: OnnxCall) -> tuple[Tensor, Tensor]:
    x, k, axis = call.tensor(0), int(call.number(1, 0)), call.attr("axis", -1)
    top = torch.topk(x, k, axis, bool(call.attr("largest", 1)), bool(call.attr("sorted", 1)))
    return top.values, top.indices


def _depth_to_space(call: OnnxCall) -> Tensor:
    x, size = call.tensor(0), call.attr("blocksize")
    n, c, h, w = x.shape
    if call.attr("mode", "DCR") == "CRD":
        return F.pixel_shuffle(x, size)
    parts = x.reshape(n, size, size, c // size**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return parts.reshape(n, c // size**2, h * size, w * size)


SHAPES: dict[str, Function] = {
    "Shape": _shape,
    "Size": lambda call: np.array(prod(call.tensor(0).shape), dtype=np.int64),
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Transpose": lambda call: (x := call.tensor(0)).permute(call.attr("perm") or [*range(x.ndim)][::-1]),
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Concat": lambda call: torch.cat(call.tensors(), dim=call.attr("axis")),
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "GatherElements": lambda call: torch.gather(
        x := call.tensor(0), axis := call.attr("axis", 0), _indices(call, 1, x.shape[axis])
    ),
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "Expand": lambda call: (x := call.tensor(0)).expand(torch.broadcast_shapes(x.shape, call.ints(1))),
    "Tile": lambda call: call.tensor(0).repeat(call.ints(1)),
    "Pad": _pad,
    "Trilu": _trilu,
    "CumSum": _cum_sum,
    "TopK": _top_k,
    "DepthToSpace": _depth_to_space,
}
