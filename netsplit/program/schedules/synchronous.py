"""Schedules that compute all forwards before any backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from netsplit.program.schedules.base import Compute, Phase, Pipeline, Recompute, Schedule, split_backward

__all__ = ["GPipe", "SingleBatch"]


@dataclass(frozen=True)
class SingleBatch(Schedule):
    """The whole batch at once, segments in the placement's own order."""

    recompute: Recompute = False
    delay_weights: bool = False
    name: ClassVar[str] = "single_batch"
    forwards_first: ClassVar[bool] = True
    fine_segments: ClassVar[bool] = True
    microbatches: ClassVar[int] = 1  # type: ignore[misc]

    def in_flight(self, devices: int) -> int:
        return 1

    def order(self, pipeline: Pipeline) -> list[Compute]:
        tasks: list[Compute] = [("forward", s, 0) for s in range(len(pipeline))]
        tasks += [("backward", s, 0) for s in reversed(range(len(pipeline))) if s in pipeline.trained]
        return split_backward(tasks) if self.delay_weights else tasks


@dataclass(frozen=True)
class GPipe(Schedule):
    """All forwards, then all backwards, micro-batches following one another through the segments.

    Source: Huang et al., GPipe, NeurIPS 2019, section 2.3, on a DAG of segments instead of a chain:
    segment s works on micro-batch i in tick depth(s) + i, where depth is the longest path before s.
    Backward goes through the micro-batches in the same order as forward, which sums gradients as
    plain gradient accumulation does.
    """

    microbatches: int = 4
    recompute: Recompute = False
    delay_weights: bool = False
    name: ClassVar[str] = "gpipe"
    forwards_first: ClassVar[bool] = True

    def in_flight(self, devices: int) -> int:
        return self.microbatches

    def order(self, pipeline: Pipeline) -> list[Compute]:
        segments = range(len(pipeline))
        tasks = self._by_tick("forward", segments, pipeline.depths())
        tasks += self._by_tick("backward", sorted(pipeline.trained), pipeline.heights())
        return split_backward(tasks) if self.delay_weights else tasks

    def _by_tick(self, phase: Phase, segments: Sequence[int], depth: Sequence[int]) -> list[Compute]:
        pairs = [(s, i) for s in segments for i in range(self.microbatches)]
        pairs.sort(key=lambda pair: (depth[pair[0]] + pair[1], depth[pair[0]], pair[0]))
        return [(phase, s, i) for s, i in pairs]
