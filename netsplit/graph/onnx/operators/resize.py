"""Resize, where torch's ``interpolate`` says the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from netsplit.graph.onnx.call import OnnxCall

__all__ = ["RESIZING"]

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
            f"its mode '{call.attr('mode', 'nearest')}' with coordinates '{coordinates}' is not known: what "
            "torch.nn.functional.interpolate computes is."
        )
    if scales is not None:
        return F.interpolate(x, scale_factor=[scales.get(a, 1.0) for a in spatial], **options)
    return F.interpolate(x, size=[(sizes or {}).get(a, x.shape[a]) for a in spatial], **options)


def _options(call: OnnxCall, n: int, coordinates: str, repeats: bool) -> dict[str, Any] | None:
    """Of ``interpolate``; None where it would say something else."""
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
