"""`reproduce.links`: described links as they are described, measured ones as they are fitted."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netsplit.api import cpu_cluster
from netsplit.cluster.described import DescribedDevice, DescribedLink, LinkCost, described_cluster
from netsplit.cluster.probe import fit_link
from reproduce import ByName, LinkCase, edge_bytes, link_lines
from reproduce.edges import cumulative
from tests.reproduce.nets import MAP, case

NEAR, FAR = LinkCost(10e9, 1e-5), LinkCost(1e9, 2e-5)
CLUSTER = described_cluster(
    "three",
    [DescribedDevice(name) for name in "abc"],
    FAR,
    [DescribedLink(["a", "b"], NEAR.bandwidth, NEAR.latency)],
)


def test_a_pair_is_the_line_of_its_link(tmp_path: Path) -> None:
    result = link_lines(ByName({"near": LinkCase(CLUSTER, ("a", "b"))}), tmp_path)
    (row,) = result.rows
    assert row[:2] == ("near", "described")
    assert row[2:] == pytest.approx((1e-5, 10e9, None, 1e-5 + 1e-4, 1e-5 + 1e-2))
    assert result.metrics["bandwidth.near"] == pytest.approx(10e9)


@pytest.mark.slow
def test_measured_links_have_points_and_the_line_fitted_to_them(tmp_path: Path) -> None:
    result = link_lines(ByName({"here": LinkCase(cpu_cluster(2))}), tmp_path)
    (picture,) = result.pictures
    assert result.column("kind") == ["measured", "measured"]
    for label, _, latency_s, bandwidth, r_squared, *_ in result.rows:
        points = [(n, s) for name, kind, n, s in picture.rows if (name, kind) == (label, "measured")]
        link = fit_link(points)  # type: ignore[arg-type]
        assert (latency_s, bandwidth, r_squared) == (link.latency_s, link.bandwidth, link.r_squared)


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
