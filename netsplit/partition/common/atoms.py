"""Atoms: the smallest sets of nodes a partitioner may place, and the disjoint sets that grow them."""

from __future__ import annotations

from netsplit.graph.ir import Graph

__all__ = ["DisjointSets", "atoms_of"]


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


def atoms_of(graph: Graph) -> tuple[tuple[str, ...], ...]:
    """`graph.colocated` sets and all other nodes alone, by topological position of their first node."""
    names = list(graph.nodes)
    sets = DisjointSets(len(names))
    for group in graph.colocated:
        first, *others = (graph.position[name] for name in group)
        for other in others:
            sets.merge(first, other)
    return tuple(tuple(names[i] for i in atom) for atom in sets.sets())
