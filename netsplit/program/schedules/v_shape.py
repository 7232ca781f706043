"""Schedules for placements that go over the devices and back: two segments a device, in a V.

Segment k of 2p is on device k for k < p, and on device 2p - 1 - k after. On such a chain these have the
published orders, bubbles and memory; on any other shape they are list schedules within the same memory.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import ClassVar

from netsplit.program.schedules.base import Compute, Phase, Pipeline, Schedule, TaskTimes, merged_lists
from netsplit.program.schedules.named import warm_up
from netsplit.program.schedules.order import EQUAL, Policy, Urgency, list_schedule

__all__ = ["ZBV", "DualPipeV", "VHalf", "VMin", "kept_by_1f1b"]


def kept_by_1f1b(pipeline: Pipeline) -> int:
    """(segment, micro-batch) pairs on 1F1B's fullest device: n of a micro-batch with n segments."""
    most = max((sum(name in each for each in pipeline.devices) for name in pipeline.names), default=1)
    return most * ceil(max(warm_up(pipeline), default=1) / most)


def _v_devices(pipeline: Pipeline) -> tuple[str, ...] | None:
    """The p devices if 2p segments, each alone on a device, go over them and back; else None."""
    count = len(pipeline)
    names = tuple(name for devices in pipeline.devices for name in devices)
    forth, back = names[: count // 2], names[count // 2 :]
    single = len(names) == count and len(set(forth)) == len(forth)
    return forth if count and single and back == forth[::-1] else None


def _published(pipeline: Pipeline, devices: Sequence[str], lists: Sequence[list[Compute]]) -> list[Compute]:
    """The order without backwards of segments that have none."""
    own = [[task for task in tasks if task[0] == "forward" or task[1] in pipeline.trained] for tasks in lists]
    return merged_lists(pipeline, dict(zip(devices, own, strict=True)), TaskTimes.in_units(pipeline, EQUAL))


@dataclass(frozen=True)
class _InV(Schedule):
    """A pattern repeated from segment to segment `step` units later, within the memory of `pairs`."""

    microbatches: int = 4
    recompute: bool = False
    delay_weights: bool = True
    made_of_parts: ClassVar[bool] = True
    step: ClassVar[float]

    def in_flight(self, devices: int) -> int:
        return min(self.microbatches, ceil(self.pairs(2 * devices) / 2))

    def pairs(self, kept: int) -> int:
        """(segment, micro-batch) pairs a device may keep, if 1F1B's first keeps `kept`."""
        return kept

    def order(self, pipeline: Pipeline) -> list[Compute]:
        return list_schedule(
            pipeline, self.microbatches, self.policy(pipeline), TaskTimes.in_units(pipeline, EQUAL)
        )

    def policy(self, pipeline: Pipeline) -> Policy:
        """How devices choose in shapes without a published order."""
        return Policy(
            _inputs_first,
            kept_on_device=dict.fromkeys(pipeline.names, self.pairs(kept_by_1f1b(pipeline))),
            split=frozenset(range(self.microbatches)),
            turns={"forward": self._forward_turn(pipeline)},
        )

    def _interval(self, pipeline: Pipeline) -> float:
        load = dict.fromkeys(pipeline.names, 0.0)
        for s, devices in enumerate(pipeline.devices):
            for name in devices:
                load[name] += (3 if s in pipeline.trained else 1) / len(devices)
        return max(load.values(), default=0.0)

    def _forward_turn(self, pipeline: Pipeline) -> Urgency:
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
        devices = _v_devices(pipeline)
        if devices is None or self.microbatches < 2 * len(devices) - 1:
            return super().order(pipeline)
        return _published(pipeline, devices, _zb_v_lists(len(devices), self.microbatches))


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

        turns: dict[Phase, Urgency] = {"forward": forward, "input": backward}
        return replace(super().policy(pipeline), urgency=urgency, turns=turns)


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
        devices = _v_devices(pipeline)
        if devices is None or self.microbatches < 2 * len(devices):
            return super().order(pipeline)
        return _published(pipeline, devices, _dualpipe_v_lists(len(devices), self.microbatches))


@dataclass
class _Lane:
    """One device's list; every phase of a segment goes through the micro-batches in turn."""

    there: int  # its segment on the way there
    back: int  # and on the way back
    tasks: list[Compute] = field(default_factory=list)
    count: Counter[tuple[Phase, int]] = field(default_factory=Counter)
    put_off: deque[tuple[int, int]] = field(default_factory=deque)  # weights: segment, micro-batch

    def forward(self, s: int) -> None:
        self._next("forward", s)

    def whole(self, s: int) -> None:
        self._next("backward", s)

    def input(self, s: int) -> None:
        self.put_off.append((s, self._next("input", s)))

    def weight(self, s: int | None = None) -> None:
        each = next(each for each in self.put_off if s is None or each[0] == s)
        self.put_off.remove(each)
        self.tasks.append(("weight", *each))

    def both_parts(self, s: int) -> None:
        self.input(s)
        self.weight(s)

    def begun(self, s: int) -> int:
        return self.count["forward", s]

    def _next(self, phase: Phase, s: int) -> int:
        way: Phase = "forward" if phase == "forward" else "backward"
        i = self.count[way, s]
        self.count[way, s] += 1
        self.tasks.append((phase, s, i))
        return i


def _lanes(devices: int) -> list[_Lane]:
    return [_Lane(r, 2 * devices - 1 - r) for r in range(devices)]


def _zb_v_lists(devices: int, microbatches: int) -> list[list[Compute]]:
    """ZB-V on a V; needs 2p - 1 micro-batches.

    Warm-up, until the first weight gradient on every device of the same number kept; then forward, input and
    weight of either segment in turn; at the end inputs first, which puts off weights for the time of waiting.
    """
    lanes = _lanes(devices)
    for rank, lane in enumerate(lanes):
        for _ in range(2 * (devices - rank) - 1):
            lane.forward(lane.there)
        for _ in range(rank):
            lane.forward(lane.back)
            lane.forward(lane.there)
        for _ in range(devices - rank):
            lane.forward(lane.back)
            lane.both_parts(lane.back)
        while lane.begun(lane.back) < microbatches:
            if lane.begun(lane.there) < microbatches:
                lane.forward(lane.there)
            lane.both_parts(lane.there)
            lane.forward(lane.back)
            lane.both_parts(lane.back)
        for _ in range(rank):
            lane.input(lane.there)
            lane.input(lane.back)
        for _ in range(devices - rank):
            lane.input(lane.there)
            lane.weight(lane.there)
        for s in sorted((s for s, _ in lane.put_off), reverse=True):
            lane.weight(s)
    return [lane.tasks for lane in lanes]


def _dualpipe_v_lists(devices: int, microbatches: int) -> list[list[Compute]]:
    """DualPipe-V on a V; needs 2p micro-batches.

    Of the 2 (r + 1) backwards after the last forward, in which device r alternates between its segments, the
    second half puts the weights off.
    """
    lanes = _lanes(devices)
    for rank, lane in enumerate(lanes):
        behind = devices - rank - 1
        for _ in range(2 * behind):
            lane.forward(lane.there)
        for _ in range(rank + 1):
            lane.forward(lane.there)
            lane.forward(lane.back)
        for _ in range(behind):
            lane.both_parts(lane.back)
            lane.forward(lane.back)
        while lane.begun(lane.back) < microbatches:
            if lane.begun(lane.there) < microbatches:
                lane.forward(lane.there)
            lane.whole(lane.back)
            lane.forward(lane.back)
            lane.whole(lane.there)
        for number in range(2 * (rank + 1)):
            s = lane.there if number % 2 else lane.back
            if number <= rank:
                lane.whole(s)
            else:
                lane.input(s)
        for _ in range(behind):
            lane.weight()
            lane.input(lane.there)
        while lane.put_off:
            lane.weight()
    return [lane.tasks for lane in lanes]
