"""What has to be caught while a model is recorded, since no operator shows it.

modules         which one is running; those that stay whole are not entered
Function.apply  a custom autograd function is one call, with its backward
checkpoints     the author's own activation checkpoints, by name
Tensor methods  ``.data``, hooks, values taken out of tensors, gradients asked for within the forward
assignments     ``self.buffer = value`` is a write into the buffer
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch.utils.checkpoint as torch_checkpoint
from torch import Tensor, nn
from torch._functorch import eager_transforms
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import Function, forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from netsplit.errors import CaptureError
from netsplit.graph.analyse import Strides
from netsplit.graph.batches.tree import flatten
from netsplit.graph.recording.record import Recorder, Unrecordable, Watched
from netsplit.graph.recording.stand_ins import attribute_tensors
from netsplit.graph.recording.whole import FunctionCall
from netsplit.graph.user_code import reached

__all__ = [
    "Whole", "checkpoints_replaced", "intercepted_functions", "said_to_compile", "script_unoptimised",
    "trapped",
]  # fmt: skip

Whole = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Any]
"""Records a call of a module that stays whole, and answers its result."""


@contextmanager
def trapped(
    recorder: Recorder,
    step: nn.Module,
    paths: Mapping[int, str],
    whole: Mapping[int, Whole],
    compiling: bool = False,
) -> Iterator[None]:
    """All of it.

    Args:
        step: whose modules' buffers and attributes are put back afterwards.
        paths: dotted name of a module by its id.
        whole: modules that are not entered, by id.
        compiling: the model is told that it is being compiled or exported, where models avoid values.
    """
    names = itertools.count()
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(nn.Module, "__call__", _module_call(recorder, paths, whole)))
        stack.enter_context(intercepted_functions(_function_apply(recorder, names)))
        stack.enter_context(checkpoints_replaced(lambda _: _checkpoint(recorder, names)))
        fakes = mock.patch.object(torch._subclasses, "FakeTensor", _Unseen)
        stack.enter_context(said_to_compile() if compiling else fakes)
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(script_unoptimised())
        stack.enter_context(_no_other_contexts(recorder))
        for owner, name, what in _BEYOND:
            stack.enter_context(mock.patch.object(owner, name, _refused(recorder, what)))
        stack.enter_context(_assignments(recorder, step))
        stack.enter_context(TensorMethods(recorder))
        yield


@contextmanager
def said_to_compile() -> Iterator[None]:
    """The model is told that it is being compiled or exported."""
    with ExitStack() as stack:
        for flag in ("_is_compiling_flag", "_is_exporting_flag"):
            stack.enter_context(mock.patch.object(torch.compiler, flag, True))
        yield


class _SeenByTorch(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, FakeTensor) and asked_by(2, ("torch.",))

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, FakeTensor) and asked_by(2, ("torch.",))


class _Unseen(metaclass=_SeenByTorch):
    """Replaces `FakeTensor`: libraries that ask whether they are traced go the way they train."""


_TRANSFORMS = "it transforms functions (torch.func: grad, jacrev, jvp)"
_BEYOND = (
    (eager_transforms, "_grad_increment_nesting", _TRANSFORMS),
    (eager_transforms, "_jvp_increment_nesting", _TRANSFORMS),
    (forward_ad, "enter_dual_level", _TRANSFORMS),
)
"""(module, name, what a model does with it) that no operator shows."""


def _refused(recorder: Recorder, what: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise recorder.failure(what)

    return refuse


@contextmanager
def _no_other_contexts(recorder: Recorder) -> Iterator[None]:
    """Refuse what a model puts around its operators that none of them shows."""
    enter_hooks, enter_mode = saved_tensors_hooks.__enter__, TorchDispatchMode.__enter__

    def hooks(self: saved_tensors_hooks) -> Any:
        if not isinstance(self, Watched):
            raise recorder.failure("it changes what is saved for the backward (saved_tensors_hooks)")
        return enter_hooks(self)

    def mode(self: TorchDispatchMode) -> Any:
        if type(self).__module__.partition(".")[0] not in ("torch", "netsplit"):
            raise recorder.failure(f"it changes what operators do ({type(self).__name__})")
        return enter_mode(self)

    with (
        mock.patch.object(saved_tensors_hooks, "__enter__", hooks),
        mock.patch.object(TorchDispatchMode, "__enter__", mode),
    ):
        yield


def _module_call(
    recorder: Recorder, paths: Mapping[int, str], whole: Mapping[int, Whole]
) -> Callable[..., Any]:
    original = nn.Module.__call__

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        above = recorder.modules[-1][1] if recorder.modules else ""
        recorder.modules.append((module, paths.get(id(module), above)))
        try:
            if id(module) in whole:
                return whole[id(module)](module, args, kwargs)
            if module._backward_hooks or module._backward_pre_hooks:
                raise recorder.failure(f"a {type(module).__name__} has hooks on its gradients")
            return original(module, *args, **kwargs)
        except Exception as error:
            recorder.comes_up(error)
            raise
        finally:
            recorder.modules.pop()

    return call


def _function_apply(recorder: Recorder, names: Iterator[int]) -> Callable[..., Any]:
    def call(apply: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
        if function is torch_checkpoint.CheckpointFunction:
            run, _, *given = args
            return _reentrant(recorder, f"checkpoint_{next(names)}", run, given)
        given, structure, _ = flatten((args, kwargs))
        if any(isinstance(value, nn.Module) for value in reached(structure.statics())):
            raise recorder.failure(f"it passes {function.__name__} a module with parameters")
        tensors = [recorder.ours(tensor) for tensor in given]
        args, kwargs = structure.build(tensors)
        saved: list[Tensor] = []
        versions = [tensor._version for tensor in tensors]
        with recorder.quiet(), Watched(saved):
            try:
                result = apply(*args, **kwargs)
            except (Unrecordable, CaptureError):
                raise
            except Exception as error:
                raise recorder.why(error) from error
        results, tree, _ = flatten(result)
        with recorder.quiet(), torch._C.DisableTorchFunction():  # our own asking is no part of the step
            receiving = _reached(tensors, results)
            strides = tuple(map(Strides.of, tensors))
        writes = tuple(i for i, tensor in enumerate(tensors) if tensor._version != versions[i])
        call = FunctionCall(function, structure, writes, strides)
        recorder.call(call, tensors, results, saved, lambda tensor: id(tensor) in receiving)
        return tree.build(results)

    return call


def _reached(tensors: list[Tensor], results: list[Tensor]) -> set[int]:
    """Ids of the tensors to which a function's backward gives a gradient; all, where that is unknown."""
    asked = [tensor for tensor in tensors if tensor.requires_grad]
    given = [tensor for tensor in results if tensor.requires_grad and tensor.grad_fn is not None]
    if not asked or not given:
        return {id(tensor) for tensor in asked}
    try:
        gradients = torch.autograd.grad(
            given, asked, [torch.empty_like(t) for t in given], retain_graph=True, allow_unused=True
        )
    except Exception:
        return {id(tensor) for tensor in asked}
    return {id(tensor) for tensor, gradient in zip(asked, gradients, strict=True) if gradient is not None}


def _reentrant(recorder: Recorder, name: str, run: Callable[..., Any], args: list[Any]) -> Any:
    """Passes gradients on only where one of its arguments carries one, as torch does."""
    carries = any(isinstance(arg, Tensor) and arg.requires_grad for arg in args)
    recorder.checkpoints.append(name)
    try:
        with torch.set_grad_enabled(carries and torch.is_grad_enabled()):
            return run(*args)
    finally:
        recorder.checkpoints.pop()


def _checkpoint(recorder: Recorder, names: Iterator[int]) -> Callable[..., Iterator[None]]:
    def generator(function: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
        recorder.checkpoints.append(f"checkpoint_{next(names)}")
        try:
            yield
        finally:
            recorder.checkpoints.pop()

    return generator


@contextmanager
def _assignments(recorder: Recorder, step: nn.Module) -> Iterator[None]:
    """Tensors that a module assigns to buffers and tensor attributes are written into those."""
    modules = [module for module in step.modules() if isinstance(module._buffers, dict)]
    buffers = [(module._buffers, key, old) for module in modules for key, old in module._buffers.items()]
    attributes = [(vars(module), key, old) for module, key, _, old in attribute_tensors(step)]
    try:
        yield
        read = [(store, key, old) for store, key, old in attributes if recorder.stand_ins.knows(old)]
        olds = {id(old) for _, _, old in [*buffers, *read]}
        given: list[tuple[dict[str, Any], str, Tensor, Tensor]] = []
        for store, key, old in [*buffers, *read]:
            new = store.get(key)
            if isinstance(old, Tensor) and isinstance(new, Tensor) and new is not old:
                # Where two change places, one is written before the other is given its value.
                given.append((store, key, old, new.detach().clone() if id(new) in olds else new))
        for store, key, old, new in given:
            if new.shape != old.shape or new.dtype != old.dtype or new.requires_grad:
                raise recorder.failure(
                    f"'{key}' gets another shape, another type or a gradient in every step"
                )
            store[key] = old
            with torch.no_grad():
                old.detach().copy_(new.detach())
    finally:
        for store, key, old in [*buffers, *attributes]:
            store[key] = old


_DATA = (Tensor.data.__get__, Tensor.data.__set__)  # type: ignore[attr-defined]
_VERSION = vars(torch._C.TensorBase)["_version"].__get__
_GRAD_FN = vars(torch._C.TensorBase)["grad_fn"].__get__
_GRADIENT = vars(torch._C.TensorBase)["grad"].__get__
_SWITCHED = (Tensor.requires_grad_, vars(torch._C.TensorBase)["requires_grad"].__set__)
_TAKEN = {Tensor.tolist: "tolist", Tensor.numpy: "numpy", Tensor.__array__: "__array__"}
_IN_MEMORY = (Tensor.apply_, Tensor.map_, Tensor.map2_, Tensor.__dlpack__, Tensor.__dlpack_device__)
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
            raise recorder.failure("it registers a hook on a tensor's gradient within the forward")
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
        if func in _IN_MEMORY:  # torch would read memory that is not there
            raise recorder.failure("it reads a tensor's memory in Python (apply_, dlpack)")
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
            raise self.recorder.failure("it assigns .data of another shape or type to a tensor")
        with torch.no_grad():
            tensor.detach().copy_(value)


def asked_by(depth: int, rooms: tuple[str, ...]) -> bool:
    """Whether the code `depth` calls above is of one of these modules."""
    return str(sys._getframe(depth).f_globals.get("__name__")).startswith(rooms)


_CALLABLES: tuple[Any, ...] = (torch._C.ScriptFunction, torch._C.ScriptMethod)

# What `checkpoint` calls is the first of these from torch 2.14 on, where the second stays for other callers.
_GENERATOR = next(
    name
    for name in ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")
    if hasattr(torch_checkpoint, name)
)


@contextmanager
def intercepted_functions(tell: Callable[..., Any]) -> Iterator[None]:
    """Calls of custom autograd functions are `tell(apply, function, *args, **kwargs)`; `apply` is torch's.

    Up to torch 2.13 `Function.apply` asks its base, so that one bound at import is told of, too.
    """
    original = Function.__dict__["apply"]
    asks_its_base = isinstance(original, classmethod)
    base = torch.autograd.function._SingleLevelFunction if asks_its_base else Function

    def apply(function: type[Function], *args: Any, **kwargs: Any) -> Any:
        plain = super(base, function).apply if asks_its_base else original.__get__(None, function)  # type: ignore[misc]
        return tell(plain, function, *args, **kwargs)

    with mock.patch.object(base, "apply", classmethod(apply), create=True):
        yield


@contextmanager
def checkpoints_replaced(replaced: Callable[..., Callable[..., Iterator[None]]]) -> Iterator[None]:
    """Checkpoints that are not reentrant run within the generator `replaced(torch's)(function, ...)`."""
    original = getattr(torch_checkpoint, _GENERATOR)
    with mock.patch.object(torch_checkpoint, _GENERATOR, replaced(original)):
        yield


@contextmanager
def script_unoptimised() -> Iterator[None]:
    """Scripted and traced functions and modules call plain operators, whether they have run before or not.

    Plans that torch has made are dropped; it makes them anew later.
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
