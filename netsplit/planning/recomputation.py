"""The least recomputation that makes a placement fit.

    placement ──► simulated peaks ──fit──► as it is
                     │ bytes missing
                     ▼
    parts between narrow places ──► knapsack of each device ──► simulated peaks
                     ▲                                              │
                     └──── more bytes, or fewer ◄───────────────────┘   until the cheapest that fits is known

    places    0 ── 1 ── 2 ── 3 ── 4 ── 5        of a device's segments, one after another
    parts     └─kept─┘└──again──┘└again┘        frees bytes, costs seconds of its forward

The knapsack is a shortest path over the places with a budget of freed bytes; its items, parts from place to
place, must not overlap. Piper (Tarnawski et al., NeurIPS 2021) makes this choice for whole stages; Checkmate
(Jain et al., MLSys 2020) solves the general problem. The knapsack estimates; simulated peaks decide.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from netsplit.graph.arguments import storage_bytes
from netsplit.partition.base import Problem
from netsplit.partition.common.instance import Floats, Ints
from netsplit.placement.placement import Placement
from netsplit.program.instructions import Backward, Forward, Program, Segment
from netsplit.program.recomputation import SegmentBytes, pieces_in_order
from netsplit.simulate.simulator import Simulator

__all__ = ["nearest_recomputed"]

_ROUNDS = 8
_SPARED = 6  # parts of a device, at most, that it tries to keep after all
_BY_ESTIMATE = 3  # trials that go by the knapsack's bytes; later ones bisect
_PLACES = 48  # of a device's segments together, but at least three each
_BUDGETS = 256  # steps of freed bytes
_LIMITS = 6  # tried, of a part's inner bytes beyond those already freed


def nearest_recomputed(
    problem: Problem, placement: Placement, until: float = float("inf")
) -> tuple[Placement, dict[str, int]]:
    """The placement with the cheapest recomputation that fits, and its peaks; if none fits, the nearest.

    A placement that fits, or has no backward, is returned unchanged. Deterministic.

    Args:
        until: deadline of the search for a cheaper one, on ``time.perf_counter``.
    """
    compiler = problem.the_simulator
    capacity = {each.name: each.capacity_bytes for each in problem.cluster.devices}
    program = compiler.whole_microbatches(placement)
    peaks = compiler.peak_bytes(program)
    if not compiler.training or all(peaks[name] <= capacity[name] for name in peaks):
        return placement, peaks
    if placement.recomputed:
        placement = replace(placement, recomputed=frozenset())
        program = compiler.whole_microbatches(placement)
        peaks = compiler.peak_bytes(program)
    return _LeastRecomputation(compiler, capacity, placement, program, peaks, until).run()


@dataclass(eq=False)
class _Short:
    """A device, or replicas of one, with too little room, and the search among its knapsack's answers, which
    are numbered by seconds; the number after the last recomputes everything."""

    names: tuple[str, ...]
    knapsack: _Knapsack
    pieces: dict[int, tuple[tuple[str, ...], ...]]  # nodes of its segments, from place to place
    everything: frozenset[str]
    trial: int = 0
    low: int = -1  # the last that did not fit
    high: int | None = None  # the first that did
    tried: int = 0
    nearest: tuple[int, int] = (0, -1)  # fewest bytes too many, and by which answer; -1: by none

    @property
    def done(self) -> bool:
        return self.low == len(self.knapsack) or (self.high is not None and self.high <= self.low + 1)

    @property
    def chosen(self) -> int:
        return self.nearest[1] if self.high is None else self.high

    def parts(self, number: int) -> list[frozenset[str]]:
        """Nodes of an answer's parts, the slowest part first."""
        if number < 0:
            return []
        if number == len(self.knapsack):
            return [self.everything]
        parts = sorted(self.knapsack.parts(number), key=self.knapsack.seconds_of, reverse=True)
        return [frozenset(name for cell in self.pieces[s][a:b] for name in cell) for s, a, b in parts]

    def begin(self, missing: int) -> None:
        self.nearest = missing, -1
        self.trial = int(np.searchsorted(self.knapsack.nbytes, missing))

    def learn(self, over: int) -> None:
        """Choose the next trial by the bytes that this one is over its limit: by estimates, then bisect."""
        count, trial = len(self.knapsack), self.trial
        if over < self.nearest[0]:  # recomputing all may need more than a part
            self.nearest = over, trial
        if over > 0:
            self.low = trial
        else:
            self.high = trial
        self.tried += 1
        if self.done:
            return
        first, last = self.low + 1, count if self.high is None else self.high - 1
        if trial == count or self.tried > _BY_ESTIMATE:
            guess = (first + last) // 2 if self.high is not None else max(count - 1, first)
        else:
            guess = int(np.searchsorted(self.knapsack.nbytes, self.knapsack.nbytes[trial] + over))
        self.trial = min(max(guess, first), last)


@dataclass(eq=False)
class _LeastRecomputation:
    compiler: Simulator
    capacity: Mapping[str, int]
    placement: Placement
    program: Program  # without recomputation
    peaks: dict[str, int]
    until: float
    short: list[_Short] = field(init=False)

    def __post_init__(self) -> None:
        program, homes = self.program, dict.fromkeys(segment.device for segment in self.program.segments)
        self.every = pieces_in_order(program.graph, program.segments)
        groups = [program.replicas.get(home, (home,)) for home in homes]
        self.short = [self._short_of(names) for names in groups if self._over(names, self.peaks) > 0]

    def run(self) -> tuple[Placement, dict[str, int]]:
        for short in self.short:
            short.begin(self._over(short.names, self.peaks))
        for _ in range(_ROUNDS):
            tried = [short.chosen if short.done else short.trial for short in self.short]
            peaks = self._tried([short.parts(n) for short, n in zip(self.short, tried, strict=True)])
            for short in self.short:
                if not short.done:
                    short.learn(self._over(short.names, peaks))
            if all(short.done for short in self.short) or self._over_time:
                break
        chosen = [short.parts(short.chosen) for short in self.short]
        if [short.chosen for short in self.short] != tried:
            peaks = self._tried(chosen)
        if self._over_time:
            return self._placed(chosen), peaks
        placement, peaks = self._without_needless(chosen, peaks)
        everything = self._placed([[short.everything] for short in self.short])
        if everything != placement and all(peaks[name] <= self.capacity[name] for name in peaks):
            # A device's last part may cost nothing, as its backward follows at once.
            other = self.compiler(everything)
            fits = all(other.peak_bytes[name] <= self.capacity[name] for name in peaks)
            if fits and other.iteration_s < self.compiler(placement).iteration_s:
                return everything, dict(other.peak_bytes)
        return placement, peaks

    def _without_needless(
        self, chosen: list[list[frozenset[str]]], peaks: dict[str, int]
    ) -> tuple[Placement, dict[str, int]]:
        """Keep parts for which there is room after all, as the knapsack only estimates bytes."""
        at = [0] * len(chosen)
        for _ in range(_SPARED):
            fewer = [[*own[:n], *own[n + 1 :]] for own, n in zip(chosen, at, strict=True)]
            if fewer == chosen or self._over_time:
                break
            lower = self._tried(fewer)
            for n, short in enumerate(self.short):
                if self._over(short.names, lower) <= 0 or at[n] >= len(chosen[n]):
                    chosen[n] = fewer[n]
                    peaks |= {name: lower[name] for name in short.names}
                else:
                    at[n] += 1
        return self._placed(chosen), peaks

    @property
    def _over_time(self) -> bool:
        return time.perf_counter() > self.until

    def _over(self, names: tuple[str, ...], peaks: Mapping[str, int]) -> int:
        return max(peaks.get(name, 0) - self.capacity[name] for name in names)

    def _placed(self, chosen: list[list[frozenset[str]]]) -> Placement:
        return replace(
            self.placement, recomputed=frozenset().union(*(part for own in chosen for part in own))
        )

    def _tried(self, chosen: list[list[frozenset[str]]]) -> dict[str, int]:
        return self.compiler.peak_bytes(self.compiler.whole_microbatches(self._placed(chosen)))

    def _short_of(self, names: tuple[str, ...]) -> _Short:
        graph, costs = self.program.graph, self.compiler.costs
        kind = self.compiler.cluster.device(names[0]).kind
        measured, overhead_s = costs.of(kind).nodes, costs.of(kind).instruction_s
        own = storage_bytes(graph)
        counts, flights, at_once = _turns(self.program, names[0])
        segments = [s for s in self.program.segments if s.device == names[0] and s.index in flights]
        most = max(3, _PLACES // max(len(segments), 1))
        options, cells = [], {}
        for segment in segments:
            pieces = self.every[segment.index]
            nbytes = SegmentBytes(graph, segment, pieces, own, most=most)
            between = [pieces[a:b] for a, b in zip(nbytes.places, nbytes.places[1:], strict=False)]
            cells[segment.index] = tuple(tuple(name for piece in each for name in piece) for each in between)
            forward_s = [sum(measured[name].forward_s for name in cell) for cell in cells[segment.index]]
            options.append(
                _options(
                    segment, nbytes, forward_s, flights[segment.index], counts[segment.index],
                    2 * overhead_s, segment.index in at_once,
                )
            )  # fmt: skip
        everything = frozenset(name for segment in segments for name in segment.nodes)
        return _Short(names, _Knapsack(options), cells, everything)


def _options(
    segment: Segment,
    nbytes: SegmentBytes,
    forward_s: list[float],
    in_flight: int,
    microbatches: int,
    overhead_s: float,
    at_once: bool,
) -> _SegmentOptions:
    """What each part of a segment frees and costs.

    Args:
        forward_s: of the nodes from place to place.
        at_once: its backward follows its forward at once, so its last part stays.
    """
    before_s = np.concatenate([[0.0], np.cumsum(forward_s)])
    seconds = microbatches * (before_s[None, :] - before_s[:, None] + overhead_s)
    freed = in_flight * (nbytes.saved[None, :] - nbytes.saved[:, None] - nbytes.handed)
    earlier = np.tril(np.ones_like(seconds, bool))
    if at_once:
        earlier[:, -1] = True
    seconds = np.where(earlier, np.inf, seconds)
    return _SegmentOptions(
        segment.index, np.where(earlier, 0.0, freed), seconds, nbytes.inside, in_flight * nbytes.loose,
        nbytes.saved, in_flight,
    )  # fmt: skip


def _turns(program: Program, device: str) -> tuple[Counter[int], dict[int, int], set[int]]:
    """A device's trained segments: micro-batches, the most in flight, and those with backward at once."""
    counts: Counter[int] = Counter()
    now: Counter[int] = Counter()
    flights: dict[int, int] = {}
    at_once: set[int] = set()
    previous: Forward | Backward | None = None
    for ins in program.instructions[device]:
        if isinstance(ins, Forward):
            counts[ins.segment] += 1
            now[ins.segment] += 1
        elif isinstance(ins, Backward) and ins.part != "weight":
            s = ins.segment
            follows = isinstance(previous, Forward) and previous.segment == s
            if s not in flights and follows:
                at_once.add(s)
            elif not follows:
                at_once.discard(s)
            flights[s] = max(flights.get(s, 1), now[s])
            now[s] -= 1
        previous = ins if isinstance(ins, Forward | Backward) else previous
    return counts, flights, {s for s in at_once if flights[s] == 1}


@dataclass(frozen=True, eq=False)
class _SegmentOptions:
    """What the parts of one segment free and cost; [K, K] from one place to a later one."""

    segment: int
    freed: Floats  # bytes at the peak
    seconds: Floats  # of an iteration
    inside: Floats  # bytes that return while one micro-batch's part is recomputed
    begins: Floats  # [K] bytes that stay at the peak if a part begins here after a kept one
    saved: Floats  # [K] bytes that one micro-batch keeps before a place, without recomputation
    in_flight: int  # micro-batches, at the peak


class _Knapsack:
    """The Pareto front of seconds and bytes freed at the peak.

    Bytes are estimates: those freed in all micro-batches in flight, less a recomputed part's inner bytes
    beyond those freed before it.
    """

    def __init__(self, options: Sequence[_SegmentOptions]) -> None:
        self.options = options
        step = max(sum(map(_most_freed, options)) / _BUDGETS, 1.0)
        inside = (each.inside[np.isfinite(each.seconds)].max(initial=0.0) for each in options)
        largest = max(inside, default=0.0)
        limits = [0.0, *(largest / 2**halvings for halvings in reversed(range(_LIMITS - 1)))]
        self._paths = [(limit, _Paths(options, limit, step)) for limit in limits]
        every = [
            (float(paths.end[budget]), limit - budget * step, way, budget)
            for way, (limit, paths) in enumerate(self._paths)
            for budget in np.flatnonzero(np.isfinite(paths.end))
            if budget * step > limit
        ]
        self._answers: list[tuple[int, int]] = []
        best: list[float] = []
        for _, more, way, budget in sorted(every):
            if not best or -more > best[-1]:
                best.append(-more)
                self._answers.append((way, int(budget)))
        self.nbytes: Floats = np.array(best)  # [A] of the answers, rising, as their seconds do

    def __len__(self) -> int:
        return len(self._answers)

    def parts(self, number: int) -> tuple[tuple[int, int, int], ...]:
        """The parts that an answer recomputes: (segment, place, later place)."""
        way, budget = self._answers[number]
        return self._paths[way][1].parts_of(budget)

    def seconds_of(self, part: tuple[int, int, int]) -> float:
        """Seconds of an iteration that a part costs."""
        segment, a, b = part
        return float(next(each.seconds[a, b] for each in self.options if each.segment == segment))


def _most_freed(options: _SegmentOptions) -> float:
    most = np.zeros(len(options.saved))
    for b in range(1, len(most)):
        ways = np.where(np.isfinite(options.seconds[:b, b]), most[:b] + options.freed[:b, b], 0.0)
        most[b] = max(most[b - 1], float(ways.max()))
    return float(most[-1])


class _Paths:
    """Shortest paths for every budget, of parts that raise the peak by at most `limit` bytes; from the end,
    as all after a part is freed when the backward recomputes it."""

    def __init__(self, options: Sequence[_SegmentOptions], limit: float, step: float) -> None:
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
        self, options: _SegmentOptions, limit: float, step: float, start: Floats, after: float
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
            left_over = budgets + self.begins[place + 1]
            begun = np.where(left_over < size, self.again[t - 1][np.minimum(left_over, size - 1)], np.inf)
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
