"""Operator arguments as JSON-ready templates, and back.

Tensors become references: ``{"var": name}`` for a variable, ``{"init": name}`` for an initializer.
Torch's own constants become ``{"dtype": ...}``, ``{"device": ...}``, ``{"layout": ...}`` and
``{"memory_format": ...}``, complex numbers ``{"complex": ...}``. Other numbers, strings, booleans, None and
lists stand for themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from netsplit.graph.arguments import Templates

__all__ = ["decode", "decoded", "encode"]

_TORCH_CONSTANTS: dict[str, type] = {
    "dtype": torch.dtype,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}


def encode(value: Any, reference: Callable[[Any], dict[str, str] | None]) -> Any:
    """Template of one argument.

    `reference` answers the template of a value that stands for a tensor, None for any other.

    Raises:
        TypeError: the value has no JSON form (a symbolic size, a script object).
    """
    tagged = reference(value)
    if tagged is not None:
        return tagged
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, complex):
        return {"complex": str(value)}
    if isinstance(value, list | tuple):
        return [encode(item, reference) for item in value]
    if isinstance(value, torch.device):
        return {"device": str(value)}
    for tag, kind in _TORCH_CONSTANTS.items():
        if isinstance(value, kind):
            return {tag: str(value).removeprefix("torch.")}
    raise TypeError(f"{type(value).__name__} {value!r}")


def decode(template: Any, tensor: Callable[[str, str], Any], device: torch.device | str | None = None) -> Any:
    """The argument a template stands for.

    `tensor(tag, name)` gives what stands for a "var" or an "init"; `device` replaces every device
    that the captured call named (None: leave it).
    """
    if isinstance(template, list | tuple):
        return [decode(item, tensor, device) for item in template]
    if not isinstance(template, dict):
        return template
    ((tag, name),) = template.items()
    if tag in ("var", "init"):
        return tensor(tag, name)
    if tag == "complex":
        return complex(name)
    if tag == "device":
        return torch.device(name if device is None else device)
    return getattr(torch, name)


def decoded(
    call: Templates, tensor: Callable[[str, str], Any], device: torch.device | str | None = None
) -> tuple[list[Any], dict[str, Any]]:
    """A call's positional and keyword arguments, each as `decode` has it."""
    kwargs = {key: decode(template, tensor, device) for key, template in call.kwargs.items()}
    return decode(call.args, tensor, device), kwargs
