"""Shapes of what the right side of a rule computes, from those of what its left side is in a graph.

Sizes of a split are those that its readers need, or that the left side has of the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor

from netsplit.rewrite.algebra.patterns import Shape
from netsplit.rewrite.algebra.rule import Ref, Rule, Term

__all__ = ["Numbers", "arity", "exact_dims", "right_shapes"]

Numbers = Mapping[str, object]


def exact_dims(rule: Rule) -> bool:
    """Whether its dimensions are those of tensors, not of matrices."""
    tensors = ("conv", "enlarge", "embedding", "bag")
    return any(term.op in tensors for term in (*rule.left, *rule.right))


def arity(rule: Rule, right: bool, i: int) -> int:
    """How many outputs a term of a side has."""
    side = rule.right if right else rule.left
    read = [ref for term in side for ref in term.inputs] + [pair[right] for pair in rule.outputs]
    return max((ref[1] + 1 for ref in read if not isinstance(ref, str) and ref[0] == i), default=1)


def right_shapes(
    rule: Rule, left: Mapping[Ref, Shape], numbers: Sequence[Mapping[str, object]]
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
            given = [shapes[ref] for ref in term.inputs]
            if term.op == "split":
                made = _split(given[0], numbers[i]["dim"], wanted, i, arity(rule, True, i))
            else:
                made = [_one(term, given, numbers[i])]
            shapes |= {(i, j): shape for j, shape in enumerate(made)}
    except (KeyError, IndexError, ValueError, TypeError):
        return None
    if any(shapes.get(right) != left.get(ref) for ref, right in rule.outputs):
        return None
    return shapes


def _require(holds: bool) -> None:
    if not holds:
        raise ValueError


def _at(shape: Shape, dim: int, size: int) -> Shape:
    dim %= len(shape)
    return (*shape[:dim], size, *shape[dim + 1 :])


def _one(term: Term, given: Sequence[Shape], numbers: Mapping[str, object]) -> Shape:
    """Raises ValueError, IndexError: these cannot be computed with."""
    x, rest = given[0], given[1:]
    if term.op in ("linear", "matmul"):
        y = rest[0]
        into, out = (y[1], y[0]) if term.op == "linear" else (y[-2], y[-1])
        _require(len(y) == 2 or (term.op == "matmul" and y[:-2] == x[:-2]))
        _require(into == x[-1] and rest[1:] in ([], [(out,)]))
        _require(len(given) == 2 or term.op == "linear" or len(x) == 2)
        return _at(x, -1, out)
    if term.op == "conv":
        return _conv(x, rest, numbers)
    if term.op == "concat":
        dim = numbers["dim"]
        assert isinstance(dim, int)
        _require(all(_at(each, dim, 0) == _at(x, dim, 0) for each in rest))
        return _at(x, dim, sum(each[dim] for each in given))
    if term.op == "transpose":
        order = list(range(len(x)))
        a, b = numbers["first"], numbers["second"]
        assert isinstance(a, int)
        assert isinstance(b, int)
        order[a], order[b] = order[b], order[a]
        return tuple(x[d] for d in order)
    if term.op in ("sum", "mean"):
        dim = numbers["dim"]
        assert isinstance(dim, int)
        return (*x[:dim], *x[dim + 1 :])
    if term.op == "embedding":
        return (*rest[0], x[1])
    if term.op == "bag":
        _require(len(rest[0]) == 2)
        return (rest[0][0], x[1])
    if term.op == "enlarge":
        return _enlarged(x, rest[0], numbers)
    _require(term.op in ("unary", "scale", "add", "mul") and all(each == x for each in rest))
    return x


def _each(value: object, rank: int) -> tuple[int, ...]:
    return (value,) * rank if isinstance(value, int) else tuple(value)  # type: ignore[arg-type]


def _conv(x: Shape, rest: Sequence[Shape], numbers: Mapping[str, object]) -> Shape:
    w, groups, rank = rest[0], numbers["groups"], len(x) - 2
    _require(isinstance(groups, int) and x[1] == w[1] * groups and rest[1:] in ([], [w[:1]]))  # type: ignore
    stride, padding, dilation = (_each(numbers[key], rank) for key in ("stride", "padding", "dilation"))
    sizes = (
        floor((x[d + 2] + 2 * padding[d] - dilation[d] * (w[d + 2] - 1) - 1) / stride[d]) + 1
        for d in range(rank)
    )
    return (x[0], w[0], *sizes)


def _enlarged(x: Shape, like: Shape, numbers: Mapping[str, object]) -> Shape:
    """Kernels that see as much more on all sides as their convolution is given there."""
    rank = len(x) - 2
    own, others = (_each(numbers[key], rank) for key in ("padding", "padding_of"))
    _require(len(like) == len(x) and x[2:] != like[2:])
    _require(all(b - a == 2 * (q - p) >= 0 for a, b, p, q in zip(x[2:], like[2:], own, others, strict=True)))
    return (*x[:2], *like[2:])


def _split(x: Shape, dim: object, wanted: _Wanted, i: int, count: int) -> list[Shape]:
    assert isinstance(dim, int)
    sizes = [wanted.size((i, j), dim) for j in range(count)]
    total = sum(size for size in sizes if size is not None)
    made = [x[dim] - total if size is None else size for size in sizes]
    _require(sizes.count(None) < 2 and sum(made) == x[dim] and min(made) > 0)
    return [_at(x, dim, size) for size in made]


class _Wanted:
    """Sizes that the readers of a tensor need it to have."""

    def __init__(
        self,
        rule: Rule,
        shapes: Mapping[Ref, Shape],
        left: Mapping[Ref, Shape],
        numbers: Sequence[Mapping[str, object]],
    ) -> None:
        self.rule, self.shapes, self.numbers = rule, shapes, numbers
        self.there = {right: left[ref] for ref, right in rule.outputs}
        self.readers: dict[Ref, list[tuple[int, int]]] = {}
        for u, term in enumerate(rule.right):
            for p, ref in enumerate(term.inputs):
                self.readers.setdefault(ref, []).append((u, p))

    def size(self, ref: Ref, dim: int) -> int | None:
        """Of a dimension, which may be counted from the last; None: nobody says."""
        if ref in self.shapes:
            return self.shapes[ref][dim]
        if ref in self.there:
            return self.there[ref][dim]
        sizes = (self._by(u, p, dim) for u, p in self.readers.get(ref, ()))
        return next((size for size in sizes if size is not None), None)

    def _by(self, u: int, p: int, dim: int) -> int | None:
        term = self.rule.right[u]
        given, out = term.inputs, (u, 0)
        if term.op in ("linear", "matmul", "conv"):
            channel = 1 if term.op == "conv" else -1
            makes, takes = (1, 0) if term.op == "matmul" else (0, 1)  # dimensions of the weight
            if p == 0:
                known = self.size(given[1], takes)
                return known if dim in (channel, self._last(given[0], channel)) else self.size(out, dim)
            if p == 2 or dim == makes:
                return self.size(out, channel)
            return self.size(given[0], channel)
        if term.op in ("unary", "scale", "add", "mul"):
            known_others = (self.shapes[ref][dim] for ref in given if ref in self.shapes)
            return next(known_others, None) or self.size(out, dim)
        if term.op == "concat" and dim != self.numbers[u]["dim"]:
            return self.size(out, dim)
        return None

    def _last(self, ref: Ref, channel: int) -> int:
        """The channel's dimension, counted from the first, of what is split."""
        source = self.rule.right[ref[0]].inputs[0] if not isinstance(ref, str) else ref
        shape = self.shapes.get(source)
        return channel if channel > 0 or shape is None else len(shape) - 1
