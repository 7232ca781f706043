"""A model's Python state and tensors, kept while its own code runs, and put back."""

from __future__ import annotations

import functools
import os
import random
import sys
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import CellType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from netsplit.graph.surroundings.reach import (
    PLAIN,
    has_contents,
    is_own_file,
    is_own_module,
    reached,
    slots,
    spaces_of,
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
        spaces: dict[int, dict[str, Any]] = {}
        for value in reached(modules):
            for put_back in _kept(value):
                stack.callback(put_back)
            if isinstance(value, FunctionType) and is_own_file(value.__code__.co_filename):
                spaces |= {id(space): space for space in spaces_of(value)}
        for space in spaces.values():
            stack.callback(_rebind, space, dict(space))
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


def _kept(value: Any) -> Iterator[PutBack]:
    """What puts an object back, if anything has to."""
    if isinstance(value, Tensor):
        if not is_lazy(value):
            yield _kept_tensor(value)
    elif isinstance(value, CellType):
        if has_contents(value):
            yield functools.partial(setattr, value, "cell_contents", value.cell_contents)
    elif isinstance(value, type):
        if is_own_module(value.__module__):
            yield functools.partial(_class_back, value, dict(vars(value)))
    elif isinstance(value, np.ndarray):
        if value.flags.writeable:
            yield functools.partial(np.copyto, value, value.copy())
    elif isinstance(value, functools._lru_cache_wrapper):
        yield value.cache_clear  # it may hold what has no values
    elif isinstance(value, torch.Generator | np.random.RandomState):
        before: Any = value.get_state()
        yield functools.partial(value.set_state, before)
    elif not isinstance(value, FunctionType | ModuleType):
        if isinstance(value, dict | list | set | deque):
            yield functools.partial(_put_back, value, _copied(value))
        own = getattr(value, "__dict__", None)
        if isinstance(own, dict):
            yield functools.partial(_put_back, own, dict(own))
        for key in slots(value):
            yield functools.partial(setattr, value, key, getattr(value, key))


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


def _rebind(space: dict[str, Any], before: Mapping[str, Any]) -> None:
    """Globals that were bound to something else; code that a library loads when it is first used stays."""
    for key, value in before.items():
        if space.get(key) is not value:
            space[key] = value
    for key in [key for key in space if key not in before and isinstance(space[key], (*PLAIN, Tensor))]:
        del space[key]


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
    kind: Any = next(each for each in (OrderedDict, dict, list, set, deque) if isinstance(store, each))
    kind.clear(store)
    if isinstance(store, dict):
        for key, value in before.items():
            kind.__setitem__(store, key, value)
    else:
        (kind.update if kind is set else kind.extend)(store, before)
