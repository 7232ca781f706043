"""What differs: two tensors that should be equal, and plain attributes of modules before and after a step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["attribute_values", "changed_attribute", "difference", "largest"]

_ROUNDING = 1000.0  # units in the last place of the largest element; kernels that sum in parallel differ
_NOISE = 8.0  # units in the last place of the elements beside it
_COARSE = 0.05  # at most, relative: for dtypes of few digits
_PLAIN = (Number, str, bytes, type(None))
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_OF_TORCH = frozenset(vars(nn.Module())) | {"_version", "call_super_init", "dump_patches"}
_DEPTH, _LONG = 4, 256


def difference(plain: Tensor | None, ours: Tensor | None, beside: float = 0.0) -> str | None:
    """Says how they differ; None where they agree, within the rounding of kernels that sum in parallel.

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
    plain, ours = _dense(plain), _dense(ours)
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
    given = (_dense(t) for t in tensors if t is not None and t.numel())
    return max((float(torch.nan_to_num(t.abs(), 0.0, 0.0).max()) for t in given), default=0.0)


def _dense(tensor: Tensor) -> Tensor:
    return tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()


def attribute_values(*roots: Any) -> dict[str, Any]:
    """Name for people -> number, text or length, of every module's and its class's own attributes."""
    values: dict[str, Any] = {}
    for what, root in zip(("the model", "the loss"), roots, strict=False):
        for path, module in root.named_modules() if isinstance(root, nn.Module) else [("", root)]:
            own = {**vars(type(module)), **getattr(module, "__dict__", {})}
            for key in own:
                if key not in _OF_TORCH and not key.startswith("__"):
                    name = f"'{key}' of {path or what} ({type(module).__name__})"
                    values |= _plain_in(name, own[key], _DEPTH)
    return values


def changed_attribute(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """The first that is another now, or has come or gone; None: all are as they were."""
    names = (*before, *(name for name in after if name not in before))
    return next((name for name in names if repr(before.get(name)) != repr(after.get(name))), None)


def _plain_in(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, _PLAIN):
        yield name, value
    elif isinstance(value, np.ndarray):
        yield name, hash(value.tobytes())
    elif isinstance(value, np.random.Generator):
        yield name, value.bit_generator.state
    elif isinstance(value, _CONTAINERS) and len(value) > _LONG:
        yield name, hash(tuple(each if isinstance(each, _PLAIN) else type(each) for each in value))
    elif isinstance(value, Tensor | nn.Module | type) or callable(value) or depth == 0:
        return
    elif isinstance(value, _CONTAINERS):
        yield name, len(value)
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _plain_in(f"{name}[{key!r}]" if isinstance(key, _PLAIN) else name, each, depth - 1)
    else:
        for key, each in getattr(value, "__dict__", {}).items():
            yield from _plain_in(f"{name}.{key}", each, depth - 1)
