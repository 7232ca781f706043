"""Timelines, predicted or measured; each device's use of an iteration, and whom it waits for.

iteration = busy + wait + idle                 of each device
transfer  = a link of the device is in use     while it computes, waits or idles
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from netsplit.program.instructions import Backward, Forward, Program, Step
from netsplit.simulate.lifetimes.storages import MemoryProfile

__all__ = [
    "COMPUTING", "GRADIENT_OF", "DeviceTimes", "Event", "EventKind", "Span", "Timeline", "Waiting",
    "device_times", "length", "memory_course", "peak_moment_s", "union", "waits",
]  # fmt: skip

EventKind = Literal["forward", "backward", "weight", "recompute", "send", "recv", "wait", "reduce", "step"]
"""``backward``: whole, or of the inputs alone; ``weight``: the part of it that was put off; ``recompute``: a
forward once more, before its backward; ``reduce``: a sum over devices, on each of them; it occupies links."""
COMPUTING: frozenset[EventKind] = frozenset({"forward", "backward", "weight", "recompute", "step"})
"""Kinds of events that exclude one another on a device."""
GRADIENT_OF = "gradient of "
"""Prefix of the names of sent gradients."""
Span = tuple[float, float]
"""Start and end, seconds."""


class Event(NamedTuple):
    """One span on one device. Seconds since the iteration began."""

    device: str
    kind: EventKind
    name: str  # "segment 3", a variable's name
    microbatch: int  # -1 for the optimiser step
    start_s: float
    end_s: float
    peer: str = ""  # the other device of a transfer or a wait
    nbytes: int = 0

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s

    @property
    def about(self) -> str:
        """The event's name; for a wait, that of the send it waits for."""
        k = self.name.partition("variable '")[2].rpartition("' of micro-batch")[0]
        if self.kind != "wait" or not k:
            return self.name
        return f"{GRADIENT_OF}{k}" if self.name.startswith("the gradient") else k

    @property
    def span(self) -> Span:
        return self.start_s, self.end_s


@dataclass(frozen=True)
class Timeline:
    """One training iteration. `send` events span the occupation of a link; the others occupy the device."""

    events: tuple[Event, ...]
    iteration_s: float
    peak_bytes: dict[str, int] = field(default_factory=dict)  # device name -> bytes
    host_bytes: dict[str, int] = field(
        default_factory=dict
    )  # at most, of each device on its host; if offloaded

    def busy_s(self, device: str) -> float:
        """Seconds in which a device computes: forward, backward in all its parts, and steps."""
        return self._busy_s.get(device, 0.0)

    @cached_property
    def _busy_s(self) -> dict[str, float]:
        busy: dict[str, float] = {}
        for e in self.events:
            if e.kind in COMPUTING:
                busy[e.device] = busy.get(e.device, 0.0) + e.seconds
        return busy


def union(spans: Iterable[Span]) -> list[Span]:
    disjoint: list[Span] = []
    for start, end in sorted(spans):
        if disjoint and start <= disjoint[-1][1]:
            disjoint[-1] = (disjoint[-1][0], max(disjoint[-1][1], end))
        else:
            disjoint.append((start, end))
    return disjoint


def length(spans: Iterable[Span]) -> float:
    return sum(end - start for start, end in spans)


@dataclass(frozen=True)
class DeviceTimes:
    """Seconds of one device in one iteration."""

    device: str
    busy_s: float  # computing
    wait_s: float  # waiting for a tensor or a sum
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
    """One for each of `devices`, in order."""
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
    """All waits by device and tensor, longest first."""
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
    """When a device's bytes peak: the start of that instruction or the next computation."""
    before = program.instructions[profile.device][: max(profile.index, 0)]
    number = sum(isinstance(ins, Forward | Backward | Step) for ins in before)
    lane = _computations(timeline, profile.device)
    return lane[number].start_s if number < len(lane) else timeline.iteration_s


def memory_course(program: Program, timeline: Timeline, profile: MemoryProfile) -> list[tuple[float, int]]:
    """(seconds, bytes alive from then on) of a device, from 0 to the iteration's end."""
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
    """Forwards, backwards and steps, in the order of the device's instructions."""
    return [
        event
        for event in timeline.events
        if event.device == device and event.kind in COMPUTING and event.kind != "recompute"
    ]
