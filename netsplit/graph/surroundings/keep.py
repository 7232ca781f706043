"""A model's Python state and tensors, kept while its own code runs, and put back."""

from __future__ import annotations

import functools
import os
import random
import sys
import threading
import warnings
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from types import CellType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from netsplit.graph.code_places import is_users
from netsplit.graph.surroundings.reach import (
    CONTAINERS,
    attributes,
    has_contents,
    is_plain,
    named_outside,
    slots,
    within,
)

__all__ = ["kept"]

_DEEPEST = 4000
"""Calls within one another: modules may nest as deep as Python lets them, with calls of ours between."""

PutBack = Callable[[], Any]


@contextmanager
def kept(*modules: Any) -> Iterator[None]:
    """Modules, and all that their code reaches, as they were, whatever runs inside; random numbers too."""
    with ExitStack() as stack:
        stack.callback(sys.setrecursionlimit, sys.getrecursionlimit())
        sys.setrecursionlimit(max(sys.getrecursionlimit(), _DEEPEST))
        stack.enter_context(warnings.catch_warnings())
        for put_back in _world():
            stack.callback(put_back)
        reached = [value for _, value in within(("", root) for root in modules)]
        for put_back in _globals(reached):
            stack.callback(put_back)
        for value in reached:
            for put_back in _kept(value):
                stack.callback(put_back)
        held = [t for value in reached if isinstance(value, nn.Module) for t in _held(value)]
        tensors = {t._cdata: t for t in (*held, *reached) if isinstance(t, Tensor) and not is_lazy(t)}
        for tensor in tensors.values():
            stack.callback(_kept_tensor(tensor))
        yield


def _world() -> Iterator[PutBack]:
    numpy, environment = np.random.get_state(), dict(os.environ)
    yield functools.partial(torch.set_rng_state, torch.get_rng_state())
    yield functools.partial(random.setstate, random.getstate())
    yield functools.partial(np.random.set_state, numpy)
    yield functools.partial(torch.set_default_dtype, torch.get_default_dtype())
    yield functools.partial(torch.set_grad_enabled, torch.is_grad_enabled())

    def environment_back() -> None:
        if dict(os.environ) != environment:
            os.environ.clear()
            os.environ.update(environment)

    yield environment_back
    thread = vars(threading.current_thread())
    yield functools.partial(_put_back, thread, dict(thread))


def _globals(reached: list[Any]) -> Iterator[PutBack]:
    functions = [value for value in reached if isinstance(value, FunctionType)]
    users = [each for each in functions if is_users(each.__code__.co_filename)]
    spaces = {id(each.__globals__): each.__globals__ for each in users}
    named: dict[int, tuple[Any, set[str]]] = {}
    for each in users:
        for _, owner, key in named_outside(each):
            named.setdefault(id(owner), (owner, set()))[1].add(key)
    for names in spaces.values():
        yield functools.partial(_rebind, names, dict(names))
    for owner, keys in named.values():
        if vars(owner) is not spaces.get(id(vars(owner))):
            before = {key: vars(owner)[key] for key in keys if key in vars(owner)}
            yield functools.partial(_attributes_back, owner, keys, before)


def _attributes_back(owner: Any, keys: set[str], before: Mapping[str, Any]) -> None:
    """Data alone: what code a library loads into itself when it is first used, stays."""
    for key in keys:
        now = vars(owner).get(key)
        if now is before.get(key) or not is_plain(now):
            continue
        if key in before:
            setattr(owner, key, before[key])
        else:
            delattr(owner, key)


def _kept(value: Any) -> Iterator[PutBack]:
    """What puts an object back, if anything has to."""
    if isinstance(value, dict | list | set | deque):
        yield functools.partial(_put_back, value, _copied(value))
        if type(value) not in CONTAINERS:
            yield from _kept_attributes(value)
    elif isinstance(value, bytearray | array):
        yield functools.partial(_items_back, value, value[:])
    elif isinstance(value, nn.Module):
        for store in (vars(value), value._parameters, value._buffers, value._modules):
            if isinstance(store, dict):
                yield functools.partial(_put_back, store, dict(store))
    elif isinstance(value, CellType):
        if has_contents(value):
            yield functools.partial(setattr, value, "cell_contents", value.cell_contents)
    elif isinstance(value, type):
        yield functools.partial(_class_back, value, dict(vars(value)))
    elif isinstance(value, np.ndarray):
        if value.flags.writeable:
            yield functools.partial(np.copyto, value, value.copy())
    elif isinstance(value, functools._lru_cache_wrapper):
        yield value.cache_clear  # it may hold what has no values
    elif isinstance(value, ContextVar):
        with suppress(LookupError):
            yield functools.partial(value.set, value.get())
    elif isinstance(value, random.Random):
        if not isinstance(value, random.SystemRandom):  # which has no state
            yield functools.partial(value.setstate, value.getstate())
    elif isinstance(value, torch.Generator | np.random.RandomState):
        before: Any = value.get_state()
        yield functools.partial(value.set_state, before)
    elif isinstance(value, np.random.Generator):
        yield functools.partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    else:
        yield from _kept_attributes(value)


def _kept_attributes(value: Any) -> Iterator[PutBack]:
    own = attributes(value)
    if own is not None:
        yield functools.partial(_put_back, own, dict(own))
    for key in slots(value):
        yield functools.partial(setattr, value, key, getattr(value, key))


def _items_back(store: Any, before: Any) -> None:
    if store != before:
        store[:] = before


def _class_back(kind: type, before: Mapping[str, Any]) -> None:
    for key in set(vars(kind)) - set(before):
        if not key.startswith("__"):
            delattr(kind, key)
    for key, value in before.items():
        if vars(kind).get(key) is not value:
            setattr(kind, key, value)


def _kept_tensor(tensor: Tensor) -> PutBack:
    value = None if tensor.is_meta else tensor.detach().clone()
    data = tensor.detach()  # its own memory, should it be given other
    leaf = tensor.is_leaf
    asks = tensor.requires_grad
    grad = tensor.grad if leaf else None
    if leaf and grad is not None:
        tensor.grad = None

    def back() -> None:
        if (tensor.dtype, tensor.shape) != (data.dtype, data.shape):
            tensor.data = data
        if value is not None and not _same(tensor, value):
            tensor.data.copy_(value)
        if tensor.is_leaf and tensor.requires_grad != asks:
            tensor.requires_grad_(asks)
        if leaf and tensor.grad is not grad:
            tensor.grad = grad

    return back


def _rebind(globals_: dict[str, Any], before: Mapping[str, Any]) -> None:
    """Globals that were bound to something else; caches of functions, which may hold what has no values."""
    for key, value in before.items():
        if globals_.get(key) is not value:
            globals_[key] = value
    for key in [key for key, value in globals_.items() if key not in before and is_plain(value)]:
        del globals_[key]
    for value in list(globals_.values()):
        if isinstance(value, functools._lru_cache_wrapper):
            value.cache_clear()


def _held(module: nn.Module) -> Iterator[Tensor]:
    yield from (t for t in module._parameters.values() if t is not None)
    yield from (t for t in module._buffers.values() if t is not None)


def _same(a: Tensor, b: Tensor) -> bool:
    try:
        return torch.equal(a.detach(), b)
    except RuntimeError:  # layouts and dtypes that cannot be compared
        return False


def _copied(store: Any) -> Any:
    """What it holds, though its class answers something else (a registry that makes instances)."""
    if isinstance(store, dict):
        return dict(dict.items(store))
    return next(kind for kind in (list, set, deque) if isinstance(store, kind)).copy(store)


def _put_back(store: Any, before: Any) -> None:
    """Past the methods of the store's own class, which may make something else of it."""
    now = _copied(store)
    if isinstance(store, dict):
        unchanged = now.keys() == before.keys() and all(now[k] is v for k, v in before.items())
    else:
        unchanged = len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))
    if unchanged:
        return
    if isinstance(store, dict):
        kind: Any = OrderedDict if isinstance(store, OrderedDict) else dict
        kind.clear(store)
        for key, value in before.items():
            kind.__setitem__(store, key, value)
    elif isinstance(store, list):
        list.__setitem__(store, slice(None), before)
    elif isinstance(store, deque):
        deque.clear(store)
        deque.extend(store, before)
    else:
        set.clear(store)
        set.update(store, before)
