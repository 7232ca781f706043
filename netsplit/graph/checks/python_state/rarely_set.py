"""Numbers that a module kept whole reads and sets: each of its programs would have its own."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from torch import nn

from netsplit.graph.surroundings.reach import is_own_module

__all__ = ["set_by_forward"]


def set_by_forward(module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """(module, attribute): numbers that the forward, or a method that it names, reads before it sets them."""
    for each in module.modules():
        if is_own_module(type(each).__module__):
            for function in _methods(each):
                yield from ((each, key) for key in _read_and_set(function) if _is_number(each, key))


def _methods(module: nn.Module) -> Iterator[FunctionType]:
    waiting, seen = ["forward"], set()
    while waiting:
        name = waiting.pop()
        function: Any = getattr(type(module), name, None)
        if name not in seen and isinstance(function, FunctionType) and is_own_module(function.__module__):
            seen.add(name)
            waiting += function.__code__.co_names
            yield function


def _read_and_set(function: FunctionType) -> Iterator[str]:
    read = set()
    for instruction in dis.get_instructions(function):
        if instruction.opname == "LOAD_ATTR":
            read.add(instruction.argval)
        elif instruction.opname == "STORE_ATTR" and instruction.argval in read:
            yield instruction.argval


def _is_number(module: nn.Module, key: str) -> bool:
    return isinstance(vars(module).get(key, getattr(type(module), key, None)), int | float)
