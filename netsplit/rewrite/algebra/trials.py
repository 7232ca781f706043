"""Both sides of a rule of a file, computed at some sizes, and in some pieces where it has parallel operators.

A tensor is its array of copies, rows and columns, and the number of pieces of each, which is the shape of a
second array: a partition and a combine change that alone, a replicate and a reduce change both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import erf
from typing import TypeAlias
from zlib import crc32

import numpy as np

from netsplit.rewrite.algebra.rule import Ref, Rule, Term

__all__ = ["FUNCTIONS", "Trial", "trials"]

FUNCTIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda x: np.maximum(x, 0), "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "tanh": np.tanh,
    "gelu": lambda x: x * (1 + np.vectorize(erf)(x / 2**0.5)) / 2,
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "exp": np.exp, "sin": np.sin, "cos": np.cos, "rsqrt": lambda x: x**-0.5,
}  # fmt: skip
_Shape: TypeAlias = tuple[int, ...]
_Array: TypeAlias = tuple[np.ndarray, _Shape]
"""[copies, rows, columns], and where a split cuts each: where a concat met, or in halves; 0: nowhere."""


@dataclass(frozen=True)
class Trial:
    """Sizes and pieces of inputs; whether the right side exists; in what the sides differ, "": nothing."""

    inputs: Mapping[str, tuple[_Shape, _Shape]]
    right: bool
    differs: str

    def __str__(self) -> str:
        """Rows and columns, and pieces of copies, rows and columns: ``x1 4 x 8 in 1 x 2 x 4 pieces``."""
        return ", ".join(
            f"{name} {n} x {m}" + (" in {} x {} x {} pieces".format(*pieces) if pieces else "")
            for name, ((_, n, m), pieces) in self.inputs.items()
        )


def trials(rule: Rule, stand_ins: bool = True) -> Iterator[Trial]:
    """All of some few sizes at which the left side exists; with parallel operators, both sides.

    Args:
        stand_ins: of functions, so that a rule holds only if it does for any; False: functions themselves.
    """
    copies = (1, 2) if any(term.value("dim") == -1 for term in rule.terms) else (1,)
    small = (1, 2, 3) if len(rule.inputs) < 4 else (1, 2)
    kinds: list[tuple[_Shape, _Shape]] = [(sizes, ()) for sizes in product(copies, small, small)]
    if rule.is_parallel:  # one dimension, or copies and another, unlike those of others
        one, others = (16, 4), ((16, 2), (16, 8), (32, 4), (32, 8))
        dims = [(c, one, one) for c in (one, (1, 1), (2, 2), *others)]
        dims += [own for c in (one, (1, 1)) for k in others for own in ((c, k, one), (c, one, k))]
        kinds = [(tuple(n for n, _ in own), tuple(k for _, k in own)) for own in dims]
    alike = any(term.op == "linear" for term in rule.terms)

    def extended(given: Mapping[str, tuple[_Shape, _Shape]]) -> Iterator[Trial]:
        """One input after another; after each, what can be computed of those that are there."""
        arrays, pieces = (
            {name: _drawn(name, own[i], alike) for name, own in given.items() if own[i]} for i in (0, 1)
        )
        there: list[tuple[Mapping[Ref, _Array], Mapping[Ref, _Array]]] = []
        for terms in (rule.left, rule.right):
            try:
                there.append((_computed(terms, arrays, stand_ins), _computed(terms, pieces, True, True)))
            except ValueError:
                if rule.is_parallel or not there:
                    return
        if len(given) < len(rule.inputs):
            for kind in kinds:
                yield from extended({**given, rule.inputs[len(given)]: kind})
            return
        differs = ""
        for a, b in rule.outputs if len(there) == 2 else ():
            (ours, own), (theirs, others) = there
            x, y = ours[a][0], theirs[b][0]
            if x.shape != y.shape or not np.allclose(x, y, equal_nan=True):
                differs = "differ"
            elif pieces and own[a][0].shape != others[b][0].shape:
                differs = differs or "are in different pieces"
        yield Trial(given, len(there) == 2, differs)

    yield from extended({})


@cache
def _drawn(name: str, shape: _Shape, alike: bool) -> _Array:
    """An input; with copies that are alike, or not."""
    draws = np.random.default_rng(crc32(repr((name, shape)).encode()))
    array = draws.standard_normal((1, *shape[1:]) if alike else shape)
    return np.broadcast_to(array, shape), tuple(n // 2 for n in shape)


def _computed(
    terms: Sequence[Term], given: Mapping[str, _Array], stand_ins: bool, pieces: bool = False
) -> Mapping[Ref, _Array]:
    """What can be computed of these inputs. Raises ValueError: a term cannot be with their sizes."""
    values: dict[Ref, _Array] = dict(given.items())
    for i, term in enumerate(terms):
        if not all(ref in values for ref in term.inputs):
            continue
        arrays, own = zip(*(values[ref] for ref in term.inputs), strict=True)
        cuts = [each[0] if len({*each}) == 1 else 0 for each in zip(*own, strict=True)]
        x, y, op, d = arrays[0], arrays[-1], term.op, int(term.value("dim") or 0) + 1
        if op == "unary":
            name = str(term.value("function"))
            with np.errstate(all="ignore"):
                parts = [np.sin(x + crc32(name.encode()) % 97) if stand_ins else FUNCTIONS[name](x)]
        elif op == "linear":
            if not all((each == each[:1]).all() for each in arrays):
                raise ValueError
            parts, cuts = [(x[0] @ y[0].T)[None]], [0, own[0][1], own[1][1]]
        elif op == "split":
            if not (cut := cuts[d]):
                raise ValueError
            parts, cuts[d] = np.split(x, [cut], d), 0
        elif op == "concat":
            parts, cuts[d] = [np.concatenate(arrays, d)], x.shape[d] if len(arrays) == 2 else 0
        elif op in ("add", "mul"):
            if x.shape != y.shape:
                raise ValueError
            parts = [x + y if op == "add" else x * y]
        elif op in ("partition", "combine") and not pieces:
            parts = [x]
        else:
            k, more = int(term.value("degree") or 1), op in ("partition", "replicate")
            parts = [np.concatenate([x] * k, d) if more else np.sum(np.split(x, k, d), axis=0)]
            cuts[d] = {"partition": cuts[d] * k, "combine": cuts[d] // k * (cuts[d] % k == 0)}.get(op, 0)
        values |= {(i, j): (part, tuple(cuts)) for j, part in enumerate(parts)}
    return values
