"""A model's Python state and tensors, kept while its own code runs, and put back.

What its forwards change in attributes, containers, closures, classes and globals, is also how we know that it
has state which no tensor holds.
"""

from __future__ import annotations

import functools
import itertools
import operator
import os
import random
import threading
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from types import CellType, FunctionType, GeneratorType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from netsplit.graph.recording.reach import SIMPLE, attributes, filled, slots, within
from netsplit.graph.words import is_users

__all__ = ["changed_state", "kept", "state_of"]

_INTERNAL = ("training", "_is_full_backward_hook", "_version", "call_super_init", "dump_patches")
_NUMPY = (np.random.RandomState, np.random.Generator)
_ITERATORS = (itertools.count, itertools.cycle, itertools.repeat)

State = dict[str, Any]
PutBack = Callable[[], Any]


@contextmanager
def kept(*modules: Any) -> Iterator[None]:
    """Modules, and all that their code reaches, as they were, whatever runs inside; random numbers too."""
    with ExitStack() as stack:
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


def _globals(reached: list[Any]) -> Iterator[PutBack]:
    functions = [value for value in reached if isinstance(value, FunctionType)]
    users = [each for each in functions if is_users(each.__code__.co_filename)]
    for names in {id(each.__globals__): each.__globals__ for each in users}.values():
        yield functools.partial(_rebind, names, dict(names))


def _kept(value: Any) -> Iterator[PutBack]:
    """What puts an object back, if anything has to."""
    if isinstance(value, dict | list | set | deque):
        yield functools.partial(_put_back, value, _copied(value))
    elif isinstance(value, nn.Module):
        for store in (vars(value), value._parameters, value._buffers, value._modules):
            if isinstance(store, dict):
                yield functools.partial(_put_back, store, dict(store))
    elif isinstance(value, CellType):
        if filled(value):
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
        yield functools.partial(value.setstate, value.getstate())
    elif isinstance(value, torch.Generator | np.random.RandomState):
        before: Any = value.get_state()
        yield functools.partial(value.set_state, before)
    elif isinstance(value, np.random.Generator):
        yield functools.partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    else:
        found = attributes(value)
        if found is not None:
            yield functools.partial(_put_back, found, dict(found))
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
    leaf = tensor.is_leaf
    asks = tensor.requires_grad
    grad = tensor.grad if leaf else None
    if leaf and grad is not None:
        tensor.grad = None

    def back() -> None:
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


def state_of(model: Any, loss: Any) -> State:
    """Values that are no tensors, by a name for people, of all that model and loss reach."""
    found: State = {f"os.environ['{k}']": v for k, v in os.environ.items()}
    for name, value in within((("the model", model), ("the loss", loss))):
        if name.startswith("'") and name[1:].partition("'")[0] in _INTERNAL:
            continue
        value = _fingerprint(value)
        if value is not _NOTHING:
            while name in found:
                name += " "
            found[name] = value
    return found


_NOTHING = object()


def _fingerprint(value: Any) -> Any:
    if isinstance(value, SIMPLE):
        return value
    if isinstance(value, Tensor | nn.Module | type | ModuleType):
        return _NOTHING
    if isinstance(value, dict | list | set | tuple | deque):
        return len(value)
    if isinstance(value, np.ndarray):
        return value.tobytes() if value.nbytes < 2**20 and value.dtype != object else None
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, _NUMPY):
        return repr(
            value.bit_generator.state if isinstance(value, np.random.Generator) else value.get_state()
        )
    if isinstance(value, ContextVar):
        current = value.get(None)
        return current if isinstance(current, SIMPLE) else _NOTHING
    if isinstance(value, threading.local):
        return repr({k: v for k, v in vars(value).items() if isinstance(v, SIMPLE)})
    if isinstance(value, GeneratorType):
        frame = value.gi_frame
        return frame and repr({k: v for k, v in frame.f_locals.items() if isinstance(v, SIMPLE)})
    if isinstance(value, _ITERATORS):
        return repr(value)
    if hasattr(value, "__next__"):
        return operator.length_hint(value, 0)
    return _NOTHING


def changed_state(before: State, after: State) -> list[str]:
    """Names of what is another value now, or has come or gone."""
    names = [*before, *(name for name in after if name not in before)]
    missing = object()
    found = [name for name in names if not _equal(before.get(name, missing), after.get(name, missing))]
    return [name.rstrip() for name in found]


def _equal(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b or (a != a and b != b))
