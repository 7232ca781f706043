"""One iteration as a graph of tasks: task v is the forward of node v, task n + v its backward."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from netsplit.partition.common.instance import Instance

__all__ = ["Edge", "StepGraph"]


class Edge(NamedTuple):
    """Node `target` reads what `source` makes: of these, the variable with most bytes."""

    source: int
    target: int


class StepGraph:
    """Tasks and precedences."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        n = self.n = instance.n
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
