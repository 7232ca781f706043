"""List scheduling of a pipeline: devices take, whenever they are free, the most urgent task they may begin.

Without durations, a forward takes ten units of time, a backward twenty and each of its parts eleven, as two
parts read some tensors twice; transfers take none. The result is only an order, which makes a schedule.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TypeAlias, get_args

from netsplit.program.schedules.base import Compute, Phase, Pipeline, TaskTimes

__all__ = [
    "EQUAL",
    "TASKS_OF_A_CELL",
    "UNITS",
    "Policy",
    "Urgency",
    "list_schedule",
    "timed_schedule",
    "tries_of",
]

MOST_TASKS = 500_000
"""Limit on tasks scheduled in all tries for one schedule: counted rather than timed."""
TASKS_OF_A_CELL = 3  # at most: forward and the two parts of a backward
FEWEST = 3  # orders, however many tasks there are

UNITS: dict[Phase, float] = {"forward": 10, "backward": 20, "input": 11, "weight": 11}
EQUAL: dict[Phase, float] = {"forward": 1, "backward": 2, "input": 1, "weight": 1}
"""Units of the zero-bubble paper."""


def tries_of(tasks: int) -> int:
    """How many orders of that many tasks may be tried for one schedule."""
    return max(MOST_TASKS // max(tasks, 1), FEWEST)


Urgency: TypeAlias = Callable[[Compute], tuple[float, ...]]


@dataclass(frozen=True)
class Policy:
    """Which of the tasks that are ready a device begins: the one with the least `urgency` it may begin.

    A forward may begin as long as fewer than `in_flight[s]` micro-batches are between the forward and the
    (input) backward of its segment on that device, fewer than `on_device` between those of any of its
    segments, fewer than `kept` between forward and weight backward of its segment, and fewer than
    `kept_on_device` between those of any of its segments.
    """

    urgency: Urgency
    in_flight: Sequence[int] | None = None
    on_device: Mapping[str, int] | None = None
    kept: int | None = None
    kept_on_device: Mapping[str, int] | None = None
    split: frozenset[int] = frozenset()
    """Micro-batches with split backwards."""
    waits_for: Callable[[int], int] = field(default=lambda i: -1)
    """Forward of micro-batch i waits for all backwards on its device up to this micro-batch."""
    turns: Mapping[Phase, Urgency] = field(default_factory=dict)
    """Phases whose tasks every device begins in this order, whichever of them are ready. It must put a task
    behind those it depends on."""


def list_schedule(
    pipeline: Pipeline, microbatches: int, policy: Policy, durations: TaskTimes | None = None
) -> list[Compute]:
    """All tasks in the order in which they begin.

    Where nothing may begin though something is ready (limits too narrow for this graph), the forward of
    the earliest micro-batch begins nevertheless: every schedule completes.
    """
    return timed_schedule(pipeline, microbatches, policy, durations)[1]


def timed_schedule(
    pipeline: Pipeline, microbatches: int, policy: Policy, durations: TaskTimes | None = None
) -> tuple[float, list[Compute]]:
    """The makespan, and `list_schedule`."""
    schedule = _ListSchedule(pipeline, microbatches, policy, durations)
    order = schedule.run()
    return schedule.now, order


class _ListSchedule:
    """Tasks are numbers (`TaskLinks`); lists without another shape are by them.

    What is ready is kept by rank, the most urgent first: forwards that limits hold back apart from the rest,
    so that a device that is full looks at none of them.
    """

    def __init__(
        self, pipeline: Pipeline, microbatches: int, policy: Policy, durations: TaskTimes | None
    ) -> None:
        self.m = microbatches
        self.links = links = _links(replace(pipeline, times=None), microbatches)
        self.split = [i in policy.split for i in range(microbatches)]
        self.tasks = links.tasks(self.split)
        self.missing = links.missing(self.split)
        existing = [t for t, task in enumerate(self.tasks) if task is not None]
        self.total = len(existing)
        self.urgent = sorted(existing, key=lambda t: policy.urgency(self.tasks[t]))  # type: ignore[arg-type]
        self.rank = [0] * len(self.tasks)
        for rank, t in enumerate(self.urgent):
            self.rank[t] = rank
        self.seconds = links.seconds(self.tasks, durations or TaskTimes.in_units(pipeline, UNITS))
        self.delays = _delays(links, durations)
        self.forwards: list[list[int]] = [[] for _ in links.names]  # of trained segments: ranks
        self.others: list[list[int]] = [[] for _ in links.names]
        self.idle = [True] * len(links.names)
        self.touched = set(range(len(links.names)))  # devices that may have become able to begin a task
        self.coming: list[tuple[float, int, bool]] = []
        """Time, task; whether it ends, or the result that was under way to it arrives."""
        self.limits = _InFlight(links, policy)
        self.turns = self._turns(policy, existing)
        self.begun = [False] * len(self.tasks)
        self.done: list[Compute] = []
        self.now = 0.0
        for t in existing:
            if self.missing[t] == 0:
                self._offer(t)

    def run(self) -> list[Compute]:
        coming, pop = self.coming, heapq.heappop
        while len(self.done) < self.total or coming:
            if not self._begin_all() and not coming:
                waiting = [self.urgent[rank] for ready in self.forwards + self.others for rank in ready]
                self._begin(min(waiting, key=lambda t: (t % self.m, t // self.m % self.links.segments, t)))
            now = self.now = coming[0][0]
            while coming and coming[0][0] == now:
                _, t, ends = pop(coming)
                if ends:
                    self._end(t)
                else:
                    self._arrive(t)
        return self.done

    def _begin_all(self) -> bool:
        begun = False
        for device in sorted(self.touched):
            if self.idle[device] and (t := self._most_urgent(device)) is not None:
                self._begin(t)
                begun = True
        self.touched.clear()
        return begun

    def _most_urgent(self, device: int) -> int | None:
        urgent, limits = self.urgent, self.limits
        other = next((rank for rank in self.others[device] if self._in_turn(urgent[rank], device)), None)
        if not limits.full(device):
            for rank in self.forwards[device]:
                if other is not None and rank > other:
                    break
                t = urgent[rank]
                if self._in_turn(t, device) and limits.allow(t):
                    return t
        return None if other is None else urgent[other]

    def _in_turn(self, t: int, device: int) -> bool:
        if not self.turns:
            return True
        waiting = self.turns.get((t // self.links.cells, device))
        if waiting is None:
            return True
        while self.begun[waiting[-1]]:
            waiting.pop()
        return waiting[-1] == t

    def _ready(self, t: int, device: int) -> list[int]:
        limited = t < self.links.cells and self.links.trained[t]
        return self.forwards[device] if limited else self.others[device]

    def _begin(self, t: int) -> None:
        device = self.links.device[t % self.links.cells]
        ready = self._ready(t, device)
        del ready[bisect_left(ready, self.rank[t])]
        self.idle[device] = False
        if t < self.links.cells and self.links.trained[t]:
            self.limits.forward_begins(t)
        self.begun[t] = True
        self.done.append(self.tasks[t])  # type: ignore[arg-type]
        heapq.heappush(self.coming, (self.now + self.seconds[t], t, True))

    def _end(self, t: int) -> None:
        links, cells = self.links, self.links.cells
        cell = t % cells
        device = links.device[cell]
        self.idle[device] = True
        self.touched.add(device)
        if t >= cells:
            whole = not self.split[cell % self.m]
            self.limits.backward_ends(cell, t < 2 * cells, whole or t >= 2 * cells)
            for follower in links.weights_after(t, self.split):
                self._arrive(follower)
        if t < 2 * cells:
            delays = self.delays[t]
            for n, follower in enumerate(links.followers[t]):
                if delays and delays[n] > 0:
                    heapq.heappush(self.coming, (self.now + delays[n], follower, False))
                else:
                    self._arrive(follower)

    def _arrive(self, t: int) -> None:
        self.missing[t] -= 1
        if self.missing[t] == 0:
            self._offer(t)

    def _offer(self, t: int) -> None:
        device = self.links.device[t % self.links.cells]
        insort(self._ready(t, device), self.rank[t])
        self.touched.add(device)

    def _turns(self, policy: Policy, existing: Sequence[int]) -> dict[tuple[int, int], list[int]]:
        turns: dict[tuple[int, int], list[int]] = {}
        for phase, turn in policy.turns.items():
            own = [t for t in existing if self.tasks[t][0] == phase]  # type: ignore[index]
            for t in sorted(own, key=lambda t: (turn(self.tasks[t]), t), reverse=True):  # type: ignore[arg-type]
                key = t // self.links.cells, self.links.device[t % self.links.cells]
                turns.setdefault(key, []).append(t)
        return turns


class _InFlight:
    """Micro-batches in flight on devices, and whether another forward may begin."""

    def __init__(self, links: TaskLinks, policy: Policy) -> None:
        self.links, self.policy = links, policy
        devices, segments = len(links.names), links.segments
        self.open = [[0] * devices for _ in range(segments)]  # forwards without (input) backward
        self.kept = [[0] * devices for _ in range(segments)]  # forwards without weight backward
        self.open_on, self.kept_on = [0] * devices, [0] * devices  # of any segment
        self.most_open_on = [policy.on_device[name] for name in links.names] if policy.on_device else None
        self.most_kept_on = (
            [policy.kept_on_device[name] for name in links.names] if policy.kept_on_device else None
        )
        self.left = [[0] * links.microbatches for _ in range(devices)]  # backwards to come
        for cell, trained in enumerate(links.trained):
            self.left[links.device[cell]][cell % links.microbatches] += trained

    def full(self, device: int) -> bool:
        """Whether no forward may begin on a device."""
        if self.most_open_on is not None and self.open_on[device] >= self.most_open_on[device]:
            return True
        return self.most_kept_on is not None and self.kept_on[device] >= self.most_kept_on[device]

    def allow(self, cell: int) -> bool:
        """Whether this forward may begin, on a device that is not full."""
        policy, device = self.policy, self.links.device[cell]
        s, i = divmod(cell, self.links.microbatches)
        if policy.in_flight is not None and self.open[s][device] >= policy.in_flight[s]:
            return False
        if policy.kept is not None and self.kept[s][device] >= policy.kept:
            return False
        last = policy.waits_for(i)
        return last < 0 or not any(self.left[device][: last + 1])

    def forward_begins(self, cell: int) -> None:
        self._count(cell, 1, True, True)

    def backward_ends(self, cell: int, gives_input: bool, gives_weight: bool) -> None:
        self._count(cell, -1, gives_input, gives_weight)
        if gives_weight:
            self.left[self.links.device[cell]][cell % self.links.microbatches] -= 1

    def _count(self, cell: int, change: int, of_open: bool, of_kept: bool) -> None:
        s, device = cell // self.links.microbatches, self.links.device[cell]
        if of_open:
            self.open[s][device] += change
            self.open_on[device] += change
        if of_kept:
            self.kept[s][device] += change
            self.kept_on[device] += change


@dataclass(frozen=True, eq=False)
class TaskLinks:
    """Dependencies between tasks in pipelines of one shape, however backwards are split.

    A cell is a micro-batch of a segment, `s * m + i`. Its forward has the cell's number, its (input) backward
    as many more as there are cells, its weight backward twice as many more.
    """

    names: tuple[str, ...]  # of devices
    microbatches: int
    segments: int
    cells: int
    device: list[int]  # of each cell
    trained: list[bool]  # cells with a backward
    following: list[int]  # the segment's next cell on the same device; -1: none
    followers: list[list[int]]  # of each forward and (input) backward, but for weight backwards

    @cached_property
    def named(self) -> dict[Phase, list[Compute]]:
        """Tasks of all cells by phase; shared by all orders."""
        cells = [divmod(cell, self.microbatches) for cell in range(self.cells)]
        return {phase: [(phase, s, i) for s, i in cells] for phase in get_args(Phase)}

    @cached_property
    def _waiting(self) -> list[int]:
        """Number of tasks each forward and (input) backward waits for."""
        missing = [0] * (2 * self.cells)
        for following in self.followers:
            for follower in following:
                missing[follower] += 1
        return missing

    def tasks(self, split: Sequence[bool]) -> list[Compute | None]:
        """Tasks by number; None where a task does not exist under this `split`."""
        m, named, trained = self.microbatches, self.named, self.trained
        cells = range(self.cells)
        parts, wholes, weights = named["input"], named["backward"], named["weight"]
        backs = [(parts[c] if split[c % m] else wholes[c]) if trained[c] else None for c in cells]
        put_off = [weights[c] if trained[c] and split[c % m] else None for c in cells]
        return [*named["forward"], *backs, *put_off]

    def missing(self, split: Sequence[bool]) -> list[int]:
        missing = [*self._waiting, *[0] * self.cells]
        for t in range(self.cells, 3 * self.cells) if any(split) else ():
            for follower in self.weights_after(t, split):
                missing[follower] += 1
        return missing

    def weights_after(self, t: int, split: Sequence[bool]) -> tuple[int, ...]:
        """Weight backwards that wait for each backward."""
        cell, cells = t % self.cells, self.cells
        if t < cells or not self.trained[cell] or not split[cell % self.microbatches]:
            return ()
        if t < 2 * cells:
            return (cell + 2 * cells,)
        cell = self.following[cell]
        while cell >= 0 and not split[cell % self.microbatches]:
            cell = self.following[cell]
        return () if cell < 0 else (cell + 2 * cells,)

    def seconds(self, tasks: Sequence[Compute | None], times: TaskTimes) -> list[float]:
        """Seconds of each task; 0 for missing ones."""
        names, computing = self.names, times.computing
        homes = [names[d] for d in self.device] * 3
        pairs = zip(tasks, homes, strict=True)
        return [0.0 if task is None else computing[task[0], task[1], home] for task, home in pairs]


@lru_cache(maxsize=4)
def _delays(links: TaskLinks, times: TaskTimes | None) -> list[list[float]]:
    """Delay of each task's result to its `followers`; empty: none."""
    if times is None or not (times.moving or times.returning):
        return [[]] * len(links.followers)

    def delay(t: int, follower: int) -> float:
        source, target = t % links.cells, follower % links.cells
        s, v = source // links.microbatches, target // links.microbatches
        p, q = links.names[links.device[source]], links.names[links.device[target]]
        forward = t < links.cells
        return times.moving.get((s, v, p, q), 0.0) if forward else times.returning.get((v, s, q, p), 0.0)

    return [[delay(t, f) for f in each] for t, each in enumerate(links.followers)]


@lru_cache(maxsize=16)
def _links(pipeline: Pipeline, m: int) -> TaskLinks:
    """Cached, as one pipeline is scheduled in many ways."""
    names = tuple(pipeline.names)
    rank = {name: d for d, name in enumerate(names)}
    readers, cells, trained = pipeline.readers(), len(pipeline) * m, pipeline.trained
    device = [rank[pipeline.on(s, i)] for s in range(len(pipeline)) for i in range(m)]
    following = [-1] * cells
    for s in range(len(pipeline)):
        last: dict[int, int] = {}
        for cell in range(s * m, s * m + m):
            if device[cell] in last:
                following[last[device[cell]]] = cell
            last[device[cell]] = cell
    followers: list[list[int]] = [[] for _ in range(2 * cells)]
    for cell in range(cells):
        s, i = divmod(cell, m)
        after = [following[cell]] if following[cell] >= 0 else []
        followers[cell] = after + [v * m + i for v in readers[s]]
        if s in trained:
            followers[cell].append(cells + cell)
            back = [u * m + i for u in pipeline.feeders[s] if u in trained]
            followers[cells + cell] = [cells + each for each in after + back]
    own = [s in trained for s in range(len(pipeline)) for _ in range(m)]
    return TaskLinks(names, m, len(pipeline), cells, device, own, following, followers)
