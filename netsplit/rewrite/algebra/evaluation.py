"""Both sides of a rule computed exactly: integers modulo a prime, element-wise functions as drawn tables.

A tensor is its whole array and a degree for each dimension (copies, rows, columns); dimension 0 of a rule is
rows, 1 columns, -1 copies. Degree 0: nobody asks in how many pieces it is.

    partition, combine (d, k)   the degree alone, times and by k     replicate (d, k)  repeats along d
    reduce (d, k)               adds k consecutive blocks along d    concat            adds sizes, degrees
    linear(x[c, n, i], w[c', o, i]) = [1, n, o], of equal copies     split             where a concat met
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from itertools import product
from math import prod
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np

from netsplit.rewrite.algebra.rule import Ref, Rule, Term

__all__ = ["PARALLEL", "PRIME", "Absent", "Case", "DrawnTensor", "cases", "drawn_tensor", "operator_values"]

PRIME = 65521
PARALLEL = ("partition", "combine", "replicate", "reduce")
Three: TypeAlias = tuple[int, int, int]
Side: TypeAlias = dict[Ref, "DrawnTensor"] | None


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


def _number(parameters: Mapping[str, int | str], key: str, numbers: Mapping[str, int]) -> int:
    value = parameters[key]
    return value if isinstance(value, int) else prod(numbers[name] for name in value.split("*"))


@cache
def _table(function: str) -> np.ndarray:
    return np.random.default_rng(crc32(function.encode())).integers(1, PRIME, PRIME, dtype=np.int64)


def _linear(x: DrawnTensor, w: DrawnTensor) -> DrawnTensor:
    _need(x.array.shape[2] == w.array.shape[2] and x.degrees[2] == w.degrees[2])
    _need(all((each.array == each.array[:1]).all() for each in (x, w)))
    degrees = (min(1, x.degrees[1]), x.degrees[1], w.degrees[1])
    return DrawnTensor((x.array[0] @ w.array[0].T % PRIME)[None], degrees, (None, x.cuts[1], w.cuts[1]))


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
    op: str, given: Sequence[DrawnTensor], parameters: Mapping[str, int | str], numbers: Mapping[str, int]
) -> list[DrawnTensor]:
    """What an operator makes.

    Args:
        numbers: of the parameters that are names.

    Raises:
        Absent: sizes or degrees do not fit.
    """
    x = given[0]
    if op in ("linear", "matmul"):
        return [_linear(x, given[1] if op == "linear" else _transposed(given[1]))]
    if op in ("add", "mul"):
        y = given[1]
        _need(x.array.shape == y.array.shape and x.degrees == y.degrees)
        array = (x.array + y.array if op == "add" else x.array * y.array) % PRIME
        return [DrawnTensor(array, x.degrees, _common(given))]
    if op in ("unary", "scale"):
        table = _table(f"{op} {parameters['function']}")
        array = table[x.array] if op == "unary" else x.array * table[0] % PRIME
        return [DrawnTensor(array, x.degrees, x.cuts)]
    if op == "transpose":
        return [_transposed(x)]
    d = _number(parameters, "dim", numbers) + 1
    if op in ("concat", "split"):
        return [_concat(given, d)] if op == "concat" else _split(x, d)
    if op not in PARALLEL:
        raise Absent(op)
    return [_parallel(op, x, d, _number(parameters, "degree", numbers))]


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
    rule: Rule, sizes: Sequence[int], degrees: Sequence[int] = (), numbers: Sequence[int] = (2, 3)
) -> Iterator[Case]:
    """All of these sizes and degrees at which the left side exists.

    Args:
        degrees: from 1 on; none: nobody asks in how many pieces tensors are.
        numbers: that parameters which are names may be.
    """
    terms = (*rule.left, *rule.right)
    values = {v for term in terms for k, v in term.parameters if isinstance(v, str) and k != "function"}
    names = sorted({name for value in values for name in value.split("*")})
    for own in product(numbers, repeat=len(names)):
        yield from _extended(
            rule, dict(zip(names, own, strict=True)), {}, ({}, {}), [*_kinds(sizes, degrees)]
        )


def _extended(
    rule: Rule,
    numbers: Mapping[str, int],
    inputs: dict[Ref, DrawnTensor],
    values: tuple[Side, Side],
    kinds: Sequence[tuple[Three, Three, bool]],
) -> Iterator[Case]:
    left = _side(rule.left, inputs, values[0], numbers)
    right = _side(rule.right, inputs, values[1], numbers)
    rest = [name for name in rule.inputs if name not in inputs]
    if left is None:
        return
    if rest:
        for kind in kinds:
            given: dict[Ref, DrawnTensor] = {**inputs, rest[0]: drawn_tensor(rest[0], *kind)}
            yield from _extended(rule, numbers, given, (left, right), kinds)
        return
    sides = {**inputs, **left}, {**inputs, **(right or {})}
    pairs = [(sides[0][a], sides[1][b]) for a, b in rule.outputs] if right is not None else []
    agrees = right is not None and all(a.key == b.key for a, b in pairs)
    cuts = [cut for a, b in pairs for cut in zip(a.cuts, b.cuts, strict=True) if None not in cut]
    yield Case(inputs, numbers, right is not None, agrees, all(a == b for a, b in cuts))


def _side(
    terms: Sequence[Term], inputs: Mapping[Ref, DrawnTensor], known: Side, numbers: Mapping[str, int]
) -> Side:
    """What is known of a side with these inputs; None: an operator cannot be computed."""
    if known is None:
        return None
    values: dict[Ref, DrawnTensor] = {**inputs, **known}
    for i, term in enumerate(terms):
        sources = (ref if isinstance(ref, str) else (ref[0], 0) for ref in term.inputs)
        if (i, 0) not in values and all(source in values for source in sources):
            try:
                made = operator_values(
                    term.op, [values[ref] for ref in term.inputs], dict(term.parameters), numbers
                )
            except (Absent, KeyError):
                return None
            values |= {(i, j): tensor for j, tensor in enumerate(made)}
    return {ref: tensor for ref, tensor in values.items() if not isinstance(ref, str)}


def _kinds(sizes: Sequence[int], degrees: Sequence[int]) -> Iterator[tuple[Three, Three, bool]]:
    copies = [(1, min(1, len(degrees)), False), *((k, k, False) for k in degrees[1:3])]
    for k in degrees[1:2]:
        copies += [(k, 1, True), (k, k, True), (k * k, 1, False), (k * k, k * k, False)]
    for (c, g, equal), n, m in product(copies, sizes, sizes):
        for dn, dm in product(*([e for e in degrees if s % e == 0] or [0] for s in (n, m))):
            yield (c, n, m), (g, dn, dm), equal
