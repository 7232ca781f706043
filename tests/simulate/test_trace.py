"""Chrome traces hold both timelines, in microseconds, and load as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from netsplit.simulate.timeline import Event, Timeline
from netsplit.simulate.trace import chrome_trace, lanes, write_trace
from tests.tracking.samples import timeline


def spans(trace: dict[str, Any], pid: int) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X" and event["pid"] == pid]


def names(trace: dict[str, Any], kind: str, pid: int) -> list[str]:
    return [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == kind and e["pid"] == pid]


def test_written_file_is_json_with_both_timelines(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "deep" / "trace.json", timeline(), timeline(1.5))
    trace = json.loads(path.read_text())
    assert len(spans(trace, 1)) == len(spans(trace, 2)) == len(timeline().events)
    assert names(trace, "process_name", 1)[0].startswith("predicted")
    assert names(trace, "process_name", 2)[0].startswith("measured")
    assert [file.name for file in path.parent.iterdir()] == ["trace.json"]


def test_times_are_microseconds_on_one_axis() -> None:
    trace = chrome_trace(timeline(), timeline(2.0))
    predicted, measured = spans(trace, 1), spans(trace, 2)
    send = next(span for span in predicted if span["cat"] == "send")
    assert (round(send["ts"], 6), round(send["dur"], 6)) == (4000.0, 1000.0)
    assert [round(2 * s["ts"], 6) for s in predicted] == [round(s["ts"], 6) for s in measured]


def test_rows_are_devices_then_links() -> None:
    assert names(chrome_trace(timeline()), "thread_name", 1) == ["cpu:0", "cpu:1", "cpu:0 → cpu:1"]


def test_a_send_says_its_bytes_peer_and_microbatch() -> None:
    send = next(span for span in spans(chrome_trace(timeline()), 1) if span["cat"] == "send")
    assert send["args"] == {"kind": "send", "microbatch": 0, "peer": "cpu:1", "bytes": 4096}


def test_the_step_has_no_microbatch() -> None:
    step = next(span for span in spans(chrome_trace(timeline()), 1) if span["cat"] == "step")
    assert "microbatch" not in step["args"]


def test_an_arrow_leads_from_a_send_to_its_micro_batch_on_the_peer() -> None:
    trace = chrome_trace(timeline())
    start, end = [e for e in trace["traceEvents"] if e["ph"] in "sf" and e["id"] == "1.1"]
    consumer = next(s for s in spans(trace, 1) if s["tid"] == end["tid"] and s["ts"] == end["ts"])
    assert start["ph"] == "s"
    assert (consumer["name"], consumer["args"]["microbatch"]) == ("forward segment 1", 1)


def test_overlapping_transfers_get_tracks_of_their_own() -> None:
    sends = [Event("a", "send", f"x{i}", i, 0.1 * i, 0.1 * i + 0.15, peer="b") for i in range(3)]
    tracks = lanes(sends)["a → b"]
    assert [[event.microbatch for event in track] for track in tracks] == [[0, 2], [1]]
    labels = names(chrome_trace(Timeline(tuple(sends), 0.4)), "thread_name", 1)
    assert labels == ["a → b", "a → b (2)"]


def test_without_a_measured_timeline_there_is_one_process() -> None:
    assert {event["pid"] for event in chrome_trace(timeline())["traceEvents"]} == {1}
