"""Orders as one list of tasks a device: when each task begins, and the global order that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from netsplit.program.schedules.base import Compute, Pipeline, TaskTimes

__all__ = ["Begun", "begin_all", "by_device", "merged_lists"]


@dataclass(frozen=True)
class Begun:
    """When every task of some devices' lists begins; all within `makespan`."""

    at: dict[Compute, float]
    makespan: float

    def order(self) -> list[Compute]:
        """By beginning; of those that begin at once, what was begun first comes first."""
        return sorted(self.at, key=self.at.__getitem__)


def by_device(pipeline: Pipeline, order: Sequence[Compute]) -> dict[str, list[Compute]]:
    """Every device's part of a global order."""
    lists: dict[str, list[Compute]] = {name: [] for name in pipeline.names}
    for task in order:
        lists[pipeline.on(task[1], task[2])].append(task)
    return lists


def begin_all(
    pipeline: Pipeline, lists: Mapping[str, Sequence[Compute]], durations: TaskTimes
) -> Begun | None:
    """Every task as early as its device's list and what it waits for allow; None: lists wait in a circle."""
    readers = [[v for v in each if v in pipeline.trained] for each in pipeline.readers()]
    split = {(s, i) for tasks in lists.values() for phase, s, i in tasks if phase == "input"}
    end: dict[Compute, float] = {}
    at: dict[Compute, float] = {}
    clock = dict.fromkeys(lists, 0.0)
    place = dict.fromkeys(lists, 0)
    moved = True
    while moved:
        moved = False
        for name, tasks in lists.items():
            while place[name] < len(tasks):
                task = tasks[place[name]]
                start = _earliest(pipeline, readers, split, durations, end, task)
                if start is None:
                    break
                at[task] = start = max(start, clock[name])
                end[task] = clock[name] = start + durations.computing[task[0], task[1], name]
                place[name] += 1
                moved = True
    if any(place[name] < len(tasks) for name, tasks in lists.items()):
        return None
    return Begun(at, max(clock.values(), default=0.0))


def merged_lists(
    pipeline: Pipeline, lists: Mapping[str, Sequence[Compute]], durations: TaskTimes
) -> list[Compute]:
    """The devices' lists as one global order; they must not wait in a circle."""
    begun = begin_all(pipeline, lists, durations)
    assert begun is not None, "the devices' lists wait in a circle"
    return begun.order()


def _earliest(
    pipeline: Pipeline,
    readers: Sequence[Sequence[int]],
    split: set[tuple[int, int]],
    durations: TaskTimes,
    end: Mapping[Compute, float],
    task: Compute,
) -> float | None:
    """When all is there that a task waits for; None: something has not been computed."""
    phase, s, i = task
    here = pipeline.on(s, i)
    before: list[tuple[Compute, float]] = []
    if phase == "forward":
        for u in pipeline.feeders[s]:
            key = (u, s, pipeline.on(u, i), here)
            before.append((("forward", u, i), durations.moving.get(key, 0.0)))
    elif phase == "weight":
        before.append((("input", s, i), 0.0))
    else:
        before.append((("forward", s, i), 0.0))
        for v in readers[s]:
            back: Compute = ("input" if (v, i) in split else "backward", v, i)
            before.append((back, durations.returning.get((s, v, here, pipeline.on(v, i)), 0.0)))
    if any(each not in end for each, _ in before):
        return None
    return max((end[each] + delay for each, delay in before), default=0.0)
