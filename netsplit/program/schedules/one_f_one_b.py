"""One forward, one backward: a backward begins as soon as it can, which frees its activations."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from netsplit.program.schedules.base import Compute, Delay, Pipeline, Recompute, Schedule, split_backward
from netsplit.program.schedules.lists import minimal_delay
from netsplit.program.schedules.order import Policy, list_schedule

__all__ = ["EagerOneFOneB", "Interleaved", "OneFOneB", "backward_first", "warm_up"]


def warm_up(pipeline: Pipeline) -> list[int]:
    """Micro-batches in flight on a replica of each segment that keep all behind it busy.

    On a chain of p devices the k-th (from 0) has p - k; with replicas it is PipeDream's
    ceil(workers from here on / replicas here): one here, and its part of those that keep the workers behind
    it busy. On a DAG the longest path to the end counts; of uneven replicas the one that takes the most.
    """
    workers = pipeline.workers_from()
    behind = [w - len(devices) for w, devices in zip(workers, pipeline.devices, strict=True)]
    return [1 + ceil(count * pipeline.largest_part(s)) for s, count in enumerate(behind)]


def backward_first(task: Compute) -> tuple[int, ...]:
    """Backwards before forwards; the earliest micro-batch, and of it the segment nearest to its end."""
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
        """Where weights are delayed as little as needed, backwards that are whole may yet simulate better."""
        tasks = self.whole(pipeline)
        if self.delay_weights != "minimal":
            return [split_backward(tasks) if self.delay_weights else tasks]
        if pipeline.times is None:
            return [tasks]
        return [minimal_delay(pipeline, tasks, pipeline.times), tasks]

    def whole(self, pipeline: Pipeline) -> list[Compute]:
        """The order of whole backwards."""
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
        names, depth, height = pipeline.names, pipeline.depths(), pipeline.heights()
        p = len(names)
        chunks = {name: sum(name in devices for devices in pipeline.devices) for name in names}
        on_device = {name: 2 * (p - rank - 1) + (chunks[name] - 1) * p + 1 for rank, name in enumerate(names)}

        def urgency(task: Compute) -> tuple[int, ...]:
            phase, s, i = task
            if phase == "forward":
                return (1, i // p, depth[s], i % p, s)
            return (0, i // p, height[s], i % p, -s)

        policy = Policy(urgency, [self.microbatches] * len(pipeline), on_device)
        return list_schedule(pipeline, self.microbatches, policy)
