"""Everything that a model's own code can reach and change, by names for people.

    model, loss ─► modules' attributes, hooks ─► functions: closures, defaults, globals by name ─► containers,
    objects, classes of the user's

Code of installed packages is not entered: what it keeps beside the model's attributes is its own matter.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections import deque
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from netsplit.graph.words import is_users

__all__ = [
    "SIMPLE",
    "attributes",
    "filled",
    "is_own_file",
    "is_own_module",
    "names_in",
    "slots",
    "within",
]

SIMPLE = (bool, int, float, complex, str, bytes, type(None))
_DEPTH, _MOST = 12, 20_000
_CLOSED = (Tensor, CodeType, torch.dtype, torch.device, np.ndarray, torch.Generator, ContextVar)
_INSTALLED = (sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["purelib"])

Named = tuple[str, Any]


def within(roots: Iterable[Named]) -> Iterator[Named]:
    """(name, object) of all within reach, each object once, the nearest first; simple values always."""
    seen: dict[int, Any] = {}
    queue = deque((name, value, 0) for name, value in roots)
    while queue and len(seen) < _MOST:
        name, value, depth = queue.popleft()
        if isinstance(value, SIMPLE):
            yield name, value
        elif id(value) not in seen:
            seen[id(value)] = value
            yield name, value
            if depth < _DEPTH:
                below = 0 if isinstance(value, nn.Module) else depth + 1
                queue += [(each, part, below) for each, part in _parts(name, value)]


def attributes(value: Any) -> dict[str, Any] | None:
    """The dictionary of an object's attributes; None where it has none that may be written."""
    if isinstance(value, (*_CLOSED, type, ModuleType, FunctionType, MethodType)):
        return None
    found = getattr(value, "__dict__", None)
    return found if isinstance(found, dict) else None


def _parts(name: str, value: Any) -> Iterator[Named]:
    if isinstance(value, nn.Module):
        yield from _of_module(name, value)
    elif isinstance(value, type):
        yield from _of_class(value)
    elif isinstance(value, FunctionType):
        yield from _of_function(value)
    elif isinstance(value, _CLOSED):
        return
    elif isinstance(value, CellType):
        if filled(value):
            yield name, value.cell_contents
    elif isinstance(value, dict):
        for key, item in list(value.items())[:256]:
            yield f"{name}[{key!r}]" if isinstance(key, SIMPLE) else name, item
    elif isinstance(value, list | tuple | set | frozenset | deque):
        for i, item in enumerate(list(value)[:256]):
            yield f"{name}[{i}]", item
    else:
        yield from _of_object(name, value)


def _of_module(name: str, module: nn.Module) -> Iterator[Named]:
    owner = f"{name} ({type(module).__name__})"
    for key, value in vars(module).items():
        if key == "_modules":
            for path, child in value.items():
                yield path if name.startswith("the ") else f"{name}.{path}", child
        elif key not in ("_parameters", "_buffers"):
            yield f"'{key}' of {owner}", value
    yield name, type(module)


def _of_class(kind: type) -> Iterator[Named]:
    for each in kind.__mro__:
        if _own_module(each.__module__):
            for key, value in vars(each).items():
                if not key.startswith("__") or isinstance(value, FunctionType):
                    yield f"'{key}' of class {each.__name__}", value


def _of_function(function: FunctionType) -> Iterator[Named]:
    if not _own(function.__code__.co_filename):
        return
    where = function.__name__
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield f"'{variable}' around {where}", cell
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield f"a default argument of {where}", value
    for key, value in vars(function).items():
        yield f"'{key}' of the function {where}", value
    names = dict.fromkeys(_names(function.__code__))
    for key in names:
        value = function.__globals__.get(key)
        if isinstance(value, ModuleType):
            if _own_module(value.__name__):
                yield from ((f"'{each}' of {key}", vars(value).get(each)) for each in names)
        elif value is not None:
            yield f"the global '{key}' in {where}", value


def _of_object(name: str, value: Any) -> Iterator[Named]:
    if isinstance(value, MethodType):
        yield from ((name, value.__self__), (name, value.__func__))
        return
    if isinstance(value, staticmethod | classmethod):
        yield name, value.__func__
        return
    if isinstance(value, property):
        yield from ((name, each) for each in (value.fget, value.fset) if each is not None)
        return
    if isinstance(value, functools.partial):
        yield from ((name, each) for each in (value.func, value.args, value.keywords))
    wrapped = getattr(value, "__wrapped__", None) if callable(value) else None
    if wrapped is not None:
        yield name, wrapped
    found = attributes(value)
    for key, item in list((found or {}).items())[:256]:
        yield f"{name}.{key}", item
    for key in slots(value):
        yield f"{name}.{key}", getattr(value, key)
    if _own_module(type(value).__module__):
        yield name, type(value)


def slots(value: Any) -> list[str]:
    """Names of the attributes that an object of a class of the user's has in slots."""
    kinds = [
        kind for kind in type(value).__mro__ if "__slots__" in vars(kind) and _own_module(kind.__module__)
    ]
    given = [vars(kind)["__slots__"] for kind in kinds]
    names = [key for each in given for key in ([each] if isinstance(each, str) else each)]
    return [key for key in names if key not in ("__dict__", "__weakref__") and hasattr(value, key)]


def filled(cell: CellType) -> bool:
    """Whether a variable around a function has a value already."""
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _own(file: str) -> bool:
    return is_users(file) and not file.startswith(_INSTALLED)


def _own_module(name: str) -> bool:
    """Whether a module is code of the user's, by its file; one without a file is a script or a notebook."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if file is None:
        return name == "__main__" or (module is None and name != "builtins")
    return _own(file)


names_in, is_own_file, is_own_module = _names, _own, _own_module
