"""The least latency by enumeration: all placements, all total orders, each simulated from the arrays.

Written apart from the package: `iteration` is the semantics of `single_batch`, in loops over arrays, and
`least_latency` tries every placement of atoms within capacity with every order of each device's nodes.
Two orders which differ only by swapping neighbours on different devices that do not feed one another are
one and the same program; of those, few but the first are tried.
"""

from collections.abc import Sequence
from itertools import product

import numpy as np
from numba import njit

from netsplit.partition.common.instance import Instance


@njit(cache=True)
def iteration(where, order, data):  # type: ignore[no-untyped-def]
    """Seconds of a step: forwards in `order`, backwards in its reverse; links first come first served."""
    forward, backward, trained, producer, reads, requires_backward, transfer, step = data
    n, devices = forward.shape
    m = len(producer)
    clock = np.zeros(devices)
    link = np.zeros((devices, devices))
    arrival = np.zeros((m, devices))
    end = 0.0
    for v in order:
        p = where[v]
        start = clock[p]
        for u in range(m):
            if reads[v, u] and where[producer[u]] != p:
                start = max(start, arrival[u, p])
        clock[p] = start + forward[v, p]
        for u in range(m):
            if producer[u] == v:
                for q in range(devices):
                    wanted = False
                    for w in range(n):
                        wanted = wanted or (reads[w, u] and where[w] == q)
                    if wanted and q != p:
                        link[p, q] = max(link[p, q], clock[p]) + transfer[u, p, q]
                        arrival[u, q] = link[p, q]
                        end = max(end, link[p, q])
    waits = np.zeros(n)
    done = np.zeros(n, np.bool_)
    steps = np.zeros(devices)
    for v in order[::-1]:
        if not trained[v]:
            continue
        p = where[v]
        clock[p] = max(clock[p], waits[v]) + backward[v, p]
        done[v] = True
        for u in range(m):
            if not (requires_backward[u] and reads[v, u]) or where[producer[u]] == p:
                continue
            complete = True
            for w in range(n):
                if reads[w, u] and trained[w] and where[w] == p and not done[w]:
                    complete = False
            if complete:
                q = where[producer[u]]
                link[p, q] = max(link[p, q], clock[p]) + transfer[u, p, q]
                waits[producer[u]] = max(waits[producer[u]], link[p, q])
                end = max(end, link[p, q])
    for p in range(devices):
        stepping = False
        for v in range(n):
            if where[v] == p:
                steps[p] += step[v, p]
                stepping = stepping or trained[v]
        if stepping:
            clock[p] += steps[p]
        end = max(end, clock[p])
    return end


@njit(cache=True)
def _best_order(where, feeds, unit, data, best, best_order):  # type: ignore[no-untyped-def]
    """The least iteration over the orders of one placement, if it is below `best`; depth first."""
    n = len(where)
    order = np.zeros(n, np.int64)
    placed = np.zeros(n, np.bool_)
    choice = np.zeros(n + 1, np.int64)
    depth = 0
    while depth >= 0:
        if depth == n:
            seconds = iteration(where, order, data)
            if seconds < best:
                best = seconds
                best_order[:] = order
            depth -= 1
            if depth >= 0:
                placed[order[depth]] = False
                choice[depth] += 1
            continue
        v = choice[depth]
        while v < n:
            fine = not placed[v]
            if fine:
                for w in range(n):
                    fine = fine and (placed[w] or not feeds[w, v])
                    if unit[w] == unit[v] and w < v:
                        fine = fine and placed[w]
            if fine and depth > 0:
                w = order[depth - 1]
                open_unit = False
                for k in range(n):
                    open_unit = open_unit or (unit[k] == unit[w] and not placed[k])
                fine = not open_unit or unit[v] == unit[w]
                if fine and v < w and where[v] != where[w] and not feeds[w, v] and _single(unit, v, w):
                    fine = False
            if fine:
                break
            v += 1
        if v == n:
            depth -= 1
            if depth >= 0:
                placed[order[depth]] = False
                choice[depth] += 1
            continue
        choice[depth] = v
        order[depth] = v
        placed[v] = True
        depth += 1
        choice[depth] = 0
    return best


@njit(cache=True)
def _single(unit, v, w):  # type: ignore[no-untyped-def]
    """Whether both nodes are units of their own, so that they may swap places."""
    return np.sum(unit == unit[v]) == 1 and np.sum(unit == unit[w]) == 1


def arrays(instance: Instance):  # type: ignore[no-untyped-def]
    reads = np.zeros((instance.n, len(instance.producer)), np.bool_)
    for u in range(len(instance.producer)):
        reads[instance.consumers[u], u] = True
    return (
        instance.forward_s,
        instance.backward_s,
        instance.trained,
        instance.producer,
        reads,
        instance.requires_backward,
        instance.transfer_s,
        instance.step_s,
    )


def least_latency(instance: Instance) -> tuple[float, Sequence[int], Sequence[int]] | None:
    """(seconds, device of each node, order), or None where no placement fits."""
    data = arrays(instance)
    feeds = np.zeros((instance.n, instance.n), np.bool_)
    for v in range(instance.n):
        feeds[v, instance.successors[v]] = True
    both = instance.forward_s + (instance.backward_s + instance.step_s) * instance.trained[:, None]
    placements = []
    for at in product(range(len(instance.devices)), repeat=len(instance.atoms)):
        where = np.array(at, np.int64)[instance.atom_of]
        if instance.fits(where):
            loads = np.bincount(where, weights=both[np.arange(instance.n), where])
            placements.append((float(loads.max()), at))
    best, best_where = np.inf, None
    best_order = np.zeros(instance.n, np.int64)
    for load, at in sorted(placements):
        if load >= best:
            break
        where = np.array(at, np.int64)[instance.atom_of]
        order = _best_order(where, feeds, instance.unit_of, data, best, best_order)
        if order < best:
            best, best_where = order, where
    return None if best_where is None else (float(best), best_where.tolist(), best_order.tolist())
