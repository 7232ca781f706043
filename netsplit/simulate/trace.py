"""A timeline as a Chrome trace, to be opened in https://ui.perfetto.dev or chrome://tracing.

    process "predicted"            process "measured"           one time axis, zero = start of the iteration
      thread  cpu:0                  thread  cpu:0              forward, backward, weight, step, wait, …
      thread  cpu:1                  thread  cpu:1
      thread  cpu:0 → cpu:1          thread  cpu:0 → cpu:1      send
      thread  cpu:0 sums             thread  cpu:0 sums         reduce

Transfers that overlap on one link get their own lanes: "cpu:0 → cpu:1 (2)". If the program is given, an arrow
leads from every send to the computation that reads it.

Perfetto drops slices that overlap, and arrows without a slice. So events of no length are written as one
nanosecond, which shifts the next event in the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from netsplit.files import write_text
from netsplit.graph.ir import Graph
from netsplit.program.instructions import Program, origin
from netsplit.rewrite.rewriting import NodePart, node_parts, parts_label
from netsplit.simulate.timeline import COMPUTING, GRADIENT_OF, Event, Timeline

__all__ = ["EventParts", "chrome_trace", "lane_of", "lanes", "parts_of_events", "write_trace"]

_SLACK_S = 1e-9  # two spans that share less than this do not overlap
_LINK_TIDS = 100_000  # thread ids of links begin here, so that devices are listed first
_FLOWS = 1_000_000  # flow ids of one process
_FEW = 8  # parts that a span lists one by one
_BESIDE = ("send", "reduce")  # kinds that do not occupy the device

Arrow = tuple[Event, Event]  # a send, and the computation that reads what it brings
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
    program: Program | None = None,
    parts: Mapping[str, EventParts] | None = None,
) -> dict[str, Any]:
    """Both timelines as the JSON object format of the Trace Event specification; times in microseconds.

    Args:
        program: that both are of; tells which computation reads what a send brings.
        parts: `parts_of_events` of it.
    """
    named = {"predicted": predicted} | ({"measured": measured} if measured is not None else {})
    events: list[dict[str, Any]] = []
    for pid, (name, timeline) in enumerate(named.items(), start=1):
        events += _process(pid, name, timeline, program, parts or {})
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {f"{name}_iteration_s": timeline.iteration_s for name, timeline in named.items()},
    }


def write_trace(
    path: str | Path,
    predicted: Timeline,
    measured: Timeline | None = None,
    program: Program | None = None,
    parts: Mapping[str, EventParts] | None = None,
) -> Path:
    """Write `chrome_trace` to `path`, replacing the file in one piece; makes the folder."""
    write_text(path, json.dumps(chrome_trace(predicted, measured, program, parts), allow_nan=False))
    return Path(path)


def _process(
    pid: int, name: str, timeline: Timeline, program: Program | None, parts: Mapping[str, EventParts]
) -> list[dict[str, Any]]:
    title = f"{name} ({1e3 * timeline.iteration_s:.3f} ms)"
    records = [
        _metadata(pid, 0, "process_name", name=title),
        _metadata(pid, 0, "process_sort_index", sort_index=pid),
    ]
    rows, arrows = lanes(timeline.events), _arrows(timeline, program)
    times = _whole_ns([track for tracks in rows.values() for track in tracks], arrows)
    tid_of: dict[int, int] = {}
    for row_index, (row, tracks) in enumerate(rows.items()):
        for number, track in enumerate(tracks):
            tid = (_LINK_TIDS if track[0].kind in _BESIDE else 0) + 100 * row_index + number + 1
            label = row if number == 0 else f"{row} ({number + 1})"
            records.append(_metadata(pid, tid, "thread_name", name=label))
            records.append(_metadata(pid, tid, "thread_sort_index", sort_index=tid))
            records += [
                _span(pid, tid, event, *times[id(event)], parts.get(event.about, ())) for event in track
            ]
            tid_of |= dict.fromkeys(map(id, track), tid)
    for number, (send, consumer) in enumerate(arrows):
        shared = {"pid": pid, "name": send.name, "cat": "transfer", "id": pid * _FLOWS + number}
        for event, ends in ((send, {"ph": "s"}), (consumer, {"ph": "f", "bp": "e"})):
            records.append(shared | ends | {"tid": tid_of[id(event)], "ts": _us(times[id(event)][0])})
    return records


def _whole_ns(tracks: Iterable[Sequence[Event]], arrows: Iterable[Arrow]) -> dict[int, tuple[int, int]]:
    """Identity of an event -> its nanoseconds: at least one, without overlap, and after what it reads."""
    read: dict[int, list[Event]] = {}
    for send, consumer in arrows:
        if send.start_s <= consumer.start_s:  # clocks of two machines may disagree
            read.setdefault(id(consumer), []).append(send)
    spans: dict[int, tuple[int, int]] = {}
    for track in sorted(tracks, key=lambda track: track[0].kind != "send"):
        free = round(1e9 * track[0].start_s)
        for event in track:
            sent = [spans[id(send)][0] for send in read.get(id(event), ())]
            start = max(round(1e9 * event.start_s), free, *sent)
            free = max(round(1e9 * event.end_s), start + 1)
            spans[id(event)] = (start, free)
    return spans


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


def _arrows(timeline: Timeline, program: Program | None) -> list[Arrow]:
    """Every send with the computation that reads it."""
    readers = _readers(program) if program is not None else {}
    work: dict[tuple[str, str, int, str], Event] = {}
    for event in sorted(timeline.events, key=lambda e: e.start_s, reverse=True):
        work[event.device, event.kind, event.microbatch, event.name] = event
    arrows: list[Arrow] = []
    for send in (e for e in timeline.events if e.kind == "send"):
        kind = "backward" if send.name.startswith(GRADIENT_OF) else "forward"
        tasks = (work.get((send.peer, kind, send.microbatch, name)) for name in readers.get(send.name, ()))
        reading = sorted(filter(None, tasks), key=lambda e: e.start_s)
        arrows += [(send, consumer) for consumer in reading[:1]]
    return arrows


def _readers(program: Program) -> dict[str, set[str]]:
    graph = program.graph
    readers: dict[str, set[str]] = {}
    for segment in program.segments:
        name = f"segment {segment.index}"
        for k in segment.inputs:
            if (source := origin(graph, k)) != k:
                readers.setdefault(source, set()).add(name)
        for k in segment.outputs:
            readers.setdefault(GRADIENT_OF + k, set()).add(name)
    return readers
