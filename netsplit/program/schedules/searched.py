"""`searched`: the best order that a search finds for what every segment and transfer takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import ClassVar

from netsplit.program.schedules.base import Compute, Pipeline, Schedule, TaskTimes
from netsplit.program.schedules.exact import cp_sat_order
from netsplit.program.schedules.one_f_one_b import EagerOneFOneB, Interleaved, OneFOneB
from netsplit.program.schedules.order import TASKS_OF_A_CELL, UNITS, list_schedule, tries_of
from netsplit.program.schedules.rows import TaskRows
from netsplit.program.schedules.search import POLICIES, improved, least_makespan, list_schedules
from netsplit.program.schedules.synchronous import GPipe
from netsplit.program.schedules.v_shape import ZBV, DualPipeV, VHalf, VMin, kept_by_1f1b
from netsplit.program.schedules.zero_bubble import ZBH1
from netsplit.settings import check_numbers, check_switches

__all__ = ["Searched", "most_pairs"]

_WHOLE = (OneFOneB, EagerOneFOneB, Interleaved, GPipe)
_IN_PARTS = (ZBH1, ZBV, VHalf, VMin, DualPipeV)
_STARTS = 3  # list schedules from which moves begin
_FEW = 6  # policies of an order without moves
_EXACT_TASKS = 120
_EXACT_WORK = 0.05  # see `cp_sat_order`


@dataclass(frozen=True)
class Searched(Schedule):
    """The order with the least makespan of all that are tried, within a memory of activations.

    Tried are the named synchronous schedules, list schedules by the durations at hand (`search`), moves of
    single tasks from the best of them, and for few tasks constraint programming. The durations are
    `Pipeline.times`; where they are not known, a forward takes ten units, a backward twenty, and no
    constraints are programmed.

    Args:
        kept: micro-batches between forward and weight gradient on any device, as a multiple of what 1F1B's
            fullest keeps; None: as many as there are. Where no order that is tried keeps as few, what the
            least of them keeps.
        delay_weights: backwards may be in two parts; False: all are whole.
        moves: False: the best of a few list schedules alone, in a fifth of the time; on the pipelines of the
            benchmarks up to 3 % longer.
    """

    microbatches: int = 4
    kept: float | None = 1.0
    recompute: bool = False
    delay_weights: bool = True
    moves: bool = True
    name: ClassVar[str] = "searched"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_switches(**{"schedule.moves": self.moves})
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
        """The best by its own model first, then the named ones that keep no more."""
        return [list(order) for order in _orders(self, pipeline)]

    def limits(self, pipeline: Pipeline) -> dict[str, int]:
        """Device -> (segment, micro-batch) pairs it may keep; 1F1B's own are never too many."""
        if self.kept is None:
            return dict.fromkeys(pipeline.names, self.microbatches * len(pipeline))
        plain = most_pairs(pipeline, OneFOneB(self.microbatches).order(pipeline))
        limit = ceil(self.kept * kept_by_1f1b(pipeline))
        return {name: max(limit, plain[name] if self.kept >= 1 else 1) for name in pipeline.names}


def most_pairs(pipeline: Pipeline, order: Sequence[Compute]) -> Counter[str]:
    """Of every device: most (segment, micro-batch) pairs between forward and weight gradient at once."""
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
    """Kept, as programs of one placement are compiled for several kinds of batches, and more than once."""
    times = pipeline.times or TaskTimes.in_units(pipeline, UNITS)
    limits = schedule.limits(pipeline)
    m = schedule.microbatches
    if not schedule.moves:
        return (_best_listed(schedule, pipeline, times, limits),)
    named = [tuple(order) for order in _named(schedule, pipeline)]
    tried = list(dict.fromkeys([*named, *map(tuple, _listed(schedule, pipeline, times, limits))]))
    pairs = {order: most_pairs(pipeline, order) for order in tried}
    if not any(_within(pairs[order], limits) for order in tried):
        limits = dict.fromkeys(pipeline.names, min(max(each.values()) for each in pairs.values()))
    rows = {
        order: TaskRows.of(pipeline, order, times, limits) for order in tried if _within(pairs[order], limits)
    }
    spans = {order: each.starts(range(len(order)))[0] for order, each in rows.items()}
    starts = sorted(rows, key=spans.__getitem__)[:_STARTS]
    least = least_makespan(pipeline, m, times)
    made: list[tuple[float, tuple[Compute, ...]]] = []
    for order in starts:
        better = improved(rows[order], range(len(order)), least)
        made.append((rows[order].starts(better)[0], tuple(rows[order].compute(better))))
    made.sort(key=lambda each: each[0])
    value, best = made[0]
    if pipeline.times and len(best) <= _EXACT_TASKS and value > least * (1 + 1e-6):
        best_rows = TaskRows.of(pipeline, best, times, limits)
        exact = cp_sat_order(best_rows, range(len(best)), _EXACT_WORK)
        made.insert(0, (value, tuple(best_rows.compute(exact))))
    finalists = [order for _, order in made] + starts
    return tuple(dict.fromkeys([*finalists, *(order for order in named if order in rows)]))


def _best_listed(
    schedule: Searched, pipeline: Pipeline, times: TaskTimes, limits: Mapping[str, int]
) -> tuple[Compute, ...]:
    """Of few policies: of those within the limits, or else that keep the least, the shortest."""
    m, split = schedule.microbatches, schedule.delay_weights
    ranked = []
    for order in list_schedules(pipeline, m, times, limits, split, _FEW):
        rows = TaskRows.of(pipeline, order, times, limits)
        pairs = most_pairs(pipeline, order)
        over = 0 if _within(pairs, limits) else max(pairs.values())
        ranked.append((over, rows.starts(range(len(order)))[0], tuple(order)))
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
    yield from list_schedules(pipeline, m, times, limits, split)
    if split:
        left = tries_of(TASKS_OF_A_CELL * len(pipeline) * m) - POLICIES
        for kind in (ZBV, VHalf, VMin)[: max(left, 0)]:
            yield list_schedule(pipeline, m, kind(m).policy(pipeline), times)
