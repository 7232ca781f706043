"""Graphs that substitutions make of one, the cheapest looked at first (Unity, section 5.1)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Expanded", "best_first"]

Candidate = TypeVar("Candidate")


@dataclass(frozen=True)
class Expanded(Generic[Candidate]):
    """Args:
    ended_by: "empty" when nothing was left, "budget" when so many candidates had been priced.
    left: candidates that were not expanded.
    priced: candidates, without the first.
    """

    best: Candidate
    seconds: float
    ended_by: str
    expanded: int
    left: int
    priced: int


def best_first(
    start: Candidate,
    cost: Callable[[Candidate], float],
    candidates: Callable[[Candidate], Iterable[Candidate]],
    key: Callable[[Candidate], object],
    alpha: float = 1.05,
    budget: int = 1000,
) -> Expanded[Candidate]:
    """Expand the cheapest until none is left, or `budget` candidates were priced: load of the machine changes
    no answer.

    Args:
        candidates: what one substitution makes of a candidate.
        key: two with the same are the same.
        alpha: what costs so many times the best is not expanded.
    """
    best, least = start, cost(start)
    queue, seen, priced, expanded = [(least, 0, start)], {key(start)}, 0, 0
    while queue and priced < budget:
        seconds, _, now = heapq.heappop(queue)
        if seconds > alpha * least:
            continue
        expanded += 1
        for each in candidates(now):
            own_key = key(each)
            if own_key in seen:
                continue
            seen.add(own_key)
            own = cost(each)
            priced += 1
            if own < least:
                best, least = each, own
            if own < alpha * least:
                heapq.heappush(queue, (own, priced, each))
            if priced == budget:
                heapq.heappush(queue, (seconds, 0, now))  # there may be more of it
                break
    left = sum(seconds <= alpha * least for seconds, _, _ in queue)
    return Expanded(best, least, "budget" if left else "empty", expanded, left, priced)
