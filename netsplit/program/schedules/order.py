"""List scheduling of a pipeline: devices take, whenever they are free, the most urgent task they may begin.

Forward takes ten units of time, backward twenty and each of its parts eleven, as two parts go over some
tensors twice; transfers take none. What comes out is an order only: real durations differ, but the order of a
device's tasks is what makes a schedule.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from netsplit.program.schedules.base import Compute, Phase, Pipeline

__all__ = ["Policy", "list_schedule", "makespan"]

_UNITS: dict[Phase, int] = {"forward": 10, "backward": 20, "input": 11, "weight": 11}


@dataclass(frozen=True)
class Policy:
    """Which of the tasks that are ready a device begins: the one with the least `urgency` it may begin.

    A forward may begin as long as fewer than `in_flight[s]` micro-batches are between the forward and the
    (input) backward of its segment on that device, fewer than `on_device` between those of any of its
    segments, and fewer than `kept` between forward and weight backward of its segment.
    """

    urgency: Callable[[Compute], tuple[int, ...]]
    in_flight: Sequence[int]
    on_device: Mapping[str, int] | None = None
    kept: int | None = None
    split: frozenset[int] = frozenset()
    """Micro-batches whose backward is in two parts."""
    waits_for: Callable[[int], int] = field(default=lambda i: -1)
    """Forward of micro-batch i waits for all backwards on its device up to this micro-batch."""


def list_schedule(pipeline: Pipeline, microbatches: int, policy: Policy) -> list[Compute]:
    """All tasks in the order in which they begin.

    Where nothing may begin though something is ready (limits too narrow for this graph), the forward of
    the earliest micro-batch begins nevertheless: every schedule completes.
    """
    return _ListSchedule(pipeline, microbatches, policy).run()


def makespan(pipeline: Pipeline, microbatches: int, policy: Policy) -> int:
    """Units of time until the last task is done."""
    schedule = _ListSchedule(pipeline, microbatches, policy)
    schedule.run()
    return schedule.now


class _ListSchedule:
    def __init__(self, pipeline: Pipeline, microbatches: int, policy: Policy) -> None:
        self.pipeline = pipeline
        self.microbatches = microbatches
        self.policy = policy
        self.names = pipeline.names
        self.readers = [[v for v in each if v in pipeline.trained] for each in pipeline.readers()]
        self.missing = self._dependencies()
        self.ready: dict[str, set[Compute]] = {name: set() for name in self.names}
        self.idle = dict.fromkeys(self.names, True)
        self.running: list[tuple[int, int, Compute]] = []  # end, rank of the device, task
        self.open: Counter[tuple[int, str]] = Counter()  # forwards without (input) backward
        self.kept: Counter[tuple[int, str]] = Counter()  # forwards without weight backward
        self.left = self._backwards_left()
        self.done: list[Compute] = []
        self.now = 0

    def run(self) -> list[Compute]:
        total = len(self.missing)
        for task, count in self.missing.items():
            if count == 0:
                self._offer(task)
        while len(self.done) < total or self.running:
            if not self._begin_all() and not self.running:
                waiting = (task for name in self.names for task in self.ready[name])
                self._begin(min(waiting, key=lambda task: (task[2], task[1])))
            self.now = self.running[0][0]
            while self.running and self.running[0][0] == self.now:
                self._end(heapq.heappop(self.running)[2])
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
        if phase != "forward":
            return True
        policy = self.policy
        if s not in self.pipeline.trained:
            return True
        if self.open[s, name] >= policy.in_flight[s]:
            return False
        if policy.kept is not None and self.kept[s, name] >= policy.kept:
            return False
        if policy.on_device is not None:
            held = sum(count for (_, where), count in self.open.items() if where == name)
            if held >= policy.on_device[name]:
                return False
        barrier = policy.waits_for(i)
        return not any(self.left[name, j] for j in range(barrier + 1))

    def _begin(self, task: Compute) -> None:
        phase, s, i = task
        name = self.pipeline.on(s, i)
        self.ready[name].discard(task)
        self.idle[name] = False
        if phase == "forward" and s in self.pipeline.trained:
            self.open[s, name] += 1
            self.kept[s, name] += 1
        self.done.append(task)
        heapq.heappush(self.running, (self.now + _UNITS[phase], self.names.index(name), task))

    def _end(self, task: Compute) -> None:
        phase, s, i = task
        name = self.pipeline.on(s, i)
        self.idle[name] = True
        if phase in ("backward", "input"):
            self.open[s, name] -= 1
        if phase in ("backward", "weight"):
            self.kept[s, name] -= 1
            self.left[name, i] -= 1
        for follower in self._followers(task):
            self.missing[follower] -= 1
            if self.missing[follower] == 0:
                self._offer(follower)

    def _offer(self, task: Compute) -> None:
        self.ready[self.pipeline.on(task[1], task[2])].add(task)

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
