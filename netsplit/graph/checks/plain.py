"""The user's model run on a batch beside its captured graph, and what differs; it is left as it was given."""

from __future__ import annotations

import copy
import logging
import os
import random
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from numbers import Number
from typing import Any
from unittest import mock

import numpy as np
import psutil
import torch
from torch import Tensor, fx, nn

from netsplit.errors import CaptureError, NetSplitError
from netsplit.graph.analyse import copy_as_it_lies
from netsplit.graph.batches.batch import Batch, Loss
from netsplit.graph.ir import Graph
from netsplit.graph.module import rebuild
from netsplit.graph.operators import autocast_of
from netsplit.graph.random_draws import DrawKey, draws, run_microbatch
from netsplit.graph.recording.capturing import RecordedStep
from netsplit.graph.recording.stand_ins import attribute_tensors, named_tensors
from netsplit.graph.recording.whole import ModuleCall
from netsplit.graph.user_code import kept, line_of, where_of
from netsplit.tables import nbytes

__all__ = [
    "SideBySide", "TensorsAtOnce", "attribute_values", "by_name", "changed_attribute", "copies",
    "difference", "first_names", "free_bytes", "has_values", "holding", "largest", "own", "room_for",
    "stance", "threads_for", "unseen", "with_own_calls",
]  # fmt: skip

_MOST_OF_MEMORY = 0.8  # of the machine's free memory, that comparisons may take
_SMALL = 2**28  # bytes
log = logging.getLogger(__name__)


@dataclass
class SideBySide:
    """A step of the user's model and of its captured graph: on the same values, with the same draws.

    Args:
        step: made of the model.
        values: of the graph, by initializer, apart from the model's own.
        phase: whose draws.
        runs: what plain PyTorch does with it, for a sentence.
    """

    step: RecordedStep
    graph: Graph
    values: dict[str, Tensor]
    phase: str
    runs: str
    _rebuilt: tuple[fx.GraphModule, Graph] | None = None

    def __post_init__(self) -> None:
        self.name = type(self.step.model).__name__

    def plain(self, call: int, tensors: tuple[Tensor, ...], backward: bool = False) -> list[Tensor]:
        """Outputs of the model itself.

        Raises:
            CaptureError: it fails, or draws otherwise than the graph.
        """
        drawing = draws(self.graph, iteration=call, phase=self.phase)
        try:
            with stance(self.graph), _no_other_draws(self.name):
                with drawing, autocast_of(self.graph, "cpu"):
                    outputs = list(self.step(*copies(tensors)))
                if backward:
                    outputs[0].backward()
        except CaptureError:
            raise
        except NetSplitError as error:
            raise CaptureError(f"{self.name} does not draw random numbers as captured: {error}") from error
        except Exception as error:
            raise CaptureError(
                f"{self.name} does not {self.runs} in plain PyTorch and in micro-batches of "
                f"{self.step.batch.samples}{where_of(error)}: {line_of(error)}; {self.step.to_check()}."
            ) from error
        return [t.detach().clone() for t in outputs]

    def captured(
        self, call: int, tensors: tuple[Tensor, ...], elsewhere: Iterable[Tensor], backward: bool = False
    ) -> list[Tensor]:
        """Outputs of its graph; code that stays whole begins anew, as on a worker.

        Args:
            elsewhere: the model's own tensors that train: such code may not find them.

        Raises:
            CaptureError: it fails.
        """
        try:
            with _hidden(elsewhere if self.graph.calls else ()):
                if self.graph.calls or self._rebuilt is None:
                    graph = with_own_calls(self.graph)
                    self._rebuilt = rebuild(graph, self.values), graph
                key = DrawKey(iteration=call, phase=self.phase)
                result = run_microbatch(*self._rebuilt, copies(tensors), key)
                outputs = [result] if isinstance(result, Tensor) else list(result)
                if backward:
                    outputs[0].backward()
        except Exception as error:
            if "modified by an inplace operation" in str(error):
                raise CaptureError(
                    f"{self.name} overwrites a tensor or buffer whose old value its backward "
                    f"needs{where_of(error)}: compute with a copy (.clone()) of it."
                ) from error
            raise CaptureError(
                f"the captured step of {self.name} does not run as the model does{where_of(error)}: "
                f"{line_of(error)}{self.whole}."
            ) from error
        return [t.detach().clone() for t in outputs]

    @property
    def whole(self) -> str:
        """What stays whole, as a likely cause; "" where nothing does."""
        names = ", ".join(sorted({call.__name__ for call in self.graph.calls.values()}))
        if not names:
            return ""
        return (
            f"; its code that stays whole ({names}) may read only parameters and buffers passed to it (not "
            "from a closure, an object, a class)"
        )


def free_bytes() -> float:
    """Memory that a comparison may take."""
    return _MOST_OF_MEMORY * psutil.virtual_memory().available


def room_for(need: int, what: str) -> bool:
    """Whether a comparison of `need` bytes has room; where not, it logs what is not compared."""
    if need > free_bytes():
        log.warning("%s not compared with plain PyTorch: that needs %s.", what, nbytes(need))
        return False
    return True


@contextmanager
def threads_for(activations: int) -> Iterator[None]:
    """One thread for small operators, which gain nothing by more and wait for them on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if activations < _SMALL else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def stance(graph: Graph) -> AbstractContextManager[Any]:
    """Compiled functions run eagerly, which computes the same; but what stays whole may need the compiler."""
    native = any(isinstance(call, ModuleCall) for call in graph.calls.values())
    return nullcontext() if native else torch.compiler.set_stance("force_eager")


@contextmanager
def _hidden(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Code that finds these of the model's own tensors computes with NaN within."""
    moving = (tensor for tensor in tensors if tensor.is_floating_point() or tensor.is_complex())
    held = [(tensor, tensor.detach().clone()) for tensor in moving]
    for tensor, _ in held:
        tensor.data.fill_(torch.nan)
    try:
        yield
    finally:
        for tensor, value in held:
            tensor.data.copy_(value)


def has_values(model: nn.Module, loss: Loss | None, batch: Batch | None = None) -> bool:
    """Whether all can be computed: nothing of it is on the meta device."""
    own = named_tensors(model, loss).values()
    return not any(tensor.is_meta for tensor in (*own, *(batch.tensors if batch is not None else ())))


class TensorsAtOnce:
    """Buffers, attributes that are tensors, and others that are given, at one moment."""

    def __init__(self, step: nn.Module, others: Iterable[Tensor] = ()) -> None:
        stores = ((module._buffers, each) for module in step.modules() for each in module._buffers.items())
        self._held: list[tuple[Any, str, Tensor]] = [(s, k, t) for s, (k, t) in stores if t is not None]
        self._held += [(vars(module), key, t) for module, key, _, t in attribute_tensors(step)]
        tensors = {id(t): t for t in (*(t for _, _, t in self._held), *others)}
        self._values = [(t, t.detach().clone()) for t in tensors.values()]

    def back(self) -> None:
        for store, key, tensor in self._held:
            store[key] = tensor
        for tensor, value in self._values:
            tensor.data.copy_(value)


def first_names(model: nn.Module) -> dict[str, str]:
    """Every name of a parameter or buffer -> that which its initializer has; a tied one has several."""
    first: dict[int, str] = {}
    return {name: first.setdefault(t._cdata, name) for name, t in named_tensors(model).items()}


def by_name(model: nn.Module, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The present parameters and buffers by all their names in the modules."""
    names = first_names(model)
    return {name: values.get(names[name], tensor) for name, tensor in named_tensors(model).items()}


@contextmanager
def holding(model: nn.Module, values: Mapping[str, Tensor]) -> Iterator[None]:
    """The model with these values in its tensors; afterwards it is as it was, whatever its code did."""
    with unseen(model), kept(model):
        attributes = {f"attribute {name}": tensor for *_, name, tensor in attribute_tensors(model)}
        for name, tensor in (named_tensors(model) | attributes).items():
            if name in values:
                tensor.data.copy_(values[name])
        yield


def unseen(model: nn.Module) -> AbstractContextManager[Any]:
    """Writes into the model's tensors within are not counted by version counters."""
    held = (*named_tensors(model).values(), *(tensor for *_, tensor in attribute_tensors(model)))
    tensors = {t._cdata: t for t in held if not t.is_inference()}
    return torch.autograd.grad_mode._unsafe_preserve_version_counter(tuple(tensors.values()))


def with_own_calls(graph: Graph) -> Graph:
    """The graph with copies of its calls, so that Python state of whole modules is not shared."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of torch, about copies of its own structures
        return replace(graph, calls=copy.deepcopy(dict(graph.calls)))


def own(tensor: Tensor, trained: bool) -> Tensor:
    copied = tensor.detach().clone()
    return nn.Parameter(copied) if trained else copied


def copies(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(map(copy_as_it_lies, tensors))


@contextmanager
def _no_other_draws(name: str) -> Iterator[None]:
    """Refuses draws from Python's and NumPy's generators, which a capture would make once and for all."""
    python: Any = random.getstate()
    numpy: Any = np.random.get_state()
    with mock.patch.object(random, "_urandom", wraps=os.urandom) as system:  # of SystemRandom
        yield
    drawn = [] if random.getstate() == python and not system.called else ["Python's random"]
    now: Any = np.random.get_state()
    if now[2] != numpy[2] or not np.array_equal(now[1], numpy[1]):
        drawn.append("numpy.random")
    if drawn:
        raise CaptureError(
            f"{name} draws from {drawn[0]}, which a captured step would do only once: draw with torch "
            "(torch.rand, torch.bernoulli) instead."
        )


_ROUNDING = 1000.0  # units in the last place of the largest element; kernels that sum in parallel differ
_NOISE = 8.0  # units in the last place of the elements beside it
_COARSE = 0.05  # at most, relative: for dtypes of few digits
_PLAIN = (Number, str, bytes, type(None))
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_OF_TORCH = frozenset(vars(nn.Module())) | {"_version", "call_super_init", "dump_patches"}
_DEPTH, _LONG = 4, 256


def difference(plain: Tensor | None, ours: Tensor | None, beside: float = 0.0) -> str | None:
    """How two tensors differ, in words; None where they agree, within the rounding of kernels that sum in
    parallel.

    Args:
        beside: the largest element of what was computed together. A sum that cancels (the gradient of an
            attention's bias of keys) leaves rounding of those elements.
    """
    if plain is None or ours is None:
        if plain is ours:
            return None
        return f"only {'the captured step' if plain is None else 'plain PyTorch'} has one"
    if plain.shape != ours.shape or plain.dtype != ours.dtype:
        return f"{tuple(plain.shape)} of {plain.dtype} against {tuple(ours.shape)} of {ours.dtype}"
    plain, ours = _dense(plain), _dense(ours)
    if torch.equal(plain, ours) or plain.numel() == 0:
        return None
    if not (plain.is_floating_point() or plain.is_complex()):
        return f"{int((plain != ours).sum())} of {plain.numel()} elements"
    if not torch.equal(plain.isnan(), ours.isnan()):
        return "one has NaN where the other has none"
    a, b = (torch.nan_to_num(torch.view_as_real(t) if t.is_complex() else t).double() for t in (plain, ours))
    largest, apart = float(torch.maximum(a.abs(), b.abs()).max()), float((a - b).abs().max())
    allowed = min(_ROUNDING * torch.finfo(plain.dtype).eps, _COARSE) * largest
    allowed += _NOISE * torch.finfo(plain.dtype).eps * beside
    return None if apart <= allowed else f"by {apart:.3g}, where the largest element is {largest:.3g}"


def largest(tensors: Iterable[Tensor | None]) -> float:
    """Magnitude of the largest finite element; 0 without any."""
    given = (_dense(t) for t in tensors if t is not None and t.numel())
    return max((float(torch.nan_to_num(t.abs(), 0.0, 0.0).max()) for t in given), default=0.0)


def _dense(tensor: Tensor) -> Tensor:
    return tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()


def attribute_values(*roots: Any) -> dict[str, Any]:
    """Name for people -> number, text or length, of every module's and its class's own attributes."""
    values: dict[str, Any] = {}
    for what, root in zip(("the model", "the loss"), roots, strict=False):
        for path, module in root.named_modules() if isinstance(root, nn.Module) else [("", root)]:
            own = {**vars(type(module)), **getattr(module, "__dict__", {})}
            for key in own:
                if key not in _OF_TORCH and not key.startswith("__"):
                    name = f"'{key}' of {path or what} ({type(module).__name__})"
                    values |= _plain_in(name, own[key], _DEPTH)
    return values


def changed_attribute(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """The first attribute that changed, came or went; None: none did."""
    names = (*before, *(name for name in after if name not in before))
    return next((name for name in names if repr(before.get(name)) != repr(after.get(name))), None)


def _plain_in(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, _PLAIN):
        yield name, value
    elif isinstance(value, np.ndarray):
        yield name, hash(value.tobytes())
    elif isinstance(value, np.random.Generator):
        yield name, value.bit_generator.state
    elif isinstance(value, _CONTAINERS) and len(value) > _LONG:
        yield name, hash(tuple(each if isinstance(each, _PLAIN) else type(each) for each in value))
    elif isinstance(value, Tensor | nn.Module | type) or callable(value) or depth == 0:
        return
    elif isinstance(value, _CONTAINERS):
        yield name, len(value)
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _plain_in(f"{name}[{key!r}]" if isinstance(key, _PLAIN) else name, each, depth - 1)
    else:
        for key, each in getattr(value, "__dict__", {}).items():
            yield from _plain_in(f"{name}.{key}", each, depth - 1)
