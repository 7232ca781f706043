"""Sets of vertices taken as one, against networkx's condensation of drawn graphs."""

from __future__ import annotations

import networkx
from hypothesis import given

from netsplit.graph.quotient import passing, strong_components, successors
from tests.graph.test_order import drawn_edges


@given(drawn_edges())
def test_components_count_up_and_have_the_edges_of_the_condensation(
    drawn: tuple[int, list[tuple[int, int]]],
) -> None:
    n, edges = drawn
    graph = networkx.DiGraph(edges)
    graph.add_nodes_from(range(n))
    whole = networkx.condensation(graph)
    label = strong_components(n, edges)
    assert [label.index(c) for c in range(max(label) + 1)] == sorted(
        min(whole.nodes[c]["members"]) for c in whole
    )
    assert {(v, w): label[v] == label[w] for v in range(n) for w in range(n)} == {
        (v, w): whole.graph["mapping"][v] == whole.graph["mapping"][w] for v in range(n) for w in range(n)
    }
    ours = successors(max(label) + 1, ((label[v], label[w]) for v, w in edges))
    mapping = {whole.graph["mapping"][v]: label[v] for v in range(n)}
    expected = {(mapping[a], mapping[b]) for a, b in whole.edges}
    assert [(a, b) for a, targets in enumerate(ours) for b in targets] == sorted(expected)
    assert set(passing((label[v], label[w], None) for v, w in edges)) == expected
