"""Pieces of Python that stay whole in a graph: a node whose operator is one of these.

    FunctionCall    a custom ``torch.autograd.Function``, forward and backward
    ModuleCall      a module that cannot be recorded operator by operator: it runs as its author wrote it
    GradientHook    a hook on a tensor's gradient: the identity, whose backward calls it

Each takes tensors and returns a tuple of tensors. `writes` are the positions of the tensors it writes in
place; `random` says that it may draw. What Python does may go by how a tensor lies in memory (`contiguous`
is no copy of what is contiguous), so what came otherwise, as from another device, is laid out as it was.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from netsplit.errors import CaptureError
from netsplit.graph.analyse import storage_id
from netsplit.graph.batches.batch import Strides
from netsplit.graph.batches.tree import Tree, flatten
from netsplit.graph.recording.stand_ins import named_tensors

__all__ = ["FunctionCall", "GradientHook", "ModuleCall", "skeleton_of"]

Path = tuple[nn.Module, str]


def _as_before(tensors: Sequence[Tensor], strides: Sequence[Strides], writes: Sequence[int]) -> list[Tensor]:
    if not strides:
        return list(tensors)
    return [
        tensor if i in writes else own.laid_out(tensor)
        for i, (tensor, own) in enumerate(zip(tensors, strides, strict=True))
    ]


class FunctionCall:
    """``function.apply`` on arguments `(args, kwargs)` of which some are tensors."""

    random = True

    def __init__(
        self,
        function: type[torch.autograd.Function],
        structure: Tree,
        writes: tuple[int, ...] = (),
        strides: tuple[Strides, ...] = (),
    ) -> None:
        self.function = function
        self.structure = structure
        self.writes = writes
        self.strides = strides
        self.__name__ = function.__name__

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


class ModuleCall:
    """A module's own forward, on tensors given for its parameters and buffers and for its arguments.

    Args:
        module: without values; see `skeleton_of`.
        names: of its parameters and buffers, each tensor under all names that it has there; the first tensors
            of a call.
        structure: of `(args, kwargs)`, whose tensors come after those.
        strides: of these tensors.
    """

    random = True

    def __init__(
        self,
        module: nn.Module,
        names: Sequence[tuple[str, ...]],
        structure: Tree,
        writes: tuple[int, ...] = (),
        strides: tuple[Strides, ...] = (),
    ) -> None:
        self.module = module
        self.names = tuple(names)
        self.structure = structure
        self.writes = writes
        self.strides = strides
        known = named_tensors(module)
        # Kept here as well: torch's copies of a parameter are without them.
        self.attributes = tuple(dict(vars(known[each[0]])) for each in self.names)
        self.__name__ = type(module).__name__

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
