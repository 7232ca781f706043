"""Solvers of `max_load`, the period of a saturated pipeline: the largest load of a device (`Instance.loads`).

*Contiguous*: a chain of ideals, that is, the devices can be put in an order such that no forward edge goes
back, by an exact dynamic programme, or a search where it is too large. Sets that are convex one by one, but
feed each other both ways, are not looked at. Backward nodes follow their groups, and their stages must
follow one another so, too. *Non-contiguous*: a hypergraph to be divided (`model`), annealed
(`annealing`), and bounded by what one device can do alone (`non_contiguous`).
Sources: Tarnawski et al., NeurIPS 2020; Archer et al., ICML 2024.
"""

from __future__ import annotations

import time

from netsplit.partition.common.instance import Instance, Ints
from netsplit.partition.max_load.chains import Ideals, SliceGraph, best_chain
from netsplit.partition.max_load.model import answer_of
from netsplit.partition.max_load.non_contiguous import proven_bound, solve_non_contiguous
from netsplit.partition.partitioner import Choice, infeasible

__all__ = ["solve_contiguous", "solve_max_load"]

_IDEALS = 1_000_000  # beyond, the table of the dynamic programme no longer fits a small machine
_ORDERS = 16


def solve_max_load(
    instance: Instance,
    time_limit_s: float,
    seed: int = 0,
    contiguous: bool = False,
    gap: float = 1e-4,
) -> Choice:
    """The placement of least max load that is found in the time, with a proven lower bound.

    Args:
        instance: the problem; colocated nodes stay together, (5-18) bytes stay within the capacities.
        time_limit_s: of the whole call. One thread proves while one searches.
        contiguous: the devices must form a chain of stages that no forward (or backward) edge goes
            against; see `contiguous`.
        gap: relative distance of value and bound at which the search stops.

    Raises:
        InfeasibleError: no placement meets the memory limits, or none was found in the time.
    """
    solve = solve_contiguous if contiguous else solve_non_contiguous
    return solve(instance, time_limit_s, seed, gap)


def solve_contiguous(instance: Instance, time_limit_s: float, seed: int, gap: float) -> Choice:
    """See `max_load.solve_max_load`."""
    started = time.perf_counter()
    deadline = started + 0.95 * time_limit_s
    search = SliceGraph(instance, seed)
    search.steps(_ORDERS, deadline)
    exact, proven = _exact(search, started + 0.7 * time_limit_s)
    if exact is not None:
        return answer_of(instance, exact, float("inf"), gap, "ideals")
    while search.where is None and not proven and time.perf_counter() < deadline:
        search.step(deadline)
    if search.where is None:
        raise infeasible(instance.problem, "max_load")
    middle = time.perf_counter() + 0.4 * (deadline - time.perf_counter())
    while time.perf_counter() < middle:
        search.step(deadline)
    bound = proven_bound(instance, search.value, deadline, gap)
    return answer_of(instance, search.where, bound, gap, "orders")


def _exact(search: SliceGraph, deadline: float) -> tuple[Ints | None, bool]:
    """[n] the optimum over all ideals, None without any; and whether all were looked at: there may be too
    many, or too little time."""
    ideals = Ideals.of(search.order, _IDEALS, deadline)
    if ideals is None:
        return None, False
    try:
        where = best_chain(search.model, ideals, search.value * (1 + 1e-9), deadline)
    except TimeoutError:
        return None, False
    return search.where if where is None else search.model.nodes(where), True
