"""What every device does with an iteration, and whom it waits for; of a predicted or measured timeline.

iteration = busy + wait + idle                 of each device
transfer  = a link of the device is in use     while it computes, waits or idles
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from netsplit.program.instructions import Backward, Forward, Program, Step
from netsplit.simulate.lifetimes.storages import MemoryProfile
from netsplit.simulate.timeline import COMPUTING, Event, Timeline, length, union

__all__ = ["DeviceTimes", "Waiting", "device_times", "memory_course", "peak_moment_s", "waits"]


@dataclass(frozen=True)
class DeviceTimes:
    """Seconds of one device in one iteration."""

    device: str
    busy_s: float  # computing
    wait_s: float  # for a tensor or a sum that is not there yet
    transfer_s: float  # at least one of its links is in use
    idle_s: float  # nothing left to do, or between instructions
    hidden_s: float  # of `transfer_s`, while it computed


@dataclass(frozen=True)
class Waiting:
    """All waits of one device for one thing: a variable or its gradient from a peer, of any micro-batch."""

    device: str
    peer: str
    what: str
    seconds: float
    count: int


def device_times(timeline: Timeline, devices: Iterable[str]) -> list[DeviceTimes]:
    """One for each of `devices`, in their order."""
    times = []
    for device in devices:
        own = [event for event in timeline.events if event.device == device]
        work = union(event.span for event in own if event.kind in COMPUTING)
        waiting = union(event.span for event in own if event.kind == "wait")
        moving = union(
            event.span
            for event in timeline.events
            if (event.kind == "send" and device in (event.device, event.peer))
            or (event.kind == "reduce" and event.device == device)
        )
        busy_s, wait_s, transfer_s = map(length, (work, waiting, moving))
        hidden_s = busy_s + transfer_s - length(union(work + moving))
        idle_s = max(timeline.iteration_s - length(union(work + waiting)), 0.0)
        times.append(DeviceTimes(device, busy_s, wait_s, transfer_s, idle_s, max(hidden_s, 0.0)))
    return times


def waits(timeline: Timeline) -> list[Waiting]:
    """Who waits for whom, and for what: the longest first."""
    seconds: Counter[tuple[str, str, str]] = Counter()
    counts: Counter[tuple[str, str, str]] = Counter()
    for event in timeline.events:
        if event.kind == "wait":
            key = (event.device, event.peer, event.name.rpartition(" of micro-batch")[0] or event.name)
            seconds[key] += event.seconds  # type: ignore[assignment]
            counts[key] += 1
    ordered = sorted(seconds, key=lambda key: (-seconds[key], key))
    return [Waiting(*key, float(seconds[key]), counts[key]) for key in ordered]


def peak_moment_s(program: Program, timeline: Timeline, profile: MemoryProfile) -> float:
    """When a device's bytes peak: the beginning of that instruction, or of the next that computes."""
    before = program.instructions[profile.device][: max(profile.index, 0)]
    number = sum(isinstance(ins, Forward | Backward | Step) for ins in before)
    lane = _computations(timeline, profile.device)
    return lane[number].start_s if number < len(lane) else timeline.iteration_s


def memory_course(program: Program, timeline: Timeline, profile: MemoryProfile) -> list[tuple[float, int]]:
    """(seconds, bytes alive from then on) of a device, in the order of time, from 0 to the iteration's end.

    While it computes, the most that the computation has alive.
    """
    events = iter(_computations(timeline, profile.device))
    points, last_s = [(0.0, profile.course[0][0] if profile.course else profile.peak_bytes)], 0.0
    for ins, (most, after) in zip(program.instructions[profile.device], profile.course, strict=True):
        event = next(events, None) if isinstance(ins, Forward | Backward | Step) else None
        if event is not None:
            points.append((event.start_s, most))
            last_s = event.end_s
        points.append((last_s, after if event is not None else most))
    return [*points, (max(timeline.iteration_s, last_s), points[-1][1])]


def _computations(timeline: Timeline, device: str) -> list[Event]:
    """Events of forwards, backwards and steps, in the order of the device's instructions."""
    return [
        event
        for event in timeline.events
        if event.device == device and event.kind in COMPUTING and event.kind != "recompute"
    ]
