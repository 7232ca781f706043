"""Which samples of a batch a tensor has, and where: all of them, some, or a single one.

x [n, ..] ──x[1:]──► samples 1 .. n-1 ──┐ cat, stack: all again, in order, or twice
          ──x[0]───► sample 0 ──────────┘ a sum: as often as each of them is in it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import groupby
from math import gcd

import torch

from netsplit.graph.arguments import references
from netsplit.graph.operators import resolve
from netsplit.rewrite.samples.crossing import dims_of, first_tensor, operator_kinds
from netsplit.rewrite.samples.rows import SampleRows
from netsplit.rewrite.ways import SplitCall

__all__ = ["PIECES", "TOGETHER", "SomeSamples"]

PIECES = operator_kinds(
    "slice narrow select unbind split split_with_sizes chunk unsafe_split unsafe_chunk tensor_split roll flip"
)
"""What takes some of a dimension, or all of it in another order."""
TOGETHER = operator_kinds("cat stack concat concatenate")

_ENDLESS = 2**31  # of a slice without an end


@dataclass
class SomeSamples:
    """Of a graph's tensors, as far as they are known.

    Args:
        samples: of the batch.
        lies: where they lie in what has several, or a batch of one.
        numbers: of those that a tensor has, in their order there; that are not all as they come.
        first_few: operators that take the first of them, more than there are: how many.
    """

    samples: int
    lies: dict[str, SampleRows]
    numbers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    first_few: dict[str, int] = field(default_factory=dict)

    def of(self, k: str) -> tuple[int, ...] | None:
        """The samples that a tensor has; None: that is not known, or none."""
        return self.numbers.get(k, self.every if k in self.lies else None)

    def place(self, k: str, rows: SampleRows | None, numbers: tuple[int, ...]) -> None:
        """Note the samples of a tensor; rows: None where it has one alone."""
        if rows is not None and (len(numbers) > 1 or numbers == self.every):
            self.lies[k] = rows
        if numbers != self.every or rows is None:
            self.numbers[k] = numbers

    def take(self, call: SplitCall) -> bool:
        """Note what pieces of samples an operator makes; whether it takes some along their dimension."""
        k = first_tensor(call)
        own, numbers = self.lies.get(k), self.of(k)
        if call.node.kind not in PIECES or own is None or numbers is None:
            return False
        shape = call.layouts[k].shape
        if own.dim not in dims_of(call, len(shape)) or call["dims"] == []:  # of all dimensions as one
            return False
        end = call["end"] if call.node.kind == "slice" else None
        if isinstance(end, int) and shape[own.dim] < end < _ENDLESS:
            self.first_few[call.node.name] = end // own.rows
        every = torch.arange(shape[own.dim]).view([-1 if d == own.dim else 1 for d in range(len(shape))])
        made = resolve(call.node.op)(every, *call.node.args[1:], **call.node.kwargs)
        outputs = [made] if isinstance(made, torch.Tensor) else list(made)
        removed = call.node.kind in ("select", "unbind")
        for name, taken in zip(call.node.outputs, outputs, strict=True):
            places = taken.flatten().tolist()
            along = [numbers[at // own.rows] for at in places]
            whole = len(numbers) <= self.samples or tuple(along[:: _rows(along)]) == self.every
            if whole and _alike([at % own.rows for at in places], _rows(along)):
                self._lay(name, None if removed else own.dim, along)
        return True

    def join(self, call: SplitCall) -> bool:
        """Note the samples of what is put together along their dimension; whether they are known."""
        (made,) = call.node.outputs
        over = call.number("dim") % len(call.output)
        along: list[int] = []
        for tag, k in references(call["tensors"]):
            numbers = self.of(k) if tag == "var" else None
            if numbers is None:
                return False
            if k not in self.lies:
                size = 1 if call.node.kind == "stack" else call.layouts[k].shape[over]
                along += numbers * size
            elif self.lies[k].dim == over and call.node.kind != "stack":
                along += [i for i in numbers for _ in range(self.lies[k].rows)]
            else:
                return False
        self._lay(made, over, along)
        return True

    def pass_on(self, call: SplitCall) -> bool:
        """Whether all but one of what is put together is empty, as a cache is at first; its rows stay."""
        (made,) = call.node.outputs
        rest = [place for place in call.tensors if call.shape(place) != (0,)]
        if len(rest) != 1 or len(call.tensors) == 1:
            return False
        ((_, name),) = references(call.template(rest[0]))
        numbers = self.of(name)
        if numbers is not None:
            self.place(made, self.lies.get(name), numbers)
        return True

    def _lay(self, k: str, dim: int | None, along: Sequence[int]) -> None:
        """Note of which sample each place along a dimension is; of equal runs each is a sample's rows."""
        rows = _rows(along)
        if self.samples > 1 and len(set(along)) == 1:
            dim, rows = None, len(along)
        self.place(k, None if dim is None else SampleRows(dim, rows), tuple(along[::rows]))

    @cached_property
    def every(self) -> tuple[int, ...]:
        """Of a tensor with all of them as they come."""
        return tuple(range(self.samples))


def _rows(along: Sequence[int]) -> int:
    """Of equal runs of samples, how long each is, or a part of it that all have."""
    return reduce(gcd, (len(list(run)) for _, run in groupby(along)), 0) or 1


def _alike(rows: Sequence[int], each: int) -> bool:
    """Whether of every sample the same of its rows are there, in the same order."""
    return all(rows[i] == rows[i % each] for i in range(len(rows)))
