"""Bytes inside segments are made once for all programs that have them: they are those of each alone."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.program.schedules import SCHEDULES
from netsplit.simulate.lifetimes import segment
from netsplit.simulate.lifetimes.segment import SegmentMemory
from netsplit.simulate.simulate import predicted_peak_bytes
from tests.examples import tried
from tests.nets import CASES, placements
from tests.runtime.equivalence.running import captured_for, compiled, cut

NAMES = ("gpipe", "1f1b", "zb_h1", "zb_v")


@pytest.mark.parametrize("case", ["cells", "tied"])
@settings(deadline=None, max_examples=tried(30))
@given(st.data())
def test_peaks_are_the_same_whatever_was_asked_before(case: str, data: st.DataObject) -> None:
    orders = [SCHEDULES[name]().with_microbatches(m) for m in (2, 4) for name in NAMES]
    graphs = {each: captured_for(CASES[case], each) for each in orders}
    placed = data.draw(placements(graphs[orders[0]], 2))
    programs = [compiled(graphs[each], placed, 2, each) for each in orders]
    together = [predicted_peak_bytes(program, 3) for program in programs]
    alone = []
    for program in reversed(programs):
        program.graph.derived.clear()
        alone.append(predicted_peak_bytes(program, 3))
    assert together == alone[::-1]


def test_plans_that_differ_in_their_schedule_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Counted(SegmentMemory):
        def __init__(self, *args: Any) -> None:
            made.append(args)
            super().__init__(*args)

    monkeypatch.setattr(segment, "SegmentMemory", Counted)
    first, last = (SCHEDULES[name]().with_microbatches(4) for name in ("gpipe", "1f1b"))
    graph = captured_for(CASES["cells"], first)
    graph.derived.clear()
    one, other = (compiled(graph, cut(graph, [0.5]), 2, each) for each in (first, last))
    predicted_peak_bytes(one, 3)
    assert len(made) == len(one.segments) == 2
    predicted_peak_bytes(other, 3)
    assert len(made) == 2
