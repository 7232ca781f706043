"""Record the operators that a training step calls, on tensors without data.

    step(*batch) ─► every operator, before autograd and composition ─► a list of `RecordedCall`s
                    └─ run on stand-ins under FakeTensorMode, with autograd on

A dispatch mode on the PreDispatch key sees operators as the model's code calls them (``aten.linear``, not
what it is made of). Each call is noted with the modes it was made in (autograd off, autocast, an activation
checkpoint), the module, the line, and what its backward keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.schema_check_mode import SchemaCheckMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves

from netsplit.errors import CaptureError, NetSplitError
from netsplit.graph.arguments import encode
from netsplit.graph.ir import CALL
from netsplit.graph.operators import marked, operator_draws, written_by_schema
from netsplit.graph.recording.stand_ins import RecordedCall, StandIns, constant_value
from netsplit.graph.user_code import frame_of, line_of, quoted, user_frame

__all__ = ["Recorder", "Unrecordable", "Watched"]

_ATEN = torch.ops.aten
_CHECKS = frozenset({_ATEN._assert_tensor_metadata.default, _ATEN._assert_async.msg})
_VALUES = frozenset(
    {_ATEN.item.default, _ATEN._local_scalar_dense.default, _ATEN.is_nonzero.default, _ATEN.equal.default}
)
_LITERAL = frozenset({_ATEN.lift_fresh.default, _ATEN.lift_fresh_copy.default, _ATEN.lift.default})
_COMPARED = {_ATEN.lt.Scalar: (True, False), _ATEN.ge.Scalar: (False, True)}
"""Comparison of a draw from [0, 1) with a number -> the answer where it is at least 1, and at most 0."""


class Watched(saved_tensors_hooks):
    """Notes in `saved` what autograd saves within; hooks of the model's own keep its module whole."""

    def __init__(self, saved: list[Tensor]) -> None:
        def keep(tensor: Tensor) -> Tensor:
            saved.append(tensor)
            return tensor

        super().__init__(keep, lambda tensor: tensor)


class Unrecordable(BaseException):
    """A part of the model that cannot be recorded operator by operator; `modules` are those it is in.

    No `Exception`, which the model's own code may catch.
    """

    def __init__(
        self,
        reason: str,
        modules: tuple[nn.Module, ...],
        frame: str,
        differentiates: bool = False,
        fails: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.modules = modules
        self.frame = frame
        self.differentiates = differentiates  # gradients go through more than these modules
        self.fails = fails  # by an error of the code, or of running it without values


class Recorder(SchemaCheckMode):
    """The mode that records into `calls`, `tensors` (of variables) and `stand_ins`.

    It takes the place that torch has for a mode of this kind on the PreDispatch key.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Any,
        device_type: str,
        autocast: str | None,
        mode: FakeTensorMode,
        constants: str = "",
        grad: bool = True,
    ) -> None:
        super().__init__()
        self.__dict__["_dispatch_key"] = torch._C.DispatchKey.PreDispatch
        self.mode = mode
        self.device = torch.device(device_type)
        self.autocast = autocast
        self.grad = grad
        self.calls: list[RecordedCall] = []
        self.payloads: dict[str, Any] = {}
        self.tensors: dict[str, Tensor] = {}
        self.layouts: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}  # first shapes, strides
        self.modules: list[tuple[nn.Module, str]] = []
        self.failed: tuple[BaseException, tuple[nn.Module, ...]] | None = None  # where an error came up
        self.checkpoints: list[str] = []
        self.stand_ins = StandIns(mode, device_type, model, loss, self.at, constants)
        self._reference: dict[int, dict[str, str]] = {}
        self._in_storage: dict[int, list[str]] = {}  # variables by their memory
        self._counts: dict[str, int] = {}
        self._draws: dict[int, tuple[bool | None, Any]] = {}
        self._keep: list[Any] = []
        self._default = torch.get_default_dtype()
        self._mark = marked()  # anew at every draw: draws move no generator while recording

    def input(self, name: str, example: Tensor) -> Tensor:
        """A stand-in for an input variable."""
        with self.mode:
            fake = torch.empty_strided(
                tuple(example.shape), example.stride(), dtype=example.dtype, device=self.device
            )
        self._name(fake, name)
        return fake

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self.look()
        given, named = self._ours(args), {key: self._ours(value) for key, value in kwargs.items()}
        if func in _CHECKS:
            return None
        if func in _VALUES:
            return self._value(func, given)
        if func in _LITERAL and ("init" in self._known(given[0])):
            # A literal is a fresh tensor at every call: what is written into it is forgotten.
            return self._through(_ATEN.lift_fresh_copy.default, given[0])
        if func.overloadpacket is _ATEN.randint_like and given[0].requires_grad:
            given = (self._through(_ATEN.detach.default, given[0]), *given[1:])  # as torch does
        if func is _ATEN.detach_.default and not given[0].requires_grad:
            return given[0]
        for tensor in tree_leaves((given, named)):  # before a write makes something else of it
            if isinstance(tensor, Tensor):
                self._known(tensor)
        saved: list[Tensor] = []
        try:  # By the code that runs on values, not by what torch has in its place for traces: there a
            # dropout that draws nothing returns a copy, and one that draws keeps a byte an element.
            with Watched(saved), torch._C._DisablePythonDispatcher():
                result = func(*given, **named)
        except (Unrecordable, NetSplitError):
            raise
        except Exception as error:
            raise self.why(error) from error
        self._note(func, given, named, result, saved)
        return result

    def call(
        self,
        payload: Any,
        tensors: list[Tensor],
        results: list[Tensor],
        saved: list[Tensor],
        reached: Callable[[Tensor], bool] = lambda _: True,
    ) -> None:
        """Note a piece of Python as one call from `tensors` to `results`.

        `reached`: whether a tensor that carries a gradient gets one through it.
        """
        self.look()
        name = self._fresh(payload.__name__)
        op = f"{CALL}.{name}"
        self.payloads[op] = payload
        templates = tuple(self._template(t) for t in tensors)
        writes = tuple(next(iter(templates[i].items())) for i in payload.writes)
        self._append(name, op, templates, {}, results, saved, payload.random, writes)
        missed = [t for t in tensors if t.requires_grad and not reached(t)]
        blocked = tuple(self._known(t)["var"] for t in missed if "var" in self._known(t))
        self.calls[-1] = replace(self.calls[-1], blocked=blocked)

    def ours(self, tensor: Tensor) -> Tensor:
        """The stand-in of a real tensor; of a stand-in, itself."""
        stand_in: Tensor = self._ours(tensor)
        return stand_in

    def reference(self, tensor: Tensor) -> tuple[str, str] | None:
        """("var" | "init", name) of a tensor that the model's code holds; None: no operator made it."""
        known = self._known(self._ours(tensor))
        return next(iter(known.items())) if known else None

    def tensor(self, tag: str, name: str) -> Tensor:
        """The stand-in that a reference means."""
        return self.tensors[name] if tag == "var" else self.stand_ins.fake[name]

    def failure(self, reason: str, differentiates: bool = False) -> Unrecordable:
        """What cannot be recorded here."""
        modules = tuple(module for module, _ in self.modules)
        return Unrecordable(reason, modules, user_frame(), differentiates)

    def at(self) -> str:
        """The line of the user's code that is running, for a sentence."""
        frame = user_frame()
        return f" at {frame}" if frame else ""

    def look(self) -> None:
        """Raises CaptureError: the model's code has set torch's generator."""
        if torch.default_generator.initial_seed() != self._mark:
            where = f" before {quoted(user_frame())}" if user_frame() else ""
            raise CaptureError(
                f"the forward sets torch's generator{where}, but split operators have their own seeds: pass "
                "random numbers in the batch, or keep them in a buffer."
            )

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Nothing is recorded: what runs inside is run on stand-ins alone."""
        with torch.utils._python_dispatch._pop_mode_temporarily(torch._C.DispatchKey.PreDispatch):
            yield

    def _ours(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            if type(value) is FakeTensor and value.fake_mode is self.mode:
                return value
            if type(value) not in (Tensor, nn.Parameter, nn.Buffer, FakeTensor) and not _plain(value):
                raise self.failure(f"it computes with a {type(value).__name__}, a subclass of Tensor")
            if value.layout is not torch.strided:
                raise self.failure("it computes with a sparse tensor")
            return self._stand_in(value)
        if isinstance(value, list | tuple):
            items = [self._ours(item) for item in value]
            return items if isinstance(value, list) else tuple(items)
        if isinstance(value, torch.Generator):
            if value.initial_seed() == self._mark:  # torch's own, which is another object in every operator
                return None
            raise CaptureError(
                f"the model draws from its own torch.Generator{self.at()}, whose state would be on one "
                "device: draw from torch's default generator, which seed= sets."
            )
        return self.device if isinstance(value, torch.device) else value

    def _stand_in(self, tensor: Tensor) -> Tensor:
        fake = self.stand_ins.of(tensor)
        if fake._cdata not in self._reference:
            self._reference[fake._cdata] = {"init": self.stand_ins.name_of_fake[fake._cdata]}
        return fake

    def _known(self, tensor: Tensor) -> dict[str, str]:
        template = self._reference.get(tensor._cdata)
        return self._twin(tensor) if template is None else template

    def _twin(self, tensor: Tensor) -> dict[str, str]:
        """torch's factories hand out another tensor than they made, on the same memory."""
        for name in reversed(self._in_storage.get(tensor.untyped_storage()._cdata, [])):
            earlier = self.tensors[name]
            if _laid_out(earlier) == _laid_out(tensor) and earlier.requires_grad == tensor.requires_grad:
                self._reference[tensor._cdata] = {"var": name}
                self._keep.append(tensor)
                return {"var": name}
        return {}

    def _template(self, value: Any) -> dict[str, str] | None:
        if not isinstance(value, Tensor):
            return None
        template = self._known(value)
        if not template:
            raise self.failure("it computes with a tensor that no operator made")
        return template

    def _name(self, tensor: Tensor, name: str) -> None:
        self._reference[tensor._cdata] = {"var": name}
        self.tensors[name] = tensor
        self.layouts[name] = tuple(tensor.shape), tensor.stride()
        self._keep.append(tensor)
        self._in_storage.setdefault(tensor.untyped_storage()._cdata, []).append(name)

    def _fresh(self, base: str) -> str:
        count = self._counts.get(base, 0)
        self._counts[base] = count + 1
        return base if count == 0 else f"{base}_{count}"

    def _note(self, func: Any, args: Any, kwargs: Any, result: Any, saved: list[Tensor]) -> None:
        results = list(result) if isinstance(result, list | tuple) else [result] * isinstance(result, Tensor)
        random = operator_draws(func, args, kwargs)
        if not func._schema.is_mutable and not random and (not results or any(result is arg for arg in args)):
            return
        try:
            templates = tuple(encode(arg, self._template) for arg in args)
            named = {key: encode(arg, self._template) for key, arg in kwargs.items()}
        except TypeError as error:
            raise self.failure(f"{func} has an argument that cannot be saved in a file: {error}") from error
        name = self._fresh(func._schema.name.partition("::")[2])
        writes = tuple(written_by_schema(str(func), templates, named))
        self._append(name, str(func), templates, named, results, saved, random, writes)
        self._watch_draws(func, args, results)

    def _append(
        self,
        name: str,
        op: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        results: list[Any],
        saved: list[Tensor],
        random: bool,
        writes: tuple[tuple[str, str], ...] = (),
    ) -> None:
        if random:
            self._mark = marked()
        several = len(results) != 1 or op.startswith(CALL)
        outputs = []
        for i, tensor in enumerate(results):
            outputs.append((f"{name}.{i}" if several else name) if isinstance(tensor, Tensor) else "")
            if outputs[-1]:
                self._name(tensor, outputs[-1])
        path = self.modules[-1][1] if self.modules else ""
        no_grad, autocast = self._modes()
        checkpoint = self.checkpoints[-1] if self.checkpoints else ""
        self._keep += saved
        if torch.get_default_dtype() is not self._default:
            raise self.failure("it sets torch's default dtype")
        self.calls.append(
            RecordedCall(
                name, op, (), tuple(outputs), (), args, kwargs, path, user_frame(), no_grad=no_grad,
                autocast=autocast, checkpoint=checkpoint, tensors=tuple(saved), random=random, writes=writes,
            )
        )  # fmt: skip

    def _modes(self) -> tuple[bool, str | None]:
        kind = self.device.type
        now = None
        if torch.is_autocast_enabled(kind):
            now = _dtype(torch.get_autocast_dtype(kind))
        autocast = None if now == self.autocast else now or "off"
        return self.grad and not torch.is_grad_enabled(), autocast

    def _through(self, func: Any, fake: Tensor) -> Tensor:
        """Record an operator of our own on a stand-in; its result."""
        result: Tensor = func(fake)
        self._note(func, (fake,), {}, result, [])
        return result

    def _watch_draws(self, func: Any, args: Any, results: list[Any]) -> None:
        """A draw from [0, 1) is below 1 and not below 0: that much is known without its value."""
        if func in (_ATEN.rand.default, _ATEN.rand_like.default) and isinstance(results[0], Tensor):
            self._draws[results[0]._cdata] = (None, results[0])
        elif func in _COMPARED and args[0]._cdata in self._draws:
            high, low = _COMPARED[func]
            answer = high if args[1] >= 1 else low if args[1] <= 0 else None
            self._draws[results[0]._cdata] = (answer, results[0])

    def _value(self, func: Any, args: Any) -> Any:
        known = self._draws.get(args[0]._cdata, (None,))[0]
        if known is not None:
            return known
        constant = self.constant_value(args[0])
        if constant is not None and func is not _ATEN.equal.default:
            with torch.utils._python_dispatch._disable_current_modes():
                return constant.item()
        raise self.failure("it needs the value of a tensor")

    def constant_value(self, tensor: Tensor) -> Tensor | None:
        """What a tensor holds in every step: made of literals alone, by operators that draw nothing."""
        template = self._known(tensor)
        if not template:
            return None
        return constant_value(self.calls, self.tensors, self.stand_ins, *next(iter(template.items())))

    def comes_up(self, error: BaseException) -> None:
        """Remember the modules around an error, before they are left."""
        if self.failed is None or self.failed[0] is not error:
            self.failed = error, tuple(module for module, _ in self.modules)

    def why(self, error: Exception) -> Unrecordable:
        """An error of the model's code, or of running it without values, as what cannot be recorded."""
        self.comes_up(error)
        assert self.failed is not None
        text = f"{type(error).__name__} {error}"
        value = any(word in text for word in ("DataDependent", "DynamicOutputShape", "data-dependent"))
        own = "not registered" in text and "Recorder" in text
        reason = "its sizes or steps depend on values" if value or own else line_of(error)
        frame = frame_of(error) or user_frame()
        return Unrecordable(reason, self.failed[1], frame, fails=not (value or own))


def _plain(tensor: Tensor) -> bool:
    """A subclass that only adds Python to a tensor (a parameter of one's own kind)."""
    return (
        isinstance(tensor, nn.Parameter)
        and type(tensor).__torch_function__ is torch._C._disabled_torch_function_impl
    )


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _laid_out(tensor: Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype
