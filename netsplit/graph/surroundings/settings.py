"""torch's settings by which results differ, from one process to another."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

__all__ = ["settings", "take_settings"]

_FLAGS = (
    "mkldnn.enabled", "mkldnn.deterministic", "mkldnn.allow_tf32",
    "cudnn.enabled", "cudnn.benchmark", "cudnn.deterministic", "cudnn.allow_tf32",
    "cuda.matmul.allow_tf32", "cuda.matmul.allow_fp16_reduced_precision_reduction",
    "cuda.matmul.allow_bf16_reduced_precision_reduction",
    "opt_einsum.enabled", "opt_einsum.strategy",
    # The newer names of precision come last: setting an older one sets these too. Where somebody used the
    # newer, torch refuses to tell the older.
    "fp32_precision", "cuda.matmul.fp32_precision",
    "cudnn.fp32_precision", "cudnn.conv.fp32_precision", "cudnn.rnn.fp32_precision",
    "mkldnn.fp32_precision", "mkldnn.matmul.fp32_precision", "mkldnn.conv.fp32_precision",
    "mkldnn.rnn.fp32_precision",
)  # fmt: skip
_CUDA = torch.backends.cuda
_KINDS = ("flash", "mem_efficient", "math", "cudnn")


def settings() -> dict[str, Any]:
    """The settings of this process by their names here; those that this torch has, and tells."""
    values: dict[str, Any] = {}
    for name in (*_CALLS, *_FLAGS):
        with suppress(AttributeError, RuntimeError):
            values[name] = _value(name)
    return values


def take_settings(given: dict[str, Any]) -> None:
    """Set what is another here."""
    for name, value in given.items():
        with suppress(AttributeError, RuntimeError):
            if _value(name) == value:
                continue
        if name in _CALLS:
            _CALLS[name][1](value)
        else:
            with suppress(AttributeError):  # not in this torch
                setattr(*_place(name), value)


def _value(name: str) -> Any:
    return _CALLS[name][0]() if name in _CALLS else getattr(*_place(name))


def _place(name: str) -> tuple[Any, str]:
    *path, last = name.split(".")
    owner: Any = torch.backends
    for part in path:
        owner = getattr(owner, part)
    return owner, last


def _deterministic() -> tuple[bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


_CALLS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "deterministic": (_deterministic, lambda v: torch.use_deterministic_algorithms(v[0], warn_only=v[1])),
    "precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "flush": (lambda: sys.float_info.min / 2 == 0, torch.set_flush_denormal),
    "autocast cache": (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    **{
        kind: (getattr(_CUDA, f"{kind}_sdp_enabled"), getattr(_CUDA, f"enable_{kind}_sdp")) for kind in _KINDS
    },
}
