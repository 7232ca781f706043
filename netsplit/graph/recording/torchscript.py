"""TorchScript run operator by operator: its optimised plans hide operators, and come of earlier calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

__all__ = ["script_unoptimised"]

_CALLABLES: tuple[Any, ...] = (torch._C.ScriptFunction, torch._C.ScriptMethod)


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
