"""Groups on devices that compute one operator at a time, over links that carry one transfer at a time.

The decision is that of `netsplit`; what differs is what a placement is said to take: the single-batch step
of `kernels` in the order of its list schedule, instead of (5-11)..(5-16).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from netsplit.partition.base import Latency, Problem, Status
from netsplit.partition.common.instance import Instance
from netsplit.partition.engines.anneal import Annealer
from netsplit.partition.engines.outcome import Outcome
from netsplit.partition.engines.search import Scheduled, Search

__all__ = ["list_scheduled", "shortest_step"]

STARTS = 16  # annealed at first, as in `auto`


def shortest_step(
    problem: Problem, groups: tuple[tuple[str, ...], ...], deadline: float
) -> tuple[Outcome, dict[str, str] | None]:
    """The placement of the groups whose list-scheduled step is the shortest, within the capacities.

    All placements are tried where there are few enough; else they are annealed from contiguous fills.
    Status "optimal": all were tried.
    """
    graph = replace(problem.graph, colocated=tuple(group for group in groups if len(group) > 1))
    grouped = replace(problem, graph=graph, objective=Latency(), evaluate=None)
    search = Search(grouped, STARTS, deadline, methods=(), name="netsplit")
    search.compile()
    if not search.instance.enumerable:
        answer = search.run(None)
        outcome = Outcome("annealing", "limit" if answer is None else "feasible", notes=search.notes)
    else:
        answer, all_tried = _shortest_of_all(search.annealer, search.deadline)
        without: Status = "infeasible" if all_tried else "limit"
        best: Status = "optimal" if all_tried else "feasible"
        least_s = answer.value_s if all_tried and answer is not None else None
        outcome = Outcome("enumeration", without if answer is None else best, bound=least_s)
    return outcome, None if answer is None else search.instance.decode(answer.where)


def list_scheduled(problem: Problem, device_of: Mapping[str, str]) -> tuple[float, dict[str, float]]:
    """Seconds of the step of a placement, and node name to its place in the list schedule."""
    instance = Instance.of(problem)
    seconds, order = Annealer(instance).evaluate(instance.encode(device_of))
    return seconds, {instance.names[int(v)]: float(i) for i, v in enumerate(order)}


def _shortest_of_all(annealer: Annealer, deadline: float) -> tuple[Scheduled | None, bool]:
    """The best of the placements tried until the deadline, and whether these were all."""
    instance = annealer.instance
    best: Scheduled | None = None
    for choice in itertools.product(range(len(instance.devices)), repeat=len(instance.atoms)):
        if time.perf_counter() > deadline:
            return best, False
        where = np.array(choice, np.int64)[instance.atom_of]
        if instance.fits(where):
            seconds, order = annealer.evaluate(where)
            if best is None or seconds < best.value_s:
                best = Scheduled(where, order, seconds, "enumeration")
    return best, True
