"""Pesto's coarsening, and the tasks of a training step on the coarsened graph with their schedule.

Coarsening merges the ends of heavy edges in batches, as long as the graph stays acyclic.
Source: Hafeez et al., Pesto (Middleware 2021), Theorem and Definition 3.4, Theorem 3.5. An edge (u, v)
may be merged if it is the only path from u to v, for which each of these is enough:

- (u, v) is the only edge out of u, or the only edge into v;
- every other successor w of u has ``height(w) > height(v)``, the height of a vertex being the edges of
  the longest path that leads to it. A path over w could then not come down to v.

A set of such edges without a common vertex may be merged at once, as heights rise along any closed walk; with
heights as longest paths the paper's further condition on neighbouring pairs is not needed. The same holds for
stars: edges out of one vertex that are each the only edge into their end, or the other way round. Rounds that
find few pairs, as a hub with a thousand leaves does, are followed by rounds that take stars.

Index letters: `t` task (a vertex's forward, or its backward), `q` message (an edge of tasks whose ends
are in two classes, and so perhaps on two devices), `g` class of vertices that share a device, `k` device.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from netsplit.graph.quotient import DisjointSets, longest_before, passing, successors, topological_order
from netsplit.partition.common.instance import Floats, Instance, Ints

__all__ = ["Coarse", "CoarseSchedule", "CoarseTasks", "coarsen", "heights", "mergeable_batch"]

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


@dataclass(frozen=True)
class CoarseSchedule:
    """Start seconds of tasks and messages; exclusive devices and directed links."""

    where: tuple[int, ...]  # class to device
    start: tuple[float, ...]  # [T]
    sent: tuple[float, ...]  # [Q]
    makespan: float


@dataclass(frozen=True, eq=False)
class CoarseTasks:
    """Tasks in topological order: the forwards of all vertices, then the backwards, last vertex first.

    A backward task follows its own forward and the backward tasks that send it gradients.
    """

    instance: Instance
    coarse: Coarse
    vertex_of: tuple[int, ...]  # [T]
    seconds: Floats  # [T, K]
    local: tuple[tuple[int, int], ...]  # precedences that never cross devices
    messages: tuple[tuple[int, int], ...]  # [Q] source task, target task
    message_s: Floats  # [Q, K, K]

    @classmethod
    def of(cls, instance: Instance, coarse: Coarse) -> CoarseTasks:
        forwards = len(coarse.vertices)
        trained = [v for v, members in enumerate(coarse.vertices) if instance.trained[list(members)].any()]
        backward = {v: forwards + i for i, v in enumerate(reversed(trained))}
        sums = [instance.forward_s[list(members)].sum(axis=0) for members in coarse.vertices]
        sums += [instance.backward_s[list(coarse.vertices[v])].sum(axis=0) for v in backward]
        arcs: list[tuple[int, int, int]] = [(v, t, 0) for v, t in backward.items()]
        for (u, v), variables in coarse.variables.items():
            arcs.append((u, v, int(instance.nbytes[list(variables)].sum())))
            back = [k for k in variables if _returns(instance, coarse, k, v)]
            if back:
                arcs.append((backward[v], backward[u], int(instance.nbytes[back].sum())))
        vertex_of = (*range(forwards), *backward)
        classes = [coarse.class_of[v] for v in vertex_of]
        crossing = [arc for arc in arcs if classes[arc[0]] != classes[arc[1]]]
        nbytes = np.array([size for _, _, size in crossing], float)
        return cls(
            instance=instance,
            coarse=coarse,
            vertex_of=vertex_of,
            seconds=np.array(sums).reshape(len(vertex_of), len(instance.devices)),
            local=tuple((s, t) for s, t, _ in arcs if classes[s] == classes[t]),
            messages=tuple((s, t) for s, t, _ in crossing),
            message_s=np.asarray(instance.latency_s + nbytes[:, None, None] * instance.seconds_per_byte),
        )

    @property
    def count(self) -> int:
        return len(self.vertex_of)

    @cached_property
    def class_of(self) -> tuple[int, ...]:
        """[T]"""
        return tuple(self.coarse.class_of[v] for v in self.vertex_of)

    @cached_property
    def ends(self) -> tuple[tuple[int, int], ...]:
        """[Q] class of the source, class of the target."""
        return tuple((self.class_of[s], self.class_of[t]) for s, t in self.messages)

    @cached_property
    def least_s(self) -> list[float]:
        """[T] seconds on the fastest device."""
        return [float(s) for s in self.seconds.min(axis=1, initial=np.inf)]

    @cached_property
    def after(self) -> list[list[int]]:
        """[T] -> tasks that wait for it directly."""
        waiting: list[list[int]] = [[] for _ in range(self.count)]
        for s, t in (*self.local, *self.messages):
            waiting[s].append(t)
        return waiting

    @cached_property
    def tail_s(self) -> list[float]:
        """[T] every schedule goes on at least so long after the end of the task."""
        tail_s = longest_before(self.after, reversed(range(self.count)), self.least_s)
        return [float(s) for s in tail_s]

    @property
    def class_bytes(self) -> tuple[list[int], dict[tuple[int, ...], int]]:
        """Bytes of each class alone, and of what just these classes hold."""
        return self.instance.bytes_of_groups(self.nodes_at(range(len(self.coarse.classes))))

    def nodes_at(self, where: Sequence[int]) -> Ints:
        """[n] device of every node, of the devices of classes."""
        at = np.zeros(self.instance.n, np.int64)
        for g, members in enumerate(self.coarse.classes):
            at[list(members)] = where[g]
        return at

    @cached_property
    def _follow(self) -> tuple[list[list[int]], list[int]]:
        """Tasks and messages (numbered from T) as one DAG: what follows each, how many it waits for."""
        follow: list[list[int]] = [[] for _ in range(self.count + len(self.messages))]
        waits = [0] * len(follow)
        arcs = list(self.local)
        for q, (s, t) in enumerate(self.messages, start=self.count):
            arcs += [(s, q), (q, t)]
        for s, t in arcs:
            follow[s].append(t)
            waits[t] += 1
        return follow, waits

    @cached_property
    def _lists(self) -> tuple[list[list[float]], list[float]]:
        tails = [-self.tail_s[t] - self.least_s[t] for t in range(self.count)]
        tails += [tails[t] for _, t in self.messages]
        return self.seconds.tolist(), tails

    def schedule(self, where: Sequence[int], key: Sequence[float] | None = None) -> CoarseSchedule:
        """Start every task and message as early as those before it on its device or link allow.

        Args:
            where: class to device.
            key: [T + Q] the order in which devices and links serve; None: first come, first served,
                the longer remaining path first among equals.
        """
        seconds, tails = self._lists
        follow, waits = self._follow[0], list(self._follow[1])
        ready = [0.0] * len(waits)
        start = [0.0] * len(waits)
        free: dict[object, float] = {}
        message_s = self.message_s.item
        heap = [((key[i] if key else 0.0), tails[i], i) for i, left in enumerate(waits) if not left]
        heapq.heapify(heap)
        makespan = 0.0
        while heap:
            i = heapq.heappop(heap)[-1]
            resource: object
            if i < self.count:
                k = where[self.class_of[i]]
                resource, length = k, seconds[i][k]
            else:
                a, b = self.ends[i - self.count]
                resource = (where[a], where[b])
                length = 0.0 if where[a] == where[b] else message_s(i - self.count, where[a], where[b])
            if i < self.count or where[a] != where[b]:
                start[i] = max(ready[i], free.get(resource, 0.0))
                free[resource] = start[i] + length
            else:
                start[i] = ready[i]
            end = start[i] + length
            makespan = max(makespan, end)
            for j in follow[i]:
                ready[j] = max(ready[j], end)
                waits[j] -= 1
                if not waits[j]:
                    heapq.heappush(heap, (key[j] if key else ready[j], tails[j], j))
        n = self.count
        return CoarseSchedule(tuple(where), tuple(start[:n]), tuple(start[n:]), makespan)


def _returns(instance: Instance, coarse: Coarse, variable: int, vertex: int) -> bool:
    """Whether a gradient of the variable comes back from the vertex."""
    readers = set(instance.consumers[variable].tolist()) & set(coarse.vertices[vertex])
    return bool(instance.requires_backward[variable] and any(instance.trained[v] for v in readers))
