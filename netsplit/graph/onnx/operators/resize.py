"""Resize and Upsample: by ``interpolate`` where torch says the same, else axis by axis as ONNX has it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from netsplit.graph.onnx.call import OnnxCall, as_tensor

__all__ = ["RESIZING"]

_LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}
_KNOWN = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")


def _resize(call: OnnxCall) -> Tensor:
    x = call.tensor(0)
    if call.attr("antialias", 0) or call.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise call.refuse("it smoothes or keeps an aspect ratio, which is not known: export it without.")
    axes = [a % x.ndim for a in call.attr("axes") or range(x.ndim)]
    old = [x.shape[a] for a in axes]
    at = 2 if call.opset >= 11 else 1
    if call.has(at) and call.host(at).size:
        scales = [float(str(s)) for s in call.host(at).reshape(-1)]
        sizes = [math.floor(n * s) for n, s in zip(old, scales, strict=True)]
    elif call.has(3):
        sizes = call.ints(3)
        scales = [new / n for new, n in zip(sizes, old, strict=True)]
    else:
        raise call.refuse("it has neither scales nor sizes.")
    coordinates = "asymmetric"
    if call.opset >= 11:
        coordinates = call.attr("coordinate_transformation_mode", "half_pixel")
    return _resized(call, x, axes, sizes, scales, coordinates)


def _upsample(call: OnnxCall) -> Tensor:
    """Upsample of operator sets up to 9; later ones have Resize."""
    x = call.tensor(0)
    scales = list(call.attr("scales") or call.host(1).reshape(-1))
    sizes = [math.floor(n * s) for n, s in zip(x.shape, scales, strict=True)]
    return _resized(call, x, list(range(x.ndim)), sizes, scales, "asymmetric")


def _resized(
    call: OnnxCall, x: Tensor, axes: list[int], sizes: list[int], scales: list[float], coordinates: str
) -> Tensor:
    mode = call.attr("mode", "nearest")
    if coordinates not in _KNOWN:
        raise call.refuse(f"its coordinates '{coordinates}' are not known: {', '.join(_KNOWN)} are.")
    if mode not in ("nearest", "linear", "cubic"):
        raise call.refuse(f"its mode '{mode}' is not known: nearest, linear and cubic are.")
    changed = {a: (n, s) for a, n, s in zip(axes, sizes, scales, strict=True) if n != x.shape[a] or s != 1}
    if not changed:
        return x
    by_torch = _by_torch(call, x, changed, mode, coordinates)
    if by_torch is not None:
        return by_torch
    for axis, (size, scale) in changed.items():
        where = _coordinates(size, x.shape[axis], scale, coordinates)
        if mode == "nearest":
            nearest = call.attr("nearest_mode", "round_prefer_floor") if call.opset >= 11 else "floor"
            places = np.clip(_NEAREST[nearest](where), 0, x.shape[axis] - 1).astype(np.int64)
            x = x.index_select(axis, as_tensor(places, call.device))
        else:
            weights = _weights(call, where, x.shape[axis], mode)
            matrix = as_tensor(weights, call.device).to(x.dtype)
            x = torch.matmul(x.movedim(axis, -1), matrix.T).movedim(-1, axis)
    return x


def _by_torch(
    call: OnnxCall, x: Tensor, changed: dict[int, tuple[int, float]], mode: str, coordinates: str
) -> Tensor | None:
    """Resizes by ``interpolate``; None where it would say something else."""
    n = x.ndim - 2
    if not 1 <= n <= 3 or any(axis < 2 for axis in changed):
        return None
    sizes = [changed.get(axis, (x.shape[axis], 1.0))[0] for axis in range(2, x.ndim)]
    exact = all(abs(size - x.shape[axis] * scale) < 1e-6 for axis, (size, scale) in changed.items())
    nearest = call.attr("nearest_mode", "round_prefer_floor") if call.opset >= 11 else "floor"
    if not exact:
        return None
    if mode == "nearest":
        plain = coordinates == "asymmetric" and nearest == "floor"
        return F.interpolate(x, size=sizes) if plain else None
    pixels = coordinates == "half_pixel" or (coordinates == "pytorch_half_pixel" and min(sizes) > 1)
    if not pixels and coordinates != "align_corners":
        return None
    if mode == "linear":
        return F.interpolate(x, size=sizes, mode=_LINEAR[n], align_corners=not pixels)
    plain = n == 2 and call.attr("cubic_coeff_a", -0.75) == -0.75 and not call.attr("exclude_outside", 0)
    return F.interpolate(x, size=sizes, mode="bicubic", align_corners=not pixels) if plain else None


def _coordinates(new: int, old: int, scale: float, how: str) -> np.ndarray[Any, Any]:
    """Where each new element lies on the old axis."""
    i = np.arange(new, dtype=np.float64)
    if how == "asymmetric":
        return i / scale
    if how == "align_corners":
        return i * (old - 1) / (new - 1) if new > 1 else i * 0
    if how == "pytorch_half_pixel" and new == 1:
        return i * 0
    return (i + 0.5) / scale - 0.5


_NEAREST: dict[str, Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
}


def _weights(call: OnnxCall, where: np.ndarray[Any, Any], old: int, mode: str) -> np.ndarray[Any, Any]:
    """What weight every old element has in every new one, (new, old)."""
    first = np.floor(where).astype(np.int64)
    part = where - first
    if mode == "linear":
        taps = {0: 1 - part, 1: part}
    else:
        taps = {k: _cubic(np.abs(part - k), call.attr("cubic_coeff_a", -0.75)) for k in (-1, 0, 1, 2)}
    weights = np.zeros((len(where), old))
    for k, weight in taps.items():
        place = first + k
        if mode == "cubic" and call.attr("exclude_outside", 0):
            weight = np.where((place < 0) | (place >= old), 0.0, weight)
        np.add.at(weights, (np.arange(len(where)), np.clip(place, 0, old - 1)), weight)
    if mode == "cubic" and call.attr("exclude_outside", 0):
        weights /= weights.sum(axis=1, keepdims=True)
    return weights


def _cubic(x: np.ndarray[Any, Any], a: float) -> np.ndarray[Any, Any]:
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


RESIZING: dict[str, Callable[[OnnxCall], Tensor]] = {"Resize": _resize, "Upsample": _upsample}
