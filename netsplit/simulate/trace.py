"""A timeline as a Chrome trace, to be opened in https://ui.perfetto.dev or chrome://tracing.

    process "predicted"            process "measured"           one time axis, zero = start of the iteration
      thread  cpu:0                  thread  cpu:0              forward, backward, weight, step, wait, …
      thread  cpu:1                  thread  cpu:1
      thread  cpu:0 → cpu:1          thread  cpu:0 → cpu:1      send
      thread  cpu:0 sums             thread  cpu:0 sums         reduce

Transfers that overlap on one link get their own lanes: "cpu:0 → cpu:1 (2)".

Perfetto drops slices that overlap: events of no length are written as one nanosecond, which shifts the next.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from netsplit.files import write_text
from netsplit.graph.ir import Graph
from netsplit.program.instructions import Program
from netsplit.rewrite.rewriting import NodePart, node_parts, parts_label
from netsplit.simulate.timeline import COMPUTING, GRADIENT_OF, Event, Timeline

__all__ = ["EventParts", "chrome_trace", "lane_of", "lanes", "parts_of_events", "write_trace"]

_SLACK_S = 1e-9  # two spans that share less than this do not overlap
_LINK_TIDS = 100_000  # thread ids of links begin here, so that devices are listed first
_FEW = 8  # parts that a span lists one by one
_BESIDE = ("send", "reduce")  # kinds that do not occupy the device

EventParts: TypeAlias = Sequence[NodePart]


def lane_of(event: Event) -> str:
    """The row of an event: the link of a send, ``cpu:0 → cpu:1``, ``cpu:0 sums``, else the device."""
    if event.kind == "send":
        return f"{event.device} → {event.peer}"
    return f"{event.device} sums" if event.kind == "reduce" else event.device


def lanes(events: Iterable[Event]) -> dict[str, list[list[Event]]]:
    """Row name to its tracks, in which no two events overlap. Devices first, then links, by name."""
    tracks: dict[str, list[list[Event]]] = {}
    ranks = {kind: number for number, kind in enumerate(_BESIDE, 1)}
    for event in sorted(events, key=lambda e: (ranks.get(e.kind, 0), lane_of(e), e.start_s, e.end_s)):
        row = tracks.setdefault(lane_of(event), [])
        free = next((track for track in row if track[-1].end_s <= event.start_s + _SLACK_S), None)
        if free is None:
            row.append([event])
        else:
            free.append(event)
    return tracks


def parts_of_events(program: Program, graph: Graph) -> dict[str, tuple[NodePart, ...]]:
    """`Event.about` -> the parts that it computes, or that make what it moves."""
    of = node_parts(graph).of
    told = {f"segment {each.index}": tuple(of[v] for v in each.nodes if v in of) for each in program.segments}
    for k, variable in graph.variables.items():
        maker = variable.producer or ""
        if maker in of:
            told[k] = told[GRADIENT_OF + k] = (of[maker],)
    return {name: each for name, each in told.items() if each}


def chrome_trace(
    predicted: Timeline,
    measured: Timeline | None = None,
    parts: Mapping[str, EventParts] | None = None,
) -> dict[str, Any]:
    """Both timelines as the JSON object format of the Trace Event specification; times in microseconds.

    Args:
        parts: `parts_of_events` of the program.
    """
    named = {"predicted": predicted} | ({"measured": measured} if measured is not None else {})
    events: list[dict[str, Any]] = []
    for pid, (name, timeline) in enumerate(named.items(), start=1):
        events += _process(pid, name, timeline, parts or {})
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {f"{name}_iteration_s": timeline.iteration_s for name, timeline in named.items()},
    }


def write_trace(
    path: str | Path,
    predicted: Timeline,
    measured: Timeline | None = None,
    parts: Mapping[str, EventParts] | None = None,
) -> Path:
    """Write `chrome_trace` to `path`, replacing the file in one piece; makes the folder."""
    write_text(path, json.dumps(chrome_trace(predicted, measured, parts), allow_nan=False))
    return Path(path)


def _process(
    pid: int, name: str, timeline: Timeline, parts: Mapping[str, EventParts]
) -> list[dict[str, Any]]:
    title = f"{name} ({1e3 * timeline.iteration_s:.3f} ms)"
    records = [
        _metadata(pid, 0, "process_name", name=title),
        _metadata(pid, 0, "process_sort_index", sort_index=pid),
    ]
    for row_index, (row, tracks) in enumerate(lanes(timeline.events).items()):
        for number, track in enumerate(tracks):
            tid = (_LINK_TIDS if track[0].kind in _BESIDE else 0) + 100 * row_index + number + 1
            label = row if number == 0 else f"{row} ({number + 1})"
            records.append(_metadata(pid, tid, "thread_name", name=label))
            records.append(_metadata(pid, tid, "thread_sort_index", sort_index=tid))
            free = 0  # nanoseconds
            for event in track:
                start = max(round(1e9 * event.start_s), free)
                free = max(round(1e9 * event.end_s), start + 1)
                records.append(_span(pid, tid, event, start, free, parts.get(event.about, ())))
    return records


def _us(ns: int) -> float:
    """Microseconds that give `ns` again when multiplied by 1000 and truncated."""
    us = ns / 1000
    return us if int(1000 * us) == ns else math.nextafter(us, math.inf)


def _metadata(pid: int, tid: int, kind: str, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": args}


def _span(pid: int, tid: int, event: Event, start_ns: int, end_ns: int, parts: EventParts) -> dict[str, Any]:
    args: dict[str, Any] = {"kind": event.kind}
    if event.microbatch >= 0:
        args["microbatch"] = event.microbatch
    if event.peer:
        args["peer"] = event.peer
    if event.nbytes:
        args["bytes"] = event.nbytes
    if parts:
        left = [f"and {len(parts) - _FEW} more"] if len(parts) > _FEW else []
        args["parts"] = [part.description for part in parts[:_FEW]] + left
    name = event.name if event.name.startswith(event.kind) else f"{event.kind} {event.name}"
    computed = [part for part in parts if part.cuts]
    label = "" if event.kind not in COMPUTING else parts_label(computed)
    span = {"ph": "X", "pid": pid, "tid": tid, "name": f"{name}, {label}" if label else name}
    return span | {"cat": event.kind, "ts": _us(start_ns), "dur": _us(end_ns - start_ns), "args": args}
