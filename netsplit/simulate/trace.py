"""A timeline as a Chrome trace, to be opened in https://ui.perfetto.dev or chrome://tracing.

    process "predicted"            process "measured"           one time axis, zero = start of the iteration
      thread  cpu:0                  thread  cpu:0              forward, backward, weight, step, wait, …
      thread  cpu:1                  thread  cpu:1
      thread  cpu:0 → cpu:1          thread  cpu:0 → cpu:1      send
      thread  cpu:0 sums             thread  cpu:0 sums         reduce

Transfers that overlap on one link get lanes of their own: "cpu:0 → cpu:1 (2)". An arrow leads from every
send to the computation that reads what it brings: by variable where the program is given, else to the first
computation of its micro-batch and direction that begins there after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from netsplit.files import write_text
from netsplit.graph.ir import TRANSFER
from netsplit.program.instructions import Program
from netsplit.simulate.timeline import Event, Timeline

__all__ = ["chrome_trace", "lane_of", "lanes", "write_trace"]

_SLACK_S = 1e-9  # two spans that share less than this do not overlap
_LINK_TIDS = 100_000  # thread ids of links begin here, so that devices are listed first
_FLOWS = 1_000_000  # flow ids of one process
_GRADIENT = "gradient of "
_BESIDE = ("send", "reduce")  # kinds that do not occupy the device


def lane_of(event: Event) -> str:
    """The row of an event: the link of a send, ``cpu:0 → cpu:1``, ``cpu:0 sums``, else the device."""
    if event.kind == "send":
        return f"{event.device} → {event.peer}"
    return f"{event.device} sums" if event.kind == "reduce" else event.device


def lanes(events: Iterable[Event]) -> dict[str, list[list[Event]]]:
    """Row name to its tracks; within one track no two events overlap. Devices first, then links, by name."""
    tracks: dict[str, list[list[Event]]] = {}
    for event in sorted(events, key=lambda e: (_rank(e), lane_of(e), e.start_s, -e.end_s)):
        row = tracks.setdefault(lane_of(event), [])
        free = next((track for track in row if track[-1].end_s <= event.start_s + _SLACK_S), None)
        if free is None:
            row.append([event])
        else:
            free.append(event)
    return tracks


def _rank(event: Event) -> int:
    return _BESIDE.index(event.kind) + 1 if event.kind in _BESIDE else 0


def chrome_trace(
    predicted: Timeline, measured: Timeline | None = None, program: Program | None = None
) -> dict[str, Any]:
    """Both timelines as the JSON object format of the Trace Event specification; times in microseconds.

    Args:
        program: that both are of; tells which computation reads what a send brings.
    """
    named = {"predicted": predicted} | ({"measured": measured} if measured is not None else {})
    events: list[dict[str, Any]] = []
    for pid, (name, timeline) in enumerate(named.items(), start=1):
        events += _process(pid, name, timeline, program)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {f"{name}_iteration_s": timeline.iteration_s for name, timeline in named.items()},
    }


def write_trace(
    path: str | Path, predicted: Timeline, measured: Timeline | None = None, program: Program | None = None
) -> Path:
    """Write `chrome_trace` to `path`, replacing the file in one piece; makes the folder."""
    write_text(path, json.dumps(chrome_trace(predicted, measured, program), allow_nan=False))
    return Path(path)


def _process(pid: int, name: str, timeline: Timeline, program: Program | None) -> list[dict[str, Any]]:
    title = f"{name} ({1e3 * timeline.iteration_s:.3f} ms)"
    found = [
        _metadata(pid, 0, "process_name", name=title),
        _metadata(pid, 0, "process_sort_index", sort_index=pid),
    ]
    tid_of: dict[int, int] = {}
    for row_index, (row, tracks) in enumerate(lanes(timeline.events).items()):
        for number, track in enumerate(tracks):
            tid = (_LINK_TIDS if track[0].kind in _BESIDE else 0) + 100 * row_index + number + 1
            label = row if number == 0 else f"{row} ({number + 1})"
            found.append(_metadata(pid, tid, "thread_name", name=label))
            found.append(_metadata(pid, tid, "thread_sort_index", sort_index=tid))
            found += [_span(pid, tid, event) for event in track]
            tid_of |= {id(event): tid for event in track}
    return found + _arrows(pid, timeline, tid_of, program)


def _metadata(pid: int, tid: int, kind: str, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": args}


def _span(pid: int, tid: int, event: Event) -> dict[str, Any]:
    args: dict[str, Any] = {"kind": event.kind}
    if event.microbatch >= 0:
        args["microbatch"] = event.microbatch
    if event.peer:
        args["peer"] = event.peer
    if event.nbytes:
        args["bytes"] = event.nbytes
    return {
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "name": event.name if event.name.startswith(event.kind) else f"{event.kind} {event.name}",
        "cat": event.kind,
        "ts": 1e6 * event.start_s,
        "dur": 1e6 * event.seconds,
        "args": args,
    }


def _arrows(
    pid: int, timeline: Timeline, tid_of: dict[int, int], program: Program | None
) -> list[dict[str, Any]]:
    """From each send to the computation that reads what it brings; ids are numbers, as Perfetto wants."""
    work: dict[tuple[str, str, int], list[Event]] = {}
    for event in sorted(timeline.events, key=lambda e: e.start_s):
        if event.kind in ("forward", "backward"):
            work.setdefault((event.device, event.kind, event.microbatch), []).append(event)
    readers = _readers(program) if program is not None else None
    found: list[dict[str, Any]] = []
    for number, send in enumerate(e for e in timeline.events if e.kind == "send"):
        gradient = send.name.startswith(_GRADIENT)
        there = work.get((send.peer, "backward" if gradient else "forward", send.microbatch), [])
        if readers is None:
            reading = [e for e in there if e.start_s + _SLACK_S >= send.end_s]
        else:
            reading = [e for e in there if e.name in readers.get(send.name, ())]
        if not reading:
            continue
        consumer = reading[0]
        shared = {"pid": pid, "name": send.name, "cat": "transfer", "id": pid * _FLOWS + number}
        found.append(shared | {"ph": "s", "tid": tid_of[id(send)], "ts": 1e6 * send.start_s})
        found.append(
            shared | {"ph": "f", "bp": "e", "tid": tid_of[id(consumer)], "ts": 1e6 * consumer.start_s}
        )
    return found


def _readers(program: Program) -> dict[str, set[str]]:
    """Name of a send -> names of the computations that read it: of the segments that take a copy of the
    variable, or of the one that made it and takes its gradient."""
    graph = program.graph
    found: dict[str, set[str]] = {}
    for segment in program.segments:
        name = f"segment {segment.index}"
        for k in segment.inputs:
            producer = graph.variables[k].producer
            if producer is not None and graph.nodes[producer].op == TRANSFER:
                found.setdefault(graph.nodes[producer].inputs[0], set()).add(name)
        for k in segment.outputs:
            found.setdefault(_GRADIENT + k, set()).add(name)
    return found
