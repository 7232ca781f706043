"""Calls of torch that no operator shows, or that hide operators: functions, checkpoints, TorchScript."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch.utils.checkpoint as torch_checkpoint
from torch.autograd import Function

__all__ = ["checkpoints_replaced", "intercepted_functions", "script_unoptimised"]

_CALLABLES: tuple[Any, ...] = (torch._C.ScriptFunction, torch._C.ScriptMethod)

# What `checkpoint` calls is the first of these from torch 2.14 on, where the second stays for other callers.
_GENERATOR = next(
    name
    for name in ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")
    if hasattr(torch_checkpoint, name)
)


@contextmanager
def intercepted_functions(tell: Callable[..., Any]) -> Iterator[None]:
    """Calls of custom autograd functions are `tell(apply, function, *args, **kwargs)`; `apply` is torch's.

    Up to torch 2.13 `Function.apply` asks its base, so that one bound at import is told of, too.
    """
    original = Function.__dict__["apply"]
    asks_its_base = isinstance(original, classmethod)
    base = torch.autograd.function._SingleLevelFunction if asks_its_base else Function

    def apply(function: type[Function], *args: Any, **kwargs: Any) -> Any:
        plain = super(base, function).apply if asks_its_base else original.__get__(None, function)  # type: ignore[misc]
        return tell(plain, function, *args, **kwargs)

    with mock.patch.object(base, "apply", classmethod(apply), create=True):
        yield


@contextmanager
def checkpoints_replaced(replaced: Callable[..., Callable[..., Iterator[None]]]) -> Iterator[None]:
    """Checkpoints that are not reentrant run within the generator `replaced(torch's)(function, ...)`."""
    original = getattr(torch_checkpoint, _GENERATOR)
    with mock.patch.object(torch_checkpoint, _GENERATOR, replaced(original)):
        yield


@contextmanager
def script_unoptimised() -> Iterator[None]:
    """Scripted and traced functions and modules call plain operators, whether they have run before or not.

    Plans that torch has made are dropped, as it prefers them to the setting; it makes them anew later.
    """
    with ExitStack() as stack:
        for kind in _CALLABLES:
            stack.enter_context(mock.patch.object(kind, "__call__", _without_plan(kind.__call__)))
        yield


def _without_plan(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        function._debug_flush_compilation_cache()
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            return original(function, *args, **kwargs)

    return call
