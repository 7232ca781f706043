"""The least seconds in which a device computes enough of its activations again.

    places    0 ── 1 ── 2 ── 3 ── 4 ── 5        of a device's segments, one after another
    parts     └─kept─┘└──again──┘└again┘        frees bytes, costs seconds of its forward

A shortest path over the places, with the bytes that it frees for a budget: a knapsack whose items, parts from
one place to another, must not overlap. It is the choice of Piper (Tarnawski et al., NeurIPS 2021, section 4),
which recomputes a stage or keeps it, for parts of a stage; Checkmate (Jain et al., MLSys 2020) has the
general problem, by integer programming.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Frontier", "SegmentOptions"]

_BUDGETS = 256  # of bytes freed, that are told apart
_LIMITS = 6  # of the bytes that a part has inside beyond what is gone by then, that are tried

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SegmentOptions:
    """What the parts of one segment free and cost; [K, K] from one place to a later one."""

    segment: int
    freed: Floats  # bytes at the peak
    seconds: Floats  # of an iteration
    inside: Floats  # bytes that come back while one micro-batch's part is computed again
    begins: Floats  # [K] bytes at the peak that stay because a part begins here after one that is kept
    saved: Floats  # [K] bytes that one micro-batch keeps of what is before a place, if nothing is recomputed
    in_flight: int  # micro-batches, at the peak


class Frontier:
    """The answers that no other beats in both: the fewest seconds, and the most bytes fewer at the peak.

    Bytes are estimates: those freed of all micro-batches in flight, less what a part that is computed again
    has inside beyond what was let go of before.

    Attributes:
        nbytes: [A] of the answers, rising.
        seconds: [A] rising too.
    """

    def __init__(self, options: Sequence[SegmentOptions]) -> None:
        self.options = options
        total = sum(map(_most_freed, options))
        step = max(total / _BUDGETS, 1.0)
        self._paths = [(limit, _Paths(options, limit, step)) for limit in _limits(options)]
        every = [
            (float(paths.end[budget]), limit - budget * step, way, budget)
            for way, (limit, paths) in enumerate(self._paths)
            for budget in np.flatnonzero(np.isfinite(paths.end))
            if budget * step > limit
        ]
        self._answers: list[tuple[int, int]] = []
        best: list[tuple[float, float]] = []
        for seconds, more, way, budget in sorted(every):
            if not best or -more > best[-1][0]:
                best.append((-more, seconds))
                self._answers.append((way, int(budget)))
        self.nbytes: Floats = np.array([nbytes for nbytes, _ in best])
        self.seconds: Floats = np.array([seconds for _, seconds in best])

    def __len__(self) -> int:
        return len(self._answers)

    def parts(self, number: int) -> tuple[tuple[int, int, int], ...]:
        """The parts that an answer computes again: (segment, place, later place)."""
        way, budget = self._answers[number]
        return self._paths[way][1].parts_of(budget)

    def seconds_of(self, part: tuple[int, int, int]) -> float:
        """Seconds of an iteration that a part costs."""
        segment, a, b = part
        return float(next(each.seconds[a, b] for each in self.options if each.segment == segment))


def _most_freed(options: SegmentOptions) -> float:
    most = np.zeros(len(options.saved))
    for b in range(1, len(most)):
        ways = np.where(np.isfinite(options.seconds[:b, b]), most[:b] + options.freed[:b, b], 0.0)
        most[b] = max(most[b - 1], float(ways.max()))
    return float(most[-1])


def _limits(options: Sequence[SegmentOptions]) -> list[float]:
    """Bytes by which a part may make a peak of its own: none, up to those of the largest part."""
    largest = max((each.inside[np.isfinite(each.seconds)].max(initial=0.0) for each in options), default=0.0)
    return [0.0, *(largest / 2**halvings for halvings in reversed(range(_LIMITS - 1)))]


class _Paths:
    """Shortest paths for every budget, of parts that make no peak by more than `limit` bytes. They are found
    from the end on: when the backward computes a part again, what comes after it is gone."""

    def __init__(self, options: Sequence[SegmentOptions], limit: float, step: float) -> None:
        self.segments = [each.segment for each in reversed(options)]
        start = np.full(_BUDGETS + 1, np.inf)
        start[0] = after = 0.0
        self.walks: list[_SegmentPaths] = []
        for each in reversed(options):
            walk = _SegmentPaths(each, limit, step, start, after)
            self.walks.append(walk)
            start, after = walk.end, after + float(each.saved[-1])
        self.end = start

    def parts_of(self, budget: int) -> tuple[tuple[int, int, int], ...]:
        parts: list[tuple[int, int, int]] = []
        for segment, walk in zip(reversed(self.segments), reversed(self.walks), strict=True):
            own, budget = walk.back(budget)
            parts += [(segment, a, b) for a, b in own]
        return tuple(parts)


class _SegmentPaths:
    """Least seconds through one segment, from its end to its beginning.

    `kept[t]` and `again[t]`: [Q + 1] least seconds in which at least so many steps of bytes are freed after
    the t-th place from the end, where the first part after it is kept, or recomputed.
    """

    def __init__(
        self, options: SegmentOptions, limit: float, step: float, start: Floats, after: float
    ) -> None:
        count, size = len(options.saved), len(start)
        self.kept, self.again = np.full((2, count, size), np.inf)
        self.kept[0] = start
        self.begins = np.rint(options.begins / step).astype(np.int64)
        self.from_again: NDArray[np.bool_] = np.zeros((count, size), bool)
        self.way: Ints = np.full((count, size), -1)  # by which the seconds of `again` are least
        self.moves: list[Ints] = [np.zeros(0, np.int64)]
        self.ends: list[Ints] = [np.zeros(0, np.int64)]
        left = after + options.saved[-1] - options.saved  # [K] of one micro-batch, after each place
        budgets = np.arange(size)
        for t in range(1, count):
            place = count - 1 - t
            begun = self._shifted(self.again[t - 1], -self.begins[place + 1])
            self.from_again[t] = begun < self.kept[t - 1]
            self.kept[t] = np.where(self.from_again[t], begun, self.kept[t - 1])
            to = np.flatnonzero(np.isfinite(options.seconds[place]))
            moves = np.tile(np.rint(options.freed[place, to] / step).astype(np.int64), 2)
            self.ends.append(count - 1 - to)
            self.moves.append(moves)
            if not len(to):
                continue
            tables = np.concatenate([self.kept[count - 1 - to], self.again[count - 1 - to]])
            wanted = np.maximum(budgets[None, :] - moves[:, None], 0)
            ways = np.take_along_axis(tables, np.minimum(wanted, size - 1), 1)
            gone = np.tile(left[to], 2)[:, None] - wanted * (step / options.in_flight)
            over = np.tile(options.inside[place, to], 2)[:, None] - np.maximum(gone, 0.0) > limit
            ways[(wanted >= size) | over] = np.inf
            ways += np.tile(options.seconds[place, to], 2)[:, None]
            self.way[t] = np.argmin(ways, 0)
            self.again[t] = ways[self.way[t], budgets]
        self.last_again: NDArray[np.bool_] = self.again[-1] < self.kept[-1]
        self.end: Floats = np.where(self.last_again, self.again[-1], self.kept[-1])

    @staticmethod
    def _shifted(table: Floats, by: int) -> Floats:
        """A table by budgets, with so many steps more freed (fewer, where negative)."""
        wanted = np.maximum(np.arange(len(table)) - by, 0)
        return np.where(wanted < len(table), table[np.minimum(wanted, len(table) - 1)], np.inf)

    def back(self, budget: int) -> tuple[list[tuple[int, int]], int]:
        """The recomputed parts of the best path with this budget, in order; and the budget after them."""
        count = len(self.kept)
        t, again = count - 1, bool(self.last_again[budget])
        parts = []
        while t:
            place = count - 1 - t
            if not again:
                again = bool(self.from_again[t][budget])
                budget += int(self.begins[place + 1]) if again else 0
                t -= 1
                continue
            way, ends = int(self.way[t][budget]), self.ends[t]
            budget = max(budget - int(self.moves[t][way]), 0)
            t, again = int(ends[way % len(ends)]), way >= len(ends)
            parts.append((place, count - 1 - t))
        return parts, budget
