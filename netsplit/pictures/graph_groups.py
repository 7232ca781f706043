"""Fewer boxes for a picture: nodes of one device that belong together become one group.

While there are few enough boxes, a chain of parts is one only where all are the same part of their operators,
and nodes that move tensors for parts are drawn apart.

A group is only formed where it is convex (no path leaves it and comes back). Three steps, the last only while
there are too many groups: nodes without any edge (a BatchNorm's counter) join their module's others; chains
become one; so do the nodes of one module, by ever shorter prefixes of its path.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from math import log
from typing import Any

from netsplit.graph.ir import Graph
from netsplit.rewrite.rewriting import NodePart, NodeParts, node_parts, parts_label

__all__ = ["GroupGraph", "NodeGroup", "group_nodes"]


_SHORT = {
    "adaptive_avg_pool2d": "avgpool",
    "avg_pool2d": "avgpool",
    "batch_norm": "bn",
    "conv2d": "conv",
    "cross_entropy_loss": "loss",
    "max_pool2d": "maxpool",
    "scaled_dot_product_attention": "attention",
}


@dataclass(frozen=True)
class NodeGroup:
    """Nodes drawn as one box, in the graph's order."""

    nodes: tuple[str, ...]
    device: str
    module: str
    kinds: tuple[str, ...]  # of operators in order, of the nodes that have edges
    parts: tuple[NodePart, ...] = ()  # of operators
    moving: int = 0  # how many nodes only move tensors for parts

    @property
    def part_lines(self) -> tuple[str, ...]:
        """Which parts of operators these are; the number of operators if they differ."""
        operators = len(self.nodes) - self.moving
        if len({part.lines for part in self.parts}) == 1 and len(self.parts) == operators:
            return self.parts[0].lines
        in_parts = [part for part in self.parts if part.cuts]
        if 0 < len(in_parts) < operators:
            return (f"{len(in_parts)} of {operators} are parts",)
        return (parts_label(in_parts),) if in_parts else ()

    @property
    def moves(self) -> bool:
        return len(self.nodes) == self.moving

    @property
    def label(self) -> str:
        """``relu+conv+bn``; what repeats is counted: ``(relu+conv+bn) x3``, ``conv x3 + relu x2``."""
        if self.moves:
            return "moves"
        kinds = [_SHORT.get(kind, kind) for kind in self.kinds]
        for period in range(1, len(kinds) // 2 + 1):
            if kinds == kinds[:period] * (len(kinds) // period):
                once = "+".join(kinds[:period])
                return f"{once if period == 1 else f'({once})'} x{len(kinds) // period}"
        if len(kinds) <= 4:
            return "+".join(kinds)
        return " + ".join(f"{kind} x{n}" if n > 1 else kind for kind, n in Counter(kinds).most_common())


@dataclass(frozen=True)
class GroupGraph:
    """Groups by index, in a topological order, and the edges between different groups."""

    groups: tuple[NodeGroup, ...]
    edges: tuple[tuple[int, int], ...]  # each once

    @cached_property
    def cut_edges(self) -> frozenset[tuple[int, int]]:
        return frozenset((a, b) for a, b in self.edges if self.groups[a].device != self.groups[b].device)


def group_nodes(graph: Graph, device_of: Mapping[str, str], wanted: int = 150) -> GroupGraph:
    """Merge the nodes of `graph` into about `wanted` groups or fewer."""
    merger = _Merger(graph, device_of)
    merger.merge_lonely()
    merger.merge_chains(alike=True)
    if merger.count > wanted:
        merger.merge_chains()
    best, best_count = merger.result(), merger.count
    deepest = max((node.module.count(".") + 1 for node in graph if node.module), default=0)
    for depth in range(deepest, 0, -1):
        if merger.count <= wanted:
            break
        merger.merge_modules(depth)
        merger.merge_chains()
        if abs(log(merger.count / wanted)) < abs(log(best_count / wanted)):
            best, best_count = merger.result(), merger.count
    return best


class _Merger:
    """The quotient graph while it shrinks: group id -> nodes, successors, predecessors."""

    def __init__(self, graph: Graph, device_of: Mapping[str, str]) -> None:
        import networkx as nx

        self.graph = graph
        self.device_of = device_of
        self.parts: NodeParts = node_parts(graph)
        self.members = {i: [name] for i, name in enumerate(graph.nodes)}
        place = graph.position
        self.links: Any = nx.DiGraph()
        self.links.add_nodes_from(self.members)
        self.links.add_edges_from((place[u], place[v]) for u, vs in graph.successors.items() for v in vs)

    @property
    def count(self) -> int:
        return len(self.members)

    def device(self, group: int) -> str:
        return self.device_of[self.members[group][0]]

    def look(self, group: int) -> tuple[str, ...]:
        return self.parts.look(self.members[group][0])

    def merge_lonely(self) -> None:
        """Merge nodes without edges with a node of their module and device, or with one another."""
        lonely = [group for group in self.members if not self.links.degree(group)]
        host: dict[tuple[str, str], int] = {}
        for group in self.members.keys() - set(lonely):
            host.setdefault((self.device(group), self.module(group)), group)
        for group in lonely:
            device = self.device(group)
            home = host.get((device, self.module(group)), host.setdefault((device, ""), group))
            if home != group:
                self._merge(home, group)

    def merge_chains(self, alike: bool = False) -> None:
        for group in list(self.members):
            while group in self.members and self.links.out_degree(group) == 1:
                (follower,) = self.links.successors(group)
                if self.links.in_degree(follower) != 1 or self.device(group) != self.device(follower):
                    break
                if alike and self.look(group) != self.look(follower):
                    break
                self._merge(group, follower)

    def merge_modules(self, depth: int) -> None:
        """Merge connected groups that share a device and the first `depth` parts of their module path."""
        import networkx as nx

        members: dict[tuple[str, str], list[int]] = {}
        for group in self.members:
            parts = self.module(group).split(".")
            if len(parts) >= depth:
                members.setdefault((".".join(parts[:depth]), self.device(group)), []).append(group)
        for together in members.values():
            for connected in list(nx.weakly_connected_components(self.links.subgraph(together))):
                if len(connected) > 1 and self._convex(connected):
                    first, *rest = sorted(connected)
                    for other in rest:
                        self._merge(first, other)

    def _convex(self, groups: set[int]) -> bool:
        import networkx as nx

        outside = {g for group in groups for g in self.links.successors(group)} - groups
        return not any(nx.descendants(self.links, each) & groups for each in outside)

    def module(self, group: int) -> str:
        """The longest dotted prefix that the nodes' modules share."""
        paths = [self.graph.nodes[name].module.split(".") for name in self.members[group]]
        same = takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))
        return ".".join(part for part, *_ in same)

    def result(self) -> GroupGraph:
        import networkx as nx

        order = list(nx.lexicographical_topological_sort(self.links))
        index = {group: i for i, group in enumerate(order)}
        owner = {name: index[group] for group in order for name in self.members[group]}
        edges = dict.fromkeys((owner[u], owner[v]) for u, v, _ in self.graph.edges if owner[u] != owner[v])
        return GroupGraph(tuple(self._group(group) for group in order), tuple(edges))

    def _group(self, group: int) -> NodeGroup:
        names = sorted(self.members[group], key=self.graph.position.__getitem__)
        linked = [n for n in names if self.graph.predecessors[n] or self.graph.successors[n]]
        computing = [n for n in linked if n not in self.parts.moving]
        kinds = [self.graph.nodes[name].kind.strip("_") for name in computing or linked or names]
        return NodeGroup(
            tuple(names),
            self.device(group),
            self.module(group),
            tuple(kinds),
            tuple(self.parts.of[name] for name in names if name in self.parts.of),
            len(self.parts.moving.intersection(names)),
        )

    def _merge(self, into: int, other: int) -> None:
        import networkx as nx

        self.members[into] += self.members.pop(other)
        nx.contracted_nodes(self.links, into, other, self_loops=False, copy=False, store_contraction_as=None)
