"""All placements and orders of a tiny graph, each as long as the simulator has it.

The CP-SAT model leaves out that a transfer also waits for its receiver to come to it. On graphs of a few
nodes that is made good here: what a bound of the placement does not exclude is tried in every order.
"""

from __future__ import annotations

import itertools
import time

import numpy as np

from netsplit.compiled import compiled
from netsplit.partition.common.instance import Instance, Ints
from netsplit.partition.engines.kernels import Arrays, CompiledStep, makespan
from netsplit.partition.engines.step.arrays import moving_s

__all__ = ["MOST_NODES", "enumerated"]

MOST_NODES = 8
_SLIGHT = 1e-12  # relative: sums in another order


def enumerated(
    instance: Instance, where: Ints, order: Ints, deadline: float
) -> tuple[Ints, Ints, float, bool] | None:
    """The best placement and order, no worse than the given ones; None where there are too many.

    Returns:
        [n] devices, [n] nodes in order, seconds, and whether everything was tried or excluded.
    """
    devices, atoms = len(instance.devices), instance.atoms
    if instance.n > MOST_NODES or not instance.enumerable:
        return None
    step = CompiledStep(instance)
    feeders = _feeders(instance)
    best = (where, order, step.makespan_s(where, order))
    for choice in itertools.product(range(devices), repeat=len(atoms)):
        if time.perf_counter() > deadline:
            return (*best, False)
        tried = np.array(choice, np.int64)[instance.atom_of]
        if not instance.fits(tried) or least_s(tried, step.arrays) >= best[2] * (1 - _SLIGHT):
            continue
        value, tried_order = best_order(tried, feeders, step.arrays, best[2] * (1 - _SLIGHT))
        if value < best[2]:
            best = (tried, tried_order, float(value))
    return (*best, True)


def _feeders(instance: Instance) -> Ints:
    """[units] bits of the units that must come before."""
    feeders = np.zeros(int(instance.unit_of.max(initial=-1)) + 1, np.int64)
    for v in range(instance.n):
        for u in instance.predecessors[v].tolist():
            if instance.unit_of[u] != instance.unit_of[v]:
                feeders[instance.unit_of[v]] |= 1 << int(instance.unit_of[u])
    return feeders


@compiled
def least_s(where: Ints, a: Arrays) -> float:
    """A lower bound for a placement: its longest path there and back, and the load of each device."""
    n, devices = a.forward_s.shape
    back = np.zeros(n)  # from the start of a node's forward to the end of its backward
    ahead = np.zeros(n)  # from the start of a node's forward to the end of anything after it
    load = np.zeros(devices)
    least = 0.0
    for v in range(n - 1, -1, -1):
        p = where[v]
        inside = 0.0
        for k in range(a.makes[v], a.makes[v + 1]):
            u = a.makes[k]
            for c in range(a.consumers[u], a.consumers[u + 1]):
                w = a.consumers[c]
                q = where[w]
                ahead[v] = max(ahead[v], moving_s(u, p, q, a) + ahead[w])
                if a.requires_backward[u] and a.trained[w]:
                    inside = max(inside, moving_s(u, p, q, a) + back[w] + moving_s(u, q, p, a))
        ahead[v] += a.forward_s[v, p]
        if a.trained[v]:
            back[v] = a.forward_s[v, p] + inside + a.backward_s[v, p]
            ahead[v] = max(ahead[v], back[v])
        load[p] += a.forward_s[v, p] + a.backward_s[v, p]
        least = max(least, ahead[v])
    return max(least, load.max())


@compiled
def best_order(where: Ints, feeders: Ints, a: Arrays, below: float) -> tuple[float, Ints]:
    """The order of units with the least step, if that takes less than `below` seconds; else infinity.

    Depth first, by the next unit: 1. where all were tried, back; 2. one that is used or not ready is
    passed over; 3. with one more to come, on; 4. with all of them, the step is measured.
    """
    units, n = len(feeders), len(where)
    sequence, following = np.zeros(units, np.int64), np.zeros(units + 1, np.int64)
    order, best = np.zeros(n, np.int64), np.zeros(n, np.int64)
    value, used, depth, improved = below, 0, 0, False
    while depth >= 0:
        # 1. back
        unit = following[depth]
        if unit == units:
            depth -= 1
            if depth >= 0:
                used &= ~(1 << sequence[depth])
                following[depth] += 1
            continue
        # 2. over
        if (used >> unit) & 1 or feeders[unit] & ~used:
            following[depth] += 1
            continue
        # 3. on
        sequence[depth] = unit
        if depth < units - 1:
            used |= 1 << unit
            depth += 1
            following[depth] = 0
            continue
        # 4. measured
        at = 0
        for x in sequence:
            for k in range(a.units[x], a.units[x + 1]):
                order[at] = a.units[k]
                at += 1
        seconds = makespan(where, order, a)
        if seconds < value:
            value, improved = seconds, True
            best[:] = order
        following[depth] += 1
    return value if improved else np.inf, best
