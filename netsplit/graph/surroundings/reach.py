"""What the user's own code reaches and can change: attributes, containers, closures, globals it names."""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections import deque
from collections.abc import Iterable, Iterator
from logging import Logger
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from netsplit.graph.code_places import is_users

__all__ = [
    "PLAIN", "has_contents", "is_own_file", "is_own_module", "names_in", "reached", "slots",
    "spaces_of",
]  # fmt: skip

PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CLOSED = (*PLAIN, Tensor, CodeType, torch.dtype, torch.device, np.ndarray, torch.Generator, Logger)
_MOST, _LONG = 20_000, 4096
_PLACES = (sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["purelib"])
_INSTALLED = (*_PLACES, *(each for each in sys.path if Path(each).name in ("site-packages", "dist-packages")))


def reached(roots: Iterable[Any]) -> list[Any]:
    """Objects within reach, each once, the nearest first; code of installed packages is not entered."""
    values: dict[int, Any] = {}
    queue = deque(roots)
    while queue and len(values) < _MOST:
        value = queue.popleft()
        if id(value) not in values and not isinstance(value, PLAIN):
            values[id(value)] = value
            queue.extend(_parts(value))
    return list(values.values())


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, FunctionType):
        return _of_function(value)
    if isinstance(value, CellType):
        return [value.cell_contents] if has_contents(value) else []
    if isinstance(value, type):
        own = (each for each in value.__mro__ if is_own_module(each.__module__))
        return [part for each in own for part in vars(each).values()]
    if isinstance(value, (*_CLOSED, ModuleType)):
        return []
    parts = list((getattr(value, "__dict__", None) or {}).values())
    parts += [getattr(value, key) for key in slots(value)]
    if isinstance(value, nn.Module):  # of TorchScript they are in no dictionary
        parts += [*value._parameters.values(), *value._buffers.values(), *value._modules.values()]
    if isinstance(value, dict):
        parts += list(dict.values(value))[:_LONG]
    elif isinstance(value, list | tuple | set | frozenset | deque):
        parts += list(value)[:_LONG]
    elif isinstance(value, MethodType):
        parts += [value.__self__, value.__func__]
    elif isinstance(value, staticmethod | classmethod):
        parts.append(value.__func__)
    elif isinstance(value, property):
        parts.append(value.fget)
    elif isinstance(value, functools.partial):
        parts += [value.func, value.args, value.keywords]
    elif is_own_module(type(value).__module__):
        parts.append(type(value))
    return parts


def _of_function(function: FunctionType) -> Iterator[Any]:
    wrapped = getattr(function, "__wrapped__", None)  # as of torch.no_grad()
    if wrapped is not None:
        yield wrapped
    if is_own_file(function.__code__.co_filename):
        yield from function.__closure__ or ()
        yield from (function.__defaults__, function.__kwdefaults__, vars(function))
        names = names_in(function.__code__)
        for space in spaces_of(function):
            yield from (space[key] for key in names if key in space)


def spaces_of(function: FunctionType) -> Iterator[dict[str, Any]]:
    """Namespaces that a function's code may set names of: its globals, and the user's modules it names."""
    yield function.__globals__
    for key in names_in(function.__code__):
        module = function.__globals__.get(key, sys.modules.get(key))
        if isinstance(module, ModuleType) and is_own_module(module.__name__):
            yield vars(module)


@functools.lru_cache(maxsize=10_000)
def names_in(code: CodeType) -> frozenset[str]:
    """All that code names beside its own variables."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return frozenset(code.co_names).union(*map(names_in, inner))


def slots(value: Any) -> list[str]:
    """Attributes that an object of a class of the user's has in slots."""
    kind: Any = type(value)
    return [key for key in _slots_of(kind) if hasattr(value, key)]


@functools.cache
def _slots_of(kind: type) -> list[str]:
    given = [vars(each).get("__slots__", ()) for each in kind.__mro__ if is_own_module(each.__module__)]
    names = [key for each in given for key in ([each] if isinstance(each, str) else each)]
    return [key for key in names if key not in ("__dict__", "__weakref__")]


def has_contents(cell: CellType) -> bool:
    """Whether a variable around a function has a value already."""
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def is_own_file(file: str) -> bool:
    """Whether a source file is the user's, not installed and not of this package's graphs."""
    return is_users(file) and not file.startswith(_INSTALLED)


def is_own_module(name: str) -> bool:
    """Whether a module is code of the user's, by its file; one without a file is a script or a notebook."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if file is None:
        written = module is None or getattr(module, "__spec__", None) is None
        return name == "__main__" or (written and name != "builtins")
    return is_own_file(file)
