"""Total orders: the topological order of a graph that follows a given key as closely as it can."""

from __future__ import annotations

from collections.abc import Mapping

from netsplit.graph.ir import Graph
from netsplit.graph.quotient import units_in_order

__all__ = ["topological_priority"]


def topological_priority(graph: Graph, key: Mapping[str, float]) -> dict[str, int]:
    """Rank every node: of the nodes that could come next, the one with the least key does.

    Ties go to the node that was captured first. A set of `graph.units` shares a tensor that is
    written in place: it stays in one piece and in captured order, ranked by its first node's key.

    Returns:
        Node name to rank, 0 first; always a topological order of the graph.
    """
    order = [name for unit in units_in_order(graph, lambda unit: key[unit[0]]) for name in unit]
    assert len(order) == len(graph), "a unit of the graph cannot run in one piece"
    return {name: i for i, name in enumerate(order)}
