"""What happened when, predicted or measured: the common result of both interpreters of a program."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

__all__ = ["COMPUTING", "GRADIENT_OF", "Event", "EventKind", "Span", "Timeline", "length", "union"]

EventKind = Literal["forward", "backward", "weight", "recompute", "send", "recv", "wait", "reduce", "step"]
"""``backward``: whole, or of the inputs alone; ``weight``: the part of it that was put off; ``recompute``: a
forward once more, before its backward; ``reduce``: a sum over devices, on each of them; it occupies links."""
COMPUTING: frozenset[EventKind] = frozenset({"forward", "backward", "weight", "recompute", "step"})
"""Kinds of what a device does one at a time."""
GRADIENT_OF = "gradient of "
"""Before the name of what a gradient is sent for."""
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
        """Its name; of a wait for a tensor, that of the send which brings it."""
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
    """The same moments as disjoint spans, by time."""
    disjoint: list[Span] = []
    for start, end in sorted(spans):
        if disjoint and start <= disjoint[-1][1]:
            disjoint[-1] = (disjoint[-1][0], max(disjoint[-1][1], end))
        else:
            disjoint.append((start, end))
    return disjoint


def length(spans: Iterable[Span]) -> float:
    """Seconds of disjoint spans."""
    return sum(end - start for start, end in spans)
