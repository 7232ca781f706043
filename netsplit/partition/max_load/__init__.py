"""Solvers of `max_load`, the period of a saturated pipeline: the largest load of a device (`Instance.loads`).

Two problems. *Contiguous*: a dynamic programme over ideals, exact (`contiguous`, `chains`).
*Non-contiguous*: a hypergraph to be divided (`model`), annealed (`annealing`), and bounded by what one device
can do alone (`non_contiguous`).
Sources: Tarnawski et al., NeurIPS 2020; Archer et al., ICML 2024.
"""

from __future__ import annotations

from netsplit.partition.common.instance import Instance
from netsplit.partition.max_load.contiguous import solve_contiguous
from netsplit.partition.max_load.non_contiguous import solve_non_contiguous
from netsplit.partition.partitioner import Choice

__all__ = ["solve_max_load"]


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
