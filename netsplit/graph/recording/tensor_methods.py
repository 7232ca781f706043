"""What a model does with tensors that no operator shows: ``.data``, hooks, values and gradients taken."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from netsplit.errors import CaptureError
from netsplit.graph.recording.record import Recorder
from netsplit.graph.surroundings.reach import has_contents

__all__ = ["TensorMethods", "asked_by"]

_DATA = (Tensor.data.__get__, Tensor.data.__set__)  # type: ignore[attr-defined]
_VERSION = vars(torch._C.TensorBase)["_version"].__get__
_GRAD_FN = vars(torch._C.TensorBase)["grad_fn"].__get__
_GRADIENT = vars(torch._C.TensorBase)["grad"].__get__
_SWITCHED = (Tensor.requires_grad_, vars(torch._C.TensorBase)["requires_grad"].__set__)
_TAKEN = {Tensor.tolist: "tolist", Tensor.numpy: "numpy", Tensor.__array__: "__array__"}
_BY_PYTHON = {Tensor.apply_: "apply_", Tensor.map_: "map_", Tensor.map2_: "map2_"}
_LENT = (Tensor.__dlpack__, Tensor.__dlpack_device__)
_DIFFERENTIATED = (torch.autograd.grad, torch.autograd.backward, Tensor.backward)


class TensorMethods(TorchFunctionMode):
    """Methods of tensors, and functions on them, that a step may not call or that become something else."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        recorder = self.recorder
        if func == _DATA[0]:
            return args[0].detach()
        if func == _DATA[1]:
            return self._set_data(*args)
        if func in _SWITCHED and isinstance(args[0], nn.Parameter):
            raise recorder.failure("it switches requires_grad of a parameter within the forward")
        if func is Tensor.register_hook:
            return self._hook(*args)
        if func in _DIFFERENTIATED:
            raise recorder.failure(
                "it takes gradients within the step (torch.autograd.grad)", differentiates=True
            )
        if func == _GRAD_FN and not asked_by(2, ("torch.nn.", "torch.utils.", "torch._")):
            raise recorder.failure("it reads a tensor's autograd graph (.grad_fn)")
        if func == _VERSION and not asked_by(2, ("torch.", "netsplit.")):
            raise CaptureError(
                f"it reads a tensor's version counter (._version){recorder.at()}, which counts one process's "
                "own writes: count in a buffer instead."
            )
        if func == _GRADIENT and isinstance(args[0], nn.Parameter):
            if sys._getframe(1).f_code is nn.Module._apply.__code__:
                raise recorder.failure("it casts or moves a module within the forward")
            raise recorder.failure("it reads the gradient of a parameter (.grad) within the forward")
        if func in _BY_PYTHON:
            raise recorder.failure(f"it computes elements of a tensor in Python ({_BY_PYTHON[func]})")
        if func in _LENT:
            raise recorder.failure("it hands a tensor's memory to others (dlpack)")
        if func in _TAKEN and recorder.reference(args[0]) is not None:
            value = recorder.constant_value(recorder.ours(args[0]))
            if value is None:
                raise recorder.failure("it needs the values of a tensor")
            with torch.utils._python_dispatch._disable_current_modes():
                return getattr(value, _TAKEN[func])(*args[1:], **kwargs)
        if isinstance(func, torch._C.ScriptMethod):  # torch names the module twice: bound, and first argument
            args = args[1:]
        return func(*args, **kwargs)

    def _set_data(self, tensor: Tensor, value: Tensor) -> None:
        if tensor.shape != value.shape or tensor.dtype != value.dtype:
            raise self.recorder.failure("it gives a tensor other .data of another shape or type")
        with torch.no_grad():
            tensor.detach().copy_(value)

    def _hook(self, tensor: Tensor, hook: Callable[[Tensor], Tensor | None]) -> Any:
        reference = self.recorder.reference(tensor)
        if reference is None or not self.recorder.ours(tensor).requires_grad:
            raise self.recorder.failure("it registers a hook on a tensor that has no gradient")
        if any(isinstance(value, FakeTensor) for value in _around(hook)):
            raise self.recorder.failure("it registers a hook that computes with tensors of this forward")
        self.recorder.hooks.setdefault(reference, []).append(hook)
        return _HookHandle()


def _around(hook: Any) -> Iterator[Any]:
    """What a function holds beside its arguments."""
    if isinstance(hook, functools.partial):
        yield from (*hook.args, *hook.keywords.values(), *_around(hook.func))
    for cell in getattr(hook, "__closure__", None) or ():
        if has_contents(cell):
            yield cell.cell_contents
    yield from getattr(hook, "__defaults__", None) or ()


class _HookHandle:
    """Of a hook: it stays for the step."""

    def remove(self) -> None:
        raise RuntimeError("a hook registered in the forward cannot be removed again in a captured step")


def asked_by(depth: int, rooms: tuple[str, ...]) -> bool:
    """Whether the code so many calls above is of one of these modules."""
    return str(sys._getframe(depth).f_globals.get("__name__")).startswith(rooms)
