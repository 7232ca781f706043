"""A user's batch as flat tensors, how it is cut, and how model and loss are called (docs/batches.md).

(inputs, targets) ──Batch.of──► tensors, of each the dimension of its samples ──rows──► a micro-batch
model(inputs) ──► outputs ──loss(outputs, targets)──► loss, metrics
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from netsplit.errors import CaptureError, ConfigError
from netsplit.graph.analyse import copy_as_it_lies, memory_order, storage_id
from netsplit.graph.batches.tree import Marked, Tree, flatten, is_named_tuple

__all__ = [
    "Arguments", "Batch", "Loss", "call_loss", "call_model", "lacking",
    "output_tensors", "per_sample", "read_loss", "shared",
]  # fmt: skip


@dataclass(frozen=True, init=False)
class Arguments:
    """Inputs or targets that are given as written: ``Arguments(x, mask=m)`` means ``model(x, mask=m)``."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        object.__setattr__(self, "args", args)
        object.__setattr__(self, "kwargs", kwargs)


def shared(tensor: Tensor) -> Any:
    """Marks a tensor of a batch that every micro-batch gets whole, whatever its size."""
    return Marked(tensor, None)


def per_sample(tensor: Tensor, dim: int = 0) -> Any:
    """Marks a tensor of a batch that is cut into micro-batches, along `dim`.

    Raises:
        ConfigError: it has no such dimension.
    """
    if not -tensor.ndim <= dim < tensor.ndim:
        raise ConfigError(f"a tensor of shape {tuple(tensor.shape)} has no dimension {dim} for its samples.")
    return Marked(tensor, dim % tensor.ndim)


@dataclass(frozen=True)
class Batch:
    """Inputs and targets as flat tensors: those of the inputs first.

    `dims[j]` is the dimension of tensor j along which the samples are; None: it goes whole to every
    micro-batch. `same[j]` is the first tensor that is the same object, which sees the same writes;
    `memory[j]` the first that shares its memory.
    """

    tensors: tuple[Tensor, ...]
    inputs: Tree
    targets: Tree
    dims: tuple[int | None, ...]
    samples: int
    same: tuple[int, ...]
    memory: tuple[int, ...]

    @classmethod
    def of(
        cls,
        inputs: Any,
        targets: Any = None,
        dims: Sequence[int | None] | None = None,
        known: dict[Hashable, tuple[int | None, ...]] | None = None,
    ) -> Batch:
        """A batch from what a training loop has.

        Without marks the number of samples is the first dimension of the first input tensor, and tensors
        whose first dimension is as long are cut into micro-batches.

        Args:
            dims: those of every tensor, where they are known; marks go before them.
            known: dims by structure, looked up and added to: a later batch is cut as the first was.

        Raises:
            ConfigError: no tensor, tensors that disagree about the number of samples, or one that cannot be
                cut, requires a gradient or is lazy.
        """
        first, input_tree, marks = flatten(inputs)
        second, target_tree, more = flatten(targets)
        tensors, marks = [*first, *second], [*marks, *more]
        if not first:
            raise ConfigError(
                "batch must hold tensors: the inputs have none; give arrays and numbers as tensors."
            )
        for tensor in tensors:
            if tensor.layout is not torch.strided or tensor.is_nested:
                raise ConfigError(
                    f"batch has a tensor of layout {tensor.layout}: give it as a dense, padded tensor."
                )
            if tensor.is_conj() or tensor.is_neg():
                raise ConfigError(
                    f"batch has a tensor of shape {tuple(tensor.shape)} with a lazy conjugate or sign: call "
                    ".resolve_conj() or .resolve_neg() on it."
                )
            if tensor.requires_grad:
                raise ConfigError(
                    f"a batch tensor of shape {tuple(tensor.shape)} requires a gradient: detach it, or call "
                    "requires_grad_() in the forward."
                )
        if known is not None and dims is None:
            dims = known.get((input_tree.key, target_tree.key))
            dims = known.get(input_tree.key) if dims is None and not target_tree.count else dims
        cut_dims = _dims(tensors, marks, len(first), dims)
        counts = {t.shape[d] for t, d in zip(tensors, cut_dims, strict=True) if d is not None and d < t.ndim}
        wrong = [t for t, d in zip(tensors, cut_dims, strict=True) if d is not None and d >= t.ndim]
        if len(counts) > 1 or wrong:
            shapes = [tuple(t.shape) for t, d in zip(tensors, cut_dims, strict=True) if d is not None]
            raise ConfigError(
                f"batch has tensors of {sorted(counts)} samples (shapes {shapes}): inputs and targets need "
                "the same number; mark what is not per sample with netsplit.shared."
            )
        if known is not None:
            known.setdefault(input_tree.key, cut_dims[: len(first)])
            known.setdefault((input_tree.key, target_tree.key), cut_dims)
        first_of: dict[int, int] = {}
        same = tuple(first_of.setdefault(id(tensor), j) for j, tensor in enumerate(tensors))
        first_in: dict[int, int] = {}
        memory = tuple(first_in.setdefault(storage_id(tensor), j) for j, tensor in enumerate(tensors))
        samples = counts.pop() if counts else 1
        return cls(tuple(tensors), input_tree, target_tree, cut_dims, samples, same, memory)

    @property
    def structure(self) -> Hashable:
        """All but the tensors: batches of equal structure may share their `dims`."""
        return self.inputs.key, self.targets.key

    @cached_property
    def key(self) -> Hashable:
        """All that a captured graph depends on, but for the number of samples."""
        shapes = tuple(
            (
                tuple(n for d, n in enumerate(t.shape) if d != dim),
                str(t.dtype),
                dim,
                memory_order(t.shape, t.stride()),
            )
            for t, dim in zip(self.tensors, self.dims, strict=True)
        )
        return self.structure, shapes, self.same, self.memory

    def rows(self, start: int, stop: int) -> Batch:
        """The samples from `start` to before `stop`; views."""
        count = max(min(stop, self.samples) - start, 0)
        return replace(self, tensors=self.cut(start, count), samples=count)

    def cut(self, start: int, count: int) -> tuple[Tensor, ...]:
        """The tensors of `count` samples from `start` on; views."""
        return tuple(
            t if dim is None else t.narrow(dim, start, count)
            for t, dim in zip(self.tensors, self.dims, strict=True)
        )

    def filled(self, size: int) -> Batch:
        """The batch filled up to `size` samples with copies of the last."""
        more = size - self.samples
        if more <= 0:
            return self
        tensors = []
        for t, dim in zip(self.tensors, self.dims, strict=True):
            if dim is None:
                tensors.append(t)
                continue
            last = t.narrow(dim, self.samples - 1, 1)
            tensors.append(torch.cat([t, *([last] * more)], dim))
        return replace(self, tensors=tuple(tensors), samples=size)

    def own(self) -> Batch:
        """The batch with its own tensors, so that a graph's example keeps no larger batch alive."""
        return replace(self, tensors=tuple(map(copy_as_it_lies, self.tensors)))

    @property
    def without_targets(self) -> Batch:
        """The inputs alone, as prediction has them."""
        n = self.inputs.count
        return replace(
            self,
            tensors=self.tensors[:n],
            targets=flatten(None)[1],
            dims=self.dims[:n],
            same=self.same[:n],
            memory=self.memory[:n],
        )

    def given(self, tensors: Sequence[Tensor]) -> tuple[Any, Any]:
        """(inputs, targets) as the user has them, made of these tensors."""
        n = self.inputs.count
        tensors = [tensors[j] for j in self.same]
        return self.inputs.build(tensors[:n]), self.targets.build(tensors[n:])


def _dims(
    tensors: Sequence[Tensor], marks: Sequence[Marked | None], n: int, known: Sequence[int | None] | None
) -> tuple[int | None, ...]:
    """The dimension of the samples in every tensor; the first `n` are of the inputs."""
    marked = [(mark.dim,) if mark is not None else None for mark in marks]
    if known is not None and len(known) == len(tensors):
        return tuple(mark[0] if mark else dim for mark, dim in zip(marked, known, strict=True))
    first = next(
        (
            t.shape[mark[0] if mark and mark[0] is not None else 0]
            for t, mark in zip(tensors[:n], marked, strict=False)
            if t.ndim and (mark is None or mark[0] is not None)
        ),
        None,
    )
    return tuple(
        mark[0] if mark else (0 if t.ndim and first is not None and t.shape[0] == first else None)
        for t, mark in zip(tensors, marked, strict=True)
    )


Loss = Callable[..., Any]
"""Called with the model's output and the targets."""

_Call = tuple[tuple[Any, ...], dict[str, Any]]


def call_model(model: nn.Module, inputs: Any, targets: Any = None) -> Any:
    """The model's output for inputs, and for targets where the loss is inside it.

    Raises:
        ConfigError: a mapping that fits the model's arguments in part.
    """
    args, kwargs = _call(inputs, model.forward, ())
    if isinstance(inputs, Mapping) and not kwargs and targets is None:
        _check_names(model, inputs)
    more, named = _call(targets, None, ())
    return model(*args, *more, **kwargs, **named)


def lacking(model: nn.Module, inputs: Any) -> str:
    """The argument that a model with the loss inside needs beside its inputs; "" where it needs none."""
    args, kwargs = _call(inputs, model.forward, ())
    try:
        parameters = inspect.signature(model.forward).parameters.values()
        bound = inspect.signature(model.forward).bind_partial(*args, **kwargs).arguments
    except (TypeError, ValueError):  # others than too few are the model's own to tell
        return ""
    missing = [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name not in bound
    ]
    return missing[0] if missing else ""


def call_loss(loss: Loss, outputs: Any, targets: Any) -> Any:
    """What the loss makes of the model's output and the targets."""
    args, kwargs = _call(targets, loss.forward if isinstance(loss, nn.Module) else loss, (outputs,))
    return loss(outputs, *args, **kwargs)


def _call(value: Any, function: Callable[..., Any] | None, before: tuple[Any, ...]) -> _Call:
    """The arguments that a value stands for, after those `before`; where the function is None, any."""

    def fits(*args: Any, **kwargs: Any) -> bool:
        return function is None or _fits(function, *before, *args, **kwargs)

    if value is None:
        return (), {}
    if isinstance(value, Arguments):
        return value.args, dict(value.kwargs)
    if isinstance(value, tuple | list) and (not is_named_tuple(value) or fits(*value)):
        return tuple(value), {}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value) and fits(**value):
        return (), dict(value)
    return (value,), {}


def _fits(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> bool:
    """Whether a function can be called so; of one without a signature that is believed."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def _check_names(model: nn.Module, inputs: Mapping[str, Any]) -> None:
    """Refuses a mapping that names some of the model's arguments but does not fit them."""
    parameters = inspect.signature(model.forward).parameters.values()
    names = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    if names & set(inputs):
        surplus = sorted(set(inputs) - names)
        what = f"has {surplus} too: leave them out" if surplus else "lacks some that it needs"
        raise ConfigError(
            f"the batch's keys are arguments of {type(model).__name__}.forward, but the batch {what}."
        )


def read_loss(answer: Any, inside: bool) -> tuple[Tensor, Any]:
    """The scalar to be minimised, and the metrics beside it: any structure of scalars.

    Args:
        answer: what the loss returned; with `inside` the model's own output.

    Raises:
        CaptureError: it is not one scalar, or a metric is no scalar.
    """
    loss, metrics = _inside(answer) if inside else _outside(answer)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        what = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        cure = "take its mean" if isinstance(loss, Tensor) else "give a tensor"
        if inside:
            cure = "give a scalar output, .loss or ['loss'], or a loss function"
        raise CaptureError(
            "the loss must return one scalar that depends on a trainable parameter; "
            f"it returned {what}: {cure}."
        )
    for metric in flatten(metrics)[0]:
        if metric.numel() != 1 or metric.is_complex():
            raise CaptureError(
                f"the loss also returned a metric of shape {tuple(metric.shape)} and {metric.dtype}: "
                "metrics must be real scalars, which are averaged over the samples."
            )
    if loss.is_leaf and loss.requires_grad:  # a parameter itself: an operator has to make it
        loss = loss.clone()
    return loss.reshape(()) if loss.ndim else loss, metrics


def _outside(answer: Any) -> tuple[Any, Any]:
    if isinstance(answer, Mapping) and "loss" in answer:
        return answer["loss"], {key: value for key, value in answer.items() if key != "loss"} or None
    if isinstance(answer, tuple | list) and answer:
        rest = answer[1:]
        return answer[0], (rest[0] if len(rest) == 1 else tuple(rest) or None)
    return answer, None


def _inside(output: Any) -> tuple[Any, Any]:
    if isinstance(output, Tensor):
        return output, None
    if isinstance(output, Mapping) and "loss" in output:
        scalars = {key: value for key, value in output.items() if key != "loss" and _is_scalar(value)}
        return output["loss"], scalars or None
    if isinstance(getattr(output, "loss", None), Tensor):
        return output.loss, None
    if isinstance(output, tuple | list):
        numbers = [each for each in output if _is_scalar(each)]
        if numbers and (len(numbers) == 1 or _is_scalar(output[0])):
            return numbers[0], None
    return output, None


def _is_scalar(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.ndim and not value.is_complex()


def output_tensors(model: nn.Module, inputs: Sequence[Tensor], outputs: Any) -> tuple[list[Tensor], Tree]:
    """Tensors of an output, each once, and its structure.

    What is an input or a parameter itself is copied, so that an operator makes it.

    Raises:
        CaptureError: the model returned no tensor.
    """
    tensors, tree, _ = flatten(outputs, merge=True)
    if not tensors:
        raise CaptureError(
            f"{type(model).__name__} returned a {type(outputs).__name__} without tensors: return a tensor."
        )
    given = {id(t) for t in (*inputs, *model.parameters(), *model.buffers())}
    return [t.clone() if id(t) in given else t for t in tensors], tree
