"""One iteration as a graph of tasks: task v is the forward of node v, task n + v its backward."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from netsplit.graph.order import longest_before
from netsplit.partition.common.instance import Floats, Instance

__all__ = ["Edge", "StepGraph"]


class Edge(NamedTuple):
    """Node `target` reads what `source` makes: of these, the variable with most bytes."""

    source: int
    target: int


class StepGraph:
    """Tasks, precedences and the longest paths with everything at its fastest. Arrays [2 n]."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        n = self.n = instance.n
        kinds = instance.first_of_kind
        own = np.concatenate([instance.forward_s[:, kinds], instance.backward_s[:, kinds]])
        self.fastest: Floats = own.min(axis=1)
        self.edges: dict[Edge, tuple[int, int]] = {}  # to (bytes forward, bytes backward; -1: no gradient)
        for u in range(len(instance.variables)):
            maker, nbytes = int(instance.producer[u]), int(instance.nbytes[u])
            for c in instance.consumers[u].tolist():
                back = nbytes if instance.requires_backward[u] and instance.trained[c] else -1
                before = self.edges.get(Edge(maker, c), (-1, -1))
                self.edges[Edge(maker, c)] = max(nbytes, before[0]), max(back, before[1])
        self.before: list[list[int]] = [[] for _ in range(2 * n)]
        self.after: list[list[int]] = [[] for _ in range(2 * n)]
        for (v, w), (_, back) in self.edges.items():
            self._precede(v, w)
            if back >= 0:
                self._precede(n + w, n + v)
        for v in np.flatnonzero(instance.trained).tolist():
            if not self.before[n + v]:
                self._precede(v, n + v)
        self.order = [*range(n), *range(2 * n - 1, n - 1, -1)]  # topological

    def _precede(self, a: int, b: int) -> None:
        self.after[a].append(b)
        self.before[b].append(a)

    @cached_property
    def seconds(self) -> Floats:
        """[2n, D]"""
        return np.concatenate([self.instance.forward_s, self.instance.backward_s])

    @cached_property
    def head(self) -> Floats:
        """[2n] least seconds before the task starts."""
        return np.array(longest_before(self.before, self.order, self.fastest.tolist()), float)

    @cached_property
    def tail(self) -> Floats:
        """[2n] least seconds after the task has ended."""
        return np.array(longest_before(self.after, reversed(self.order), self.fastest.tolist()), float)

    @cached_property
    def there_and_back(self) -> Floats:
        """[n] least seconds from the start of a node's forward to the end of its backward; trained nodes."""
        n, seconds = self.n, np.zeros(self.n)
        for v in reversed(range(n)):
            inner = [seconds[t - n] for t in self.before[n + v] if t >= n]
            seconds[v] = self.fastest[v] + self.fastest[n + v] + max(inner, default=0.0)
        return seconds

    def transfer_s(self, edge: Edge, backward: bool = False) -> Floats:
        """[D, D] seconds of the edge's transfer where its source is on p and its target on q."""
        i = self.instance
        nbytes = self.edges[edge][backward]
        if nbytes < 0:
            return np.zeros_like(i.latency_s)
        seconds = i.latency_s + nbytes * i.seconds_per_byte
        seconds = np.asarray(seconds.T if backward else seconds)
        return seconds * ~np.eye(len(seconds), dtype=bool)

    def cut_path_s(self, edge: Edge) -> Floats:
        """[D, D] least seconds of an iteration with the edge across p -> q."""
        n, (v, w) = self.n, edge
        forth = self.transfer_s(edge)
        seconds = self.head[v] + self.fastest[v] + forth + self.fastest[w] + self.tail[w]
        if self.edges[edge][1] < 0:
            return np.asarray(seconds)
        back = self.transfer_s(edge, backward=True)
        fixed = self.fastest[n + v] + self.tail[n + v]
        seconds = np.maximum(seconds, self.head[n + w] + self.fastest[n + w] + back + fixed)
        through = self.head[v] + self.fastest[v] + self.there_and_back[w] + fixed
        return np.asarray(np.maximum(seconds, through + forth + back))
