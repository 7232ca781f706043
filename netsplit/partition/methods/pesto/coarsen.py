"""Pesto's coarsening: merge the ends of heavy edges in batches, as long as the graph stays acyclic.

Source: Hafeez et al., Pesto (Middleware 2021), Theorem and Definition 3.4, Theorem 3.5. An edge (u, v)
may be merged if it is the only path from u to v, for which each of these is enough:

- (u, v) is the only edge out of u, or the only edge into v;
- every other successor w of u has ``height(w) > height(v)``, the height of a vertex being the edges of
  the longest path that leads to it. A path over w could then not come down to v.

A set of such edges without a common vertex may be merged at once: take a closed walk over merged
vertices. It enters a merged pair at u or v and leaves it by u or v. Whichever it is, the next vertex is
higher than the one it entered by (entering at v and leaving by u is the second condition, and impossible
under the first), so heights rise all the way round: there is no such walk. With heights as longest paths
the paper's further condition on the heights of neighbouring pairs is therefore not needed.

The walk shows as much for stars: edges out of one vertex that are each the only edge into their end, or
edges into one vertex that are each the only edge out of theirs. Rounds that find few pairs without a
common vertex, as a hub with a thousand leaves does, are followed by rounds that take stars.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from netsplit.graph.order import longest_before, topological_order
from netsplit.graph.quotient import DisjointSets, passing, successors
from netsplit.partition.common.instance import Instance

__all__ = ["Coarse", "coarsen", "heights", "mergeable_batch"]

_FEW = 50  # a round that merges less than this part of what is to be merged is followed by one with stars

Edge = tuple[int, int]


@dataclass(frozen=True)
class Coarse:
    """A coarsened graph: vertices that each run their nodes one after another, in topological order.

    Vertices of one class share a device, since nodes of theirs are colocated. They keep times of their
    own: to merge them could close a cycle.
    """

    vertices: tuple[tuple[int, ...], ...]  # node indices, ascending
    class_of: tuple[int, ...]  # vertex to class
    classes: tuple[tuple[int, ...], ...]  # node indices, ascending
    variables: dict[Edge, tuple[int, ...]]  # edge of vertices to the variables that pass along it


def coarsen(instance: Instance, target: int, limit_bytes: int) -> Coarse:
    """Merge until `target` vertices are left, or nothing more may be merged.

    Nodes that run in one piece (`Graph.units`) are merged first. Edges are tried by bytes, most first.

    Args:
        instance: the graph.
        target: vertices at which merging ends; units and memory may leave more.
        limit_bytes: the most that a class may hold under (5-18); atoms may exceed it.
    """
    vertices, classes = DisjointSets(instance.n), DisjointSets(instance.n)
    for joined, sets in ((instance.unit_of, (vertices, classes)), (instance.atom_of, (classes,))):
        first: dict[int, int] = {}
        for v, number in enumerate(joined.tolist()):
            for each in sets:
                each.merge(first.setdefault(number, v), v)
    memory = instance.problem.memory_model
    loads = {members[0]: memory.load([instance.names[v] for v in members]) for members in classes.sets()}

    def accepts(edge: Edge) -> bool:
        """Whether the classes of both ends fit together; if so they are joined."""
        a, b = (classes.find(v) for v in edge)
        if a == b:
            return True
        if memory.union_bytes(loads[a], loads[b]) > limit_bytes:
            return False
        union = memory.union(loads[a], loads[b])
        loads[classes.merge(a, b)] = union
        return True

    stars = False
    while (excess := vertices.count - target) > 0:
        variables = _passing(instance, vertices)
        nbytes = {edge: int(instance.nbytes[list(each)].sum()) for edge, each in variables.items()}
        batch = mergeable_batch(nbytes, excess, accepts, stars)
        if not batch:
            break
        stars = len(batch) * _FEW < excess
        for edge in batch:
            vertices.merge(*edge)
    return _finished(instance, vertices, classes)


def mergeable_batch(
    nbytes: Mapping[Edge, int],
    most: int,
    accepts: Callable[[Edge], bool] = lambda _: True,
    stars: bool = False,
) -> list[Edge]:
    """Up to `most` edges of a DAG, heaviest first, that may all be merged at once.

    Args:
        nbytes: every edge of the DAG and its bytes.
        accepts: asked last of an edge that may be merged; True takes it.
        stars: edges may share a vertex as far as they form a star.
    """
    out: dict[int, list[int]] = {}
    into: dict[int, int] = {}
    for u, v in nbytes:
        out.setdefault(u, []).append(v)
        into[v] = into.get(v, 0) + 1
    height = heights(nbytes)
    merged: set[int] = set()
    hubs: set[tuple[int, str]] = set()
    batch: list[Edge] = []
    for u, v in sorted(nbytes, key=lambda edge: (-nbytes[edge], edge)):
        if len(batch) == most:
            break
        only_out, only_in = len(out[u]) == 1, into[v] == 1
        if u in merged or v in merged:
            leaf_out = v not in merged and only_in and (u, "out") in hubs
            leaf_in = u not in merged and only_out and (v, "in") in hubs
            if not (stars and (leaf_out or leaf_in)):
                continue
        only = only_out or only_in
        if (only or all(height[w] > height[v] for w in out[u] if w != v)) and accepts((u, v)):
            batch.append((u, v))
            if only_in and u not in merged:
                hubs.add((u, "out"))
            if only_out and v not in merged:
                hubs.add((v, "in"))
            merged.update((u, v))
    return batch


def heights(edges: Collection[Edge]) -> list[int]:
    """[largest vertex + 1] edges of the longest path that leads to each vertex of a DAG."""
    count = 1 + max((max(edge) for edge in edges), default=-1)
    order = topological_order(successors(count, edges))
    return longest_before(successors(count, ((v, u) for u, v in edges)), order, [1] * count)


def _passing(instance: Instance, vertices: DisjointSets) -> dict[Edge, tuple[int, ...]]:
    """Edges between vertices (by representative) to the variables that pass along them, each once."""
    return passing(
        (vertices.find(u), vertices.find(v), k)
        for k, u in enumerate(instance.producer.tolist())
        for v in instance.consumers[k].tolist()
    )


def _finished(instance: Instance, vertices: DisjointSets, classes: DisjointSets) -> Coarse:
    """Vertices and classes numbered in topological order."""
    variables = _passing(instance, vertices)
    members = {group[0]: tuple(group) for group in vertices.sets()}
    index = {u: i for i, u in enumerate(members)}
    after = successors(len(members), ((index[u], index[v]) for u, v in variables))
    order = [list(members)[i] for i in topological_order(after, int)]
    assert len(order) == len(members), "coarsening closed a cycle"
    number = {u: i for i, u in enumerate(order)}
    class_number: dict[int, int] = {}
    class_of = tuple(class_number.setdefault(classes.find(u), len(class_number)) for u in order)
    nodes: list[list[int]] = [[] for _ in class_number]
    for v in range(instance.n):
        nodes[class_number[classes.find(v)]].append(v)
    return Coarse(
        vertices=tuple(members[u] for u in order),
        class_of=class_of,
        classes=tuple(map(tuple, nodes)),
        variables={(number[u], number[v]): each for (u, v), each in variables.items()},
    )
