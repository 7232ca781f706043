"""A graph at a number of samples that it was not captured at, from those at two others.

What depends on the samples (dimensions, sizes among arguments, bytes kept for a backward) is taken to be
affine in them, number by number:

    value at n = value at a + (value at b - value at a) (n - a) / (b - a)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from netsplit.graph.ir import Graph

__all__ = ["graph_at"]

NO_NUMBERS = ("constants", "calls", "output_spec", "input_dims", "rewrites")
"""Fields of a graph that do not depend on the batch size."""

_LYING = ("order", "repeated")
"""Fields of a variable that say how it lies in memory: with a single sample that may differ."""


class _NotAffineError(Exception):
    pass


def graph_at(few: Graph, many: Graph, samples: int) -> Graph | None:
    """The step's graph with that many samples, to plan with and not to run; None: it is not affine in them.

    Args:
        few, many: captures of one step, of different numbers of samples.
    """
    if few.calls or many.calls or few.batch_size == many.batch_size:
        return None
    part = (samples - few.batch_size, many.batch_size - few.batch_size)
    try:
        changed = {
            each.name: _at(getattr(few, each.name), getattr(many, each.name), part)
            for each in fields(Graph)
            if each.name not in NO_NUMBERS
        }
    except _NotAffineError:
        return None
    return replace(many, **changed)


def _at(low: Any, high: Any, part: tuple[int, int]) -> Any:
    """The value on the line through two, for numbers in whatever they are in.

    Raises:
        _NotAffineError: they differ in more than whole numbers, or what comes of it is none.
    """
    if type(low) is not type(high):
        raise _NotAffineError
    if type(low) is int and low != high:
        rise, rest = divmod((high - low) * part[0], part[1])
        if rest or low + rise < min(low, high, 0):
            raise _NotAffineError
        return low + rise
    if is_dataclass(low) and not isinstance(low, type):
        names = [each.name for each in fields(low) if each.name not in _LYING]
        return replace(low, **{name: _at(getattr(low, name), getattr(high, name), part) for name in names})
    if isinstance(low, Mapping):
        if list(low) != list(high):
            raise _NotAffineError
        return {key: _at(value, high[key], part) for key, value in low.items()}
    if isinstance(low, tuple | list):
        if len(low) != len(high):
            raise _NotAffineError
        return type(low)(_at(one, other, part) for one, other in zip(low, high, strict=True))
    if low != high:
        raise _NotAffineError
    return low
