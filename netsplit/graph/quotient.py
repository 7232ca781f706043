"""Sets of nodes taken as one: disjoint sets, units and atoms of a graph, the edges between them, orders."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from itertools import chain, count
from typing import Any, TypeVar

from netsplit.graph.ir import Graph, once_of

__all__ = [
    "DisjointSets",
    "Sets",
    "atoms_of",
    "joined",
    "longest_before",
    "passing",
    "strong_components",
    "successors",
    "topological_order",
    "topological_priority",
    "units_in_order",
    "units_of",
]

Sets = tuple[tuple[str, ...], ...]
T = TypeVar("T", bound=Hashable)


class DisjointSets:
    """Union-find over 0..n-1. The representative of a set is its least element."""

    def __init__(self, n: int) -> None:
        self._parent = list(range(n))
        self.count = n

    def find(self, i: int) -> int:
        while self._parent[i] != i:
            self._parent[i] = self._parent[self._parent[i]]
            i = self._parent[i]
        return i

    def merge(self, i: int, j: int) -> int:
        """Unite two sets; returns the representative of the union."""
        low, high = sorted((self.find(i), self.find(j)))
        if low != high:
            self._parent[high] = low
            self.count -= 1
        return low

    def sets(self) -> list[list[int]]:
        """The sets, ordered by their least element; elements ascending."""
        members: dict[int, list[int]] = {}
        for i in range(len(self._parent)):
            members.setdefault(self.find(i), []).append(i)
        return list(members.values())


@once_of
def atoms_of(graph: Graph) -> Sets:
    """`graph.colocated` sets and all other nodes alone, by topological position of their first node."""
    return joined(graph, graph.colocated)


@once_of
def units_of(graph: Graph) -> Sets:
    """`graph.units` and all other nodes alone, by topological position of their first node."""
    return joined(graph, graph.units)


def joined(graph: Graph, groups: Iterable[Sequence[str]]) -> Sets:
    """The finest sets that keep each group together; sets and nodes in the graph's order."""
    names = list(graph.nodes)
    sets = DisjointSets(len(names))
    for group in groups:
        places = [graph.position[name] for name in group]
        for place in places[1:]:
            sets.merge(places[0], place)
    return tuple(tuple(names[i] for i in together) for together in sets.sets())


def units_in_order(graph: Graph, key: Callable[[tuple[str, ...]], Any]) -> list[tuple[str, ...]]:
    """`units_of` in the topological order by `key`; fewer where units wait for each other in a circle."""
    units = units_of(graph)
    number = {name: i for i, unit in enumerate(units) for name in unit}
    edges = ((number[u], number[v]) for v, feeders in graph.predecessors.items() for u in feeders)
    return [units[i] for i in topological_order(successors(len(units), edges), lambda i: key(units[i]))]


def successors(count: int, edges: Iterable[tuple[int, int]]) -> list[list[int]]:
    """[count] what each set's edges lead to, each once, ascending; edges within a set count for nothing."""
    after: list[set[int]] = [set() for _ in range(count)]
    for a, b in edges:
        if a != b:
            after[a].add(b)
    return [sorted(each) for each in after]


def passing(edges: Iterable[tuple[int, int, T]]) -> dict[tuple[int, int], tuple[T, ...]]:
    """Edges between different sets -> what passes along them, each once."""
    along: dict[tuple[int, int], dict[T, None]] = {}
    for a, b, what in edges:
        if a != b:
            along.setdefault((a, b), {})[what] = None
    return {edge: tuple(each) for edge, each in along.items()}


def strong_components(count: int, edges: Iterable[tuple[int, int]]) -> list[int]:
    """[count] the strongly connected component of each vertex, numbered by their least vertices."""
    import networkx  # a fifth of a second to load

    graph = networkx.DiGraph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from(edges)
    components = enumerate(networkx.strongly_connected_components(graph))
    component = {v: i for i, together in components for v in together}
    number: dict[int, int] = {}
    return [number.setdefault(component[v], len(number)) for v in range(count)]


def topological_order(after: Sequence[Collection[int]], key: Callable[[int], Any] | None = None) -> list[int]:
    """The numbers of a directed graph's vertices, each behind all that lead to it (Kahn's algorithm).

    Args:
        after: [n] successors of each vertex, each once.
        key: asked once of every vertex, when all before it are placed; ties go to the lower number. None:
            first ready, first placed.

    Returns:
        [n] a permutation of 0..n-1; shorter where there is a cycle: vertices of cycles and all behind
        them are left out.
    """
    waits = [0] * len(after)
    for u in chain.from_iterable(after):
        waits[u] += 1
    turns = count()

    def entry(v: int) -> tuple[Any, int]:
        return next(turns) if key is None else key(v), v

    ready = [entry(v) for v, left in enumerate(waits) if not left]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, u = heapq.heappop(ready)
        order.append(u)
        for v in after[u]:
            waits[v] -= 1
            if not waits[v]:
                heapq.heappush(ready, entry(v))
    return order


def longest_before(
    before: Mapping[int, Sequence[int]] | Sequence[Sequence[int]], order: Iterable[int], own: Sequence[Any]
) -> list[Any]:
    """The heaviest path before each vertex, by the weights `own`; 0 where none leads to it.

    Args:
        order: every vertex, after those in `before` it.
    """
    heaviest: list[Any] = [0] * len(own)
    for v in order:
        heaviest[v] = max((heaviest[u] + own[u] for u in before[v]), default=0)
    return heaviest


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
