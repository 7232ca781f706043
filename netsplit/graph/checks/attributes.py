"""Plain attributes of modules: what a forward changes there is state that no captured step follows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from numbers import Number
from typing import Any

import numpy as np
from torch import Tensor, nn

__all__ = ["attribute_values", "changed_attribute"]

_PLAIN = (Number, str, bytes, type(None))
_OF_TORCH = frozenset(vars(nn.Module())) | {"_version", "call_super_init", "dump_patches"}
_DEPTH, _LONG = 4, 256


def attribute_values(*roots: Any) -> dict[str, Any]:
    """Name for people -> number, text or length, of every module's and its class's own attributes."""
    values: dict[str, Any] = {}
    for what, root in zip(("the model", "the loss"), roots, strict=False):
        modules = root.named_modules() if isinstance(root, nn.Module) else [("", root)]
        for path, module in modules:
            own = {**vars(type(module)), **getattr(module, "__dict__", {})}
            for key in own:
                if key not in _OF_TORCH and not key.startswith("__"):
                    name = f"'{key}' of {path or what} ({type(module).__name__})"
                    values |= _plain_in(name, own[key], _DEPTH)
    return values


def changed_attribute(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """The first that is another now, or has come or gone; None: all are as they were."""
    names = (*before, *(name for name in after if name not in before))
    return next((name for name in names if repr(before.get(name)) != repr(after.get(name))), None)


def _plain_in(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, _PLAIN):
        yield name, value
    elif isinstance(value, np.ndarray):
        yield name, hash(value.tobytes())
    elif isinstance(value, np.random.Generator):
        yield name, value.bit_generator.state
    elif isinstance(value, dict | list | tuple | set | frozenset | deque) and len(value) > _LONG:
        yield name, hash(tuple(each if isinstance(each, _PLAIN) else type(each) for each in value))
    elif isinstance(value, Tensor | nn.Module | type) or callable(value) or depth == 0:
        return
    elif isinstance(value, dict | list | tuple | set | frozenset | deque):
        yield name, len(value)
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _plain_in(f"{name}[{key!r}]" if isinstance(key, _PLAIN) else name, each, depth - 1)
    else:
        for key, each in getattr(value, "__dict__", {}).items():
            yield from _plain_in(f"{name}.{key}", each, depth - 1)
