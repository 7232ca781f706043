"""Joins of a task graph, and what lies between each and its immediate dominator."""

from __future__ import annotations

import math
import time

from netsplit.partition.common.instance import Floats

__all__ = ["dominated_sets"]


def dominated_sets(
    before: list[list[int]], sizes: Floats, deadline: float = math.inf
) -> list[tuple[int, int, list[int]]]:
    """(s, t, tasks strictly between) for joins t of a graph and their immediate dominators s.

    `before[t]` are the predecessors, all below t. Only sets with parallel tasks in them are returned;
    -1 stands for the start of everything. After the deadline the sets found so far are returned.
    """
    import networkx

    graph = networkx.DiGraph((s, t) for t, sources in enumerate(before) for s in sources or (-1,))
    idom = networkx.immediate_dominators(graph, -1)
    sets = []
    for t in range(len(before)):
        if len(before[t]) < 2:
            continue
        if time.perf_counter() > deadline:
            break
        s, inside, stack = idom[t], set[int](), list(before[t])
        while stack:
            v = stack.pop()
            if v != s and v not in inside:
                inside.add(v)
                stack.extend(before[v])
        if sum(sizes[v] > 0 for v in inside) > 1:
            sets.append((s, t, sorted(inside)))
    return sets
