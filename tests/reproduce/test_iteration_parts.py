"""`reproduce.iteration_parts`: the parts of a device's iteration."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netsplit.simulate.timeline import Event, EventKind, Timeline
from reproduce.iteration_parts import PARTS, iteration_parts


def event(device: str, kind: EventKind, start: float, end: float, peer: str = "", name: str = "n") -> Event:
    return Event(device, kind, name, 0, start, end, peer)


def test_what_overlaps_with_computation_is_no_communication() -> None:
    timeline = Timeline(
        (
            event("a", "forward", 0, 2),
            event("a", "send", 1, 4, "b"),
            event("b", "backward", 4, 7),
            event("a", "step", 7, 8),
        ),
        10.0,
    )
    parts = iteration_parts(timeline, ["a", "b"])
    assert parts["a"] == {"forward": 2, "backward": 0, "communication": 2, "update": 1, "waiting": 5}
    assert parts["b"] == {"forward": 0, "backward": 3, "communication": 3, "update": 0, "waiting": 4}


SPANS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.sampled_from(["forward", "send", "wait", "reduce"]),
        st.integers(0, 20),
        st.integers(0, 10),
    ),
    max_size=15,
)


@given(SPANS)
def test_parts_add_up_to_the_iteration_and_none_is_below_zero(
    spans: list[tuple[str, EventKind, int, int]],
) -> None:
    events, free = [], {"a": 0, "b": 0}
    for device, kind, start, length in spans:
        if kind == "forward":  # a device computes one thing at a time
            start, free[device] = free[device], free[device] + length
        events.append(event(device, kind, start, start + length, "b" if device == "a" else "a"))
    end = max((e.end_s for e in events), default=1.0)
    for parts in iteration_parts(Timeline(tuple(events), float(end)), ["a", "b"]).values():
        assert set(parts) == set(PARTS)
        assert sum(parts.values()) == pytest.approx(end)
        assert min(parts.values()) >= -1e-9
