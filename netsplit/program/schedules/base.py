"""What a schedule decides: how a batch is cut into micro-batches, and in which order they are computed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, ClassVar, Literal, Self, TypeAlias, get_args

from netsplit.errors import ConfigError
from netsplit.graph.order import longest_before
from netsplit.placement.exchange import ExchangeName
from netsplit.placement.placement import ShardName, device_in_turn
from netsplit.settings import check_numbers, check_switches

__all__ = [
    "Compute",
    "Delay",
    "Phase",
    "Pipeline",
    "Recompute",
    "Schedule",
    "TaskTimes",
    "check_choices",
    "split_backward",
]

Phase: TypeAlias = Literal["forward", "backward", "input", "weight"]
"""``backward`` is whole; ``input`` and ``weight`` are its two parts (see `program.instructions`)."""
Compute: TypeAlias = tuple[Phase, int, int]  # phase, segment s, micro-batch i
Recompute: TypeAlias = Literal[True, False, "auto", "selective", "full"]
"""Of all segments, of none, or of what a device has no room for (`planning.recomputation`); of all in parts
that keep little, but for results of products and attention (selective) or without (full)."""
Delay: TypeAlias = Literal[True, False, "minimal"]
"""Of all backwards, of none, or of as few as cover what other devices wait for (`lists.minimal_delay`)."""


@dataclass(frozen=True)
class TaskTimes:
    """How long everything takes: seconds, or the units of a schedule's own."""

    computing: Mapping[tuple[Phase, int, str], float]  # phase, segment, device
    moving: Mapping[tuple[int, int, str, str], float] = field(default_factory=dict)
    """Of what segment u makes on device p, and v reads on q: (u, v, p, q). What is not named takes none."""
    returning: Mapping[tuple[int, int, str, str], float] = field(default_factory=dict)
    """Of the gradient that goes back, by the same keys."""

    def __hash__(self) -> int:
        return hash(tuple(frozenset(each.items()) for each in (self.computing, self.moving, self.returning)))

    @classmethod
    def in_units(cls, pipeline: Pipeline, units: Mapping[Phase, float]) -> TaskTimes:
        """Every segment takes the same."""
        segments = [(s, name) for s, devices in enumerate(pipeline.devices) for name in devices]
        return cls({(phase, *each): unit for phase, unit in units.items() for each in segments})


@dataclass(frozen=True)
class Pipeline:
    """The segments of a placed graph, numbered so that each reads from lower ones only."""

    feeders: tuple[tuple[int, ...], ...]  # of segment s: the segments it reads from
    devices: tuple[tuple[str, ...], ...]  # of segment s: the replicas that take the micro-batches in turn
    trained: frozenset[int]  # segments with a backward
    turns: tuple[tuple[str, ...], ...] = ()  # of segment s: its devices by their turns; empty: all in order
    times: TaskTimes | None = None  # where they are known, for schedules that go by them

    def __len__(self) -> int:
        return len(self.feeders)

    def on(self, s: int, i: int) -> str:
        """The device that computes micro-batch i of segment s."""
        return device_in_turn((self.turns or self.devices)[s], i)

    def following(self, s: int, i: int, microbatches: int) -> Iterator[int]:
        """Micro-batches after i that the same device computes of segment s."""
        home = self.on(s, i)
        return (j for j in range(i + 1, microbatches) if self.on(s, j) == home)

    def largest_part(self, s: int) -> Fraction:
        """Of the micro-batches, what the replica of segment s takes that takes the most."""
        ((_, most),) = Counter((self.turns or self.devices)[s]).most_common(1)
        return Fraction(most, len((self.turns or self.devices)[s]))

    @property
    def names(self) -> list[str]:
        """Devices, in the order in which the pipeline first comes to them."""
        return list(dict.fromkeys(name for devices in self.devices for name in devices))

    def readers(self) -> list[list[int]]:
        """Of every segment: the segments that read from it."""
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
        """Of every segment: replicas on the longest path from it to the end, its own included."""
        own = [len(devices) for devices in self.devices]
        after = longest_before(self.readers(), range(len(self) - 1, -1, -1), own)
        return [mine + behind for mine, behind in zip(own, after, strict=True)]


@dataclass(frozen=True)
class _Exchanging:
    """What all schedules have, as a keyword, beside what they define themselves."""

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
    """Segments are cut at every transfer (see `program.segments`)."""
    forwards_first: ClassVar[bool] = False
    """A device computes the forwards of all micro-batches before any backward."""
    delays_minimally: ClassVar[bool] = False
    made_of_parts: ClassVar[bool] = False
    """Backwards are in two parts, whatever is asked."""
    microbatches: int
    recompute: Recompute
    delay_weights: Delay

    @property
    def timed(self) -> bool:
        """Whether it goes by `Pipeline.times`, and has several `orders`."""
        return self.delay_weights == "minimal"

    @abstractmethod
    def order(self, pipeline: Pipeline) -> list[Compute]:
        """Every forward, and every backward of the trained segments, in one global order.

        A computation comes after all it depends on, and the micro-batches of one segment on one device
        follow one another.
        """

    def orders(self, pipeline: Pipeline) -> list[list[Compute]]:
        """Orders to choose from where they can be simulated; `order` is the first."""
        return [self.order(pipeline)]

    @abstractmethod
    def in_flight(self, devices: int) -> int:
        """Micro-batches whose activations are alive at once on a device, in a chain of that many."""

    @property
    def update_every(self) -> int | None:
        """Micro-batches between optimiser steps, for schedules that step within a batch; None: at its end."""
        return None

    def version(self, i: int, steps: int) -> int:
        """Which weights the forward of micro-batch i uses where `steps` steps were taken before it."""
        return 0

    def with_microbatches(self, microbatches: int) -> Self:
        """The same schedule on another number of micro-batches, as the last batch of an epoch may need."""
        return self if microbatches == self.microbatches else self._with(microbatches=microbatches)

    def recomputing(self, recompute: Recompute) -> Self:
        """The same schedule with another answer to what is computed again."""
        return self._with(recompute=recompute)

    def _with(self, **values: Any) -> Self:
        return replace(self, **values)

    def microbatch_size(self, batch_size: int) -> int:
        """Samples in a micro-batch, as `torch.chunk` cuts: the last may be smaller, or there may be fewer."""
        return -(-batch_size // self.microbatches)

    def for_batch(self, batch_size: int) -> Self:
        """The same schedule with as many micro-batches as that many samples make."""
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
    """Raises ConfigError for no `ExchangeName`, and for no `ShardName` nor "none" nor one of the others."""
    choices = {"exchange": get_args(ExchangeName), "shard": (*more, "none", *get_args(ShardName))}
    for key, given in (("exchange", exchange), ("shard", shard)):
        if given not in choices[key]:
            raise ConfigError(f"schedule.{key} is {given!r}: choose one of {', '.join(choices[key])}.")


def split_backward(order: Iterable[Compute]) -> list[Compute]:
    """The same order with every backward in two parts, one right after the other."""
    parts: dict[Phase, tuple[Phase, ...]] = {"backward": ("input", "weight")}
    return [(part, s, i) for phase, s, i in order for part in parts.get(phase, (phase,))]
