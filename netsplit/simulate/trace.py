"""A timeline as a Chrome trace, to be opened in https://ui.perfetto.dev or chrome://tracing.

    process "predicted"            process "measured"           one time axis, zero = start of the iteration
      thread  cpu:0                  thread  cpu:0              forward, backward, wait, step
      thread  cpu:1                  thread  cpu:1
      thread  cpu:0 → cpu:1          thread  cpu:0 → cpu:1      send

Transfers that overlap on one link get lanes of their own: "cpu:0 → cpu:1 (2)".
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from netsplit.files import write_text
from netsplit.simulate.timeline import Event, Timeline

__all__ = ["chrome_trace", "lane_of", "lanes", "write_trace"]

_SLACK_S = 1e-9  # two spans that share less than this do not overlap
_LINK_TIDS = 1000  # thread ids of links begin here, so that devices are listed first


def lane_of(event: Event) -> str:
    """The row of an event: the link of a send, ``cpu:0 → cpu:1``, else the device."""
    return f"{event.device} → {event.peer}" if event.kind == "send" else event.device


def lanes(events: Iterable[Event]) -> dict[str, list[list[Event]]]:
    """Row name to its tracks; within one track no two events overlap. Devices first, then links, by name."""
    tracks: dict[str, list[list[Event]]] = {}
    for event in sorted(events, key=lambda e: (e.kind == "send", lane_of(e), e.start_s, -e.end_s)):
        row = tracks.setdefault(lane_of(event), [])
        free = next((track for track in row if track[-1].end_s <= event.start_s + _SLACK_S), None)
        if free is None:
            row.append([event])
        else:
            free.append(event)
    return tracks


def chrome_trace(predicted: Timeline, measured: Timeline | None = None) -> dict[str, Any]:
    """Both timelines as the JSON object format of the Trace Event specification; times in microseconds."""
    named = {"predicted": predicted} | ({"measured": measured} if measured is not None else {})
    events: list[dict[str, Any]] = []
    for pid, (name, timeline) in enumerate(named.items(), start=1):
        events += _process(pid, name, timeline)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {f"{name}_iteration_s": timeline.iteration_s for name, timeline in named.items()},
    }


def write_trace(path: str | Path, predicted: Timeline, measured: Timeline | None = None) -> Path:
    """Write `chrome_trace` to `path`, replacing the file in one piece; makes the folder."""
    write_text(path, json.dumps(chrome_trace(predicted, measured)))
    return Path(path)


def _process(pid: int, name: str, timeline: Timeline) -> list[dict[str, Any]]:
    title = f"{name} ({1e3 * timeline.iteration_s:.3f} ms)"
    found = [
        _metadata(pid, 0, "process_name", name=title),
        _metadata(pid, 0, "process_sort_index", sort_index=pid),
    ]
    tid_of: dict[int, int] = {}
    for row_index, (row, tracks) in enumerate(lanes(timeline.events).items()):
        for number, track in enumerate(tracks):
            tid = (_LINK_TIDS if track[0].kind == "send" else 0) + 100 * row_index + number + 1
            label = row if number == 0 else f"{row} ({number + 1})"
            found.append(_metadata(pid, tid, "thread_name", name=label))
            found.append(_metadata(pid, tid, "thread_sort_index", sort_index=tid))
            found += [_span(pid, tid, event) for event in track]
            tid_of |= {id(event): tid for event in track}
    return found + _arrows(pid, timeline, tid_of)


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


def _arrows(pid: int, timeline: Timeline, tid_of: dict[int, int]) -> list[dict[str, Any]]:
    """From each send to the first computation of its micro-batch on the peer after it arrived."""
    work = sorted((e for e in timeline.events if e.kind in ("forward", "backward")), key=lambda e: e.start_s)
    found: list[dict[str, Any]] = []
    for number, send in enumerate(e for e in timeline.events if e.kind == "send"):
        consumer = next(
            (
                e
                for e in work
                if e.device == send.peer
                and e.microbatch == send.microbatch
                and e.start_s + _SLACK_S >= send.end_s
            ),
            None,
        )
        if consumer is None:
            continue
        shared = {"pid": pid, "name": send.name, "cat": "transfer", "id": f"{pid}.{number}"}
        found.append(shared | {"ph": "s", "tid": tid_of[id(send)], "ts": 1e6 * send.start_s})
        found.append(
            shared | {"ph": "f", "bp": "e", "tid": tid_of[id(consumer)], "ts": 1e6 * consumer.start_s}
        )
    return found
