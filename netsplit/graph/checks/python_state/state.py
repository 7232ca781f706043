"""What model, loss and the globals of their code hold, by names for people: two moments can be compared.

values: numbers, texts, sizes of containers, digests of arrays. tensors: all but parameters and buffers.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import operator
import os
import random
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from types import FunctionType, GeneratorType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from netsplit.graph.recording.stand_ins import named_tensors
from netsplit.graph.surroundings.reach import INSIDE, SIMPLE, names_in, within

__all__ = [
    "Held",
    "StateSnapshot",
    "Values",
    "bare",
    "changed_names",
    "changed_state",
    "equal",
    "memory_key",
    "same_values",
    "state_in",
    "state_of",
]  # fmt: skip

_INTERNAL = ("training", "_is_full_backward_hook", "_version", "call_super_init", "dump_patches")
_NUMPY = (np.random.RandomState, np.random.Generator)
_ITERATORS = (itertools.count, itertools.cycle, itertools.repeat)
_MOVING = (random.Random, *_NUMPY, *_ITERATORS, threading.local)
_LONG = 256  # as many items of a container are looked at one by one
_SMALL, _LARGE = 2**16, 2**26  # bytes: of tensors whose values are compared; of arrays that are, throughout

Values = dict[str, Any]


@dataclass(frozen=True)
class Held:
    """A tensor at one moment."""

    tensor: Tensor
    content: tuple[Any, ...]


@dataclass(frozen=True)
class StateSnapshot:
    values: Values
    tensors: dict[str, Held]


def state_of(model: Any, loss: Any, moving: bool = True) -> StateSnapshot:
    """All that model and loss reach.

    Args:
        moving: also what other code of the process moves in passing: its environment and thread, generators
            of random numbers, iterators, and how often caches were asked.
    """
    values: Values = {}
    if moving:
        values |= {f"os.environ['{k}']": v for k, v in os.environ.items()}
        thread = vars(threading.current_thread()).items()
        values |= {f"'{k}' of the current thread": v for k, v in thread if isinstance(v, SIMPLE)}
    reached = list(within((("the model", model), ("the loss", loss))))
    held = state_in(reached, named_tensors(model, loss).values(), moving)
    return StateSnapshot(values | held.values, held.tensors)


def state_in(
    reached: Iterable[tuple[str, Any]], trained: Iterable[Tensor] = (), moving: bool = True
) -> StateSnapshot:
    """What objects hold, by the names under which they are reached.

    Args:
        trained: tensors that are none of it.
        moving: see `state_of`.
    """
    values: Values = {}
    tensors: dict[str, Held] = {}
    reached, left_out = list(reached), {memory_key(tensor) for tensor in trained} - {None}
    counted = moving and _reads_cache_info(value for _, value in reached)
    for name, value in reached:
        if name.startswith("'") and name[1:].partition("'")[0] in _INTERNAL:
            continue
        if isinstance(value, Tensor):
            if memory_key(value) not in left_out:
                tensors[_free(name, tensors)] = Held(value, _content(value))
            continue
        if not moving and (isinstance(value, _MOVING) or hasattr(value, "__next__")):
            continue
        print_ = _fingerprint(value)
        if counted and isinstance(value, functools._lru_cache_wrapper):
            print_ = value.cache_info()
        if print_ is not _NOTHING:
            values[_free(name, values)] = print_
    return StateSnapshot(values, tensors)


def changed_state(before: StateSnapshot, after: StateSnapshot) -> list[str]:
    """Names of values that are others now, or have come or gone."""
    return changed_names(before.values, after.values)


def changed_names(before: Values, after: Values) -> list[str]:
    names = [*before, *(name for name in after if name not in before)]
    missing = object()
    changed = [name for name in names if not equal(before.get(name, missing), after.get(name, missing))]
    return [bare(name) for name in changed]


def bare(name: str) -> str:
    """Of a value or tensor in a state, for people."""
    return name.partition(INSIDE)[0]


def equal(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b or (a != a and b != b))


def _free(name: str, taken: dict[str, Any]) -> str:
    count, first = 0, name
    while name in taken:
        count += 1
        name = f"{first}{INSIDE} {count}"
    return name


def _reads_cache_info(values: Iterator[Any]) -> bool:
    """Else how often a cache was asked is nobody's state."""
    functions = (value for value in values if isinstance(value, FunctionType))
    return any("cache_info" in names_in(function.__code__) for function in functions)


def same_values(a: Tensor, b: Tensor) -> bool:
    try:
        return a.dtype == b.dtype and torch.equal(a.detach(), b.detach())
    except RuntimeError:  # layouts that cannot be compared
        return False


def memory_key(tensor: Tensor) -> int | None:
    """Which memory it lies in; None where that cannot be said."""
    try:
        return tensor.untyped_storage()._cdata if tensor.numel() else None
    except (RuntimeError, NotImplementedError):  # of another layout, or of nothing yet
        return None


def _content(tensor: Tensor) -> tuple[Any, ...]:
    """Its values, or how often it was written where they are many."""
    try:
        kind = (tensor.dtype, tuple(tensor.shape))
        if tensor.is_meta or tensor.nbytes > _SMALL:
            return (*kind, tensor._version)
        with torch._C.DisableTorchFunction(), torch.no_grad():
            flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
            return (*kind, flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    except (RuntimeError, NotImplementedError):  # tensors of a kind of their own
        return ()


_NOTHING = object()


def _fingerprint(value: Any) -> Any:
    if isinstance(value, SIMPLE):
        return value
    if isinstance(value, nn.Module | type | ModuleType):
        return _NOTHING
    if isinstance(value, dict | list | set | tuple | deque):
        return len(value) if len(value) <= _LONG else (len(value), _all_of(value))
    if isinstance(value, np.ndarray):
        return _digest(value)
    if isinstance(value, random.Random):
        return _NOTHING if isinstance(value, random.SystemRandom) else value.getstate()
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


def _all_of(store: Any) -> int:
    """Of a long container: numbers and texts by value, all else by its kind."""
    items = dict.items(store) if isinstance(store, dict) else ((None, item) for item in store)
    return hash(
        tuple(part if isinstance(part, SIMPLE) else type(part) for key, item in items for part in (key, item))
    )


def _digest(array: np.ndarray[Any, Any]) -> Any:
    if array.dtype.hasobject:
        return array.shape
    if array.nbytes > _LARGE:
        array = array.reshape(-1)[:: array.nbytes // _LARGE + 1]
    return array.dtype.str, array.shape, hashlib.sha1(np.ascontiguousarray(array).data).digest()
