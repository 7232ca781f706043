"""What code that workers run finds around it in this process, and would not find in theirs.

whole modules, custom functions, hooks, optimiser ─► what they reach ─► globals, class attributes,
replaced functions of libraries, torch's settings ─► set alike on the workers, which import modules anew
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any

import cloudpickle
import torch
from torch import nn

from netsplit.errors import ConfigError
from netsplit.graph.code_places import line_of
from netsplit.graph.surroundings.reach import (
    SIMPLE,
    attributes,
    globals_of,
    is_own_file,
    is_own_module,
    names_in,
    slots,
    within,
)
from netsplit.graph.surroundings.settings import settings, take_settings

__all__ = ["Surroundings", "surroundings_of"]

_MADE = ("_abc_impl", "_backward_cls")  # by metaclasses
_TORCH = (torch, torch.nn.functional, torch.Tensor, torch.linalg)


@dataclass(frozen=True)
class _AttributeName:
    module: str
    owner: str  # a class in it; "" where it is the module
    key: str

    def __str__(self) -> str:
        return f"'{self.key}' of {self.owner or self.module}"

    def home(self) -> Any:
        owner = import_module(self.module)
        for part in filter(None, self.owner.split(".")):
            owner = getattr(owner, part)
        return owner


@dataclass(frozen=True)
class Surroundings:
    settings: dict[str, Any]
    values: bytes  # pickled pairs (place, value)
    unsent: dict[_AttributeName, Any]  # what is known of those that cannot be pickled

    def take(self) -> None:
        """Set all that in this process.

        Raises:
            ConfigError: something that cannot be sent is another here.
        """
        take_settings(self.settings)
        try:
            pairs = cloudpickle.loads(self.values)
        except Exception as error:
            raise ConfigError(
                "what the code of the model or the optimiser finds in globals and classes cannot be rebuilt "
                f"on the workers ({type(error).__name__}: {line_of(error)}): keep only plain values there."
            ) from error
        for place, value in pairs:
            home = place.home()
            if not _becomes(vars(home).get(place.key), value):
                setattr(home, place.key, value)
        for place, told in self.unsent.items():
            if _told(vars(place.home()).get(place.key)) != told:
                raise ConfigError(
                    f"{place} has changed since its module was imported, and cannot be sent to the workers, "
                    "which import it anew: keep plain values there, or give it to the module that uses it."
                )


def surroundings_of(roots: Iterable[Any]) -> Surroundings:
    """Of the code within reach of some objects; that of a script itself travels with these."""
    values: dict[_AttributeName, Any] = {}
    reached = [value for _, value in within(("", root) for root in roots)]
    for value in reached:
        if isinstance(value, FunctionType):
            values |= _around(value)
        elif isinstance(value, type) and _is_imported(value.__module__):
            values |= _of_class(value)
        elif isinstance(value, nn.Module):
            for kind in type(value).__mro__:
                values |= _replaced(kind)
    for space in _TORCH if reached else ():
        values |= _replaced(space)
    return _packed(values)


def _becomes(here: Any, value: Any) -> bool:
    """Whether an object can be what was sent and stay itself: others may hold it, and ask by ``is``."""
    if here is value:
        return True
    if type(here) is not type(value):
        return False
    if isinstance(here, SIMPLE):
        return bool(here == value)
    if isinstance(here, dict | set):
        here.clear()
        here.update(value)
    elif isinstance(here, list):
        here[:] = value
    elif is_own_module(type(here).__module__) and attributes(here) is not None and not slots(here):
        vars(here).clear()
        vars(here).update(vars(value))
    else:
        return type(here) is object
    return True


def _around(function: FunctionType) -> dict[_AttributeName, Any]:
    """Globals of the user's modules, and of libraries what the user has replaced there."""
    names = list(dict.fromkeys(names_in(function.__code__)))
    spaces: dict[int, ModuleType] = {}
    home = sys.modules.get(function.__globals__.get("__name__", ""))
    if home is not None and vars(home) is function.__globals__:
        spaces[id(home)] = home
    waiting = [value for key in names if isinstance(value := function.__globals__.get(key), ModuleType)]
    while waiting:
        space = waiting.pop()
        if id(space) not in spaces:
            spaces[id(space)] = space
            waiting += [value for key in names if isinstance(value := vars(space).get(key), ModuleType)]
    around: dict[_AttributeName, Any] = {}
    for space in spaces.values():
        imported = _is_imported(space.__name__)
        for key in globals_of(function) if vars(space) is function.__globals__ else names:
            if key not in vars(space):
                continue
            place, value = _AttributeName(space.__name__, "", key), vars(space)[key]
            if _travels(place, value) if imported else _is_replaced(place, value):
                around[place] = value
    return around


def _of_class(kind: type) -> dict[_AttributeName, Any]:
    if "<locals>" in kind.__qualname__ or issubclass(kind, Enum):
        return {}
    own = {
        _AttributeName(kind.__module__, kind.__qualname__, key): value for key, value in vars(kind).items()
    }
    return {
        place: value
        for place, value in own.items()
        if place.key not in _MADE
        and (not place.key.startswith("__") or _function_in(value) is not None)
        and _travels(place, value)
    }


def _replaced(home: Any) -> dict[_AttributeName, Any]:
    """Functions of a library's class or module that are the user's."""
    module, owner = (home.__module__, home.__qualname__) if isinstance(home, type) else (home.__name__, "")
    if _is_imported(module) or "<locals>" in owner:
        return {}
    own = {_AttributeName(module, owner, key): value for key, value in vars(home).items()}
    return {place: value for place, value in own.items() if _is_replaced(place, value)}


def _is_imported(module: str) -> bool:
    """Whether it is a module of the user's which workers import."""
    ours = module.partition(".")[0] in ("__main__", "netsplit")
    return not ours and module in sys.modules and is_own_module(module)


def _is_replaced(place: _AttributeName, value: Any) -> bool:
    """Whether a function of a library is the user's."""
    function = _function_in(value)
    if function is None or str(function.__module__).startswith("netsplit."):
        return False
    return is_own_file(function.__code__.co_filename) and not is_own_module(place.module)


def _poses(value: Any) -> bool:
    """Whether a function bears the name of one of another file (functools.wraps)."""
    function = _function_in(value)
    if function is None or not is_own_file(function.__code__.co_filename):
        return False
    named = sys.modules.get(function.__module__)
    return function.__code__.co_filename != getattr(named, "__file__", None)


def _function_in(value: Any) -> FunctionType | None:
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    return value if isinstance(value, FunctionType) else None


def _travels(place: _AttributeName, value: Any) -> bool:
    """Whether a worker, which has imported the module, may have something else there."""
    name = f"{place.owner}.{place.key}" if place.owner else place.key
    if isinstance(value, ModuleType | MemberDescriptorType | GetSetDescriptorType):
        return False
    if isinstance(value, type):
        itself = value.__module__ == place.module and value.__qualname__ == name
        return not itself and (is_own_module(value.__module__) or _is_importable(value))
    function = _function_in(value)
    if function is not None:
        plain = function.__qualname__ in (name, "<lambda>") and function.__module__ == place.module
        return not plain or _poses(value)
    as_defined = getattr(value, "__qualname__", None) == name and callable(value)
    return not (as_defined and getattr(value, "__module__", None) == place.module)


def _is_importable(kind: type) -> bool:
    there: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        there = getattr(there, part, None)
    return there is kind


def _packed(reached: dict[_AttributeName, Any]) -> Surroundings:
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    posing = {place: value for place, value in reached.items() if _poses(value)}
    # A decorated function is as its import makes it; what the script, or a library, has there is not.
    kept = {
        place: _told(value)
        for place, value in posing.items()
        if _is_imported(place.module) and _file(value) != script
    }
    by_value = {id(_function_in(value)) for place, value in posing.items() if place not in kept}
    sent = [(place, value) for place, value in reached.items() if place not in kept]
    try:
        values = _pickled(sent, by_value)
    except Exception:
        lost = {place: value for place, value in sent if not _can_be_pickled(value, by_value)}
        for place, value in lost.items():
            if _is_replaced(place, value) or place in posing:
                raise ConfigError(
                    f"{place} was replaced by a function that cannot be sent to the workers: let what it "
                    "finds around it be plain values."
                ) from None
            kept[place] = _told(value)
        values = _pickled([pair for pair in sent if pair[0] not in lost], by_value)
    return Surroundings(settings(), values, kept)


def _can_be_pickled(value: Any, by_value: set[int]) -> bool:
    try:
        _pickled(value, by_value)
    except Exception:  # of whatever class it is
        return False
    return True


def _file(value: Any) -> str | None:
    function = _function_in(value)
    return None if function is None else function.__code__.co_filename


def _pickled(value: Any, by_value: set[int]) -> bytes:
    buffer = io.BytesIO()
    _SurroundingsPickler(buffer, by_value).dump(value)
    return buffer.getvalue()


class _SurroundingsPickler(cloudpickle.Pickler):
    def __init__(self, buffer: io.BytesIO, by_value: set[int]) -> None:
        super().__init__(buffer)
        self.by_value = by_value

    def reducer_override(self, value: Any) -> Any:
        if id(value) in self.by_value:  # under the name of what it replaced, it would be looked up there
            return self._dynamic_function_reduce(value)
        return super().reducer_override(value)


def _told(value: Any) -> Any:
    """Where a function is; plain values in a container, an object of the user's, or what a thread has."""
    function = _function_in(value)
    if function is not None:
        return Path(function.__code__.co_filename).name, function.__code__.co_firstlineno
    return list(_plain_in(value, 4))


def _plain_in(value: Any, depth: int) -> Iterator[Any]:
    if isinstance(value, SIMPLE):
        yield repr(value)
    elif depth and isinstance(value, ContextVar):
        yield from _plain_in(value.get(None), depth - 1)
    elif depth and isinstance(value, dict):
        for key, item in list(value.items())[:256]:
            yield from _plain_in(key, depth - 1)
            yield from _plain_in(item, depth - 1)
    elif depth and isinstance(value, list | tuple):
        for item in value[:256]:
            yield from _plain_in(item, depth - 1)
    elif depth and (isinstance(value, threading.local) or is_own_module(type(value).__module__)):
        yield from _plain_in(attributes(value), depth - 1)
