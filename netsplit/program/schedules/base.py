"""Schedules: how a batch is cut into micro-batches, their order, and when its tasks begin."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import chain
from typing import Any, ClassVar, Literal, Self, TypeAlias, get_args

from netsplit.errors import ConfigError
from netsplit.graph.quotient import longest_before
from netsplit.placement.exchange import ExchangeName
from netsplit.placement.placement import ShardName, device_in_turn
from netsplit.settings import check_numbers, check_switches

__all__ = [
    "Begun", "Compute", "Delay", "Phase", "Pipeline", "Recompute", "Schedule", "TaskTimes", "begin_all",
    "by_device", "check_choices", "merged_lists", "minimal_delay", "split_backward",
]  # fmt: skip

Phase: TypeAlias = Literal["forward", "backward", "input", "weight"]
"""``backward`` is whole; ``input`` and ``weight`` are its two parts (see `program.instructions`)."""
Compute: TypeAlias = tuple[Phase, int, int]  # phase, segment s, micro-batch i
Recompute: TypeAlias = Literal[True, False, "auto", "selective", "full"]
"""Recompute all segments, none, or what a device has no room for (`planning.recomputation`); all in parts
that keep little, but for results of products and attention (selective) or without (full)."""
Delay: TypeAlias = Literal[True, False, "minimal"]
"""Delay all backwards, none, or as few as cover what other devices wait for (`lists.minimal_delay`)."""


@dataclass(frozen=True)
class TaskTimes:
    """Durations of all tasks, in seconds or in a schedule's own units."""

    computing: Mapping[tuple[Phase, int, str], float]  # phase, segment, device
    moving: Mapping[tuple[int, int, str, str], float] = field(default_factory=dict)
    """Seconds for what segment u makes on device p, and v reads on q: (u, v, p, q); 0 where not named."""
    returning: Mapping[tuple[int, int, str, str], float] = field(default_factory=dict)
    """Seconds for the gradient that goes back, by the same keys."""

    def __hash__(self) -> int:
        return hash(tuple(frozenset(each.items()) for each in (self.computing, self.moving, self.returning)))

    @classmethod
    def in_units(cls, pipeline: Pipeline, units: Mapping[Phase, float]) -> TaskTimes:
        segments = [(s, name) for s, devices in enumerate(pipeline.devices) for name in devices]
        return cls({(phase, *each): unit for phase, unit in units.items() for each in segments})


@dataclass(frozen=True)
class Pipeline:
    """The segments of a placed graph, numbered so that each reads from lower ones only."""

    feeders: tuple[tuple[int, ...], ...]  # of segment s: the segments it reads from
    devices: tuple[tuple[str, ...], ...]  # of segment s: the replicas that take the micro-batches in turn
    trained: frozenset[int]  # segments with a backward
    turns: tuple[tuple[str, ...], ...] = ()  # of segment s: its devices by their turns; empty: all in order
    times: TaskTimes | None = None  # if known, for schedules that use them

    def __len__(self) -> int:
        return len(self.feeders)

    def on(self, s: int, i: int) -> str:
        return device_in_turn((self.turns or self.devices)[s], i)

    def following(self, s: int, i: int, microbatches: int) -> Iterator[int]:
        """Later micro-batches of segment s on the same device as micro-batch i."""
        home = self.on(s, i)
        return (j for j in range(i + 1, microbatches) if self.on(s, j) == home)

    def largest_part(self, s: int) -> Fraction:
        """The largest fraction of the micro-batches that a replica of segment s takes."""
        ((_, most),) = Counter((self.turns or self.devices)[s]).most_common(1)
        return Fraction(most, len((self.turns or self.devices)[s]))

    @property
    def names(self) -> list[str]:
        """Devices, in the pipeline's order."""
        return list(dict.fromkeys(name for devices in self.devices for name in devices))

    def readers(self) -> list[list[int]]:
        readers: list[list[int]] = [[] for _ in self.feeders]
        for s, feeds in enumerate(self.feeders):
            for u in feeds:
                readers[u].append(s)
        return readers

    def depths(self) -> list[int]:
        """Segments on the longest path before each."""
        return longest_before(self.feeders, range(len(self)), [1] * len(self))

    def heights(self) -> list[int]:
        """Segments on the longest path after each."""
        return longest_before(self.readers(), range(len(self) - 1, -1, -1), [1] * len(self))

    def workers_from(self) -> list[int]:
        """Replicas on the longest path from each segment to the end, its own included."""
        own = [len(devices) for devices in self.devices]
        after = longest_before(self.readers(), range(len(self) - 1, -1, -1), own)
        return [mine + behind for mine, behind in zip(own, after, strict=True)]


@dataclass(frozen=True)
class _Exchanging:
    """Keywords that all schedules have."""

    exchange: ExchangeName = field(default="auto", kw_only=True, repr=False)
    shard: ShardName | Literal["none"] = field(default="none", kw_only=True, repr=False)


class Schedule(_Exchanging, ABC):
    """An order of computation; `microbatches` is the number of parts a batch is cut into.

    `exchange` says how a variable gets to several devices: from its home to each (send_receive), handed on
    from host to host (broadcast), or, by default, as planning finds it shorter (`simulate.exchanges`).

    `shard` says which states of replicas are in slices, one on each: the optimiser's (optimizer), gradients
    too, or parameters too; "none" keeps them whole on each.

    With `recompute` a segment's activations are not kept from forward to backward but computed again; "auto"
    leaves it to the placement (`Placement.recomputed`), in which planning chooses.
    With `delay_weights` the weights' gradients are computed after the gradients that other devices
    wait for have been sent (AlpaComm, "backward weight delaying"); where it is "minimal", only as far as the
    costs say that this shortens the iteration, which some schedules can (`delays_minimally`).
    """

    name: ClassVar[str]
    decides_everything: ClassVar[Literal[False]] = False  # with the placement, as `schedule=auto`
    fine_segments: ClassVar[bool] = False
    """Cut segments at every transfer (see `program.segments`)."""
    forwards_first: ClassVar[bool] = False
    """A device computes the forwards of all micro-batches before any backward."""
    delays_minimally: ClassVar[bool] = False
    made_of_parts: ClassVar[bool] = False
    """Backwards are always in two parts."""
    microbatches: int
    recompute: Recompute
    delay_weights: Delay

    @property
    def timed(self) -> bool:
        """Whether it uses `Pipeline.times` and has several `orders`."""
        return self.delay_weights == "minimal"

    @abstractmethod
    def order(self, pipeline: Pipeline) -> list[Compute]:
        """Every forward, and every backward of the trained segments, in one global order.

        A computation comes after all it depends on, and the micro-batches of one segment on one device
        follow one another.
        """

    def orders(self, pipeline: Pipeline) -> list[list[Compute]]:
        """Candidate orders to simulate; `order` is the first."""
        return [self.order(pipeline)]

    @abstractmethod
    def in_flight(self, devices: int) -> int:
        """Most micro-batches whose activations a device holds, in a chain of that many devices."""

    @property
    def update_every(self) -> int | None:
        """Micro-batches between optimiser steps within a batch; None: one step at its end."""
        return None

    def version(self, i: int, steps: int) -> int:
        """Which weights micro-batch i's forward uses after `steps` steps."""
        return 0

    def with_microbatches(self, microbatches: int) -> Self:
        """The same schedule with another number of micro-batches, e.g. for an epoch's last batch."""
        return self if microbatches == self.microbatches else self._with(microbatches=microbatches)

    def recomputing(self, recompute: Recompute) -> Self:
        """The same schedule with another `recompute`."""
        return self._with(recompute=recompute)

    def _with(self, **values: Any) -> Self:
        return replace(self, **values)

    def microbatch_size(self, batch_size: int) -> int:
        """Samples of a micro-batch, as `torch.chunk` cuts: the last may be smaller or missing."""
        return -(-batch_size // self.microbatches)

    def for_batch(self, batch_size: int) -> Self:
        """The same schedule, with the number of micro-batches of that many samples."""
        return self.with_microbatches(-(-batch_size // self.microbatch_size(batch_size)))

    def __post_init__(self) -> None:
        check_numbers(**{"schedule.microbatches": self.microbatches})
        if self.delay_weights != "minimal":
            check_switches(**{"schedule.delay_weights": self.delay_weights})
        elif not self.delays_minimally:
            raise ConfigError(
                f"schedule.delay_weights is minimal, which {self.name} does not support: choose 1f1b, "
                "eager_1f1b or interleaved_1f1b, or give true or false."
            )
        if self.made_of_parts and not self.delay_weights:
            raise ConfigError(f"schedule.delay_weights is false, but {self.name} requires it: choose 1f1b.")
        check_choices(self.exchange, self.shard)
        if self.shard != "none" and self.update_every is not None:
            raise ConfigError(
                f"schedule.shard is {self.shard}, but under {self.name} devices step within the batch: "
                "leave it out, or choose a synchronous schedule."
            )
        if not isinstance(self.recompute, bool) and self.recompute not in get_args(Recompute):
            raise ConfigError(
                f"schedule.recompute is {self.recompute!r}: give true, false, auto, selective or full."
            )


def check_choices(exchange: object, shard: object, *more: str) -> None:
    """Raises ConfigError for an unknown `ExchangeName` or `ShardName`."""
    choices = {"exchange": get_args(ExchangeName), "shard": (*more, "none", *get_args(ShardName))}
    for key, value in (("exchange", exchange), ("shard", shard)):
        if value not in choices[key]:
            raise ConfigError(f"schedule.{key} is {value!r}: choose one of {', '.join(choices[key])}.")


def split_backward(order: Iterable[Compute]) -> list[Compute]:
    """The same order with every backward in two consecutive parts."""
    parts: dict[Phase, tuple[Phase, ...]] = {"backward": ("input", "weight")}
    return [(part, s, i) for phase, s, i in order for part in parts.get(phase, (phase,))]


_EQUAL = 1e-9  # of a makespan; rounding differs by less


@dataclass(frozen=True)
class Begun:
    """The start of every task of some devices' lists; all end within `makespan`."""

    at: dict[Compute, float]
    makespan: float

    def order(self) -> list[Compute]:
        """By start; ties in the order in which they were started."""
        return sorted(self.at, key=self.at.__getitem__)


def by_device(pipeline: Pipeline, order: Sequence[Compute]) -> dict[str, list[Compute]]:
    lists: dict[str, list[Compute]] = {name: [] for name in pipeline.names}
    for task in order:
        lists[pipeline.on(task[1], task[2])].append(task)
    return lists


def begin_all(
    pipeline: Pipeline, lists: Mapping[str, Sequence[Compute]], durations: TaskTimes
) -> Begun | None:
    """Start tasks as early as lists and dependencies allow; None: the lists wait in a circle."""
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
    """The devices' lists merged into one global order; they must not wait in a circle."""
    begun = begin_all(pipeline, lists, durations)
    assert begun is not None, "the devices' lists wait in a circle"
    return begun.order()


def minimal_delay(pipeline: Pipeline, order: Sequence[Compute], durations: TaskTimes) -> list[Compute]:
    """The order with as few weight gradients put off, by as little, as make it as short as that can.

    Source: AlpaComm, end of section 4. A device puts off those of segments whose gradients travel, by the
    least number of its backwards that gives the least makespan; then of those segments each is made whole
    again without which the makespan is the same. Where nothing is gained the order stays.
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
    """Trained segments with weights, whose gradients take time to reach another device."""
    return frozenset(
        v
        for (u, v, p, q), seconds in durations.returning.items()
        if seconds > 0 and p != q and {u, v} <= pipeline.trained and durations.computing["weight", v, q] > 0
    )


def _put_off(
    lists: Mapping[str, Sequence[Compute]], split: Collection[int], backwards: int
) -> dict[str, list[Compute]]:
    """Split these segments' backwards; the weight part follows that many backwards later."""

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
    """Dependencies of each task, with the delay until each result arrives."""
    readers = [[v for v in each if v in pipeline.trained] for each in pipeline.readers()]
    split = {(s, i) for phase, s, i in tasks if phase == "input"}

    def before(task: Compute) -> list[tuple[Compute, float]]:
        phase, s, i = task
        if phase == "weight":
            return [(("input", s, i), 0.0)]
        device = pipeline.on(s, i)
        if phase == "forward":
            return [
                (("forward", u, i), times.moving.get((u, s, pipeline.on(u, i), device), 0.0))
                for u in pipeline.feeders[s]
            ]
        waits: list[tuple[Compute, float]] = [(("forward", s, i), 0.0)]
        for v in readers[s]:
            delay = times.returning.get((s, v, device, pipeline.on(v, i)), 0.0)
            waits.append((("input" if (v, i) in split else "backward", v, i), delay))
        return waits

    return before
