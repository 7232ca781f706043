"""Everything that a model's own code can reach and change, by names for people.

    model, loss ─► modules' attributes, hooks ─► functions: closures, defaults, globals by name ─► containers,
    objects, classes of the user's ─► what they would be pickled as (iterators, numbers, bytes)

Code of installed packages is not entered: what it keeps beside the model's attributes is its own matter; but
numbers and texts that the user's code names of it (``torch.steps``) are the user's.
"""

from __future__ import annotations

import dis
import functools
import random
import sys
import sysconfig
import warnings
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from netsplit.graph.code_places import is_users

__all__ = [
    "INSIDE",
    "SIMPLE",
    "attributes",
    "globals_of",
    "has_contents",
    "is_own_file",
    "is_own_module",
    "is_plain",
    "named_outside",
    "names_in",
    "slots",
    "within",
]

SIMPLE = (bool, int, float, complex, str, bytes, type(None))
INSIDE = "\0"
"""In a name: what follows tells parts of one object apart, and is not for people."""

CONTAINERS = frozenset({dict, OrderedDict, list, tuple, set, frozenset, deque})
"""Of exactly these kinds, a container has no attributes."""

_OF_GLOBALS = frozenset(
    {"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
)
_LOOK_UP = frozenset({"eval", "exec", "vars", "globals", "__import__"})
_LEAD_TO_GLOBALS = frozenset({"modules", "import_module", "builtins", "__globals__", "f_globals"})
"""Builtins and attributes with which code may find a global by a text (``sys.modules[__name__].steps``)."""

_DEPTH, _MOST, _LONG = 12, 20_000, 256
_CLOSED = (Tensor, CodeType, torch.dtype, torch.device, np.ndarray, torch.Generator, ContextVar)
_STDLIB = sysconfig.get_paths()["stdlib"]
_PACKAGES = {place for place in sys.path if Path(place).name in ("site-packages", "dist-packages")}
_INSTALLED = (
    _STDLIB,
    sysconfig.get_paths()["purelib"],
    *sorted(_PACKAGES),
)  # several: an environment on another

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
    own = getattr(value, "__dict__", None)
    return own if isinstance(own, dict) else None


def _parts(name: str, value: Any) -> Iterator[Named]:
    if isinstance(value, nn.Module):
        yield from _of_module(name, value)
    elif isinstance(value, type):
        yield from _of_class(value)
    elif isinstance(value, FunctionType):
        yield from _of_function(value)
    elif isinstance(value, np.ndarray):
        if value.dtype == object:
            yield from ((f"{name}[{i}]", item) for i, item in enumerate(list(value.flat)[:_LONG]))
    elif isinstance(value, (*_CLOSED, ModuleType)):
        return
    elif isinstance(value, CellType):
        if has_contents(value):
            yield name, value.cell_contents
    elif isinstance(value, dict):
        for key, item in list(dict.items(value))[:_LONG]:
            yield f"{name}[{key!r}]" if isinstance(key, SIMPLE) else name, item
        yield from _of_attributes(name, value)
    elif isinstance(value, list | tuple | set | frozenset | deque):
        for i, item in enumerate(list(value)[:_LONG]):
            yield f"{name}[{i}]", item
        yield from _of_attributes(name, value)
    else:
        yield from _of_object(name, value)


def _of_attributes(name: str, value: Any) -> Iterator[Named]:
    if type(value) in CONTAINERS:
        return
    is_root = name.startswith("the ") and " " not in name[4:]
    for key, item in list((attributes(value) or {}).items())[:_LONG]:
        yield f"'{key}' of {name} ({type(value).__name__})" if is_root else f"{name}.{key}", item
    for key in slots(value):
        yield f"{name}.{key}", getattr(value, key)


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
        if is_own_module(each.__module__):
            for key, value in vars(each).items():
                if not key.startswith("__") or isinstance(value, FunctionType):
                    yield f"'{key}' of class {each.__name__}", value


def _of_function(function: FunctionType) -> Iterator[Named]:
    where = function.__name__
    if not is_own_file(function.__code__.co_filename):
        if isinstance(own := getattr(function, "__wrapped__", None), FunctionType):  # as of torch.no_grad()
            yield where, own
        return
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield f"'{variable}' around {where}", cell
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield f"a default argument of {where}", value
    for key, value in vars(function).items():
        yield f"'{key}' of the function {where}", value
    for key in globals_of(function):
        value = function.__globals__.get(key)
        if value is not None and not isinstance(value, ModuleType):
            yield f"the global '{key}' in {where}", value
    for path, owner, key in named_outside(function):
        if key in vars(owner):
            value = vars(owner)[key]
            if is_plain(value) or (isinstance(owner, ModuleType) and is_own_module(owner.__name__)):
                yield f"'{key}' of {path}", value


def is_plain(value: Any) -> bool:
    """Whether it is data; else code, of which libraries load some when it is first used."""
    return isinstance(value, (*SIMPLE, np.ndarray, Tensor))


def named_outside(function: FunctionType) -> Iterator[tuple[str, Any, str]]:
    """(dotted name, owner, attribute) of modules, and libraries' classes and functions, that code names."""
    names, own = _named(function), function.__globals__
    package = own.get("__package__")
    start = ((key, own.get(key), sys.modules.get(key), sys.modules.get(f"{package}.{key}")) for key in names)
    queue = deque((key, value) for key, *values in start for value in values if _is_outside(value))
    seen = set()
    while queue:
        path, owner = queue.popleft()
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        for key in names:
            yield path, owner, key
            if _is_outside(value := vars(owner).get(key)):
                queue.append((f"{path}.{key}", value))


def _is_outside(value: Any) -> bool:
    if isinstance(value, FunctionType):
        return not is_own_file(value.__code__.co_filename)
    return isinstance(value, ModuleType) or (isinstance(value, type) and not is_own_module(value.__module__))


def globals_of(function: FunctionType) -> dict[str, None]:
    """Names of the globals that code reads or sets; of all in it, where it looks names up in other ways."""
    names, own = _named(function), dict.fromkeys(_globals_in(function.__code__))
    return names if own.keys() & _LOOK_UP or names.keys() & _LEAD_TO_GLOBALS else own


def _named(function: FunctionType) -> dict[str, None]:
    """Names in its code, texts that may be names too (``globals()["steps"]``)."""
    names = dict.fromkeys(names_in(function.__code__))
    return names | dict.fromkeys(function.__globals__) if "globals" in names else names


@functools.lru_cache(maxsize=10_000)
def _globals_in(code: CodeType) -> tuple[str, ...]:
    own = [each.argval for each in dis.get_instructions(code) if each.opname in _OF_GLOBALS]
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return (*own, *(name for each in inner for name in _globals_in(each)))


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
    yield from _of_attributes(name, value)
    for i, part in enumerate(_reduced(value)):
        yield f"{name}{INSIDE}{i}", part
    if is_own_module(type(value).__module__):
        yield name, type(value)


def _reduced(value: Any) -> tuple[Any, ...]:
    """What pickle would make it of again, where that is the interpreter's matter and none of the user's."""
    kind: Any = type(value)
    if not _is_reducible(kind):
        return ()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of iterators, which later Pythons no longer pickle
            reduced = value.__reduce_ex__(4)
    except Exception:
        return ()
    return reduced[1:3] if isinstance(reduced, tuple) else ()


@functools.cache
def _is_reducible(kind: type) -> bool:
    if kind.__module__.partition(".")[0] == "torch" or issubclass(kind, random.Random | functools.partial):
        return False
    for name in ("__reduce_ex__", "__reduce__", "__getstate__"):
        method = getattr(kind, name, None)
        if method is not None and method is not getattr(object, name, None):
            file = method.__code__.co_filename if isinstance(method, FunctionType) else _STDLIB
            return file.startswith((_STDLIB, "<frozen")) and not is_own_file(file)
    return issubclass(kind, BuiltinFunctionType)


def slots(value: Any) -> list[str]:
    """Names of the attributes that an object of a class of the user's has in slots."""
    kind: Any = type(value)
    return [key for key in _slots_of(kind) if hasattr(value, key)]


@functools.cache
def _slots_of(kind: type) -> list[str]:
    kinds = [each for each in kind.__mro__ if "__slots__" in vars(each) and is_own_module(each.__module__)]
    given = [vars(each)["__slots__"] for each in kinds]
    names = [key for each in given for key in ([each] if isinstance(each, str) else each)]
    return [key for key in names if key not in ("__dict__", "__weakref__")]


def has_contents(cell: CellType) -> bool:
    """Whether a variable around a function has a value already."""
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def names_in(code: CodeType) -> Iterator[str]:
    """Of all that a function's code names beside its own variables."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            yield constant


def is_own_file(file: str) -> bool:
    return is_users(file) and not file.startswith(_INSTALLED)


def is_own_module(name: str) -> bool:
    """Whether a module is code of the user's, by its file; one without a file is a script or a notebook."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if file is None:
        made = module is None or getattr(module, "__spec__", None) is None
        return name == "__main__" or (made and name != "builtins")
    return is_own_file(file)
