# mypy: allow-untyped-defs, allow-untyped-calls
"""The dynamic programme over a family of ideals, compiled. Imported lazily: numba takes a second to load.

``best[s, I]``: the least max load of ideal I on s, a number of devices of every class. The last stage
is the difference of I and a smaller ideal I' of the family; all I' are walked depth first, one group
at a time, so that the loads of the stage follow by what one group adds (Tarnawski et al., NeurIPS
2020, section 5.1, with their recursion over pairs of ideals).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import product

import numpy as np
from numba import njit

from netsplit.partition.common.instance import Ints
from netsplit.partition.max_load.ideals import Ideals
from netsplit.partition.max_load.model import Hypergraph

__all__ = ["best_stages"]

_SLACK = 1e-9  # relative; sums of seconds are rounded


@dataclass(frozen=True)
class _Uses:
    """Numbers of devices used of every class: s = 0 none, the last all; one more of class c is a step."""

    steps: Ints  # [steps, 3] class, s before, s after; by ascending s after
    count: int

    @classmethod
    def of(cls, sizes: list[int]) -> _Uses:
        uses = list(product(*(range(size + 1) for size in sizes)))
        index = {use: s for s, use in enumerate(uses)}
        steps = [
            (c, index[(*use[:c], use[c] - 1, *use[c + 1 :])], s)
            for s, use in enumerate(uses)
            for c in range(len(sizes))
            if use[c]
        ]
        return cls(np.array(steps, np.int64).reshape(-1, 3), len(uses))


def best_stages(model: Hypergraph, ideals: Ideals, below: float, deadline: float = np.inf) -> Ints | None:
    """[G] device of each group, of least max load among all chains in the family; every stage meets memory.

    Args:
        below: seconds; stages with a load above it are not looked at (infinite: all).

    Returns:
        None where no chain has a max load of at most `below`.

    Raises:
        TimeoutError: the clock passed `deadline`.
    """
    classes = [list(same) for same in model.classes]
    first = [same[0] for same in classes]
    uses = _Uses.of([len(same) for same in classes])
    best = np.full((len(ideals), uses.count), np.inf)
    best[0] = 0.0
    parent = np.full((len(ideals), uses.count), -1, np.int64)
    by_step = np.full((len(ideals), uses.count), -1, np.int64)
    below = below * (1 + _SLACK) if np.isfinite(below) else np.inf
    count, nets = len(model.pins), model.nets_of
    seen = np.full(len(ideals), -1, np.int64)
    step = max(1, min(512, 20_000_000 // max(len(ideals), 1)))
    for low in range(1, len(ideals), step):
        _extend(
            low,
            min(low + step, len(ideals)),
            ideals.smaller.starts,
            ideals.smaller.items,
            ideals.removed,
            np.ascontiguousarray(model.weight[:, first]),
            np.ascontiguousarray(model.allowed[:, first]),
            nets.starts,
            nets.items,
            np.diff(model.pins.starts),
            np.ascontiguousarray(model.hop[:, first]).reshape(count, len(first)),
            model.state,
            model.sets_of.starts,
            model.sets_of.items,
            model.held_bytes,
            model.capacity[first],
            uses.steps,
            best,
            parent,
            by_step,
            below,
            seen,
        )
        if time.perf_counter() > deadline:
            raise TimeoutError
    if not np.isfinite(best[-1, -1]):
        return None
    return _decode(model, ideals, classes, uses, parent, by_step)


def _decode(
    model: Hypergraph, ideals: Ideals, classes: list[list[int]], uses: _Uses, parent: Ints, by_step: Ints
) -> Ints:
    where = np.zeros(model.count, np.int64)
    ideal, use = len(ideals) - 1, uses.count - 1
    free = [list(reversed(same)) for same in classes]
    while ideal:
        c, before, _ = uses.steps[by_step[ideal, use]]
        device = free[c].pop()
        target = int(parent[ideal, use])
        where[sorted(_members(ideals, ideal) - _members(ideals, target))] = device
        ideal, use = target, int(before)
    return where


def _members(ideals: Ideals, ideal: int) -> set[int]:
    found = set()
    while ideal:
        k = ideals.smaller.starts[ideal]
        found.add(int(ideals.removed[k]))
        ideal = int(ideals.smaller.items[k])
    return found


@njit(cache=True, nogil=True)
def _extend(
    low, high, starts, smaller, removed, weight, allowed, nstarts, nets, size, hop, state, sstarts, sets,
    held_bytes, room, steps, best, parent, by_step, below, seen,
):  # fmt: skip
    count, classes = weight.shape
    cnt = np.zeros(len(size), np.int64)
    hcnt = np.zeros(len(held_bytes), np.int64)
    barred = np.zeros(classes, np.int64)
    seconds = np.zeros(classes)
    cut = np.zeros(classes)
    used = 0
    at = np.empty(count + 1, np.int64)
    edge = np.empty(count + 1, np.int64)
    group = np.empty(count + 1, np.int64)
    for ideal in range(low, high):
        depth = 0
        at[0] = ideal
        edge[0] = starts[ideal]
        seconds[:] = 0.0
        cut[:] = 0.0
        while depth >= 0:
            if edge[depth] == starts[at[depth] + 1]:
                if depth > 0:
                    g = group[depth]
                    for i in range(nstarts[g], nstarts[g + 1]):
                        e = nets[i]
                        if cnt[e] == size[e]:
                            cut += hop[e]
                        cnt[e] -= 1
                        if cnt[e] == 0:
                            cut -= hop[e]
                    for i in range(sstarts[g], sstarts[g + 1]):
                        h = sets[i]
                        hcnt[h] -= 1
                        if hcnt[h] == 0:
                            used -= held_bytes[h]
                    used -= state[g]
                    for c in range(classes):
                        seconds[c] -= weight[g, c]
                        if not allowed[g, c]:
                            barred[c] -= 1
                depth -= 1
                continue
            k = edge[depth]
            edge[depth] += 1
            target = smaller[k]
            if seen[target] == ideal:
                continue
            g = removed[k]
            seen[target] = ideal
            open_class = False
            for c in range(classes):
                if (
                    barred[c] == 0
                    and allowed[g, c]
                    and seconds[c] + weight[g, c] <= below
                    and used + state[g] <= room[c]
                ):
                    open_class = True
            if not open_class:
                continue
            for i in range(nstarts[g], nstarts[g + 1]):
                e = nets[i]
                if cnt[e] == 0:
                    cut += hop[e]
                cnt[e] += 1
                if cnt[e] == size[e]:
                    cut -= hop[e]
            for i in range(sstarts[g], sstarts[g + 1]):
                h = sets[i]
                if hcnt[h] == 0:
                    used += held_bytes[h]
                hcnt[h] += 1
            used += state[g]
            for c in range(classes):
                seconds[c] += weight[g, c]
                if not allowed[g, c]:
                    barred[c] += 1
            depth += 1
            at[depth] = target
            edge[depth] = starts[target]
            group[depth] = g
            for j in range(len(steps)):
                c = steps[j, 0]
                load = seconds[c] + cut[c]
                if barred[c] == 0 and used <= room[c] and load <= below:
                    value = max(best[target, steps[j, 1]], load)
                    if value < best[ideal, steps[j, 2]]:
                        best[ideal, steps[j, 2]] = value
                        parent[ideal, steps[j, 2]] = target
                        by_step[ideal, steps[j, 2]] = j
        for j in range(len(steps)):  # a device may stay empty
            before, after = steps[j, 1], steps[j, 2]
            if best[ideal, before] < best[ideal, after]:
                best[ideal, after] = best[ideal, before]
                parent[ideal, after] = ideal
                by_step[ideal, after] = j
