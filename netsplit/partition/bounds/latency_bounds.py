"""Lower bounds on the latency of a full graph, for graphs too large for the complete model.

    incumbent ──► edges that no better answer cuts ──► fewer, larger atoms ──► relaxation R ──► bound
                  (longest path through the cut edge)                          (CP-SAT)

R has placement, memory (5-18), precedence with transfers, and the load of every device, over the whole
iteration and between a node and its immediate dominator; that computations and transfers exclude one
another is left out, so every schedule of the simulator is a solution of R and R's bound holds for it.
Merging atoms by an incumbent keeps every better answer: the bound is then min(incumbent, R's).

Source: NetSplit thesis (5-11..5-18) for the core of R; rows for intervals of time after Fernandez and
Bussell, IEEE Trans. Computers 1973.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from netsplit.graph.quotient import DisjointSets
from netsplit.partition.bounds.latency_chain import chain_bound
from netsplit.partition.bounds.latency_diagram import OutOfTime, check_clock, diagram_bound
from netsplit.partition.bounds.latency_relaxed import Relaxed, RelaxedModel
from netsplit.partition.common.instance import Instance, Ints
from netsplit.partition.common.step_graph import Edge, StepGraph

__all__ = ["Relaxed", "critical_path_s", "least_load_s", "never_cut", "relaxation"]

_TICKS = 10_000_000  # of the horizon
BUILDING = 0.5  # of the time that is left, for the model


def critical_path_s(instance: Instance) -> float:
    """The longest path of the iteration, with every node as fast as on its best device."""
    graph = StepGraph(instance)
    return float(max((graph.head + graph.fastest + graph.tail).max(initial=0.0), 0.0))


def relaxation(
    instance: Instance,
    time_limit_s: float,
    seed: int = 0,
    incumbent_s: float | None = None,
    workers: int = 2,
) -> Relaxed:
    """What no placement and order of the full graph can beat: R, solved as far as the time allows.

    Args:
        instance: the problem as arrays.
        time_limit_s: of all of it.
        seed: of the search.
        incumbent_s: latency of a known answer; a better one makes the bound better.
        workers: of CP-SAT.
    """
    deadline = time.perf_counter() + time_limit_s
    graph = StepGraph(instance)
    path_s = float((graph.head + graph.fastest + graph.tail).max(initial=0.0))
    load_s = least_load_s(instance)
    bound_s = max(path_s, load_s)
    notes: dict[str, Any] = {"critical_path_s": path_s, "load_s": load_s}
    known = incumbent_s is not None and np.isfinite(incumbent_s)
    most_s = float(incumbent_s) if known and incumbent_s is not None else instance.serial_s
    if instance.n == 0 or bound_s >= most_s:
        return Relaxed(min(bound_s, most_s), None, notes)
    diagram_s = _diagrams(graph, most_s, time.perf_counter() + 0.15 * time_limit_s)
    bound_s = max(bound_s, diagram_s)
    notes["diagram_s"] = diagram_s
    if not known or bound_s < most_s * (1 - 1e-9):
        chain_s, tried = chain_bound(graph, most_s, time.perf_counter() + 0.4 * time_limit_s)
        bound_s = max(bound_s, chain_s)
        notes |= {"chain_s": chain_s, "chain": tried}
    if known and bound_s >= most_s * (1 - 1e-9):
        return Relaxed(min(bound_s, most_s), None, notes)
    try:
        model = _model(graph, most_s, bound_s, notes, deadline)
    except OutOfTime:
        notes["relaxation"] = "not built in time"
        return Relaxed(min(bound_s, most_s) if known else bound_s, None, notes)
    outcome = model.solve(deadline - time.perf_counter(), seed, workers)
    notes |= outcome.notes
    best_s = outcome.bound_s if known else min(outcome.bound_s, float("inf"))
    return Relaxed(max(bound_s, min(best_s, most_s) if known else best_s), outcome.where, notes)


def _model(
    graph: StepGraph, most_s: float, bound_s: float, notes: dict[str, Any], deadline: float
) -> RelaxedModel:
    """R, built within half of the time left: the other half is for solving it."""
    now = time.perf_counter()
    until = now + BUILDING * (deadline - now)
    shut = never_cut(graph, most_s, until)
    group_of = _groups(graph.instance, graph, shut)
    notes["groups"] = int(group_of.max()) + 1
    return RelaxedModel(graph, group_of, shut, most_s, _TICKS, bound_s, until)


def _diagrams(graph: StepGraph, most_s: float, deadline: float) -> float:
    """Ever wider diagrams, as long as the next, which takes twice as long, should be ready in time."""
    best_s, width, began = 0.0, 250, time.perf_counter()
    while True:
        bound = diagram_bound(graph, most_s, width, deadline)
        if bound is None:
            return best_s
        best_s = max(best_s, bound)
        now = time.perf_counter()
        if best_s >= most_s or width >= 64_000 or now + 2.2 * (now - began) > deadline:
            return best_s
        width, began = 2 * width, now


def never_cut(
    graph: StepGraph, most_s: float, deadline: float = math.inf
) -> dict[Edge, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Per edge [D, D]: the pairs of devices it cannot lie across in an answer that takes at most `most_s`.

    An answer with the edge across p -> q takes at least the longest path through both its transfers, and
    at least the longest path through either, with all other things as fast as they can be.

    Raises:
        OutOfTime: after the deadline.
    """
    allowed = most_s * (1 + 1e-9)
    pairs = {}
    for edge in graph.edges:
        check_clock(deadline)
        pairs[edge] = graph.cut_path_s(edge) > allowed
    return pairs


def _groups(instance: Instance, graph: StepGraph, shut: dict[Edge, Any]) -> Ints:
    """[n] number of the set of atoms that no better answer separates, ascending with the first node."""
    sets = DisjointSets(instance.n)
    for nodes in instance.atoms.items[instance.atoms.starts[:-1]].tolist():
        for v in instance.atoms[int(instance.atom_of[nodes])].tolist():
            sets.merge(nodes, v)
    apart = ~np.eye(len(instance.devices), dtype=bool)
    for edge, closed in shut.items():
        if closed[apart].all():
            sets.merge(edge.source, edge.target)
    number: dict[int, int] = {}
    return np.array([number.setdefault(sets.find(v), len(number)) for v in range(instance.n)], np.int64)


def least_load_s(instance: Instance) -> float:
    """All work, each node at the rate at which all devices together do it, no device idle.

    With seconds p[v, d] the time T has T * rate at least the sum of the least seconds, where device d does in
    a second no more least-seconds of work than its speed, the max over v of (least p[v] / p[v, d]). Devices
    that share a host do the sum of the speeds of those that compute, each divided by its slowdown while so
    many do; of how many it is best.
    """
    seconds = instance.forward_s + instance.backward_s + instance.step_s * instance.trained[:, None]
    least = seconds.min(axis=1, initial=np.inf)
    some = least > 0
    if not some.any():
        return 0.0
    speed = (least[some, None] / seconds[some]).max(axis=0)
    rate = speed[instance.host_of < 0].sum()
    for host in range(instance.host_of.max(initial=-1) + 1):
        there = np.flatnonzero(instance.host_of == host)
        rate += max(
            np.sort(speed[there] / instance.slowdown[there, k])[-k:].sum() for k in range(1, len(there) + 1)
        )
    return float(least[some].sum() / rate)
