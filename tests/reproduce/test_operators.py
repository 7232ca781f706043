"""`reproduce.operators`: sums by type lose nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netsplit.cluster.catalogue import accelerator
from netsplit.graph.ir import Graph, Node
from netsplit.profile.costs import NodeSeconds
from netsplit.profile.predict import predicted_seconds
from reproduce import ByName, OperatorCase, operator_seconds
from reproduce.operators import OTHERS, by_type
from tests.builders import graph_of_nodes
from tests.reproduce.nets import BATCH, DATA, Counted

KINDS = ("conv2d", "relu", "relu_", "add", "mean")
Timed = tuple[str, float, float]
NODES = st.lists(st.tuples(st.sampled_from(KINDS), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=20)


def timed(nodes: list[Timed]) -> tuple[Graph, dict[str, NodeSeconds]]:
    named = [Node(f"n{i}", f"aten.{kind}.default", (), ()) for i, (kind, _, _) in enumerate(nodes)]
    seconds = {f"n{i}": NodeSeconds(forward, backward) for i, (_, forward, backward) in enumerate(nodes)}
    return graph_of_nodes(*named), seconds


@given(NODES, st.integers(1, 6))
def test_sums_by_type_keep_all_nodes_and_seconds(nodes: list[Timed], most: int) -> None:
    graph, seconds = timed(nodes)
    sums = by_type(graph, seconds, most)
    assert sum(each.nodes for each in sums) == len(nodes)
    assert sum(each.forward_s for each in sums) == pytest.approx(sum(f for _, f, _ in nodes))
    assert sum(each.backward_s for each in sums) == pytest.approx(sum(b for _, _, b in nodes))
    totals = [each.total_s for each in sums if each.name != OTHERS]
    assert totals == sorted(totals, reverse=True)
    assert len(sums) <= most + 1
    assert "relu_" not in {each.name for each in sums}


def test_predicted_seconds_are_the_predictors_own_sums() -> None:
    case = OperatorCase(Counted, DATA, BATCH, device="TITAN RTX")
    result = operator_seconds(ByName({"mine": case}))
    seconds = predicted_seconds(case.training_graph(), accelerator("TITAN RTX"))
    assert result.metrics["forward_s.mine"] == pytest.approx(sum(s.forward_s for s in seconds.values()))
    assert result.metrics["backward_s.mine"] == pytest.approx(sum(s.backward_s for s in seconds.values()))
    fractions = result.column("of all (%)")
    assert sum(fraction for fraction in fractions[:-1] if isinstance(fraction, float)) == pytest.approx(1.0)
    assert fractions[-1] == pytest.approx(1.0)
    assert "predicted on TITAN RTX" in str(result.rows[0][0])


def test_measured_seconds_are_of_every_node_and_convolutions_go_back() -> None:
    case = OperatorCase(Counted, DATA, BATCH)
    result = operator_seconds(ByName({"mine": case}), repeats=1, rounds=1)
    counts = dict(zip(result.column("operator"), result.column("nodes"), strict=True))
    backward = dict(zip(result.column("operator"), result.column("backward (ms)"), strict=True))
    assert counts["all"] == len(case.training_graph())
    assert counts["relu"] == 2
    assert backward["conv2d"] > 0  # type: ignore[operator]
    assert result.metrics["forward_s.mine"] > 0
