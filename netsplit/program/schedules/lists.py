"""When the tasks of an order begin: of a list for each device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from netsplit.program.schedules.base import Compute, Pipeline, TaskTimes

__all__ = ["Begun", "begin_all", "by_device", "merged_lists", "minimal_delay"]

_EQUAL = 1e-9  # of a makespan: sums of floats in another order differ by less


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
    waits = _waits(pipeline, durations, chain.from_iterable(lists.values()))
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
                before = waits(task)
                if any(each not in end for each, _ in before):
                    break
                at[task] = start = max([clock[name], *(end[each] + delay for each, delay in before)])
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


def minimal_delay(pipeline: Pipeline, order: Sequence[Compute], durations: TaskTimes) -> list[Compute]:
    """The order with as few weight gradients put off, by as little, as make it as short as that can.

    Source: AlpaComm, end of section 4: a backward's second part, the weights' gradients, is put off by what a
    cost model says is needed to cover the communication of the first part's results, and no more, since what
    is put off is kept in memory. Here a device puts off those of segments whose gradients travel, by the
    least number of its backwards that gives the least makespan; then of those segments each is made whole
    again without which the makespan is the same. Where nothing is gained the order stays.

    Args:
        order: with whole backwards.
    """
    lists = by_device(pipeline, order)
    plain = begin_all(pipeline, lists, durations)
    assert plain is not None, "the devices' lists wait in a circle"
    best, delay, split = plain, 0, frozenset[int]()
    travelling = _travelling(pipeline, durations)
    for more in range(1 + max(map(len, lists.values()), default=0)):
        begun = begin_all(pipeline, _put_off(lists, travelling, more), durations)
        if begun is not None and begun.makespan < best.makespan * (1 - _EQUAL):
            best, delay, split = begun, more, travelling
        elif more > delay + len(lists):
            break
    for s in sorted(split, reverse=True):
        begun = begin_all(pipeline, _put_off(lists, split - {s}, delay), durations)
        if begun is not None and begun.makespan <= best.makespan * (1 + _EQUAL):
            best, split = begun, split - {s}
    return best.order() if split else list(order)


def _travelling(pipeline: Pipeline, durations: TaskTimes) -> frozenset[int]:
    """Trained segments with weights, whose gradients take time to another device that waits for them."""
    return frozenset(
        v
        for (u, v, p, q), seconds in durations.returning.items()
        if seconds > 0 and p != q and {u, v} <= pipeline.trained and durations.computing["weight", v, q] > 0
    )


def _put_off(
    lists: Mapping[str, Sequence[Compute]], split: Collection[int], backwards: int
) -> dict[str, list[Compute]]:
    """Backwards of these segments in two parts, the second after so many further backwards of the device."""

    def of(tasks: Sequence[Compute]) -> Iterator[Compute]:
        waiting: deque[Compute] = deque()
        for phase, s, i in tasks:
            if phase != "backward" or s not in split:
                yield phase, s, i
                continue
            yield "input", s, i
            waiting.append(("weight", s, i))
            if len(waiting) > backwards:
                yield waiting.popleft()
        yield from waiting

    return {name: list(of(tasks)) for name, tasks in lists.items()}


def _waits(
    pipeline: Pipeline, times: TaskTimes, tasks: Iterable[Compute]
) -> Callable[[Compute], list[tuple[Compute, float]]]:
    """Tasks that a task waits for, and how long after each its result is there."""
    readers = [[v for v in each if v in pipeline.trained] for each in pipeline.readers()]
    split = {(s, i) for phase, s, i in tasks if phase == "input"}

    def before(task: Compute) -> list[tuple[Compute, float]]:
        phase, s, i = task
        if phase == "weight":
            return [(("input", s, i), 0.0)]
        here = pipeline.on(s, i)
        if phase == "forward":
            return [
                (("forward", u, i), times.moving.get((u, s, pipeline.on(u, i), here), 0.0))
                for u in pipeline.feeders[s]
            ]
        waits: list[tuple[Compute, float]] = [(("forward", s, i), 0.0)]
        for v in readers[s]:
            delay = times.returning.get((s, v, here, pipeline.on(v, i)), 0.0)
            waits.append((("input" if (v, i) in split else "backward", v, i), delay))
        return waits

    return before
