"""Schedules for placements that go over the devices and back: two segments a device, in a V.

Segment k of 2p is on device k for k < p, and on device 2p - 1 - k after. On such a chain these have the
published orders, bubbles and memory; on any other shape they are list schedules within the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from netsplit.errors import ConfigError
from netsplit.program.schedules.base import Compute, Pipeline, Schedule, TaskTimes
from netsplit.program.schedules.lists import merged_lists
from netsplit.program.schedules.one_f_one_b import warm_up
from netsplit.program.schedules.order import EQUAL, Policy, list_schedule
from netsplit.program.schedules.v_lists import dualpipe_v_lists, zb_v_lists

__all__ = ["ZBV", "DualPipeV", "VHalf", "VMin", "kept_by_1f1b", "v_devices"]


def kept_by_1f1b(pipeline: Pipeline) -> int:
    """(segment, micro-batch) pairs that 1F1B's fullest device keeps: p of a whole device each, on p devices.

    A device with n segments has n pairs of a micro-batch.
    """
    most = max((sum(name in each for each in pipeline.devices) for name in pipeline.names), default=1)
    return most * ceil(max(warm_up(pipeline), default=1) / most)


def v_devices(pipeline: Pipeline) -> tuple[str, ...] | None:
    """Its p devices, where 2p segments, each on a device alone, go over them and back; else None.

    A segment may read from any before it: an order of a chain is one of these too.
    """
    count = len(pipeline)
    names = tuple(name for devices in pipeline.devices for name in devices)
    there, back = names[: count // 2], names[count // 2 :]
    single = len(names) == count and len(set(there)) == len(there)
    return there if count and single and back == there[::-1] else None


def _published(pipeline: Pipeline, devices: Sequence[str], lists: Sequence[list[Compute]]) -> list[Compute]:
    """In one order, without the backwards of segments that have none."""
    own = [[task for task in tasks if task[0] == "forward" or task[1] in pipeline.trained] for tasks in lists]
    return merged_lists(pipeline, dict(zip(devices, own, strict=True)), TaskTimes.in_units(pipeline, EQUAL))


@dataclass(frozen=True)
class _InV(Schedule):
    """A pattern that repeats, from segment to segment `step` units later, within the memory of `pairs`."""

    microbatches: int = 4
    recompute: bool = False
    delay_weights: bool = True
    step: ClassVar[float]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.delay_weights:
            raise ConfigError(f"schedule.delay_weights is false, but {self.name} is made of it: choose 1f1b.")

    def in_flight(self, devices: int) -> int:
        return min(self.microbatches, ceil(self.pairs(2 * devices) / 2))

    def pairs(self, kept: int) -> int:
        """(segment, micro-batch) pairs a device may keep where 1F1B's first keeps `kept`."""
        return kept

    def order(self, pipeline: Pipeline) -> list[Compute]:
        return list_schedule(
            pipeline, self.microbatches, self.policy(pipeline), TaskTimes.in_units(pipeline, EQUAL)
        )

    def policy(self, pipeline: Pipeline) -> Policy:
        """By which devices choose where the order is not a published one."""
        return Policy(
            _inputs_first,
            kept_on_device=dict.fromkeys(pipeline.names, self.pairs(kept_by_1f1b(pipeline))),
            split=frozenset(range(self.microbatches)),
            turns={"forward": self._forward_turn(pipeline)},
        )

    def _interval(self, pipeline: Pipeline) -> float:
        """Units between micro-batches: what the fullest device computes for one."""
        load = dict.fromkeys(pipeline.names, 0.0)
        for s, devices in enumerate(pipeline.devices):
            for name in devices:
                load[name] += (3 if s in pipeline.trained else 1) / len(devices)
        return max(load.values(), default=0.0)

    def _forward_turn(self, pipeline: Pipeline) -> Callable[[Compute], tuple[float, ...]]:
        depth, interval = pipeline.depths(), self._interval(pipeline)
        return lambda task: (self.step * depth[task[1]] + interval * task[2], -task[1])


def _inputs_first(task: Compute) -> tuple[float, ...]:
    phase, s, i = task
    return ({"input": 0, "forward": 1}.get(phase, 2), i, s)


@dataclass(frozen=True)
class ZBV(_InV):
    """ZB-V: no bubble but the first micro-batch's way to the last device, in 1F1B's memory.

    Source: Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS 2024, V-ZB; the order on a V of
    at least 2p - 1 micro-batches is that of ZB-V in Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024.
    """

    name: ClassVar[str] = "zb_v"
    step: ClassVar[float] = 3

    def order(self, pipeline: Pipeline) -> list[Compute]:
        devices = v_devices(pipeline)
        if devices is None or self.microbatches < 2 * len(devices) - 1:
            return super().order(pipeline)
        return _published(pipeline, devices, zb_v_lists(len(devices), self.microbatches))


@dataclass(frozen=True)
class VHalf(_InV):
    """V-Half: half of 1F1B's activations, and half of its bubble.

    Source: Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS 2024: (p + 2) / 2 micro-batches
    are in flight on p devices.
    """

    name: ClassVar[str] = "v_half"
    step: ClassVar[float] = 1.5

    def pairs(self, kept: int) -> int:
        return min(kept, ceil(kept / 2) + 2)


@dataclass(frozen=True)
class VMin(_InV):
    """V-Min: a third of 1F1B's activations, and two thirds of its bubble.

    Source: Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS 2024: (p + 4) / 3 micro-batches
    are in flight on p devices. Backwards too keep to the repeated pattern, at whose turn two units are free:
    without them forwards and backwards meet on a device where p is a multiple of three.
    """

    name: ClassVar[str] = "v_min"
    step: ClassVar[float] = 1

    def pairs(self, kept: int) -> int:
        return min(kept, ceil((kept + 8) / 3))

    def policy(self, pipeline: Pipeline) -> Policy:
        depth, height, interval = pipeline.depths(), pipeline.heights(), self._interval(pipeline)
        turn_s = max(depth, default=0) + 3

        def forward(task: Compute) -> tuple[float, ...]:
            return (depth[task[1]] + interval * task[2], 1, -task[1])

        def backward(task: Compute) -> tuple[float, ...]:
            return (turn_s + height[task[1]] + interval * task[2], 0, -task[1])

        def urgency(task: Compute) -> tuple[float, ...]:
            phase, s, i = task
            if phase == "weight":
                return (float("inf"), i, s)
            return forward(task) if phase == "forward" else backward(task)

        return Policy(
            urgency,
            kept_on_device=dict.fromkeys(pipeline.names, self.pairs(kept_by_1f1b(pipeline))),
            split=frozenset(range(self.microbatches)),
            turns={"forward": forward, "input": backward},
        )


@dataclass(frozen=True)
class DualPipeV(_InV):
    """DualPipe cut in half: a forward and a whole backward in turn, parts of backwards at both ends.

    Source: DeepSeek-V3 Technical Report, 2024, section 3.2.1, and its cut in half by Sea AI Lab, 2025, where
    p devices keep p + 1/2 micro-batches. It is published for at least 2p micro-batches; with fewer, and on
    other shapes than a V, it is `zb_v` with one pair more.
    """

    name: ClassVar[str] = "dualpipe_v"
    step: ClassVar[float] = 3

    def pairs(self, kept: int) -> int:
        return kept + 1

    def order(self, pipeline: Pipeline) -> list[Compute]:
        devices = v_devices(pipeline)
        if devices is None or self.microbatches < 2 * len(devices):
            return super().order(pipeline)
        return _published(pipeline, devices, dualpipe_v_lists(len(devices), self.microbatches))
