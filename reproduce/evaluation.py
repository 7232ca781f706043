"""Both sides of a rule computed exactly: integers modulo a prime, element-wise functions as drawn tables.

A tensor is its whole array and a degree for each dimension (copies, rows, columns); dimension 0 of a rule is
rows, 1 columns, -1 copies. Degree 0: nobody asks in how many pieces it is.

    partition, combine (d, k)   the degree alone, times and by k     replicate (d, k)  repeats along d
    reduce (d, k)               adds k consecutive blocks along d    concat            adds sizes, degrees
    linear(x[c, n, i], w[c', o, i]) = [1, n, o], of equal copies     split             where a concat met

Of a rule with convolutions or tables, dimensions are the tensors' own three: conv(x[n, c, l], w[o, c, k]),
embedding(w[1, v, e], index[1, n, j]) = [n, j, e], and a bias is [o, 1, 1] there, [1, o, 1] elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b
from itertools import product
from math import prod
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np

from netsplit.rewrite.algebra.rule import Ref, Rule, Term

__all__ = ["Absent", "Case", "DrawnTensor", "cases", "drawn_tensor", "operator_values"]

PRIME = 65521
Three: TypeAlias = tuple[int, int, int]


class Absent(Exception):
    """An operator cannot be computed with these sizes or degrees."""


@dataclass(frozen=True, eq=False)
class DrawnTensor:
    """`cuts`: per dimension, size and degree of the first part of its split; None: it cannot be split."""

    array: np.ndarray
    degrees: Three
    cuts: tuple[tuple[int, int] | None, ...]

    @property
    def key(self) -> bytes:
        """Equal for equal arrays and degrees."""
        text = repr((self.array.shape, self.degrees)).encode()
        return blake2b(np.ascontiguousarray(self.array).tobytes() + text, digest_size=12).digest()


@cache
def drawn_tensor(
    name: str, sizes: Three, degrees: Three = (0, 0, 0), equal_copies: bool = False
) -> DrawnTensor:
    """An input; it splits in halves, or near them where it has no degrees."""
    draws = np.random.default_rng(crc32(repr((name, sizes)).encode()))
    array = draws.integers(1, PRIME, (1 if equal_copies else sizes[0], *sizes[1:]), dtype=np.int64)
    cuts = tuple(
        (size // 2, degree // 2) if size > 1 and (not degree or degree % 2 == 0 == size % 2) else None
        for size, degree in zip(sizes, degrees, strict=True)
    )
    return DrawnTensor(np.broadcast_to(array, sizes), degrees, cuts)


def _need(holds: object) -> None:
    if not holds:
        raise Absent


def _with(three: tuple[Any, ...], d: int, value: object) -> Any:
    return (*three[:d], value, *three[d + 1 :])


@cache
def _table(function: str) -> np.ndarray:
    return np.random.default_rng(crc32(function.encode())).integers(1, PRIME, PRIME, dtype=np.int64)


def _linear(x: DrawnTensor, w: DrawnTensor, *bias: DrawnTensor) -> DrawnTensor:
    _need(x.array.shape[2] == w.array.shape[2] and x.degrees[2] == w.degrees[2])
    _need(all((each.array == each.array[:1]).all() for each in (x, w)))
    array = x.array[0] @ w.array[0].T
    for b in bias:
        _need(b.array.shape == (1, array.shape[1], 1))
        array = array + b.array[0].T
    degrees = (min(1, x.degrees[1]), x.degrees[1], w.degrees[1])
    return DrawnTensor(array[None] % PRIME, degrees, (None, x.cuts[1], w.cuts[1]))


def _padded(array: np.ndarray, margin: int) -> np.ndarray:
    made = np.zeros((*array.shape[:2], array.shape[2] + 2 * margin), np.int64)
    made[:, :, margin : margin + array.shape[2]] = array
    return made


def _conv(
    x: DrawnTensor, w: DrawnTensor, *bias: DrawnTensor, stride: int, padding: int, dilation: int, groups: int
) -> DrawnTensor:
    span = dilation * (w.array.shape[2] - 1) + 1
    _need(stride and dilation and groups == 1 and x.array.shape[1] == w.array.shape[1])
    _need(x.array.shape[2] + 2 * padding >= span)
    _need(all(b.array.shape == (len(w.array), 1, 1) for b in bias))
    padded = _padded(x.array, padding)
    starts = np.arange(0, padded.shape[2] - span + 1, stride)
    windows = padded[:, :, starts[:, None] + np.arange(0, span, dilation)]
    array = np.einsum("nclk,ock->nol", windows, w.array)
    array = array + sum(b.array[:, 0] for b in bias)
    return DrawnTensor(array % PRIME, x.degrees, (x.cuts[0], w.cuts[0], None))


def _enlarged(w: DrawnTensor, like: DrawnTensor, padding: int, padding_of: int) -> DrawnTensor:
    margin = padding_of - padding
    _need(margin > 0 and w.array.shape[2] + 2 * margin == like.array.shape[2])
    return DrawnTensor(_padded(w.array, margin), w.degrees, (*w.cuts[:2], None))


def _looked_up(w: DrawnTensor, index: DrawnTensor) -> tuple[np.ndarray, np.ndarray]:
    _need(len(w.array) == len(index.array) == 1)
    return w.array[0], index.array[0] % w.array.shape[1]


def _bag(w: DrawnTensor, index: DrawnTensor, mean: int) -> DrawnTensor:
    table, rows = _looked_up(w, index)
    counts = (rows[..., None] == np.arange(len(table))).sum(1) * (
        pow(rows.shape[1], -1, PRIME) if mean else 1
    )
    return DrawnTensor((counts @ table % PRIME)[:, None], w.degrees, (index.cuts[1], None, w.cuts[2]))


def _transposed(x: DrawnTensor) -> DrawnTensor:
    (a, b, c), (p, q, r) = x.degrees, x.cuts
    return DrawnTensor(x.array.swapaxes(1, 2), (a, c, b), (p, r, q))


def _common(parts: Sequence[DrawnTensor]) -> tuple[tuple[int, int] | None, ...]:
    """Where all of these split alike."""
    return tuple(own[0] if len({*own}) == 1 else None for own in zip(*(x.cuts for x in parts), strict=True))


def _concat(parts: Sequence[DrawnTensor], d: int) -> DrawnTensor:
    first = parts[0]
    alike = {(_with(x.array.shape, d, 0), _with(x.degrees, d, min(1, x.degrees[d]))) for x in parts}
    _need(len(alike) == 1)
    cuts = _with(_common(parts), d, (first.array.shape[d], first.degrees[d]) if len(parts) == 2 else None)
    degrees = _with(first.degrees, d, sum(each.degrees[d] for each in parts))
    return DrawnTensor(np.concatenate([each.array for each in parts], d), degrees, cuts)


def _split(x: DrawnTensor, d: int) -> list[DrawnTensor]:
    if (cut := x.cuts[d]) is None:
        raise Absent
    degrees, cuts = (cut[1], x.degrees[d] - cut[1]), _with(x.cuts, d, None)
    parts = zip(np.split(x.array, [cut[0]], d), degrees, strict=True)
    return [DrawnTensor(array, _with(x.degrees, d, degree), cuts) for array, degree in parts]


def _parallel(op: str, x: DrawnTensor, d: int, k: int) -> DrawnTensor:
    """Pieces that are added up have to be of one size, whatever was put together along the dimension."""
    size, degree, cut, array = x.array.shape[d], x.degrees[d], x.cuts[d], x.array
    _need(degree > 0)
    if op in ("partition", "replicate"):
        _need(op == "replicate" or size % (degree * k) == 0)
        cut = (cut[0], cut[1] * k) if cut else None
    else:
        _need(degree % k == 0)
        even = cut is None or cut[0] * degree == cut[1] * size
        _need(op == "combine" or (size % k == 0 and even))
        cut = (cut[0], cut[1] // k) if cut and cut[1] % k == 0 else None
    if op in ("replicate", "reduce"):
        cut = None
        blocks = np.split(array, k, d) if op == "reduce" else [array] * k
        array = np.sum(blocks, axis=0) % PRIME if op == "reduce" else np.concatenate(blocks, d)
    made = degree * k if op in ("partition", "replicate") else degree // k
    return DrawnTensor(array, _with(x.degrees, d, made), _with(x.cuts, d, cut))


def operator_values(
    term: Term, given: Sequence[DrawnTensor], numbers: Mapping[str, int], exact: bool = False
) -> list[DrawnTensor]:
    """What an operator makes.

    Args:
        numbers: of the parameters that are names.
        exact: dimensions are the tensors' own.

    Raises:
        Absent: sizes or degrees do not fit.
    """
    op, x = term.op, given[0]
    own: dict[str, Any] = {
        k: v if isinstance(v, int) or k == "function" else prod(numbers[name] for name in v.split("*"))
        for k, v in term.parameters
    }
    d = own.get("dim", 0) + (not exact)
    match op:
        case "linear":
            return [_linear(*given)]
        case "matmul":
            return [_linear(x, _transposed(given[1]), *given[2:])]
        case "conv":
            return [_conv(*given, **own)]
        case "enlarge":
            return [_enlarged(x, given[1], **own)]
        case "embedding":
            table, rows = _looked_up(*given)
            return [DrawnTensor(table[rows], x.degrees, (*given[1].cuts[1:], x.cuts[2]))]
        case "bag":
            return [_bag(x, given[1], **own)]
        case "sum" | "mean":
            part = pow(x.array.shape[d], -1, PRIME) if op == "mean" else 1
            array = x.array.sum(d, keepdims=True) * part % PRIME
            return [DrawnTensor(array, x.degrees, _with(x.cuts, d, None))]
        case "add" | "mul":
            y = given[1]
            _need(x.array.shape == y.array.shape and x.degrees == y.degrees)
            array = (x.array + y.array if op == "add" else x.array * y.array) % PRIME
            return [DrawnTensor(array, x.degrees, _common(given))]
        case "unary" | "scale":
            table = _table(f"{op} {own['function']}")
            return [replace(x, array=table[x.array] if op == "unary" else x.array * table[0] % PRIME)]
        case "transpose":
            return [_transposed(x)]
        case "concat":
            return [_concat(given, d)]
        case "split":
            return _split(x, d)
        case _:
            return [_parallel(op, x, d, own["degree"])]


@dataclass(frozen=True)
class Case:
    """Sizes and degrees at which the left side exists, and what is there."""

    inputs: Mapping[Ref, DrawnTensor]
    numbers: Mapping[str, int]
    right: bool
    agrees: bool
    splits_alike: bool
    """Or one of them cannot be split."""


def cases(
    rule: Rule,
    sizes: Sequence[int],
    degrees: Sequence[int] = (),
    numbers: Sequence[int] = (2, 3),
    both: bool = False,
) -> Iterator[Case]:
    """All of these sizes and degrees at which the left side exists.

    Args:
        degrees: from 1 on; none: nobody asks in how many pieces tensors are.
        numbers: that parameters which are names may be.
        both: the right side, too.
    """
    given = {v for term in rule.terms for k, v in term.parameters if isinstance(v, str) and k != "function"}
    names = sorted({name for value in given for name in value.split("*")})
    own = [((c, n, m), (0, 0, 0), False) for c, n, m in product(sizes, repeat=3)]
    kinds = own if rule.exact else list(_kinds(sizes, degrees))
    for each in product(numbers, repeat=len(names)):
        yield from _cases(rule, dict(zip(names, each, strict=True)), kinds, both)


def _cases(
    rule: Rule, numbers: Mapping[str, int], kinds: Sequence[tuple[Three, Three, bool]], both: bool
) -> Iterator[Case]:
    """One input after another; after each, what can be computed of it and of those before."""
    inputs, values = rule.inputs, dict[tuple[int, Ref], DrawnTensor]()
    ready: dict[tuple[int, Ref], int] = {(s, name): i for i, name in enumerate(inputs) for s in (0, 1)}
    levels: list[list[tuple[int, int, Term]]] = [[] for _ in inputs]
    for side, terms in enumerate((rule.left, rule.right)):
        for i, term in enumerate(terms):
            level = max(ready[side, ref if isinstance(ref, str) else (ref[0], 0)] for ref in term.inputs)
            levels[level].append((side, i, term))
            ready[side, (i, 0)] = level

    def computed(level: int, right: bool) -> tuple[bool, bool]:
        """Whether the sides exist still."""
        for side, i, term in levels[level]:
            if side == 1 and not right:
                break
            try:
                given = [values[side, ref] for ref in term.inputs]
                made = operator_values(term, given, numbers, rule.exact)
            except (Absent, KeyError):
                if side == 0:
                    return False, False
                right = False
            else:
                values.update(((side, (i, j)), tensor) for j, tensor in enumerate(made))
        return True, right

    def extended(level: int, right: bool) -> Iterator[Case]:
        if level == len(inputs):
            pairs = [(values[0, a], values[1, b]) for a, b in rule.outputs] if right else []
            cuts = [cut for a, b in pairs for cut in zip(a.cuts, b.cuts, strict=True) if None not in cut]
            tensors: dict[Ref, DrawnTensor] = {name: values[0, name] for name in inputs}
            agrees = right and all(a.key == b.key for a, b in pairs)
            yield Case(tensors, numbers, right, agrees, all(a == b for a, b in cuts))
            return
        for kind in kinds:
            values[0, inputs[level]] = values[1, inputs[level]] = drawn_tensor(inputs[level], *kind)
            left, rest = computed(level, right)
            if left and (rest or not both):
                yield from extended(level + 1, rest)

    yield from extended(0, True)


def _kinds(sizes: Sequence[int], degrees: Sequence[int]) -> Iterator[tuple[Three, Three, bool]]:
    copies = [(1, min(1, len(degrees)), False), *((k, k, False) for k in degrees[1:3])]
    for k in degrees[1:2]:
        copies += [(k, 1, True), (k, k, True), (k * k, 1, False), (k * k, k, False), (k * k, k * k, False)]
    for (c, g, equal), n, m in product(copies, sizes, sizes):
        for dn, dm in product(*([e for e in degrees if s % e == 0] or [0] for s in (n, m))):
            yield (c, n, m), (g, dn, dm), equal
