"""The one topological order: of what could come next, what has the least key does; and longest paths."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

__all__ = ["chosen_order", "longest_before", "topological_order"]


def topological_order(after: Sequence[Collection[int]], key: Callable[[int], Any] | None = None) -> list[int]:
    """The numbers of a directed graph's vertices, each behind all that lead to it (Kahn's algorithm).

    Args:
        after: [n] successors of each vertex, each once.
        key: asked once of every vertex, when all before it are placed; ties go to the lower number. None:
            first ready, first placed.

    Returns:
        [n] a permutation of 0..n-1; shorter where there is a cycle: vertices of cycles and all behind
        them are left out.
    """
    waits = _waits(after)
    turns = count()

    def entry(v: int) -> tuple[Any, int]:
        return next(turns) if key is None else key(v), v

    ready = [entry(v) for v, left in enumerate(waits) if not left]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, u = heapq.heappop(ready)
        order.append(u)
        for v in after[u]:
            waits[v] -= 1
            if not waits[v]:
                heapq.heappush(ready, entry(v))
    return order


def longest_before(
    before: Mapping[int, Sequence[int]] | Sequence[Sequence[int]], order: Iterable[int], own: Sequence[Any]
) -> list[Any]:
    """The heaviest path before each vertex, of the weights `own`; 0 where none leads to it.

    Args:
        order: every vertex, after those in `before` it.
    """
    heaviest: list[Any] = [0] * len(own)
    for v in order:
        heaviest[v] = max((heaviest[u] + own[u] for u in before[v]), default=0)
    return heaviest


def chosen_order(after: Sequence[Collection[int]], choose: Callable[[list[int]], int]) -> list[int]:
    """`topological_order` where the next vertex depends on those before it.

    Args:
        choose: asked at every place for one of those that could come there, given as they became so.
    """
    waits = _waits(after)
    ready = [v for v, left in enumerate(waits) if not left]
    order: list[int] = []
    while ready:
        u = choose(ready)
        ready.remove(u)
        order.append(u)
        for v in after[u]:
            waits[v] -= 1
            if not waits[v]:
                ready.append(v)
    return order


def _waits(after: Sequence[Collection[int]]) -> list[int]:
    """[n] how many vertices lead to each."""
    waits = [0] * len(after)
    for successors in after:
        for v in successors:
            waits[v] += 1
    return waits
