"""Tensors without data that stand for a model's own while it is recorded, and the names they go by.

A real tensor that reaches an operator is a parameter, a buffer, or a constant: a literal, a plain attribute,
something from around the function. Each gets one stand-in and one name. What is computed from literals alone,
without draws, has a known value (`constant_value`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import _disable_current_modes

from netsplit.errors import CaptureError
from netsplit.graph.analyse import repeated_dims, storage_id
from netsplit.graph.arguments import Reference, decoded, read_by
from netsplit.graph.ir import CALL, Initializer, Node
from netsplit.graph.operators import resolve

__all__ = [
    "RecordedCall", "StandInMode", "StandIns", "attribute_tensors", "constant_value", "named_tensors",
    "persistent_tensors", "refuse_other_parameters", "refuse_sharing", "refuse_tensors",
]  # fmt: skip

_NORM = torch.ops.aten._native_batch_norm_legit.default
_RNN_LAYER = torch.ops.aten.mkldnn_rnn_layer.default
_ENOUGH_BYTES = 2**20
"""Bytes of an LSTM layer's output from which on what is kept grows by the same bytes a step."""


class StandInMode(FakeTensorMode):
    """The mode of every recording; tensors of the code around it that have data may be read.

    It has the strides and dtypes of a batch normalisation right, and the bytes of the workspace that an LSTM
    layer keeps for its backward on a CPU, where torch says 0.
    """

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)

    def dispatch(self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if func is _NORM and not kwargs and args[0].device.type == "cpu" and args[0].dim() >= 2:
            with self:
                return _batch_norm(args)
        result: Any = super().dispatch(func, types, args, kwargs)
        if func is _RNN_LAYER and args[-1] and torch.is_grad_enabled():
            with self:
                return *result[:-1], torch.empty(_workspace_bytes(args), dtype=torch.uint8)
        return result


def _batch_norm(args: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor]:
    """The normalised input, and what the backward keeps: each channel's mean and deviation."""
    x, weight, _, mean, _, training, *_ = args
    channels = x.shape[1] if training else 0
    dtype = next((each.dtype for each in (weight, mean) if each is not None), x.dtype)
    normalised = torch.empty_like(x, memory_format=suggest_memory_format(x))
    return normalised, x.new_empty(channels, dtype=dtype), x.new_empty(channels, dtype=dtype)


def _workspace_bytes(args: Sequence[Any]) -> int:
    """Bytes of an LSTM layer's workspace, which only its library knows: from a run on a few of many steps."""
    steps, samples, _ = args[0].shape
    few = 2 * -(-_ENOUGH_BYTES // (2 * samples * args[5].shape[-1] * args[0].element_size()))
    if steps <= few:
        return _kept_bytes(args, steps)
    few_bytes = _kept_bytes(args, few)
    return few_bytes + (steps - few) * (few_bytes - _kept_bytes(args, few // 2)) // (few // 2)


def _kept_bytes(args: Sequence[Any], steps: int) -> int:
    with _disable_current_modes(), torch.enable_grad():  # without it nothing is kept
        given = args[0].new_empty(steps, *args[0].shape[1:], device="meta"), *args[1:]
        real: list[Any] = [
            torch.zeros(each.shape, dtype=each.dtype) if isinstance(each, Tensor) else each for each in given
        ]
        return int(torch.mkldnn_rnn_layer(*real)[-1].nbytes)


def named_tensors(model: nn.Module, loss: Any = None) -> dict[str, Tensor]:
    """Every parameter and buffer under all its names: the model's own, and the loss's behind a prefix."""
    tensors: dict[str, Tensor] = {}
    for module in (model, loss):
        if isinstance(module, nn.Module):
            prefix = "loss." if module is loss else ""
            while prefix and any(name.startswith(prefix) for name in tensors):
                prefix = f"_{prefix}"
            for named in (nn.Module.named_parameters, nn.Module.named_buffers):  # a model may have others
                tensors |= {prefix + name: tensor for name, tensor in named(module, remove_duplicate=False)}
    return tensors


def persistent_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers that are the model's state, under all their own names."""
    left_out = {
        f"{path}.{key}" if path else key
        for path, module in model.named_modules(remove_duplicate=False)
        for key in module._non_persistent_buffers_set
    }
    return {name: tensor for name, tensor in named_tensors(model).items() if name not in left_out}


def attribute_tensors(model: nn.Module) -> Iterator[tuple[nn.Module, str, str, Tensor]]:
    """(module, attribute, dotted name, tensor) of tensors that are neither parameter nor buffer."""
    for path, module in model.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, Tensor):
                yield module, key, f"{path}.{key}" if path else key, value


class StandIns:
    """Stand-ins and names of the real tensors that a recording meets, by the tensor's identity."""

    def __init__(
        self,
        mode: FakeTensorMode,
        device_type: str,
        model: nn.Module,
        loss: Any,
        where: Callable[[], str],
        constants: str = "",
    ) -> None:
        self.prefix = constants
        self.mode = mode
        self.device_type = device_type
        self.where = where
        self.initializers: dict[str, Initializer] = {}
        self.constants: dict[str, Tensor] = {}
        self.real: dict[str, Tensor] = {}
        self.fake: dict[str, Tensor] = {}
        self.name_of_fake: dict[int, str] = {}
        self._name_of: dict[int, str] = {}
        self._by_real: dict[int, Tensor] = {}
        self._aliases: dict[str, tuple[str, ...]] = {}
        self._attributes = {t._cdata: name for _, _, name, t in attribute_tensors(model)}
        by_tensor: dict[int, list[str]] = {}
        self._known = named_tensors(model, loss)
        # As it is to begin with, whatever the forward switches.
        self._trained = {t._cdata for t in self._known.values() if t.requires_grad}
        for name, tensor in self._known.items():
            by_tensor.setdefault(tensor._cdata, []).append(name)
        for identity, (first, *others) in by_tensor.items():
            self._name_of[identity], self._aliases[first] = first, tuple(others)

    def of(self, tensor: Tensor) -> Tensor:
        """The stand-in of a real tensor."""
        stand_in = self._by_real.get(tensor._cdata)
        return self._make(tensor) if stand_in is None else stand_in

    def knows(self, tensor: Tensor) -> bool:
        return tensor._cdata in self._by_real

    def _make(self, tensor: Tensor) -> Tensor:
        name, count = self._name_of.get(tensor._cdata), 1
        if name is None:
            first = name = self._constant(tensor)
            while name in self.fake:  # one name for equal values would tie all their users to one device
                count += 1
                name = f"{first} {count}"
        is_constant = tensor._cdata not in self._name_of
        if is_constant:
            with _disable_current_modes(), torch._C.DisableTorchFunction():
                self.constants[name] = tensor.detach()
        with self.mode:
            fake = torch.empty_strided(
                tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device=self.device_type
            ).requires_grad_(tensor._cdata in self._trained)
        self.initializers[name] = Initializer(
            name=name,
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
            is_parameter=isinstance(tensor, nn.Parameter) and not is_constant,
            requires_grad=fake.requires_grad,
            aliases=self._aliases.get(name, ()),
        )
        self.real[name], self.fake[name] = tensor, fake
        self.name_of_fake[fake._cdata] = name
        self._by_real[tensor._cdata] = fake
        return fake

    def _constant(self, tensor: Tensor) -> str:
        if tensor.requires_grad and torch.is_grad_enabled():
            name = self._attributes.get(tensor._cdata)
            what = f"attribute '{name}'" if name else f"a tensor of shape {tuple(tensor.shape)}"
            raise CaptureError(
                f"{what}, used{self.where()}, requires a gradient but is not a parameter of the model or "
                "the loss, so no optimiser would update it: register it as an nn.Parameter (or its module "
                "as a submodule; pass a loss with parameters itself, not within a function), or detach it."
            )
        own = self._attributes.get(tensor._cdata)
        if own is not None and f"attribute {own}" not in self.fake:
            return f"attribute {own}"
        return f"{self.prefix}constant {_digest(tensor)}"


def refuse_tensors(model: nn.Module, loss: Any = None) -> None:
    """Refuse parameters and buffers that cannot be trained on devices.

    Raises:
        CaptureError: names the first, and what to do.
    """
    tensors = named_tensors(model, loss)
    kind = type(model).__name__
    for name, tensor in tensors.items():
        if is_lazy(tensor):
            raise CaptureError(
                f"'{name}' of {kind} has no shape yet (a lazy module): call the model once on a batch first."
            )
        if tensor.layout is not torch.strided or tensor.is_nested:
            raise CaptureError(f"'{name}' of {kind} is a sparse tensor ({tensor.layout}): make it dense.")
        if tensor.requires_grad and not isinstance(tensor, nn.Parameter):
            raise CaptureError(
                f"buffer '{name}' of {kind} requires a gradient, and no optimiser updates buffers: register "
                "it as an nn.Parameter, or detach it."
            )
        if tensor.requires_grad and repeated_dims(tensor.shape, tensor.stride()):
            raise CaptureError(
                f"elements of the parameter '{name}' of {kind} share memory, so no optimizer can step them: "
                "give each its own (.clone() before nn.Parameter)."
            )
    refuse_other_parameters(model, loss)
    refuse_sharing(tensors)


def refuse_other_parameters(model: nn.Module, loss: Any) -> None:
    """Refuse a model whose own ``parameters()`` leaves out or adds to what its modules have.

    Raises:
        CaptureError: names the first parameter that is missing.
    """
    for module in (model, loss):
        if isinstance(module, nn.Module):
            named = nn.Module.named_parameters(module, remove_duplicate=False)
            own = {id(p): name for name, p in named if p.requires_grad}
            given = {id(p) for p in module.parameters() if p.requires_grad}
            left = next((name for key, name in own.items() if key not in given), None)
            says = f"parameters() of {type(module).__name__} (its own, or of modules equal by __eq__)"
            if left is not None:
                raise CaptureError(
                    f"{says} leaves out '{left}', which requires a gradient, so no optimiser would train it: "
                    "call requires_grad_(False) on it if that is right."
                )
            if given - own.keys():
                raise CaptureError(
                    f"{says} returns a parameter that none of its modules has: register it as an "
                    "nn.Parameter."
                )


def refuse_sharing(tensors: dict[str, Tensor], written: Collection[str] = ()) -> None:
    """Refuse tensors of different names that overlap in memory, if training changes one.

    Args:
        written: buffers that the forward writes.

    Raises:
        CaptureError: names the first two.
    """
    spans: dict[int, tuple[int, int, str, Tensor]] = {}
    for name, tensor in tensors.items():
        if tensor.numel() and not tensor.is_meta and tensor.layout is torch.strided:
            reach = sum((n - 1) * abs(s) for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
            begin = tensor.data_ptr()
            spans.setdefault(tensor._cdata, (begin, begin + reach * tensor.element_size(), name, tensor))
    last: tuple[int, int, str, Tensor] | None = None
    for span in sorted(spans.values(), key=lambda each: each[:2]):
        pair = [] if last is None or span[0] >= last[1] else [last, span]
        trained = any(each[3].requires_grad for each in pair)
        own = next((each[2] for each in pair if each[2] in written), "")
        if last is not None and (trained or own):
            if not trained:
                raise CaptureError(
                    f"the buffers '{last[2]}' and '{span[2]}' share memory, but workers hold them apart, and "
                    f"the forward writes '{own}': compute one from the other in the forward, or clone."
                )
            raise CaptureError(
                f"'{last[2]}' and '{span[2]}' share storage without being one tensor (tied by .data, or "
                "views of one), so a step on one would change the other: assign the same nn.Parameter to "
                "both, or clone."
            )
        if last is None or span[1] > last[1]:
            last = span


def _digest(tensor: Tensor) -> str:
    """A digest of the value, so that every capture gives a literal the same name."""
    text = f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()}"
    digest = hashlib.sha1(text.encode())
    if tensor.is_meta or tensor.layout is not torch.strided:
        digest.update(str(tensor._cdata).encode())
    else:
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return digest.hexdigest()[:12]


@dataclass(frozen=True)
class RecordedCall(Node):
    """One operator call: a node before it is known what it reads and what its backward keeps."""

    tensors: tuple[Tensor, ...] = ()  # that autograd saved
    random: bool = False
    writes: tuple[Reference, ...] = ()


_MADE = ("full", "zeros", "ones", "empty")
_OF_SHAPE = frozenset(f"aten.{name}.default" for kind in _MADE for name in (f"{kind}_like", f"new_{kind}"))
"""Operators that read only the shape and type of their tensors."""


def constant_value(
    calls: Sequence[RecordedCall], tensors: Mapping[str, Tensor], stand_ins: StandIns, tag: str, name: str
) -> Tensor | None:
    """The value that a variable or initializer has after some calls; None: it is not constant.

    By memory: a view depends on what was written into its base, before it was taken or after.

    Args:
        calls: of the recording, so far.
        tensors: the stand-ins of its variables.
        stand_ins: those of its initializers.
    """
    constants, values = stand_ins.constants, dict[str, Tensor]()

    def memory(tag: str, name: str) -> int:
        return storage_id(tensors[name] if tag == "var" else stand_ins.fake[name])

    def value(tag: str, name: str) -> Tensor:
        if tag == "init" or name in values:
            return constants[name] if tag == "init" else values[name]
        return torch.empty((), dtype=tensors[name].dtype).expand(tuple(tensors[name].shape))  # a shape alone

    needed, read = {memory(tag, name)}, {(tag, name)}
    makers: list[RecordedCall] = []
    for call in reversed(calls):
        outputs = (("var", k) for k in call.outputs if k)
        if needed.isdisjoint(memory(*each) for each in (*outputs, *call.writes)):
            continue
        if call.random or call.op.startswith(CALL) or call.autocast:
            return None
        makers.append(call)
        if call.op not in _OF_SHAPE:
            read |= set(read_by(call))
            needed |= {memory(*each) for each in read_by(call)}
    written = {memory(*each) for call in makers for each in call.writes}
    inputs = tensors.keys() - {k for call in calls for k in call.outputs}
    literals = {
        k for k, tensor in constants.items() if not tensor.is_meta and memory("init", k) not in written
    }
    if not needed.isdisjoint(memory("var", k) for k in inputs):
        return None
    if any(tag == "init" and k not in literals for tag, k in read):
        return None
    with _disable_current_modes(), torch.no_grad():
        for call in reversed(makers):
            args, kwargs = decoded(call, value, "cpu")
            result = resolve(call.op)(*args, **kwargs)
            results = [result] if isinstance(result, Tensor) else list(result)
            values |= {k: each for k, each in zip(call.outputs, results, strict=True) if k}
        return value(tag, name)
