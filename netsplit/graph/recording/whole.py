"""Pieces of Python that stay whole in a graph: a node whose operator is one of these.

    FunctionCall    a custom ``torch.autograd.Function``, forward and backward
    ModuleCall      a module that cannot be recorded operator by operator: it runs as its author wrote it
    GradientHook    a hook on a tensor's gradient: the identity, whose backward calls it

Each takes tensors and returns a tuple of tensors. `writes` are the positions of the tensors it writes in
place; `random` says that it may draw. What Python does may go by how a tensor lies in memory (`contiguous`
is no copy of what is contiguous), so what came otherwise, as from another device, is laid out as it was.

Workers get what such code finds around it in this process: the user's modules that it reaches travel by
value, with the globals and class attributes of this moment; torch's settings are set alike.
"""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, ClassVar

import cloudpickle
import torch
from torch import Tensor, nn

from netsplit.errors import CaptureError, ConfigError
from netsplit.graph.analyse import Strides, storage_id
from netsplit.graph.batches.tree import Tree, flatten
from netsplit.graph.recording.stand_ins import named_tensors
from netsplit.graph.user_code import is_own_file, is_own_module, line_of, names_in, reached

__all__ = [
    "FunctionCall", "GradientHook", "ModuleCall", "by_value", "carried_modules", "settings",
    "skeleton_of", "take_settings",
]  # fmt: skip

Path = tuple[nn.Module, str]


def _as_before(tensors: Sequence[Tensor], strides: Sequence[Strides], writes: Sequence[int]) -> list[Tensor]:
    if not strides:
        return list(tensors)
    return [
        tensor if i in writes else own.laid_out(tensor)
        for i, (tensor, own) in enumerate(zip(tensors, strides, strict=True))
    ]


@dataclass(eq=False)
class FunctionCall:
    """``function.apply`` on arguments `(args, kwargs)` of which some are tensors."""

    function: type[torch.autograd.Function]
    structure: Tree
    writes: tuple[int, ...] = ()
    strides: tuple[Strides, ...] = ()
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.__name__ = self.function.__name__

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        args, kwargs = self.structure.build(_as_before(tensors, self.strides, self.writes))
        result = self.function.apply(*args, **kwargs)
        return tuple(flatten(result)[0])


class _Hooked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, hooks: tuple[Callable[[Tensor], Tensor | None], ...]) -> Tensor:
        ctx.hooks = hooks
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        for hook in ctx.hooks:
            changed = hook(gradient)
            gradient = gradient if changed is None else changed
        return gradient, None


class GradientHook:
    """A tensor as it is, whose gradient goes through hooks in the order in which they were registered."""

    random = False
    writes: tuple[int, ...] = ()
    __name__ = "gradient_hook"

    def __init__(self, hooks: Sequence[Callable[[Tensor], Tensor | None]]) -> None:
        self.hooks = tuple(hooks)

    def __call__(self, tensor: Tensor) -> tuple[Tensor, ...]:
        return (_Hooked.apply(tensor, self.hooks) if tensor.requires_grad else tensor.view_as(tensor),)


@dataclass(eq=False)
class ModuleCall:
    """A module's own forward, on tensors given for its parameters and buffers and for its arguments.

    Args:
        module: without values; see `skeleton_of`.
        names: of its parameters and buffers, each tensor under all names that it has there; the first tensors
            of a call.
        structure: of `(args, kwargs)`, whose tensors come after those.
        strides: of these tensors.
    """

    module: nn.Module
    names: Sequence[tuple[str, ...]]
    structure: Tree
    writes: tuple[int, ...] = ()
    strides: tuple[Strides, ...] = ()
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        known = named_tensors(self.module)
        # Kept here as well: torch's copies of a parameter are without them.
        self.attributes = tuple(dict(vars(known[each[0]])) for each in self.names)
        self.__name__ = type(self.module).__name__

    def is_of(self, module: nn.Module) -> bool:
        """Whether this is a call of that module, as far as its class and its tensors' names tell."""
        same = type(module).__name__ == self.__name__ == type(self.module).__name__
        return same and named_tensors(module).keys() == {k for names in self.names for k in names}

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        own, given = tensors[: len(self.names)], tensors[len(self.names) :]
        args, kwargs = self.structure.build(_as_before(given, self.strides, ()))
        for tensor, attributes in zip(own, self.attributes, strict=True):
            vars(tensor).update(attributes)
        self._hold(own)
        result = self.module(*args, **kwargs)
        self._take_assigned(own)
        held, results = {storage_id(tensor) for tensor in tensors}, list[Tensor]()
        for t in flatten(result)[0]:  # a view of another would tie their memory without the graph's knowing
            results.append(t.clone() if storage_id(t) in held else t)
            held.add(storage_id(t))
        return tuple(results)

    def _hold(self, tensors: Sequence[Tensor]) -> None:
        """They stay until the next call: code of the module may run in its backward, too."""
        for places, tensor in zip(self._places, tensors, strict=True):
            for store, leaf in places:
                store[leaf] = tensor

    def _take_assigned(self, tensors: Sequence[Tensor]) -> None:
        """What the module has assigned to a buffer is written into the buffer."""
        for places, tensor in zip(self._places, tensors, strict=True):
            for store, leaf in places:
                now = store.get(leaf)
                if now is None or now is tensor:
                    continue
                if isinstance(tensor, nn.Parameter):
                    raise CaptureError(
                        f"the forward of {self.__name__} replaces the parameter '{leaf}': tie or replace "
                        "parameters where the model is built."
                    )
                tensor.data.copy_(now.detach())
                store[leaf] = tensor

    @property
    def _places(self) -> list[list[tuple[dict[str, Any], str]]]:
        return [[_place(self.module, name) for name in each] for each in self.names]

    def __getstate__(self) -> dict[str, Any]:
        """A copy has no values, as at first."""
        for places in self._places:
            for store, leaf in places:
                if store[leaf] is not None and not store[leaf].is_meta:
                    store[leaf] = _empty(store[leaf])
        return vars(self)


def _place(module: nn.Module, name: str) -> tuple[dict[str, Any], str]:
    path, _, leaf = name.rpartition(".")
    owner = module.get_submodule(path)
    return (owner._parameters if leaf in owner._parameters else owner._buffers), leaf


def skeleton_of(module: nn.Module) -> nn.Module:
    """A copy of a module, its Python state included, whose parameters and buffers have no data.

    Attributes that people gave those in Python are copied, too.

    Raises:
        Exception: whatever `copy.deepcopy` raises on a module that cannot be copied.
    """
    memo: dict[int, Any] = {}
    tensors = list(named_tensors(module).values())
    for tensor in tensors:
        memo[id(tensor)] = _empty(tensor)
    for tensor in tensors:
        vars(memo[id(tensor)]).update(copy.deepcopy(vars(tensor), memo))
    return copy.deepcopy(module, memo)


def _empty(tensor: Tensor) -> Tensor:
    empty = torch.empty_like(tensor, device="meta")
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


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
    # Those of the user's which workers would import; scripts travel by value anyway.
    modules = [
        sys.modules[name]
        for name in sorted(filter(None, names & sys.modules.keys()))
        if name.partition(".")[0] not in ("__main__", "netsplit") and is_own_module(name)
    ]
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
                setattr(*_backend_place(name), value)


def _value(name: str) -> Any:
    return _CALLS[name][0]() if name in _CALLS else getattr(*_backend_place(name))


def _backend_place(name: str) -> tuple[Any, str]:
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
