"""Reductions, resizing, pooling: by torch's own operators where these say the same, else with margins."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from netsplit.graph.onnx.call import OnnxCall
from netsplit.graph.onnx.operators.layers import same_pads

__all__ = ["POOLING", "REDUCTIONS", "RESIZING"]


@dataclass(frozen=True)
class _PoolingWindow:
    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    before: list[int]
    after: list[int]
    ceil: bool

    @property
    def plain(self) -> bool:
        """Whether torch's operators take it as it is: margins alike at both ends, at most half a window."""
        return self.before == self.after and all(
            2 * p <= k for p, k in zip(self.before, self.kernel, strict=True)
        )


def _window(call: OnnxCall, x: Tensor) -> _PoolingWindow:
    n = x.ndim - 2
    if not 1 <= n <= 3:
        raise call.refuse(f"its input has {x.ndim} dimensions: 3 to 5 are supported.")
    kernel = list(call.attr("kernel_shape"))
    strides, dilations = list(call.attr("strides", [1] * n)), list(call.attr("dilations", [1] * n))
    pads = same_pads(call, list(x.shape[2:]), kernel, strides, dilations)
    window = _PoolingWindow(kernel, strides, dilations, pads[:n], pads[n:], bool(call.attr("ceil_mode", 0)))
    if window.ceil and not window.plain:
        raise call.refuse(f"its pads are {pads}: with ceil_mode they must be equal at both ends.")
    return window


def _margins(window: _PoolingWindow) -> list[int]:
    """As ``F.pad`` has them: the last dimension first."""
    return [p for ends in reversed(list(zip(window.before, window.after, strict=True))) for p in ends]


def _max_pool(call: OnnxCall) -> Tensor:
    x = call.tensor(0)
    if call.wants(1):
        raise call.refuse("its indices are read by other nodes: only its first output is supported.")
    window = _window(call, x)
    pool = getattr(F, f"max_pool{x.ndim - 2}d")
    if window.plain:
        return pool(x, window.kernel, window.strides, window.before, window.dilations, window.ceil)
    least = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    padded = F.pad(x, _margins(window), value=least)
    return pool(padded, window.kernel, window.strides, 0, window.dilations)


def _average_pool(call: OnnxCall) -> Tensor:
    x = call.tensor(0)
    window = _window(call, x)
    if any(d != 1 for d in window.dilations):
        raise call.refuse(
            f"its dilations are {window.dilations}: only averages over neighbours are supported."
        )
    margins_count = bool(call.attr("count_include_pad", 0))
    pool = getattr(F, f"avg_pool{x.ndim - 2}d")
    if window.plain:
        return pool(x, window.kernel, window.strides, window.before, window.ceil, margins_count)
    sums = pool(F.pad(x, _margins(window)), window.kernel, window.strides)
    ones = torch.ones(1, 1, *x.shape[2:], dtype=x.dtype, device=x.device)
    inner = F.pad(ones, _margins(window), value=1.0 if margins_count else 0.0)
    return sums / pool(inner, window.kernel, window.strides)


def _global(function: Callable[..., Tensor]) -> Callable[[OnnxCall], Any]:
    def pooled(call: OnnxCall) -> Tensor:
        x = call.tensor(0)
        return function(x, list(range(2, x.ndim)), keepdim=True)

    return pooled


POOLING: dict[str, Callable[[OnnxCall], Any]] = {
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global(torch.mean),
    "GlobalMaxPool": _global(torch.amax),
}


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
    "ReduceLogSum": lambda x, axes, keep: torch.log(torch.sum(x, axes, keepdim=keep)),
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

_LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


def _resize(call: OnnxCall) -> Tensor:
    x = call.tensor(0)
    axes = [a % x.ndim for a in call.attr("axes") or range(x.ndim)]
    if call.has(2) and call.host(2).size:
        scales = [float(str(scale)) for scale in call.host(2).reshape(-1)]
        return _interpolated(call, dict(zip(axes, scales, strict=True)), None)
    if not call.has(3):
        raise call.refuse("it has neither scales nor sizes.")
    return _interpolated(call, None, dict(zip(axes, call.ints(3), strict=True)))


def _interpolated(call: OnnxCall, scales: dict[int, float] | None, sizes: dict[int, int] | None) -> Tensor:
    """By scales or by sizes of axes."""
    coordinates = call.attr("coordinate_transformation_mode", "half_pixel")
    x, spatial = call.tensor(0), range(2, call.tensor(0).ndim)
    changed = [a for a, scale in (scales or {}).items() if scale != 1]
    changed += [a for a, size in (sizes or {}).items() if size != x.shape[a]]
    if not changed:
        return x
    repeats = scales is not None and all(scale % 1 == 0 for scale in scales.values())
    options = _options(call, len(spatial), coordinates, repeats)
    if options is None or min(changed) < 2:
        raise call.refuse(
            f"its mode '{call.attr('mode', 'nearest')}' with coordinates '{coordinates}' is not supported: "
            "use one that torch.nn.functional.interpolate has."
        )
    if scales is not None:
        return F.interpolate(x, scale_factor=[scales.get(a, 1.0) for a in spatial], **options)
    return F.interpolate(x, size=[(sizes or {}).get(a, x.shape[a]) for a in spatial], **options)


def _options(call: OnnxCall, n: int, coordinates: str, repeats: bool) -> dict[str, Any] | None:
    """Options of ``interpolate``; None where it would compute something else."""
    mode = call.attr("mode", "nearest")
    if call.attr("antialias", 0) or call.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    if mode == "nearest":
        rounding = call.attr("nearest_mode", "round_prefer_floor")
        plain = (coordinates, rounding) == ("asymmetric", "floor")
        plain |= (coordinates, rounding) == ("half_pixel", "round_prefer_floor") and repeats
        return {"mode": mode} if plain and n in _LINEAR else None
    if coordinates not in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        return None
    corners = {"align_corners": coordinates == "align_corners"}
    if mode == "linear":
        return {"mode": _LINEAR[n], **corners} if n in _LINEAR else None
    plain = n == 2 and call.attr("cubic_coeff_a", -0.75) == -0.75 and not call.attr("exclude_outside", 0)
    return {"mode": "bicubic", **corners} if mode == "cubic" and plain else None


RESIZING: dict[str, Callable[[OnnxCall], Tensor]] = {"Resize": _resize}
