"""What is derived of a graph is computed once, and kept by the graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from netsplit.graph.ir import Graph, once_of
from tests.builders import chain


def counted(step: int) -> Callable[[Graph, int], int]:
    """Of several functions with one name, each its own."""

    @once_of
    def count(graph: Graph, factor: int) -> int:
        return step * factor * len(graph)

    return count


def test_functions_of_one_name_share_nothing() -> None:
    graph = chain([4, 4])
    one, ten = counted(1), counted(10)
    assert [one(graph, 2), ten(graph, 2), one(graph, 2)] == [2 * len(graph), 20 * len(graph), 2 * len(graph)]


def test_it_is_computed_once_for_each_graph_and_argument() -> None:
    calls: list[int] = []

    @once_of
    def noted(graph: Graph, n: int) -> int:
        calls.append(n)
        return n

    graph = chain([4, 4])
    assert [noted(graph, 1), noted(graph, 1), noted(graph, 2), noted(replace(graph), 1)] == [1, 1, 2, 1]
    assert calls == [1, 2, 1]
