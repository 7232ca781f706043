"""List scheduling of a pipeline: devices take, whenever they are free, the most urgent task they may begin.

Where no durations are given, forward takes ten units of time, backward twenty and each of its parts eleven,
as two parts go over some tensors twice; transfers take none. What comes out is an order only: real durations
differ, but the order of a device's tasks is what makes a schedule.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from netsplit.program.schedules.base import Compute, Phase, Pipeline, TaskTimes

__all__ = ["EQUAL", "UNITS", "Policy", "list_schedule", "makespan"]

UNITS: dict[Phase, float] = {"forward": 10, "backward": 20, "input": 11, "weight": 11}
EQUAL: dict[Phase, float] = {"forward": 1, "backward": 2, "input": 1, "weight": 1}
"""The units that zero-bubble schedules are published for."""


@dataclass(frozen=True)
class Policy:
    """Which of the tasks that are ready a device begins: the one with the least `urgency` it may begin.

    A forward may begin as long as fewer than `in_flight[s]` micro-batches are between the forward and the
    (input) backward of its segment on that device, fewer than `on_device` between those of any of its
    segments, fewer than `kept` between forward and weight backward of its segment, and fewer than
    `kept_on_device` between those of any of its segments.
    """

    urgency: Callable[[Compute], tuple[float, ...]]
    in_flight: Sequence[int] | None = None
    on_device: Mapping[str, int] | None = None
    kept: int | None = None
    kept_on_device: Mapping[str, int] | None = None
    split: frozenset[int] = frozenset()
    """Micro-batches whose backward is in two parts."""
    waits_for: Callable[[int], int] = field(default=lambda i: -1)
    """Forward of micro-batch i waits for all backwards on its device up to this micro-batch."""
    turns: Mapping[Phase, Callable[[Compute], tuple[float, ...]]] = field(default_factory=dict)
    """Phases whose tasks every device begins in this order, whichever of them are ready. It must put a task
    behind those it depends on."""


def list_schedule(
    pipeline: Pipeline, microbatches: int, policy: Policy, durations: TaskTimes | None = None
) -> list[Compute]:
    """All tasks in the order in which they begin.

    Where nothing may begin though something is ready (limits too narrow for this graph), the forward of
    the earliest micro-batch begins nevertheless: every schedule completes.
    """
    return _ListSchedule(pipeline, microbatches, policy, durations).run()


def makespan(
    pipeline: Pipeline, microbatches: int, policy: Policy, durations: TaskTimes | None = None
) -> float:
    """Time until the last task is done."""
    schedule = _ListSchedule(pipeline, microbatches, policy, durations)
    schedule.run()
    return schedule.now


class _ListSchedule:
    def __init__(
        self, pipeline: Pipeline, microbatches: int, policy: Policy, durations: TaskTimes | None
    ) -> None:
        self.pipeline = pipeline
        self.microbatches = microbatches
        self.policy = policy
        self.durations = durations or TaskTimes.in_units(pipeline, UNITS)
        self.names = pipeline.names
        self.rank = {name: rank for rank, name in enumerate(self.names)}
        self.missing = self._dependencies()
        self.ready: dict[str, set[Compute]] = {name: set() for name in self.names}
        self.idle = dict.fromkeys(self.names, True)
        self.coming: list[tuple[float, int, Compute, Compute | None]] = []
        """Time, rank of the device, task that ends; or one whose result then arrives for another."""
        self.open: Counter[tuple[int, str]] = Counter()  # forwards without (input) backward
        self.kept: Counter[tuple[int, str]] = Counter()  # forwards without weight backward
        self.on_device: Counter[str] = Counter()  # of `open`
        self.kept_on_device: Counter[str] = Counter()
        self.left = self._backwards_left()
        self.turns = self._turns()
        self.begun: set[Compute] = set()
        self.done: list[Compute] = []
        self.now = 0.0

    def run(self) -> list[Compute]:
        total = len(self.missing)
        for task, count in self.missing.items():
            if count == 0:
                self._offer(task)
        while len(self.done) < total or self.coming:
            if not self._begin_all() and not self.coming:
                waiting = (task for name in self.names for task in self.ready[name])
                self._begin(min(waiting, key=lambda task: (task[2], task[1])))
            self.now = self.coming[0][0]
            while self.coming and self.coming[0][0] == self.now:
                _, _, task, follower = heapq.heappop(self.coming)
                if follower is None:
                    self._end(task)
                else:
                    self._arrive(follower)
        return self.done

    def _begin_all(self) -> bool:
        begun = False
        for name in self.names:
            if self.idle[name]:
                allowed = [task for task in self.ready[name] if self._may_begin(task, name)]
                if allowed:
                    self._begin(min(allowed, key=self.policy.urgency))
                    begun = True
        return begun

    def _may_begin(self, task: Compute, name: str) -> bool:
        phase, s, i = task
        policy = self.policy
        if phase in policy.turns and self._next_turn(phase, name) != task:
            return False
        if phase != "forward" or s not in self.pipeline.trained:
            return True
        if policy.in_flight is not None and self.open[s, name] >= policy.in_flight[s]:
            return False
        if policy.kept is not None and self.kept[s, name] >= policy.kept:
            return False
        if policy.on_device is not None and self.on_device[name] >= policy.on_device[name]:
            return False
        if policy.kept_on_device is not None and self.kept_on_device[name] >= policy.kept_on_device[name]:
            return False
        barrier = policy.waits_for(i)
        return not any(self.left[name, j] for j in range(barrier + 1))

    def _next_turn(self, phase: Phase, name: str) -> Compute:
        waiting = self.turns[phase, name]
        while waiting[0] in self.begun:
            waiting.popleft()
        return waiting[0]

    def _begin(self, task: Compute) -> None:
        phase, s, i = task
        name = self.pipeline.on(s, i)
        self.ready[name].discard(task)
        self.idle[name] = False
        if phase == "forward" and s in self.pipeline.trained:
            self._count(s, name, 1, self.open, self.on_device)
            self._count(s, name, 1, self.kept, self.kept_on_device)
        self.begun.add(task)
        self.done.append(task)
        end = self.now + self.durations.computing[phase, s, name]
        heapq.heappush(self.coming, (end, self.rank[name], task, None))

    def _end(self, task: Compute) -> None:
        phase, s, i = task
        name = self.pipeline.on(s, i)
        self.idle[name] = True
        if phase in ("backward", "input"):
            self._count(s, name, -1, self.open, self.on_device)
        if phase in ("backward", "weight"):
            self._count(s, name, -1, self.kept, self.kept_on_device)
            self.left[name, i] -= 1
        for follower in self._followers(task):
            delay = self._delay(task, follower)
            if delay > 0:
                heapq.heappush(self.coming, (self.now + delay, self.rank[name], task, follower))
            else:
                self._arrive(follower)

    def _arrive(self, follower: Compute) -> None:
        self.missing[follower] -= 1
        if self.missing[follower] == 0:
            self._offer(follower)

    def _delay(self, task: Compute, follower: Compute) -> float:
        (phase, s, i), (_, t, j) = task, follower
        if s == t:
            return 0.0
        here, there = self.pipeline.on(s, i), self.pipeline.on(t, j)
        if phase == "forward":
            return self.durations.moving.get((s, t, here, there), 0.0)
        return self.durations.returning.get((t, s, there, here), 0.0)

    @staticmethod
    def _count(s: int, name: str, change: int, of: Counter[tuple[int, str]], on_device: Counter[str]) -> None:
        of[s, name] += change
        on_device[name] += change

    def _offer(self, task: Compute) -> None:
        self.ready[self.pipeline.on(task[1], task[2])].add(task)

    def _turns(self) -> dict[tuple[Phase, str], deque[Compute]]:
        turns: dict[tuple[Phase, str], deque[Compute]] = {}
        for phase, turn in self.policy.turns.items():
            for task in sorted((task for task in self.missing if task[0] == phase), key=turn):
                turns.setdefault((phase, self.pipeline.on(task[1], task[2])), deque()).append(task)
        return turns

    def _back(self, i: int) -> Phase:
        """The part of micro-batch i's backward that other segments wait for."""
        return "input" if i in self.policy.split else "backward"

    def _followers(self, task: Compute) -> list[Compute]:
        """Tasks that wait for this one, once each for every reason."""
        phase, s, i = task
        pipeline = self.pipeline
        following = pipeline.following(s, i, self.microbatches)
        tasks: list[Compute] = []
        if phase == "forward":
            tasks += [("forward", s, j) for j in islice(following, 1)]
            tasks += [("forward", v, i) for v in self._all_readers[s]]
            tasks += [(self._back(i), s, i)] if s in pipeline.trained else []
        elif phase == "weight":
            tasks += [("weight", s, j) for j in islice((j for j in following if j in self.policy.split), 1)]
        else:
            tasks += [(self._back(j), s, j) for j in islice(following, 1)]
            tasks += [(phase, u, i) for u in pipeline.feeders[s] if u in pipeline.trained]
            tasks += [("weight", s, i)] if phase == "input" else []
        return tasks

    def _dependencies(self) -> dict[Compute, int]:
        """How many tasks each waits for."""
        self._all_readers = self.pipeline.readers()
        tasks: list[Compute] = []
        for s in range(len(self.pipeline)):
            for i in range(self.microbatches):
                tasks.append(("forward", s, i))
                if s in self.pipeline.trained:
                    tasks.append((self._back(i), s, i))
                    tasks += [("weight", s, i)] if i in self.policy.split else []
        missing = dict.fromkeys(tasks, 0)
        for task in tasks:
            for follower in self._followers(task):
                missing[follower] += 1
        return missing

    def _backwards_left(self) -> Counter[tuple[str, int]]:
        left: Counter[tuple[str, int]] = Counter()
        for s in self.pipeline.trained:
            left.update((self.pipeline.on(s, i), i) for i in range(self.microbatches))
        return left
