"""Chrome traces hold both timelines, in microseconds, and load as JSON."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import given, settings

from netsplit.program import GPipe
from netsplit.rewrite import applied
from netsplit.rewrite.rewriting import node_parts
from netsplit.simulate.timeline import Event, Timeline
from netsplit.simulate.trace import chrome_trace, parts_of_events, write_trace
from tests.examples import tried
from tests.rewrite.test_training import HEADS, side_by_side
from tests.runtime.equivalence.running import captured, compiled
from tests.simulate.drawn import Drawn, programs
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


# What the trace event format asks for, and Perfetto: https://ui.perfetto.dev shows no slice that ends within
# the next one.

REQUIRED = {"X": {"name", "cat", "ts", "dur"}, "M": {"name", "args"}}


def ns(us: float) -> int:
    """As Perfetto reads it: the rest is cut off."""
    return int(1000 * us)


def check_format(trace: dict[str, Any]) -> None:
    """Every event has what its phase needs."""
    json.dumps(trace, allow_nan=False)
    on: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in trace["traceEvents"]:
        assert REQUIRED[event["ph"]] | {"ph", "pid", "tid"} <= event.keys()
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "X":
            start = ns(event["ts"])
            assert start >= 0
            assert ns(event["dur"]) >= 1
            on.setdefault((event["pid"], event["tid"]), []).append((start, start + ns(event["dur"])))
    for each in on.values():
        assert all(a[1] <= b[0] for a, b in pairwise(sorted(each)))


@settings(max_examples=tried(60), deadline=None)
@given(drawn=programs())
def test_no_two_slices_of_a_lane_overlap(drawn: Drawn) -> None:
    check_format(chrome_trace(drawn.timeline, drawn.timeline))


def test_both_timelines_say_which_parts_of_operators_an_event_is_about() -> None:
    graph = applied(captured("attention", 4), HEADS)
    program = compiled(graph, side_by_side(graph), 2, GPipe(2))
    parts = parts_of_events(program, graph)
    ran = [Event(s.device, "forward", f"segment {s.index}", 0, 0.0, 1.0) for s in program.segments]
    sent = [Event("a", "send", name, 0, 0.0, 1.0, peer="b") for name in ("linear:1", "gradient of linear:1")]
    step = Event("b", "step", "optimiser step", -1, 1.0, 2.0)
    told = Timeline((*ran, *sent, step), 2.0)
    trace = chrome_trace(told, told, parts)
    check_format(trace)
    for pid in (1, 2):
        by_name = {span["name"].partition(",")[0]: span for span in spans(trace, pid)}
        assert "parts" not in by_name["step optimiser step"]["args"]
        for segment in program.segments:
            span = by_name[f"forward segment {segment.index}"]
            own = [node_parts(graph).of[v].description for v in segment.nodes if v in node_parts(graph).of]
            assert ("part" in span["name"]) == any(" of " in each for each in own)
            assert span["args"].get("parts", []) == own
        for name in ("send linear:1", "send gradient of linear:1"):
            (made,) = by_name[name]["args"]["parts"]
            assert ": 2/2 of dim 2 · 50 %" in made
    part = node_parts(graph).of["linear:1"]
    crowded = spans(chrome_trace(told, parts={"linear:1": 11 * [part]}), 1)
    assert [s["args"]["parts"] for s in crowded if "parts" in s["args"]] == [
        [part.description] * 8 + ["and 3 more"]
    ]
