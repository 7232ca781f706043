"""The tasks of one iteration as numbers: what a search looks at many times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from netsplit.program.schedules.base import Compute, Phase, Pipeline, TaskTimes

__all__ = ["TaskRows"]


@dataclass(frozen=True, eq=False)
class TaskRows:
    """Tasks with their devices, seconds, and what they wait for. Shapes: [n] by task."""

    tasks: list[Compute]
    devices: int
    device: list[int]
    seconds: list[float]
    before: list[list[tuple[int, float]]]  # what each waits for, and seconds until its result is there
    change: list[int]  # of the (segment, micro-batch) pairs that its device keeps
    limit: list[int]  # [devices] of those

    @classmethod
    def of(
        cls, pipeline: Pipeline, order: Sequence[Compute], times: TaskTimes, limits: Mapping[str, int]
    ) -> TaskRows:
        """Of the tasks of an order, numbered as it has them."""
        tasks = list(order)
        number = {task: n for n, task in enumerate(tasks)}
        names = pipeline.names
        rank = {name: d for d, name in enumerate(names)}
        homes = [pipeline.on(s, i) for _, s, i in tasks]
        waits = _Waits(pipeline, times, number)
        before = [waits.of(task) for task in tasks]
        rows: dict[tuple[Phase, int, str], list[int]] = {}
        for task, home in sorted(zip(tasks, homes, strict=True), key=lambda each: each[0][2]):
            phase: Phase = "backward" if task[0] == "input" else task[0]
            rows.setdefault((phase, task[1], home), []).append(number[task])
        for row in rows.values():  # micro-batches of a segment follow one another
            for a, b in pairwise(row):
                before[b].append((a, 0.0))
        ends = {"forward": 1, "backward": -1, "weight": -1, "input": 0}
        return cls(
            tasks,
            len(names),
            [rank[home] for home in homes],
            [times.computing[phase, s, home] for (phase, s, _), home in zip(tasks, homes, strict=True)],
            before,
            [ends[phase] * (s in pipeline.trained) for phase, s, _ in tasks],
            [limits[name] for name in names],
        )

    def within(self, order: Sequence[int]) -> bool:
        """Whether no device ever keeps more than its limit."""
        kept = [0] * self.devices
        for t in order:
            d = self.device[t]
            kept[d] += self.change[t]
            if kept[d] > self.limit[d]:
                return False
        return True

    def starts(self, order: Sequence[int]) -> tuple[float, list[float]]:
        """The makespan, and [n] when each task begins; the order must put tasks behind what they wait for."""
        free = [0.0] * self.devices
        start = [0.0] * len(order)
        end = [0.0] * len(order)
        for t in order:
            d = self.device[t]
            at = free[d]
            for u, delay in self.before[t]:
                ready = end[u] + delay
                if ready > at:
                    at = ready
            start[t] = at
            free[d] = end[t] = at + self.seconds[t]
        return max(free, default=0.0), start

    def by_start(self, order: Sequence[int], start: Sequence[float]) -> list[int]:
        """The same lists of the devices, in the order of time."""
        return sorted(order, key=start.__getitem__)

    def compute(self, order: Sequence[int]) -> list[Compute]:
        return [self.tasks[t] for t in order]


class _Waits:
    """What a task waits for, and how long after it its result is there."""

    def __init__(self, pipeline: Pipeline, times: TaskTimes, number: Mapping[Compute, int]) -> None:
        self.pipeline, self.times, self.number = pipeline, times, number
        self.readers = [[v for v in each if v in pipeline.trained] for each in pipeline.readers()]

    def of(self, task: Compute) -> list[tuple[int, float]]:
        phase, s, i = task
        pipeline, number = self.pipeline, self.number
        here = pipeline.on(s, i)
        if phase == "weight":
            return [(number["input", s, i], 0.0)]
        if phase == "forward":
            return [
                (number["forward", u, i], self.times.moving.get((u, s, pipeline.on(u, i), here), 0.0))
                for u in pipeline.feeders[s]
            ]
        waits = [(number["forward", s, i], 0.0)]
        for v in self.readers[s]:
            back = number.get(("input", v, i), -1)
            back = number["backward", v, i] if back < 0 else back
            waits.append((back, self.times.returning.get((s, v, here, pipeline.on(v, i)), 0.0)))
        return waits
