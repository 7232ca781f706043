"""`searched`: the best order for the given durations, among list schedules by many policies.

Policies differ in the three choices of the automatic scheduler of Qi et al., Zero Bubble
Pipeline Parallelism, ICLR 2024, section 3.1: more forwards before the first backward than 1F1B has, or not;
what is the most urgent; weight gradients where nothing else can begin, or as soon as they can.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import ceil
from typing import ClassVar

from netsplit.program.schedules.base import (
    Compute,
    Phase,
    Pipeline,
    Schedule,
    TaskTimes,
    begin_all,
    by_device,
)
from netsplit.program.schedules.named import (
    ZBH1,
    EagerOneFOneB,
    GPipe,
    Interleaved,
    OneFOneB,
    backward_first,
    warm_up,
)
from netsplit.program.schedules.order import TASKS_OF_A_CELL, UNITS, Policy, Urgency, list_schedule, tries_of
from netsplit.program.schedules.v_shape import ZBV, DualPipeV, VHalf, VMin, kept_by_1f1b
from netsplit.settings import check_numbers, check_switches

__all__ = ["Searched", "most_pairs"]

_POLICIES = 28  # of `_list_schedules`, at most
_WHOLE = (OneFOneB, EagerOneFOneB, Interleaved, GPipe)
_IN_PARTS = (ZBH1, ZBV, VHalf, VMin, DualPipeV)
_BEST = 3  # best by its own model, simulated beside the named ones
_FEW = 6  # policies of a quick search


@dataclass(frozen=True)
class Searched(Schedule):
    """The order with the least makespan of all that are tried, within a memory of activations.

    Tried are the named synchronous schedules, and list schedules by the durations at hand. The durations are
    `Pipeline.times`; where they are not known, a forward takes ten units, a backward twenty.

    Args:
        kept: micro-batches between forward and weight gradient on any device, as a multiple of what 1F1B's
            fullest keeps; None: as many as there are. Where no order that is tried keeps as few, what the
            least of them keeps.
        delay_weights: backwards may be in two parts; False: all are whole.
        quick: the best of a few list schedules alone, in a fifth of the time; up to 3 % longer.
    """

    microbatches: int = 4
    kept: float | None = 1.0
    recompute: bool = False
    delay_weights: bool = True
    quick: bool = False
    name: ClassVar[str] = "searched"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_switches(**{"schedule.quick": self.quick})
        if self.kept is not None:
            check_numbers(**{"schedule.kept": self.kept})

    @property
    def timed(self) -> bool:
        return True

    def in_flight(self, devices: int) -> int:
        most = self.microbatches if self.kept is None else ceil(self.kept * devices)
        return min(self.microbatches, max(most, 1))

    def order(self, pipeline: Pipeline) -> list[Compute]:
        return self.orders(pipeline)[0]

    def orders(self, pipeline: Pipeline) -> list[list[Compute]]:
        """The best by its own model first, then named orders within its memory."""
        return [list(order) for order in _orders(self, pipeline)]

    def limits(self, pipeline: Pipeline) -> dict[str, int]:
        """Device -> (segment, micro-batch) pairs it may keep; at least 1F1B's."""
        if self.kept is None:
            return dict.fromkeys(pipeline.names, self.microbatches * len(pipeline))
        plain = most_pairs(pipeline, OneFOneB(self.microbatches).order(pipeline))
        limit = ceil(self.kept * kept_by_1f1b(pipeline))
        return {name: max(limit, plain[name] if self.kept >= 1 else 1) for name in pipeline.names}


def most_pairs(pipeline: Pipeline, order: Sequence[Compute]) -> Counter[str]:
    """Most (segment, micro-batch) pairs between forward and weight gradient at once, by device."""
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for phase, s, i in order:
        if s in pipeline.trained:
            name = pipeline.on(s, i)
            now[name] += (phase == "forward") - (phase in ("weight", "backward"))
            most[name] = max(most[name], now[name])
    return most


@lru_cache(maxsize=32)
def _orders(schedule: Searched, pipeline: Pipeline) -> tuple[tuple[Compute, ...], ...]:
    """Cached, as one placement's programs are compiled for several kinds of batches."""
    times = pipeline.times or TaskTimes.in_units(pipeline, UNITS)
    limits = schedule.limits(pipeline)
    if schedule.quick:
        return (_best_listed(schedule, pipeline, times, limits),)
    named = [tuple(order) for order in _named(schedule, pipeline)]
    tried = list(dict.fromkeys([*named, *map(tuple, _listed(schedule, pipeline, times, limits))]))
    pairs = {order: most_pairs(pipeline, order) for order in tried}
    if not any(_within(pairs[order], limits) for order in tried):
        limits = dict.fromkeys(pipeline.names, min(max(each.values()) for each in pairs.values()))
    spans = {order: _span(pipeline, order, times) for order in tried if _within(pairs[order], limits)}
    best = sorted(spans, key=spans.__getitem__)[:_BEST]
    return tuple(dict.fromkeys([*best, *(order for order in named if order in spans)]))


def _span(pipeline: Pipeline, order: Sequence[Compute], times: TaskTimes) -> float:
    begun = begin_all(pipeline, by_device(pipeline, order), times)
    assert begun is not None, "an order of all tasks does not wait in a circle"
    return begun.makespan


def _best_listed(
    schedule: Searched, pipeline: Pipeline, times: TaskTimes, limits: Mapping[str, int]
) -> tuple[Compute, ...]:
    """The shortest order within the limits, or else one that keeps the least."""
    m, split = schedule.microbatches, schedule.delay_weights
    ranked = []
    for order in _list_schedules(pipeline, m, times, limits, split, _FEW):
        pairs = most_pairs(pipeline, order)
        over = 0 if _within(pairs, limits) else max(pairs.values())
        ranked.append((over, _span(pipeline, order, times), tuple(order)))
    return min(ranked, key=lambda each: each[:2])[2]


def _within(pairs: Mapping[str, int], limits: Mapping[str, int]) -> bool:
    return all(most <= limits[name] for name, most in pairs.items())


def _named(schedule: Searched, pipeline: Pipeline) -> Iterator[list[Compute]]:
    for kind in _WHOLE + _IN_PARTS * schedule.delay_weights:
        yield kind(schedule.microbatches).order(pipeline)


def _listed(
    schedule: Searched, pipeline: Pipeline, times: TaskTimes, limits: Mapping[str, int]
) -> Iterator[list[Compute]]:
    m, split = schedule.microbatches, schedule.delay_weights
    yield from _list_schedules(pipeline, m, times, limits, split)
    if split:
        left = tries_of(TASKS_OF_A_CELL * len(pipeline) * m) - _POLICIES
        for kind in (ZBV, VHalf, VMin)[: max(left, 0)]:
            yield list_schedule(pipeline, m, kind(m).policy(pipeline), times)


def _list_schedules(
    pipeline: Pipeline,
    microbatches: int,
    times: TaskTimes,
    limits: Mapping[str, int],
    split: bool,
    most: int | None = None,
) -> Iterator[list[Compute]]:
    """One order per policy, or of the `most` promising; some may exceed `limits`."""
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
            _urgency(ahead if looking else backward_first, early),
            None if eager else warm,
            kept_on_device=limits,
            split=frozenset(range(m - last, m)),
        )
        yield list_schedule(pipeline, m, policy, times)


def _promise(choice: tuple[int, bool, bool, bool], most: int) -> tuple[int, ...]:
    """Sort key of policies, where not all are tried."""
    last, eager, looking, early = choice
    return (early, (not looking) + eager, last not in (0, most), -last)


def _urgency(order: Urgency, weights_early: bool) -> Urgency:
    at = -1.0 if weights_early else 1.0
    return lambda task: (at, task[2], task[1]) if task[0] == "weight" else (0.0, *order(task))


def _ahead(pipeline: Pipeline, times: TaskTimes) -> Urgency:
    """Latest start that lets a micro-batch finish in its turn, by the longest path to the end."""
    tails = _tails(pipeline, times)
    interval = max(_loads(pipeline, times, whole=True).values(), default=0.0)

    def urgency(task: Compute) -> tuple[float, ...]:
        phase, s, i = task
        return (interval * i - tails["forward" if phase == "forward" else "backward"][s], i, s)

    return urgency


def _tails(pipeline: Pipeline, times: TaskTimes) -> dict[str, list[float]]:
    """Seconds from the start of each segment's forward and backward to the end, on its first device."""
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
    """Seconds of one micro-batch by device; backwards whole or split, whichever is less."""
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
