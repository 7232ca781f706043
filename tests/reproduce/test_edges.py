"""`reproduce.edges`: the distribution against a direct count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reproduce import ByName, edge_bytes
from reproduce.edges import cumulative
from tests.reproduce.nets import MAP, case


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), st.integers(0, 50))
def test_a_point_of_the_curve_is_the_fraction_that_is_no_larger(sizes: list[int], at: int) -> None:
    curve = dict(cumulative(sizes))
    reached = max((fraction for nbytes, fraction in curve.items() if nbytes <= at), default=0.0)
    assert reached == pytest.approx(sum(size <= at for size in sizes) / len(sizes))
    assert list(curve) == sorted(set(sizes))
    assert curve[max(sizes)] == 1.0


def test_fractions_are_those_of_a_direct_count_over_readers() -> None:
    graph = case().training_graph()
    sizes = [v.nbytes for v in graph.variables.values() if v.producer for _ in v.consumers]
    result = edge_bytes(ByName({"mine": case(reference={"fraction_below": 0.9})}), threshold_bytes=MAP)
    (edges,), (largest,) = result.column("edges"), result.column("largest (MB)")
    assert (edges, largest) == (len(sizes), max(sizes))
    below = sum(size < MAP for size in sizes) / len(sizes)
    assert 0 < below < 1
    assert result.metrics["fraction_below.mine"] == below
    assert result.rows[0][-2:] == (below, 0.9)
