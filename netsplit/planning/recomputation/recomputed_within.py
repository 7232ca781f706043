"""A placement that does not fit, with as little recomputation as makes it fit.

    placement ──► simulated peaks ──fit──► as it is
                     │ bytes missing
                     ▼
    parts between narrow places ──► knapsack of each device ──► simulated peaks
                     ▲                                              │
                     └──── more bytes, or fewer ◄───────────────────┘   until the cheapest that fits is known

The knapsack (`knapsack`) reckons with estimates; which of its answers is taken is decided by the peaks.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from netsplit.graph.storage import storage_bytes
from netsplit.partition.base import Problem
from netsplit.placement.placement import Placement
from netsplit.planning.recomputation.knapsack import Frontier, SegmentOptions
from netsplit.program.instructions import Backward, Forward, Program, Segment
from netsplit.program.recomputation import SegmentBytes, pieces_in_order
from netsplit.simulate.simulator import Simulator

__all__ = ["nearest_recomputed", "recomputes"]

_ROUNDS = 8
_SPARED = 6  # parts of a device, at most, that are tried without
_BY_ESTIMATE = 3  # of them go by the knapsack's bytes
_PLACES = 48  # of a device's segments together, but three of each


def recomputes(problem: Problem) -> bool:
    """Whether it is left to planning what is recomputed."""
    simulator = problem.simulator
    if not isinstance(simulator, Simulator) or not simulator.training or problem.memory != "lifetimes":
        return False
    return simulator.schedule.recompute == "auto"


def nearest_recomputed(
    problem: Problem, placement: Placement, until: float = float("inf")
) -> tuple[Placement, dict[str, int]]:
    """The placement with recomputation of what its devices have no room for, at the fewest seconds, and its
    peaks; where nothing fits, what exceeds the capacities least.

    Returned as it is where it fits, or where there is no backward. The same placement has the same answer.

    Args:
        until: on ``time.perf_counter``; what is cheapest of all that fits is looked for no longer.
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
    """One device, or replicas of one, that has too little room; which of its knapsack's answers is tried.
    Answers are numbered by the seconds that they take. The number after the last is everything."""

    names: tuple[str, ...]
    frontier: Frontier
    pieces: dict[int, tuple[tuple[str, ...], ...]]  # nodes of its segments, from place to place
    everything: frozenset[str]
    trial: int = 0
    low: int = -1  # the last that did not fit
    high: int | None = None  # the first that did
    tried: int = 0
    nearest: tuple[int, int] = (0, -1)  # bytes too many, and of which answer that is the least; -1: of none

    @property
    def done(self) -> bool:
        return self.low == len(self.frontier) or (self.high is not None and self.high <= self.low + 1)

    @property
    def chosen(self) -> int:
        return self.nearest[1] if self.high is None else self.high

    def parts(self, number: int) -> list[frozenset[str]]:
        """Nodes of the parts of an answer, the one of the most seconds first."""
        if number < 0:
            return []
        if number == len(self.frontier):
            return [self.everything]
        parts = sorted(self.frontier.parts(number), key=self.frontier.seconds_of, reverse=True)
        return [frozenset(name for cell in self.pieces[s][a:b] for name in cell) for s, a, b in parts]

    def begin(self, missing: int) -> None:
        self.nearest = missing, -1
        self.trial = int(np.searchsorted(self.frontier.nbytes, missing))

    def learn(self, over: int) -> None:
        """From the bytes by which the trial exceeds the capacity: another between what fits and what does
        not, by the estimates at first, and in the middle then."""
        count, trial = len(self.frontier), self.trial
        if over < self.nearest[0]:  # everything may need more than a part, whose cuts hand on less
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
            guess = int(np.searchsorted(self.frontier.nbytes, self.frontier.nbytes[trial] + over))
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
            # The last part of all that a device computes may cost nothing, as its backward follows at once.
            other = self.compiler(everything)
            fits = all(other.peak_bytes[name] <= self.capacity[name] for name in peaks)
            if fits and other.iteration_s < self.compiler(placement).iteration_s:
                return everything, dict(other.peak_bytes)
        return placement, peaks

    def _without_needless(
        self, chosen: list[list[frozenset[str]]], peaks: dict[str, int]
    ) -> tuple[Placement, dict[str, int]]:
        """Drops parts for which there is room after all, as the knapsack's bytes are estimates."""
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
        return _Short(names, Frontier(options), cells, everything)


def _options(
    segment: Segment,
    nbytes: SegmentBytes,
    forward_s: list[float],
    in_flight: int,
    microbatches: int,
    overhead_s: float,
    at_once: bool,
) -> SegmentOptions:
    """What each part of a segment frees and costs.

    Args:
        forward_s: of the nodes from place to place.
        at_once: its backward always follows its forward at once, which leaves its last part as it is.
    """
    before_s = np.concatenate([[0.0], np.cumsum(forward_s)])
    seconds = microbatches * (before_s[None, :] - before_s[:, None] + overhead_s)
    freed = in_flight * (nbytes.saved[None, :] - nbytes.saved[:, None] - nbytes.handed)
    earlier = np.tril(np.ones_like(seconds, bool))
    if at_once:
        earlier[:, -1] = True
    seconds = np.where(earlier, np.inf, seconds)
    return SegmentOptions(
        segment.index, np.where(earlier, 0.0, freed), seconds, nbytes.inside, in_flight * nbytes.loose,
        nbytes.saved, in_flight,
    )  # fmt: skip


def _turns(program: Program, device: str) -> tuple[Counter[int], dict[int, int], set[int]]:
    """Micro-batches that a device computes of its trained segments, the most in flight at once,
    and those whose backward always follows at once."""
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
