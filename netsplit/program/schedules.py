"""In which order segments and micro-batches are computed.

A schedule answers one global order of (phase, segment, micro-batch); the compiler gives each device
its share of it and puts the transfers in between.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from netsplit.errors import ConfigError

__all__ = ["Compute", "GPipe", "Schedule", "SingleBatch"]

Phase: TypeAlias = Literal["forward", "backward"]
Compute: TypeAlias = tuple[Phase, int, int]  # phase, segment, micro-batch i


class Schedule(ABC):
    """An order of computation; `microbatches` is the number of parts a batch is cut into."""

    name: ClassVar[str]
    fine_segments: ClassVar[bool] = False
    """Segments are cut at every transfer (see `program.segments`)."""
    microbatches: int

    @property
    @abstractmethod
    def in_flight(self) -> int:
        """Micro-batches whose activations are alive at once on a device."""

    @abstractmethod
    def forwards(self, feeders: Sequence[Sequence[int]]) -> list[Compute]:
        """Forward computations; `feeders[s]` are the segments, all below `s`, that segment `s` reads from."""

    @abstractmethod
    def backwards(self, feeders: Sequence[Sequence[int]]) -> list[Compute]:
        """Backward computations, after all forwards."""

    def microbatch_size(self, batch_size: int) -> int:
        """Samples in a micro-batch.

        Raises:
            ConfigError: the batch does not divide into the micro-batches.
        """
        if batch_size % self.microbatches:
            raise ConfigError(
                f"batch_size {batch_size} does not divide into {self.microbatches} micro-batches: "
                "choose schedule.microbatches that divides it."
            )
        return batch_size // self.microbatches


@dataclass(frozen=True)
class SingleBatch(Schedule):
    """The whole batch at once, segments in the placement's own order."""

    name: ClassVar[str] = "single_batch"
    fine_segments: ClassVar[bool] = True
    microbatches: ClassVar[int] = 1  # type: ignore[misc]

    @property
    def in_flight(self) -> int:
        return 1

    def forwards(self, feeders: Sequence[Sequence[int]]) -> list[Compute]:
        return [("forward", s, 0) for s in range(len(feeders))]

    def backwards(self, feeders: Sequence[Sequence[int]]) -> list[Compute]:
        return [("backward", s, 0) for s in reversed(range(len(feeders)))]


@dataclass(frozen=True)
class GPipe(Schedule):
    """All forwards, then all backwards, micro-batches following one another through the segments.

    Source: Huang et al., GPipe, NeurIPS 2019, section 2.3, on a DAG of segments instead of a chain:
    segment s works on micro-batch i in tick depth(s) + i, where depth is the longest path before s.
    Backward goes through the micro-batches in the same order as forward, which sums gradients as
    plain gradient accumulation does.
    """

    microbatches: int = 4
    name: ClassVar[str] = "gpipe"

    def __post_init__(self) -> None:
        if self.microbatches < 1:
            raise ConfigError(f"schedule.microbatches is {self.microbatches}: it must be at least 1.")

    @property
    def in_flight(self) -> int:
        return self.microbatches

    def forwards(self, feeders: Sequence[Sequence[int]]) -> list[Compute]:
        depth = _depths(dict(enumerate(feeders)), range(len(feeders)))
        return [("forward", s, i) for s, i in self._by_tick(depth)]

    def backwards(self, feeders: Sequence[Sequence[int]]) -> list[Compute]:
        readers: dict[int, list[int]] = {s: [] for s in range(len(feeders))}
        for s, feeds in enumerate(feeders):
            for u in feeds:
                readers[u].append(s)
        height = _depths(readers, reversed(range(len(feeders))))
        return [("backward", s, i) for s, i in self._by_tick(height)]

    def _by_tick(self, depth: Mapping[int, int]) -> list[tuple[int, int]]:
        pairs = [(s, i) for s in depth for i in range(self.microbatches)]
        return sorted(pairs, key=lambda pair: (depth[pair[0]] + pair[1], depth[pair[0]], pair[0]))


def _depths(before: Mapping[int, Sequence[int]], order: Iterable[int]) -> dict[int, int]:
    """Longest path to each segment; `order` has every segment after those in `before` it."""
    depth: dict[int, int] = {}
    for s in order:
        depth[s] = max((depth[u] + 1 for u in before[s]), default=0)
    return depth
