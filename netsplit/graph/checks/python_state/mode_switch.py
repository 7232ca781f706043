"""What a model's own ``train()`` and ``eval()`` do to it, beside switching the mode."""

from __future__ import annotations

import dis
import re
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from netsplit.graph.checks.python_state.state import Held, bare, changed_names, memory_key, state_of
from netsplit.graph.code_places import is_users, quoted, user_frame
from netsplit.graph.recording.stand_ins import named_tensors

__all__ = ["ModeSwitch"]

_KEY = re.compile(r"'(\w+)' of ")


class ModeSwitch:
    """Puts a model into evaluation mode and back, as its own code does that, and looks at what changes."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.modes = [(module, module.training) for module in model.modules()]
        self.overrides = list(_overrides(model))
        self.changed: list[str] = []
        self.written: dict[str, str] = {}  # tensor -> line

    def to_evaluation(self) -> None:
        if not self.overrides:
            self.model.eval()
            return
        before = state_of(self.model, None)
        with _Writes(self.model, self.written):
            self.model.eval()
        after = state_of(self.model, None)
        tensors = [name for name, held in after.tensors.items() if not _same(before.tensors.get(name), held)]
        self.changed = [*map(bare, tensors), *changed_names(before.values, after.values)]

    def back(self) -> None:
        """Into the modes that its modules were in."""
        if self.modes[0][1]:
            self.model.train()
        for module, training in self.modes:
            module.training = training

    def what_it_does(self) -> str | None:
        """In words; None: nothing."""
        for name, line in self.written.items():
            return f"its own train() or eval() writes '{name}'{_at(line)}"
        for name in self.changed:
            key = _KEY.match(name)
            return f"its own train() or eval() sets {name}{_at(self._line(key[1] if key else ''))}"
        return None

    def _line(self, key: str) -> str:
        """Where an attribute is set; else where the first method of the user's own begins."""
        for function in self.overrides:
            line = 0
            for each in dis.get_instructions(function):
                line = (each.positions.lineno if each.positions else None) or line
                if each.opname == "STORE_ATTR" and each.argval == key:
                    return f"{function.__code__.co_filename}:{line}"
        code = self.overrides[0].__code__
        return f"{code.co_filename}:{code.co_firstlineno}"


def _overrides(model: nn.Module) -> Iterator[FunctionType]:
    overriding = {}
    for module in model.modules():
        for name in ("train", "eval"):
            function = getattr(getattr(module, name), "__func__", getattr(module, name))
            code = getattr(function, "__code__", None)
            if isinstance(function, FunctionType) and code is not None and is_users(code.co_filename):
                overriding[code] = function
    yield from overriding.values()


def _same(before: Held | None, now: Held) -> bool:
    return before is not None and before.tensor is now.tensor and before.content == now.content


def _at(line: str) -> str:
    return f" at {quoted(line)}" if line else ""


class _Writes(TorchDispatchMode):
    """Which of a model's tensors are written, and by which line first."""

    def __init__(self, model: nn.Module, writes: dict[str, str]) -> None:
        super().__init__()
        self.writes = writes
        self.names: dict[int | None, str] = {}
        for name, tensor in named_tensors(model).items():
            self.names.setdefault(memory_key(tensor), name)
        self.names.pop(None, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(zip((each.name for each in func._schema.arguments), args, strict=False)) | (kwargs or {})
        for each in func._schema.arguments:
            value = given.get(each.name)
            if each.is_write and isinstance(value, torch.Tensor):
                name = self.names.get(memory_key(value))
                if name is not None:
                    self.writes.setdefault(name, user_frame())
        return func(*args, **(kwargs or {}))
