"""Parameters and optimiser state that notice when a scheduler reads their values: each device has others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import nn

from netsplit.optim.optimizers import ForModel, Made

__all__ = ["ReadsValues", "guard"]

_KINDS = {"shape", "dtype", "device", "requires_grad", "ndim", "layout", "is_leaf", "is_cuda", "is_meta"}
_SIZES = {"size", "dim", "numel", "nelement", "element_size", "is_floating_point", "is_complex", "__hash__"}


class ReadsValues(Exception):
    """What was read."""


def guard(made: Made, model: ForModel) -> None:
    """Fill an optimiser's groups, and its state, with what raises `ReadsValues` when it is read."""
    for group, names in zip(made.optimizer.param_groups, made.groups, strict=True):
        group["params"] = [_guarded(*model.parameters[name]) for name in names]
    made.optimizer.state = _RefusingState(dict)


class _Guarded(nn.Parameter):
    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        of_kind = func.__name__ == "__get__" and getattr(func.__self__, "__name__", "") in _KINDS  # type: ignore[attr-defined]
        if not of_kind and func.__name__ not in _SIZES:
            raise ReadsValues("values of parameters")
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def _guarded(dtype: torch.dtype, shape: tuple[int, ...]) -> nn.Parameter:
    return _Guarded(torch.empty(shape, dtype=dtype, device="meta"))


class _RefusingState(defaultdict[Any, Any]):
    def _refuse(self, *_: Any) -> NoReturn:
        raise ReadsValues("the optimiser's state")

    __getitem__ = __iter__ = get = values = items = keys = _refuse
