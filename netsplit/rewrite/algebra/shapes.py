"""Shapes of what the right side of a rule computes: torch says them, of tensors without data.

Sizes of a split are those that its readers need, or that the left side has of the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from netsplit.graph.arguments import decode
from netsplit.graph.operators import resolve
from netsplit.rewrite.algebra.patterns import Shape, written
from netsplit.rewrite.algebra.rule import Operator, Ref, Rule

__all__ = ["right_shapes"]


def right_shapes(
    rule: Rule, left: Mapping[Ref, Shape], numbers: Sequence[Mapping[str, Any]]
) -> dict[Ref, Shape] | None:
    """Shapes of every input and output of the right side's terms; None: they do not go together.

    Args:
        left: of the inputs, and of what the left side's terms make.
        numbers: parameters of the right side's terms.
    """
    shapes: dict[Ref, Shape] = {name: left[name] for name in rule.inputs if name in left}
    outputs = {right: left[ref] for ref, right in rule.outputs}

    def size(ref: Ref, dim: int) -> int | None:
        """The size of a dimension, which may be counted from the last; None: no reader says."""
        if ref in shapes or ref in outputs:
            return shapes.get(ref, outputs.get(ref, ()))[dim]
        reads = ((u, p) for u, term in enumerate(rule.right) for p, own in enumerate(term.inputs))
        sizes = (wanted(u, p, dim) for u, p in reads if rule.right[u].inputs[p] == ref)
        return next((own for own in sizes if own is not None), None)

    def wanted(u: int, p: int, dim: int) -> int | None:
        """What a reader needs the size of one of its inputs to be."""
        op, given, out = rule.right[u].op, rule.right[u].inputs, (u, 0)
        if op in ("linear", "matmul", "conv"):
            channel = 1 if op == "conv" else -1
            makes, takes = (1, 0) if op == "matmul" else (0, 1)  # dimensions of the weight
            if p == 0:
                return size(given[1], takes) if dim in (channel, last(given[0])) else size(out, dim)
            return size(out, channel) if p == 2 or dim == makes else size(given[0], channel)
        if op in ("unary", "scale", "add", "mul"):
            return next((shapes[ref][dim] for ref in given if ref in shapes), None) or size(out, dim)
        return size(out, dim) if op == "concat" and dim != numbers[u]["dim"] else None

    def last(ref: Ref) -> int:
        """The last dimension of a part, as of what is split."""
        source = ref if isinstance(ref, str) else rule.right[ref[0]].inputs[0]
        return len(shapes[source]) - 1 if source in shapes else -1

    try:
        for i, term in enumerate(rule.right):
            given, sizes = tuple(shapes[ref] for ref in term.inputs), Shape()
            if term.op == "split":
                dim = numbers[i]["dim"]
                parts = [size((i, j), dim) for j in range(rule.arity(True, i))]
                rest = given[0][dim] - sum(filter(None, parts))
                if parts.count(None) > 1:
                    return None
                sizes = tuple(rest if part is None else part for part in parts)
            output_shapes = _output_shapes(term.op, given, tuple(numbers[i].items()), sizes)
            shapes |= {(i, j): shape for j, shape in enumerate(output_shapes)}
    except (KeyError, IndexError, ValueError, RuntimeError):
        return None
    return shapes if all(shapes.get(right) == shape for right, shape in outputs.items()) else None


@lru_cache(maxsize=1 << 14)
def _output_shapes(
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
    results = resolve(aten)(*decode(args, lambda tag, k: tensors[int(k)]))
    return [tuple(each.shape) for each in ([results] if isinstance(results, torch.Tensor) else results)]
