"""A model's Python state and tensors, kept while its own code runs, and put back.

What its forwards change in attributes, dictionaries, lists and in the globals of its code is also how we know
that it has state which no tensor holds.
"""

from __future__ import annotations

import functools
import inspect
import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from netsplit.graph.words import is_users

__all__ = ["changed_state", "kept", "state_of"]

_DEPTH, _MOST = 4, 20_000
_SIMPLE = (bool, int, float, complex, str, bytes, type(None))
_OPAQUE = (Tensor, type, ModuleType, FunctionType, MethodType, CodeType)
_METHODS = (MethodType, staticmethod, classmethod)
_INTERNAL = frozenset({"_parameters", "_buffers", "_modules", "training", "_is_full_backward_hook"})

State = dict[str, Any]
Code = Mapping[CodeType, Mapping[str, Any]]


@contextmanager
def kept(*modules: Any) -> Iterator[None]:
    """Modules, and what they hold, as they were, whatever runs inside; random numbers too."""
    found = [each for root in modules if isinstance(root, nn.Module) for each in root.modules()]
    flags = [(module, module.training) for module in found]
    stores = [store for module in found for store in (module._parameters, module._buffers, module._modules)]
    shallow: list[tuple[Any, Any]] = [(store, dict(store)) for store in stores if isinstance(store, dict)]
    functions = list(_functions(found, modules))
    names = [(each, dict(each)) for each in {id(f.__globals__): f.__globals__ for f in functions}.values()]
    tensors = {t._cdata: t for module in found for t in _held(module) if not is_lazy(t)}
    values = {k: t.detach().clone() for k, t in tensors.items() if not t.is_meta}
    grads = [(t, t.grad) for t in tensors.values() if t.is_leaf]
    containers = list(_containers([*(vars(module) for module in found), *_reach(functions, found)]))
    randoms = (torch.get_rng_state(), random.getstate(), np.random.get_state())
    for tensor, _ in grads:
        tensor.grad = None
    try:
        yield
    finally:
        for module, training in flags:
            module.training = training
        for store, before in [*shallow, *containers]:
            _put_back(store, before)
        for k, value in values.items():
            if not _same(tensors[k], value):
                tensors[k].data.copy_(value)
        for tensor, grad in grads:
            tensor.grad = grad
        for globals_, before in names:
            _rebind(globals_, before)
        torch.set_rng_state(randoms[0])
        random.setstate(randoms[1])
        np.random.set_state(randoms[2])


def _functions(found: Iterable[nn.Module], roots: Iterable[Any]) -> Iterator[FunctionType]:
    """The user's functions: methods of the modules, losses, and what they call by name."""
    seen: set[int] = set()
    queue: list[Any] = [value for module in found for value in vars(type(module)).values()]
    queue += [root for root in roots if root is not None and not isinstance(root, nn.Module)]
    while queue:
        value = _function(queue.pop())
        if value is None or id(value) in seen:
            continue
        seen.add(id(value))
        if is_users(value.__code__.co_filename):
            yield value
            queue += [value.__globals__.get(name) for name in value.__code__.co_names]
            queue += [cell.cell_contents for cell in value.__closure__ or () if _filled(cell)]


def _function(value: Any) -> FunctionType | None:
    """What a method, a partial, a property or a decorated function calls."""
    if isinstance(value, property | functools.cached_property):
        value = value.fget if isinstance(value, property) else value.func
    elif isinstance(value, functools.partial):
        value = value.func
    value = getattr(value, "__func__", value) if isinstance(value, _METHODS) else value
    if isinstance(value, FunctionType | functools._lru_cache_wrapper):
        value = inspect.unwrap(value)
    return value if isinstance(value, FunctionType) else None


def _filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _reach(functions: Iterable[FunctionType], found: Iterable[nn.Module]) -> Iterator[Any]:
    """What functions and classes hold that may change: globals, closures, defaults, class attributes."""
    for function in functions:
        yield [function.__globals__.get(name) for name in function.__code__.co_names]
        yield [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
        yield [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for kind in {type(module) for module in found}:
        yield [value for key, value in vars(kind).items() if not key.startswith("__")]


def _rebind(globals_: dict[str, Any], before: Mapping[str, Any]) -> None:
    """Globals that were bound to something else; caches of functions, which may hold what has no values."""
    for key, value in before.items():
        if globals_.get(key) is not value:
            globals_[key] = value
    for value in list(globals_.values()):
        if isinstance(value, functools._lru_cache_wrapper):
            value.cache_clear()


def _held(module: nn.Module) -> Iterator[Tensor]:
    yield from (t for t in module._parameters.values() if t is not None)
    yield from (t for t in module._buffers.values() if t is not None)
    yield from (t for t in vars(module).values() if isinstance(t, Tensor))


def _same(a: Tensor, b: Tensor) -> bool:
    try:
        return torch.equal(a.detach(), b)
    except RuntimeError:  # layouts and dtypes that cannot be compared
        return False


def _containers(roots: Iterable[dict[str, Any]]) -> Iterator[tuple[Any, Any]]:
    """(container, shallow copy) of everything mutable within reach."""
    seen: set[int] = set()
    queue: list[tuple[Any, int]] = [(root, 0) for root in roots]
    while queue and len(seen) < _MOST:
        value, depth = queue.pop()
        if id(value) in seen or isinstance(value, (*_SIMPLE, *_OPAQUE, nn.Module)):
            continue
        seen.add(id(value))
        inside: list[Any] = []
        if isinstance(value, dict):
            copied: Any = _items(value)
            yield value, copied
            inside = list(copied.values())
        elif isinstance(value, list | set):
            copied = list.copy(value) if isinstance(value, list) else set.copy(value)
            yield value, copied
            inside = list(copied)
        elif isinstance(value, tuple):
            inside = list(value)
        elif isinstance(getattr(value, "__dict__", None), dict):
            inside = [value.__dict__]
        if depth < _DEPTH:
            queue += [(item, depth + 1) for item in inside]


def _items(store: dict[Any, Any]) -> dict[Any, Any]:
    """What a dictionary holds, though its class answers something else (a registry that makes instances)."""
    return dict(dict.items(store))


def _put_back(store: Any, before: Any) -> None:
    """Past the methods of the store's own class, which may make something else of it."""
    if isinstance(store, dict):
        now = _items(store)
        unchanged = now.keys() == before.keys() and all(now[k] is v for k, v in before.items())
    else:
        unchanged = len(store) == len(before) and all(a is b for a, b in zip(store, before, strict=True))
    if unchanged:
        return
    if isinstance(store, dict):
        kind: Any = OrderedDict if isinstance(store, OrderedDict) else dict
        kind.clear(store)
        for key, value in before.items():
            kind.__setitem__(store, key, value)
    elif isinstance(store, list):
        list.__setitem__(store, slice(None), before)
    else:
        set.clear(store)
        set.update(store, before)


def state_of(modules: Iterable[tuple[str, Any]], code: Code) -> State:
    """Values that are no tensors, by a name for people: of the modules' attributes and the code's globals."""
    found: State = {}
    for where, root in modules:
        if not isinstance(root, nn.Module):
            continue
        for path, module in root.named_modules():
            owner = f"{path or where} ({type(module).__name__})"
            for key, value in vars(module).items():
                if key not in _INTERNAL and not key.endswith("_hooks"):
                    _add(found, f"'{key}' of {owner}", value)
    for function, globals_ in code.items():
        for key in function.co_names:
            value = globals_.get(key)
            if value is not None and not isinstance(value, (*_OPAQUE, nn.Module)) and not callable(value):
                _add(found, f"the global '{key}' in {function.co_name}", value)
    return found


def _add(found: State, name: str, value: Any, depth: int = 0) -> None:
    if len(found) > _MOST:
        return
    if isinstance(value, _SIMPLE):
        found[name] = value
    elif isinstance(value, (*_OPAQUE, nn.Module)) or depth > _DEPTH:
        return
    elif isinstance(value, dict):
        found[f"{name} (its length)"] = len(value)
        for key, item in list(dict.items(value))[:256]:
            _add(found, f"{name}[{key!r}]" if isinstance(key, _SIMPLE) else name, item, depth + 1)
    elif isinstance(value, list | tuple | set):
        found[f"{name} (its length)"] = len(value)
        for i, item in enumerate(list(value)[:256]):
            _add(found, f"{name}[{i}]", item, depth + 1)
    elif isinstance(value, np.ndarray):
        found[name] = value.tobytes() if value.nbytes < 2**20 else None
    elif isinstance(getattr(value, "__dict__", None), dict):
        for key, item in vars(value).items():
            _add(found, f"{name}.{key}", item, depth + 1)


def changed_state(before: State, after: State) -> list[str]:
    """Names of what is another value now, or has come or gone."""
    names = [*before, *(name for name in after if name not in before)]
    missing = object()
    return [name for name in names if not _equal(before.get(name, missing), after.get(name, missing))]


def _equal(a: Any, b: Any) -> bool:
    return type(a) is type(b) and (a == b or (a != a and b != b))
