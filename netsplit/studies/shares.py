"""A timeline divided into what its devices do: compute, communicate, wait.

forward, backward, update   the device computes
communication               it does not, and a transfer or sum that it has a part in is under way
waiting                     the rest, until the iteration ends
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from netsplit.simulate.timeline import COMPUTING, Event, Timeline

__all__ = ["PARTS", "shares"]

PARTS = ("forward", "backward", "communication", "update", "waiting")

_PART_OF = {
    "forward": "forward",
    "recompute": "forward",
    "backward": "backward",
    "weight": "backward",
    "step": "update",
}

Span = tuple[float, float]


def shares(timeline: Timeline, devices: Iterable[str]) -> dict[str, dict[str, float]]:
    """Device -> part -> seconds; the parts of a device add up to the iteration.

    A sum over devices begins when the last of them has come to it: before that, the others wait.
    """
    moving = _moving(timeline.events)
    parts_of = {}
    for device in devices:
        computing = [e for e in timeline.events if e.device == device and e.kind in COMPUTING]
        parts = dict.fromkeys(PARTS, 0.0)
        for event in computing:
            parts[_PART_OF[event.kind]] += event.seconds
        busy = _union((e.start_s, e.end_s) for e in computing)
        either = _union([*busy, *_within(moving[device], timeline.iteration_s)])
        parts["communication"] = _length(either) - _length(busy)
        parts["waiting"] = timeline.iteration_s - sum(parts.values())
        parts_of[device] = parts
    return parts_of


def _moving(events: Iterable[Event]) -> defaultdict[str, list[Span]]:
    """Device -> when bytes to or from it are on their way."""
    moving: defaultdict[str, list[Span]] = defaultdict(list)
    sums: defaultdict[str, defaultdict[str, list[Event]]] = defaultdict(lambda: defaultdict(list))
    waits = []
    for event in events:
        if event.kind == "send":
            moving[event.device].append((event.start_s, event.end_s))
            moving[event.peer].append((event.start_s, event.end_s))
        elif event.kind == "reduce":
            sums[event.name][event.device].append(event)
        elif event.kind == "wait":
            waits.append(event)
    begins: dict[str, list[float]] = {}
    for name, of_device in sums.items():
        rounds = list(zip(*of_device.values(), strict=False))
        begins[name] = [max(event.start_s for event in each) for each in rounds]
        for start, each in zip(begins[name], rounds, strict=True):
            for event in each:
                moving[event.device].append((start, max(event.end_s, start)))
    for wait in waits:  # measured: a sum goes on while its devices wait for it
        begun = [start for start in begins.get(wait.name, ()) if start <= wait.end_s]
        if begun:
            moving[wait.device].append((max(wait.start_s, begun[-1]), wait.end_s))
    return moving


def _within(spans: Iterable[Span], end_s: float) -> list[Span]:
    return [(max(start, 0.0), min(end, end_s)) for start, end in spans if start < end_s]


def _union(spans: Iterable[Span]) -> list[Span]:
    """The same moments as disjoint spans, by time."""
    union: list[Span] = []
    for start, end in sorted(spans):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((start, end))
    return union


def _length(spans: Iterable[Span]) -> float:
    return sum(end - start for start, end in spans)
