"""Joins of a task graph, and what lies between each and its immediate dominator."""

from __future__ import annotations

import math
import time

import numpy as np

from netsplit.partition.common.instance import Floats, Ints

__all__ = ["dominated_sets"]


def dominated_sets(
    before: list[list[int]], sizes: Floats, deadline: float = math.inf
) -> list[tuple[int, int, list[int]]]:
    """(s, t, tasks strictly between) for joins t of a graph and their immediate dominators s.

    `before[t]` are the predecessors, all below t. Only sets with parallel tasks in them are returned;
    -1 stands for the start of everything. After the deadline the sets found so far are returned.
    """
    n = len(before)
    depth, idom = np.zeros(n, np.int64), np.full(n, -1, np.int64)
    for t in range(n):
        if time.perf_counter() > deadline:
            return []
        if before[t]:
            meet = before[t][0]
            for s in before[t][1:]:
                meet = _meet(meet, s, idom, depth)
            idom[t] = meet
        depth[t] = depth[idom[t]] + 1 if idom[t] >= 0 else 1
    found = []
    for t in range(n):
        if len(before[t]) < 2:
            continue
        if time.perf_counter() > deadline:
            break
        s, inside, stack = int(idom[t]), set[int](), list(before[t])
        while stack:
            v = stack.pop()
            if v != s and v not in inside:
                inside.add(v)
                stack.extend(before[v])
        if sum(sizes[v] > 0 for v in inside) > 1:
            found.append((s, t, sorted(inside)))
    return found


def _meet(a: int, b: int, idom: Ints, depth: Ints) -> int:
    while a != b and a >= 0 and b >= 0:
        if depth[a] < depth[b]:
            a, b = b, a
        a = int(idom[a])
    return a if a == b else -1
