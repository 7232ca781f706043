"""A timeline divided into what its devices do: compute, communicate, wait.

forward, backward, update   the device computes
communication               it does not, and a transfer or sum that it has a part in is under way
waiting                     the rest, until the iteration ends
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from netsplit.simulate.timeline import COMPUTING, Event, Span, Timeline, length, union

__all__ = ["PARTS", "iteration_parts"]

PARTS = ("forward", "backward", "communication", "update", "waiting")

_PART_OF = {
    "forward": "forward",
    "recompute": "forward",
    "backward": "backward",
    "weight": "backward",
    "step": "update",
}


def iteration_parts(timeline: Timeline, devices: Iterable[str]) -> dict[str, dict[str, float]]:
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
        busy = union(e.span for e in computing)
        either = union([*busy, *_within(moving[device], timeline.iteration_s)])
        parts["communication"] = length(either) - length(busy)
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
            moving[event.device].append(event.span)
            moving[event.peer].append(event.span)
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
