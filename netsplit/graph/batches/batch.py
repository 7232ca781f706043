"""A user's batch as flat tensors, how these lie in memory, and how it is cut; docs/batches.md has the rules.

(inputs, targets) ──Batch.of──► tensors, of each the dimension of its samples ──rows──► a micro-batch
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from netsplit.errors import ConfigError
from netsplit.graph.analyse import storage_id
from netsplit.graph.batches.tree import Marked, Tree, flatten

__all__ = [
    "Arguments", "Batch", "Strides", "copy_as_it_lies", "is_spread", "memory_order", "per_sample",
    "repeated_dims", "shared",
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

    `dims[j]` is the dimension of tensor j along which the samples are; None: it is no sample's own, and
    goes whole to every micro-batch. `same[j]` is the first tensor that tensor j is the same object as:
    what a forward writes into one of them is seen in the other. `memory[j]`: the first in whose memory it is.
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

        Without marks the number of samples is the first dimension of the first tensor of the inputs, and
        tensors whose first dimension is as long are cut into micro-batches.

        Args:
            dims: those of every tensor, where they are known; marks go before them.
            known: dims by structure, looked up and added to: a later batch is cut as the first was.

        Raises:
            ConfigError: no tensor, tensors that disagree about the number of samples, or one of a layout
                that cannot be cut, or that requires a gradient or is lazy.
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
                    f"batch has a tensor of shape {tuple(tensor.shape)} that requires a gradient, which a "
                    "batch never gets: detach it, or call requires_grad_() on it within the forward."
                )
        if known is not None and dims is None:
            dims = _remembered(known, input_tree, target_tree)
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
        """All but the tensors: equal for batches that `dims` may be carried over between."""
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
        """The tensors of so many samples from `start` on; views."""
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
        """(inputs, targets) as the user has them, of these tensors."""
        n = self.inputs.count
        tensors = [tensors[j] for j in self.same]
        return self.inputs.build(tensors[:n]), self.targets.build(tensors[n:])


def _remembered(
    known: dict[Hashable, tuple[int | None, ...]], inputs: Tree, targets: Tree
) -> tuple[int | None, ...] | None:
    whole = known.get((inputs.key, targets.key))
    return whole if whole is not None or targets.count else known.get(inputs.key)


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


def memory_order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """The dimensions as a copy of such a tensor has them in memory; () where they are in their own order."""
    if 0 in strides:  # torch has rules of its own for what is repeated
        strides = torch.empty_like(torch.empty_strided(shape, strides, device="meta")).stride()
    order = sorted(range(len(shape)), key=lambda d: (-strides[d], -shape[d]))
    return tuple(order) if order != sorted(order) else ()


def repeated_dims(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """The dimensions along which all is the same memory."""
    return tuple(d for d, size in enumerate(shape) if size > 1 and not strides[d])


def is_spread(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether memory between its elements is not its own, or elements share some."""
    step = 1
    for size, stride in sorted(zip(shape, strides, strict=True), key=lambda each: (each[1], each[0])):
        if size > 1:
            if stride != step:
                return True
            step *= size
    return False


@dataclass(frozen=True)
class Strides:
    """How a tensor lies in memory, whatever its sizes.

    Args:
        order: dimensions by falling stride, without those that are `repeated` (of stride 0).
        apart: of each of these, whether its steps are farther apart than what lies within one takes.
    """

    contiguous: bool
    order: tuple[int, ...]
    repeated: tuple[int, ...]
    apart: tuple[bool, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> Strides:
        sizes, steps = tensor.shape, tensor.stride()
        repeated = repeated_dims(sizes, steps)
        order = sorted((d for d in range(len(sizes)) if d not in repeated), key=lambda d: -steps[d])
        apart, within = [], 1
        for d in reversed(order):
            apart.append(sizes[d] > 1 and steps[d] != within)
            if sizes[d] > 1:
                within = steps[d] * sizes[d]
        return cls(tensor.is_contiguous(), tuple(order), repeated, tuple(reversed(apart)))

    def laid_out(self, tensor: Tensor) -> Tensor:
        """The tensor where it lies so, else a copy that does."""
        if (self.contiguous and tensor.is_contiguous()) or Strides.of(tensor) == self:
            return tensor
        dims = (*self.repeated, *self.order)
        moved = tensor.permute(dims)
        for d in range(len(self.repeated)):
            moved = moved.narrow(d, 0, 1)
        more = (*(False for _ in self.repeated), *(False, *self.apart)[: len(self.order)])
        room = [size + one for size, one in zip(moved.shape, more, strict=True)]
        made = moved.new_empty((*room, 1 + any(self.apart[-1:]))).select(-1, 0)
        for d, size in enumerate(moved.shape):
            made = made.narrow(d, 0, size)
        made.copy_(moved)
        return made.permute([dims.index(d) for d in range(tensor.dim())]).expand(tensor.shape)


def copy_as_it_lies(tensor: Tensor) -> Tensor:
    """`contiguous` and others go by that, too, where a tensor is cut out of another, or repeats itself."""
    return Strides.of(tensor).laid_out(tensor.detach().clone())
