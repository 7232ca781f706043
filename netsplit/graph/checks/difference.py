"""Whether two tensors that should be equal are, within the rounding of kernels that sum in parallel."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["difference", "has_nan", "largest"]

_ROUNDING = 1000.0  # units in the last place of the largest element; kernels that sum in parallel differ
_NOISE = 8.0  # units in the last place of the elements beside it
_COARSE = 0.05  # at most, relative: for dtypes of few digits


def difference(plain: Tensor | None, ours: Tensor | None, beside: float = 0.0) -> str | None:
    """Says how they differ; None where they agree.

    Args:
        beside: the largest element of what was computed together. A sum that cancels (the gradient of an
            attention's bias of keys is 0) leaves rounding of those elements, and none of its own.
    """
    if plain is None or ours is None:
        if plain is ours:
            return None
        return f"only {'the captured step' if plain is None else 'plain PyTorch'} has one"
    if plain.shape != ours.shape or plain.dtype != ours.dtype:
        return f"{tuple(plain.shape)} of {plain.dtype} against {tuple(ours.shape)} of {ours.dtype}"
    plain, ours = plain.detach().to_dense() if plain.is_sparse else plain.detach(), ours.detach()
    ours = ours.to_dense() if ours.is_sparse else ours
    if torch.equal(plain, ours) or plain.numel() == 0:
        return None
    if not (plain.is_floating_point() or plain.is_complex()):
        return f"{int((plain != ours).sum())} of {plain.numel()} elements"
    if not torch.equal(plain.isnan(), ours.isnan()):
        return "one has NaN where the other has none"
    a, b = (torch.nan_to_num(torch.view_as_real(t) if t.is_complex() else t).double() for t in (plain, ours))
    largest, apart = float(torch.maximum(a.abs(), b.abs()).max()), float((a - b).abs().max())
    allowed = min(_ROUNDING * torch.finfo(plain.dtype).eps, _COARSE) * largest
    allowed += _NOISE * torch.finfo(plain.dtype).eps * beside
    return None if apart <= allowed else f"by {apart:.3g}, where the largest element is {largest:.3g}"


def largest(tensors: Iterable[Tensor | None]) -> float:
    """Magnitude of the largest finite element; 0 without any."""
    given = (t.detach() for t in tensors if t is not None and t.numel())
    own = (t.to_dense() if t.is_sparse else t for t in given)
    return max((float(torch.nan_to_num(t.abs(), 0.0, 0.0).max()) for t in own), default=0.0)


def has_nan(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.layout is torch.strided and bool(tensor.isnan().any())
