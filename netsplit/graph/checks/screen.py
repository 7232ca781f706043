"""Whether anything that a model's code reaches may have been replaced or written since: quick, by identity.

A walk by names takes some 30 ms for a model of 150 modules; this takes well below one, and what it says
yes to is then looked at by name.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from operator import is_
from types import CellType, FunctionType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn

from netsplit.graph.checks.written import Written
from netsplit.graph.surroundings.reach import (
    attributes,
    globals_of,
    has_contents,
    is_own_file,
    is_own_module,
    named_outside,
    slots,
)

__all__ = ["Screen", "gradient_hooks", "hooks_of_all_modules"]

Contents = Callable[[], list[Any]]

_DICTIONARIES = frozenset({dict, OrderedDict})
_GLOBAL_HOOKS: tuple[dict[int, Any], ...] = tuple(
    getattr(nn.modules.module, f"_global_{name}_hooks")
    for name in ("forward_pre", "forward", "backward_pre", "backward")
)


class Screen:
    """What stands in every container, object, function and tensor, at one moment.

    Args:
        values: all within reach (`reach.within`).
        tensors: parameters and buffers.
        before: an earlier moment's.
    """

    def __init__(
        self, values: Iterable[Any], tensors: Iterable[Tensor], before: Screen | None = None
    ) -> None:
        values, tensors = list(values), list(tensors)
        own = (value for value in values if isinstance(value, Tensor))
        self.written: Written = Written((*tensors, *own), None if before is None else before.written)
        arrays = (value for value in values if isinstance(value, np.ndarray))
        self.arrays = [array for array in arrays if not array.dtype.hasobject]
        self.hooked = [*tensors]
        self.empty = [
            value for value in values if type(value) in _DICTIONARIES and not value
        ]  # hooks, mostly
        empty = {id(value) for value in self.empty}
        readers = (_reader(value) for value in values if id(value) not in empty)
        self.contents = [(read, read()) for read in readers if read is not None]
        self.contents.append((self._hooks, self._hooks()))
        self.in_arrays = self._in_arrays()

    def is_same(self) -> bool:
        if any(self.empty):
            return False
        for read, before in self.contents:
            now = read()
            if len(now) != len(before) or not all(map(is_, now, before)):
                return False
        return self._in_arrays() == self.in_arrays and self.written.is_same()

    def _hooks(self) -> list[Any]:
        return [*hooks_of_all_modules(), *(hook for each in self.hooked for hook in gradient_hooks(each))]

    def _in_arrays(self) -> list[bytes]:
        return [array.tobytes() for array in self.arrays]


def gradient_hooks(tensor: Tensor) -> list[Any]:
    """Those that are called with a tensor's gradient."""
    own = (tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None))
    return [hook for store in own if store for hook in store.values()]


def hooks_of_all_modules() -> list[Any]:
    """Those that torch calls for every module, whosever it is."""
    return [hook for store in _GLOBAL_HOOKS for hook in store.values()]


def _reader(value: Any) -> Contents | None:
    """What lists the objects that stand in it; None where nothing can be put there."""
    if isinstance(value, nn.Module):
        own = vars(value)
        inner = [
            own[key] for key in ("_parameters", "_buffers", "_modules") if isinstance(own.get(key), dict)
        ]
        return lambda: [*own.values(), *(each for part in inner for each in part.values())]
    if isinstance(value, type):
        return (lambda: list(vars(value).values())) if is_own_module(value.__module__) else None
    if isinstance(value, FunctionType):
        return _function_reader(value) if is_own_file(value.__code__.co_filename) else None
    if isinstance(value, CellType):
        return lambda: [value.cell_contents] if has_contents(value) else []
    if isinstance(value, ModuleType | Tensor | np.ndarray):
        return None
    return _object_reader(value)


def _function_reader(function: FunctionType) -> Contents:
    own, cells = function.__globals__, function.__closure__ or ()
    keys = [key for key in globals_of(function) if not key.startswith("__")]
    outside = [(vars(owner), key) for _, owner, key in named_outside(function)]

    def read() -> list[Any]:
        return [
            function.__code__,
            *(cell.cell_contents for cell in cells if has_contents(cell)),
            *(function.__defaults__ or ()),
            *(function.__kwdefaults__ or {}).values(),
            *vars(function).values(),
            *(own.get(key) for key in keys),
            *(names.get(key) for names, key in outside),
        ]

    return read


def _object_reader(value: Any) -> Contents | None:
    own, keys = attributes(value), slots(value)
    items = value if isinstance(value, dict | list | tuple | set | frozenset | deque) else None
    if own is None and items is None and not keys:
        return None

    def read() -> list[Any]:
        inside = dict.values(items) if isinstance(items, dict) else items or ()
        return [*inside, *(own or {}).values(), *(getattr(value, key, None) for key in keys)]

    return read
