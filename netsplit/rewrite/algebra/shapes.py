"""Shapes of what the right side of a rule computes: torch says them, of tensors without data.

Sizes of a split are those that its readers need, or that the left side has of the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from netsplit.graph.operators import resolve
from netsplit.graph.template import decode
from netsplit.rewrite.algebra.patterns import Shape, written
from netsplit.rewrite.algebra.rule import Operator, Ref, Rule, Term

__all__ = ["arity", "right_shapes"]


def arity(rule: Rule, right: bool, i: int) -> int:
    """How many outputs a term of a side has."""
    side = rule.right if right else rule.left
    read = [ref for term in side for ref in term.inputs] + [pair[right] for pair in rule.outputs]
    return max((ref[1] + 1 for ref in read if not isinstance(ref, str) and ref[0] == i), default=1)


def right_shapes(
    rule: Rule, left: Mapping[Ref, Shape], numbers: Sequence[Mapping[str, Any]]
) -> dict[Ref, Shape] | None:
    """Of every input and output of the right side's terms; None: they do not go together.

    Args:
        left: of the inputs, and of what the left side's terms make.
        numbers: parameters of the right side's terms.
    """
    shapes: dict[Ref, Shape] = {name: left[name] for name in rule.inputs if name in left}
    wanted = _Wanted(rule, shapes, left, numbers)
    try:
        for i, term in enumerate(rule.right):
            given, sizes = [shapes[ref] for ref in term.inputs], Shape()
            if term.op == "split":
                sizes = _sizes(given[0], numbers[i]["dim"], wanted, i, arity(rule, True, i))
            made = _made(term.op, tuple(given), tuple(numbers[i].items()), sizes)
            shapes |= {(i, j): shape for j, shape in enumerate(made)}
    except (KeyError, IndexError, ValueError, RuntimeError):
        return None
    if any(shapes.get(right) != left.get(ref) for ref, right in rule.outputs):
        return None
    return shapes


@lru_cache(maxsize=1 << 14)
def _made(
    op: Operator, given: tuple[Shape, ...], numbers: tuple[tuple[str, Any], ...], sizes: Shape
) -> list[Shape]:
    """Raises ValueError, RuntimeError: these cannot be computed with."""
    if op in ("add", "mul", "unary", "scale"):
        if len({*given}) > 1:
            raise ValueError
        return [given[0]]
    if op == "bag":
        return [(given[1][0], given[0][1])]
    kinds = [torch.int64 if op == "embedding" and j else torch.float32 for j in range(len(given))]
    tensors = [torch.empty(x, dtype=kind, device="meta") for x, kind in zip(given, kinds, strict=True)]
    named = [("var", str(j)) for j in range(len(given))]
    ((aten, args, _),) = written(op, named, given, dict(numbers), sizes)
    made = resolve(aten)(*decode(args, lambda tag, k: tensors[int(k)]))
    return [tuple(each.shape) for each in ([made] if isinstance(made, torch.Tensor) else made)]


def _sizes(x: Shape, dim: int, wanted: _Wanted, i: int, count: int) -> Shape:
    sizes = [wanted.size((i, j), dim) for j in range(count)]
    total = sum(size for size in sizes if size is not None)
    if sizes.count(None) > 1:
        raise ValueError
    return tuple(x[dim] - total if size is None else size for size in sizes)


class _Wanted:
    """Sizes that the readers of a tensor need it to have."""

    def __init__(
        self,
        rule: Rule,
        shapes: Mapping[Ref, Shape],
        left: Mapping[Ref, Shape],
        numbers: Sequence[Mapping[str, Any]],
    ) -> None:
        self.rule, self.shapes, self.numbers = rule, shapes, numbers
        self.there = {right: left[ref] for ref, right in rule.outputs}

    def size(self, ref: Ref, dim: int) -> int | None:
        """Of a dimension, which may be counted from the last; None: nobody says."""
        for known in (self.shapes, self.there):
            if ref in known:
                return known[ref][dim]
        terms = enumerate(self.rule.right)
        sizes = (
            self._by(u, term, p, dim) for u, term in terms for p, own in enumerate(term.inputs) if own == ref
        )
        return next((size for size in sizes if size is not None), None)

    def _by(self, u: int, term: Term, p: int, dim: int) -> int | None:
        given, out = term.inputs, (u, 0)
        if term.op in ("linear", "matmul", "conv"):
            channel = 1 if term.op == "conv" else -1
            makes, takes = (1, 0) if term.op == "matmul" else (0, 1)  # dimensions of the weight
            if p == 0:
                return (
                    self.size(given[1], takes)
                    if dim in (channel, self._last(given[0]))
                    else self.size(out, dim)
                )
            return self.size(out, channel) if p == 2 or dim == makes else self.size(given[0], channel)
        if term.op in ("unary", "scale", "add", "mul"):
            known_others = (self.shapes[ref][dim] for ref in given if ref in self.shapes)
            return next(known_others, None) or self.size(out, dim)
        if term.op == "concat" and dim != self.numbers[u]["dim"]:
            return self.size(out, dim)
        return None

    def _last(self, ref: Ref) -> int:
        """The last dimension of a part, as of what is split."""
        source = ref if isinstance(ref, str) else self.rule.right[ref[0]].inputs[0]
        return len(self.shapes[source]) - 1 if source in self.shapes else -1
