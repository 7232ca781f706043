"""Orders for the very durations at hand: list schedules of many policies, improved by moving single tasks.

The three choices that policies differ in are those of the automatic scheduler of Qi et al., Zero Bubble
Pipeline Parallelism, ICLR 2024, section 3.1: more forwards before the first backward than 1F1B has, or not;
what is the most urgent; weight gradients where nothing else can begin, or as soon as they can.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

from netsplit.program.schedules.base import Compute, Phase, Pipeline, TaskTimes
from netsplit.program.schedules.one_f_one_b import warm_up
from netsplit.program.schedules.order import TASKS_OF_A_CELL, Policy, list_schedule, tries_of
from netsplit.program.schedules.rows import TaskRows

__all__ = ["POLICIES", "improved", "least_makespan", "list_schedules"]

_LOOKS = 60_000
"""Tasks that a search by moves looks at, all moves together."""
_MOST_MOVES = 400
POLICIES = 28  # of `list_schedules`, at most

Urgency = Callable[[Compute], tuple[float, ...]]


def list_schedules(
    pipeline: Pipeline,
    microbatches: int,
    times: TaskTimes,
    limits: Mapping[str, int],
    split: bool,
    most: int | None = None,
) -> Iterator[list[Compute]]:
    """An order of every policy; those whose limits stop everything may keep more than `limits`.

    Of very many tasks (`order.tries_of`) of the policies alone that are best on drawn scattered pipelines:
    weight gradients last, by the longest way to the end; all backwards in two parts, or none.

    Args:
        limits: device -> (segment, micro-batch) pairs that it may keep.
        split: backwards may be in two parts.
        most: policies, the most promising; None: all.
    """
    m, p = microbatches, len(pipeline.names)
    warm, ahead = warm_up(pipeline), _ahead(pipeline, times)
    lasts = dict.fromkeys((0, min(p, m), min(2 * p, m), m)) if split else {0: None}
    choices = product(lasts, (False, True), (False, True), (False, True))
    every = [each for each in choices if each[0] or not each[3]]
    first = sorted(every, key=lambda each: _promise(each, m))
    tries = tries_of(TASKS_OF_A_CELL * len(pipeline) * m)
    kept = set(first[: tries if most is None else min(most, tries)])
    for last, eager, looking, early in (each for each in every if each in kept):
        policy = Policy(
            _urgency(ahead if looking else _by_microbatch, early),
            None if eager else warm,
            kept_on_device=limits,
            split=frozenset(range(m - last, m)),
        )
        yield list_schedule(pipeline, m, policy, times)


def _promise(choice: tuple[int, bool, bool, bool], most: int) -> tuple[int, ...]:
    """Least first: which policies are tried where not all are."""
    last, eager, looking, early = choice
    return (early, (not looking) + eager, last not in (0, most), -last)


def _by_microbatch(task: Compute) -> tuple[float, ...]:
    """Backwards first, of them the earliest."""
    phase, s, i = task
    return (1, i, -s) if phase == "forward" else (0, i, s)


def _urgency(order: Urgency, weights_early: bool) -> Urgency:
    at = -1.0 if weights_early else 1.0
    return lambda task: (at, task[2], task[1]) if task[0] == "weight" else (0.0, *order(task))


def _ahead(pipeline: Pipeline, times: TaskTimes) -> Urgency:
    """The latest begin that lets a micro-batch be done in its turn: the interval times its number, less the
    longest path to the end in real durations."""
    tails = _tails(pipeline, times)
    interval = max(_loads(pipeline, times, whole=True).values(), default=0.0)

    def urgency(task: Compute) -> tuple[float, ...]:
        phase, s, i = task
        return (interval * i - tails["forward" if phase == "forward" else "backward"][s], i, s)

    return urgency


def _tails(pipeline: Pipeline, times: TaskTimes) -> dict[str, list[float]]:
    """Of every segment's forward and backward, on its first device: seconds to the end, its own too."""
    readers, homes = pipeline.readers(), [devices[0] for devices in pipeline.devices]
    back, ahead = [0.0] * len(pipeline), [0.0] * len(pipeline)
    for s in range(len(pipeline)):
        if s in pipeline.trained:
            feeders = [u for u in pipeline.feeders[s] if u in pipeline.trained]
            on = [back[u] + times.returning.get((u, s, homes[u], homes[s]), 0.0) for u in feeders]
            back[s] = times.computing["backward", s, homes[s]] + max(on, default=0.0)
    for s in reversed(range(len(pipeline))):
        on = [ahead[v] + times.moving.get((s, v, homes[s], homes[v]), 0.0) for v in readers[s]]
        ahead[s] = times.computing["forward", s, homes[s]] + max(on, default=back[s])
    return {"forward": ahead, "backward": back}


def _loads(pipeline: Pipeline, times: TaskTimes, whole: bool) -> dict[str, float]:
    """Of every device: seconds of one micro-batch; backwards whole, or the least of whole and parts."""
    loads = dict.fromkeys(pipeline.names, 0.0)

    def of(phase: Phase, s: int, name: str) -> float:
        return times.computing[phase, s, name]

    for s, devices in enumerate(pipeline.devices):
        for name in devices:
            seconds = of("forward", s, name)
            if s in pipeline.trained:
                parts = of("input", s, name) + of("weight", s, name)
                seconds += of("backward", s, name) if whole else min(of("backward", s, name), parts)
            loads[name] += seconds / len(devices)
    return loads


def least_makespan(pipeline: Pipeline, microbatches: int, times: TaskTimes) -> float:
    """No order is done before: every device without replicas beside it computes all that is its own, after
    the shortest way to it through any of those that compute what comes before.
    """
    heads = [0.0] * len(pipeline)
    for s in range(len(pipeline)):
        for u in pipeline.feeders[s]:
            ways = (
                times.computing["forward", u, there] + times.moving.get((u, s, there, here), 0.0)
                for there, here in product(pipeline.devices[u], pipeline.devices[s])
            )
            heads[s] = max(heads[s], heads[u] + min(ways))
    loads = _loads(pipeline, times, whole=False)
    least = 0.0
    for name in pipeline.names:
        own = [s for s, devices in enumerate(pipeline.devices) if name in devices]
        if all(len(pipeline.devices[s]) == 1 for s in own):
            least = max(least, min(heads[s] for s in own) + microbatches * loads[name])
    return least


def improved(rows: TaskRows, order: Sequence[int], least: float, seed: int = 0) -> list[int]:
    """The order after counted moves of single tasks, none of which made it longer.

    A task that the makespan depends on, or any, goes before one of the three tasks before it on its device
    (or the one before goes behind it), where nothing that it waits for stands between.
    """
    rng = random.Random(seed)
    best = list(order)
    value, start = rows.starts(best)
    best = rows.by_start(best, start)
    for _ in range(min(_MOST_MOVES, _LOOKS // max(len(best), 1))):
        if value <= least * (1 + 1e-9):
            break
        place = {t: n for n, t in enumerate(best)}
        task = rng.choice(_critical(rows, best, start)) if rng.random() < 0.8 else rng.choice(best)
        trial = _moved(rows, best, place, task, rng.randint(1, 3))
        if trial is None or not rows.within(trial):
            continue
        made, begins = rows.starts(trial)
        if made <= value:
            value, start, best = made, begins, rows.by_start(trial, begins)
    return best


def _critical(rows: TaskRows, order: Sequence[int], start: Sequence[float]) -> list[int]:
    """Tasks of one chain without a gap, back from the last to end."""
    ahead: dict[int, int] = {}  # of each task: the one before it on its device
    last: dict[int, int] = {}
    for t in order:
        if rows.device[t] in last:
            ahead[t] = last[rows.device[t]]
        last[rows.device[t]] = t
    task = max(order, key=lambda t: start[t] + rows.seconds[t])
    chain = [task]
    while start[task] > 0.0:
        waits = [(u, delay) for u, delay in rows.before[task]]
        if task in ahead:
            waits.append((ahead[task], 0.0))
        task = max(waits, key=lambda each: start[each[0]] + rows.seconds[each[0]] + each[1])[0]
        chain.append(task)
    return chain


def _moved(
    rows: TaskRows, order: Sequence[int], place: Mapping[int, int], task: int, steps: int
) -> list[int] | None:
    """With a task before that many others of its device; None where it waits for what it would pass."""
    at = place[task]
    target, passed = at, 0
    for n in range(at - 1, -1, -1):
        if rows.device[order[n]] == rows.device[task]:
            target, passed = n, passed + 1
            if passed == steps:
                break
    after = max((place[u] for u, _ in rows.before[task]), default=-1)
    if passed == 0 or after >= at:
        return None
    if after < target:
        return [*order[:target], task, *order[target:at], *order[at + 1 :]]
    return _behind(rows, order, at, target, task)


def _behind(rows: TaskRows, order: Sequence[int], at: int, target: int, task: int) -> list[int] | None:
    """What stands from `target` on and does not lead to the task goes behind it."""
    needed = {task}
    for n in range(at, target - 1, -1):
        if order[n] in needed:
            needed.update(u for u, _ in rows.before[order[n]])
    if order[target] in needed:
        return None
    window = order[target : at + 1]
    first = [t for t in window if t in needed]
    return [*order[:target], *first, *(t for t in window if t not in needed), *order[at + 1 :]]
