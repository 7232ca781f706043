"""What code that workers run finds around it in this process, and would not find in theirs.

whole modules, custom functions, hooks, optimiser ─► the user's modules that they reach ─► pickled by value,
with the globals and class attributes of this moment; torch's settings ─► set alike on the workers
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle
import torch
from torch import nn

from netsplit.errors import ConfigError
from netsplit.graph.code_places import line_of
from netsplit.graph.surroundings.keep import is_own_file, is_own_module, names_in, reached

__all__ = ["by_value", "carried_modules", "settings", "take_settings"]

log = logging.getLogger(__name__)

_TORCH = (torch, torch.nn.functional, torch.Tensor, torch.linalg)


def carried_modules(roots: Iterable[Any]) -> list[ModuleType]:
    """The user's modules within reach of some objects; without those that cannot be pickled, which is said.

    Raises:
        ConfigError: their code calls a function of torch that the user has replaced, which workers would not.
    """
    roots = list(roots)
    within = reached(roots)
    _refuse_replaced(within)
    names = {each.__module__ for each in within if isinstance(each, FunctionType | type)}
    modules = [sys.modules[name] for name in sorted(filter(None, names)) if _is_carried(name)]
    error = _refusal(roots, modules)
    if error is None:
        return modules
    kept = [module for module in modules if _refusal(roots, [module]) is None]
    log.warning(
        "Workers import %s afresh and do not see changes made since its import: these cannot be sent (%s).",
        ", ".join(module.__name__ for module in modules if module not in kept), line_of(error),
    )  # fmt: skip
    return kept


def _refusal(roots: list[Any], modules: list[ModuleType]) -> Exception | None:
    """Why they cannot be pickled with these modules by value."""
    try:
        with by_value(modules):
            cloudpickle.dumps(roots)
    except Exception as error:
        return error
    return None


@contextmanager
def by_value(modules: Iterable[ModuleType]) -> Iterator[None]:
    """Pickles functions and classes of these modules as they are, not by their names."""
    known = cloudpickle.list_registry_pickle_by_value()
    new = [module for module in modules if module.__name__ not in known]
    for module in new:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in new:
            cloudpickle.unregister_pickle_by_value(module)


def _is_carried(name: str) -> bool:
    """Whether it is a module of the user's which workers would import; scripts travel by value anyway."""
    ours = name.partition(".")[0] in ("__main__", "netsplit")
    return not ours and name in sys.modules and is_own_module(name)


def _refuse_replaced(within: Iterable[Any]) -> None:
    places: list[tuple[Any, str]] = []
    for value in within:
        if isinstance(value, FunctionType) and is_own_file(value.__code__.co_filename):
            names = names_in(value.__code__)
            places += [(space, key) for space in _TORCH for key in names & vars(space).keys()]
        elif isinstance(value, nn.Module):
            library = (each for each in type(value).__mro__ if not is_own_module(each.__module__))
            places += [(each, key) for each in library for key in vars(each)]
    for owner, key in places:
        function = vars(owner)[key]
        file = function.__code__.co_filename if isinstance(function, FunctionType) else ""
        if file and is_own_file(file) and not str(function.__module__).startswith("netsplit."):
            raise ConfigError(
                f"'{key}' of {owner.__name__} was replaced by a function of {file}, but workers that run "
                "whole code have the original: call that function by its own name, or make a subclass."
            )


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
    """Torch's settings by which results differ, by their names here; those that this torch has, and tells."""
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
