"""What is derived of a graph is computed once, and kept by the graph."""

from dataclasses import replace

from netsplit.graph.ir import Graph, once_of
from tests.builders import chain


def test_it_is_computed_once_for_each_graph_and_argument() -> None:
    calls: list[int] = []

    @once_of
    def noted(graph: Graph, n: int) -> int:
        calls.append(n)
        return n

    graph = chain([4, 4])
    assert [noted(graph, 1), noted(graph, 1), noted(graph, 2), noted(replace(graph), 1)] == [1, 1, 2, 1]
    assert calls == [1, 2, 1]
