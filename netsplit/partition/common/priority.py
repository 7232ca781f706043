"""Total orders: the topological order of a graph that follows a given key as closely as it can."""

from __future__ import annotations

from collections.abc import Mapping

from netsplit.graph.ir import Graph
from netsplit.graph.order import topological_order

__all__ = ["topological_priority"]


def topological_priority(graph: Graph, key: Mapping[str, float]) -> dict[str, int]:
    """Rank every node: of the nodes that could come next, the one with the least key does.

    Ties go to the node that was captured first. A set of `graph.units` shares a tensor that is
    written in place: it stays in one piece and in captured order, ranked by its first node's key.

    Returns:
        Node name to rank, 0 first; always a topological order of the graph.
    """
    block_of, blocks = _blocks(graph)
    after: list[set[int]] = [set() for _ in blocks]
    for v, predecessors in graph.predecessors.items():
        for u in predecessors:
            if block_of[u] != block_of[v]:
                after[block_of[u]].add(block_of[v])

    def entry(block: int) -> tuple[float, int]:
        first = blocks[block][0]
        return key[first], graph.position[first]

    order = topological_order(after, entry)
    rank = {name: i for i, name in enumerate(name for block in order for name in blocks[block])}
    assert len(rank) == len(graph), "a unit of the graph cannot run in one piece"
    return rank


def _blocks(graph: Graph) -> tuple[dict[str, int], list[list[str]]]:
    """Units and single nodes, each block in captured order."""
    unit_of = {name: i for i, unit in enumerate(graph.units) for name in unit}
    block_of_unit: dict[int, int] = {}
    block_of: dict[str, int] = {}
    blocks: list[list[str]] = []
    for name in graph.nodes:
        unit = unit_of.get(name)
        block = len(blocks) if unit is None else block_of_unit.setdefault(unit, len(blocks))
        if block == len(blocks):
            blocks.append([])
        blocks[block].append(name)
        block_of[name] = block
    return block_of, blocks
