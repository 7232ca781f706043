"""Topological order and condensation, against networkx on drawn graphs."""

import networkx
from hypothesis import given
from hypothesis import strategies as st

from netsplit.graph.quotient import passing, strong_components, successors, topological_order


@st.composite
def drawn_edges(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    n = draw(st.integers(1, 9))
    pairs = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda p: p[0] != p[1])
    return n, draw(st.lists(pairs, unique=True, max_size=14))


def _after(n: int, edges: list[tuple[int, int]]) -> list[list[int]]:
    return [[v for u, v in edges if u == w] for w in range(n)]


@given(drawn_edges())
def test_the_order_is_the_least_one_and_shorter_only_where_there_is_a_cycle(
    drawn: tuple[int, list[tuple[int, int]]],
) -> None:
    n, edges = drawn
    graph = networkx.DiGraph(edges)
    graph.add_nodes_from(range(n))
    order = topological_order(_after(n, edges), int)
    if networkx.is_directed_acyclic_graph(graph):
        assert order == list(networkx.lexicographical_topological_sort(graph, key=int))
    else:
        on_cycles = {
            v for part in networkx.strongly_connected_components(graph) if len(part) > 1 for v in part
        }
        behind = on_cycles | {w for v in on_cycles for w in networkx.descendants(graph, v)}
        assert set(order) == set(range(n)) - behind


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
