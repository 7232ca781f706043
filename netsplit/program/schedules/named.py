"""Published schedules: GPipe, 1F1B and its variants, ZB-H1, PipeDream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import ClassVar, Literal

from netsplit.errors import ConfigError
from netsplit.program.schedules.base import (
    Compute,
    Delay,
    Phase,
    Pipeline,
    Recompute,
    Schedule,
    minimal_delay,
    split_backward,
)
from netsplit.program.schedules.order import TASKS_OF_A_CELL, Policy, list_schedule, timed_schedule, tries_of
from netsplit.settings import check_numbers

__all__ = [
    "ZBH1",
    "AsyncOneFOneB",
    "EagerOneFOneB",
    "GPipe",
    "Interleaved",
    "OneFOneB",
    "SingleBatch",
    "backward_first",
    "warm_up",
]


@dataclass(frozen=True)
class SingleBatch(Schedule):
    """The whole batch at once, segments in the placement's order."""

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


def warm_up(pipeline: Pipeline) -> list[int]:
    """Micro-batches in flight on each segment's replicas that keep all later segments busy.

    On a chain of p devices the k-th (from 0) has p - k; with replicas it is PipeDream's
    ceil(workers from here on / replicas here). On a DAG the longest path to the end counts.
    """
    workers = pipeline.workers_from()
    behind = [w - len(devices) for w, devices in zip(workers, pipeline.devices, strict=True)]
    return [1 + ceil(count * pipeline.largest_part(s)) for s, count in enumerate(behind)]


def backward_first(task: Compute) -> tuple[int, ...]:
    """Backwards before forwards; the earliest micro-batch first, and its segment nearest to the end."""
    phase, s, i = task
    return (1, i, -s) if phase == "forward" else (0, i, s)


@dataclass(frozen=True)
class OneFOneB(Schedule):
    """1F1B with a flush at the batch's end.

    Source: Narayanan et al., PipeDream, SOSP 2019, section 3.2, and Megatron-LM, SC 2021, section 2.2.1, on
    a DAG of segments: a device prefers a backward that is ready, and begins a forward only while fewer
    micro-batches are in flight than `warm_up` says.
    """

    microbatches: int = 4
    recompute: Recompute = False
    delay_weights: Delay = False
    name: ClassVar[str] = "1f1b"
    delays_minimally: ClassVar[bool] = True

    def in_flight(self, devices: int) -> int:
        return min(self.microbatches, devices)

    def limits(self, pipeline: Pipeline) -> list[int]:
        return warm_up(pipeline)

    def order(self, pipeline: Pipeline) -> list[Compute]:
        return self.orders(pipeline)[0]

    def orders(self, pipeline: Pipeline) -> list[list[Compute]]:
        """Minimal weight delay first, then whole backwards, which may simulate better."""
        tasks = self.whole(pipeline)
        if self.delay_weights != "minimal":
            return [split_backward(tasks) if self.delay_weights else tasks]
        if pipeline.times is None:
            return [tasks]
        return [minimal_delay(pipeline, tasks, pipeline.times), tasks]

    def whole(self, pipeline: Pipeline) -> list[Compute]:
        policy = Policy(backward_first, self.limits(pipeline))
        return list_schedule(pipeline, self.microbatches, policy)


@dataclass(frozen=True)
class EagerOneFOneB(OneFOneB):
    """1F1B with more forwards in advance, so that a transfer has another micro-batch's time to arrive.

    Source: AlpaComm, section on the overlap-friendly schedule: stage k of p (from 1) warms up with
    2 (p - k) + 1 micro-batches.
    """

    name: ClassVar[str] = "eager_1f1b"

    def in_flight(self, devices: int) -> int:
        return min(self.microbatches, 2 * devices - 1)

    def limits(self, pipeline: Pipeline) -> list[int]:
        return [2 * limit - 1 for limit in warm_up(pipeline)]


@dataclass(frozen=True)
class Interleaved(OneFOneB):
    """1F1B over several segments a device, in groups of as many micro-batches as there are devices.

    Source: Narayanan et al., Megatron-LM, SC 2021, section 2.2.2: a device with v segments, k-th of p
    (from 0), warms up with 2 (p - k - 1) + (v - 1) p forwards, then takes one forward and one backward in
    turn; of its segments each computes p micro-batches before the next does. With one segment a device it
    is 1F1B with p - k - 1 more micro-batches in flight.
    """

    name: ClassVar[str] = "interleaved_1f1b"

    def in_flight(self, devices: int) -> int:
        return min(self.microbatches, 2 * devices - 1)

    def whole(self, pipeline: Pipeline) -> list[Compute]:
        groups, depth, height = Counter(pipeline.devices), pipeline.depths(), pipeline.heights()
        p = len(groups)
        on_device = {
            name: 2 * (p - rank - 1) + (chunks - 1) * p + 1
            for rank, (devices, chunks) in enumerate(groups.items())
            for name in devices
        }
        together = p * max(map(len, groups))  # each replica takes p of them

        def urgency(task: Compute) -> tuple[int, ...]:
            phase, s, i = task
            if phase == "forward":
                return (1, i // together, depth[s], i % together, s)
            return (0, i // together, height[s], i % together, -s)

        policy = Policy(urgency, [self.microbatches] * len(pipeline), on_device)
        return _in_turn(pipeline, self.microbatches) or list_schedule(pipeline, self.microbatches, policy)


def _in_turn(pipeline: Pipeline, microbatches: int) -> list[Compute]:
    """Megatron-LM's own order of a chain of segments on groups of devices in turn; empty for other graphs,
    and where a device's micro-batches are no multiple of the groups."""
    groups, last = list(dict.fromkeys(pipeline.devices)), len(pipeline) - 1
    p = len(groups)
    starts = range(0, len(pipeline), p)
    chain = all(feeders == tuple(range(max(s - 1, 0), s)) for s, feeders in enumerate(pipeline.feeders))
    in_turn = all(devices == groups[s % p] for s, devices in enumerate(pipeline.devices))
    if not (chain and in_turn and len(pipeline.trained) > last) or len(pipeline) % p:
        return []
    queues: list[list[Compute]] = []
    for k, group in enumerate(groups):
        for device in group:
            own = [i for i in range(microbatches) if pipeline.on(k, i) == device]
            if len(own) % p:
                return []
            rounds = [own[first : first + p] for first in range(0, len(own), p)]
            ahead = [s + k for s in starts]
            forwards: list[Compute] = [("forward", s, i) for each in rounds for s in ahead for i in each]
            backwards: list[Compute] = [
                ("backward", s, i) for each in rounds for s in ahead[::-1] for i in each
            ]
            warm = min(2 * (p - k - 1) + (len(ahead) - 1) * p, len(forwards))
            pairs = zip(forwards[warm:], backwards, strict=False)
            rest = backwards[len(forwards) - warm :]
            queues.append([*forwards[:warm], *(task for pair in pairs for task in pair), *rest][::-1])
    done: dict[Compute, None] = {}
    while any(queues):
        before = len(done)
        for queue in filter(None, queues):  # one each, so that replicas go together
            phase, s, i = queue[-1]
            needs = ("forward", s - 1, i) if phase == "forward" else ("backward", s + 1, i)
            if needs in done or s == (0 if phase == "forward" else last):
                done[queue.pop()] = None
        if len(done) == before:
            return []
    return list(done)


@dataclass(frozen=True)
class ZBH1(Schedule):
    """ZB-H1: 1F1B whose weight gradients wait for idle time, within 1F1B's memory.

    Source: Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, section 2.1: the bubble falls from
    (p - 1)(T_F + T_B + T_W) to (p - 1)(T_F + T_B - T_W). No segment keeps more micro-batches between its
    forward and its weight backward than the first one does in 1F1B.

    A backward in two parts costs more than a whole one. So many of the last micro-batches are split as makes
    the shortest schedule (on a chain p - 1): before them a device has no idle time to fill. Where there are
    very many tasks fewer numbers are tried (`order.tries_of`): the first, the last, and some in between.
    """

    microbatches: int = 4
    recompute: Recompute = False
    delay_weights: bool = True
    name: ClassVar[str] = "zb_h1"
    made_of_parts: ClassVar[bool] = True

    def in_flight(self, devices: int) -> int:
        return min(self.microbatches, devices)

    def order(self, pipeline: Pipeline) -> list[Compute]:
        limits = warm_up(pipeline)
        m, kept = self.microbatches, max(limits, default=1)

        def policy(last: int) -> Policy:
            return Policy(_weights_last, limits, kept=kept, split=frozenset(range(m - last, m)))

        every = [*range(min(2 * len(pipeline.names), m)), m]
        count = min(tries_of(TASKS_OF_A_CELL * len(pipeline) * m), len(every))
        tried = [every[n * (len(every) - 1) // max(count - 1, 1)] for n in range(count)]
        timed = [timed_schedule(pipeline, m, policy(last)) for last in tried]
        return min(timed, key=lambda each: each[0])[1]


def _weights_last(task: Compute) -> tuple[int, ...]:
    phase, s, i = task
    return (2, i, s) if phase == "weight" else backward_first(task)


@dataclass(frozen=True)
class AsyncOneFOneB(Schedule):
    """1F1B with optimiser steps in between. It CHANGES WHAT IS COMPUTED: gradients are of older weights.

    A micro-batch is what the papers call a minibatch. A device steps after the backwards of every
    `update_every` micro-batches (r times as many where r replicas share them), with their mean gradient.
    The pipeline drains at the end of each batch, after which all devices have taken all their steps.

    - ``weights="stashed"``: a forward uses its device's newest weights, and its backward the same ones
      (Narayanan et al., PipeDream, SOSP 2019, section 3.3, weight stashing).
    - ``weights="double"``: W(t+1) = W(t) - lr grad f(W(t-1)) on all devices alike, with two versions
      alive: micro-batches of group t use version max(t - 1, 0) (PipeDream-2BW, ICML 2021, section 3.1).
    """

    microbatches: int = 4
    update_every: int = 1
    weights: Literal["stashed", "double"] = "stashed"
    recompute: Recompute = False
    delay_weights: bool = False
    name: ClassVar[str] = "pipedream"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(**{"schedule.update_every": self.update_every})
        if self.weights not in ("stashed", "double"):
            raise ConfigError(f"schedule.weights is {self.weights!r}: give stashed or double.")

    def in_flight(self, devices: int) -> int:
        return min(self.microbatches, devices)

    def version(self, i: int, steps: int) -> int:
        if self.weights == "stashed":
            return steps
        return max(i // self.update_every - 1, 0)

    def order(self, pipeline: Pipeline) -> list[Compute]:
        if self.weights == "double" and any(len(devices) > 1 for devices in pipeline.devices):
            raise ConfigError(
                "schedule.weights is double, which replicated stages do not support: use stashed."
            )
        policy = Policy(backward_first, warm_up(pipeline), waits_for=self._last_before)
        tasks = list_schedule(pipeline, self.microbatches, policy)
        return split_backward(tasks) if self.delay_weights else tasks

    def _last_before(self, i: int) -> int:
        """The last micro-batch whose gradient is in the weights of micro-batch i."""
        if self.weights == "stashed":
            return -1
        return self.version(i, 0) * self.update_every - 1
