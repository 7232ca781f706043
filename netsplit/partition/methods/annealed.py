"""Devices of the nodes that a graph has, of parts too: by lists, and by annealing from a known placement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from netsplit.errors import InfeasibleError
from netsplit.partition.base import Problem
from netsplit.partition.common.instance import Instance
from netsplit.partition.engines.search import Search
from netsplit.partition.methods.baechi.etf import MEtf
from netsplit.partition.methods.baselines import Balanced
from netsplit.partition.methods.list_schedulers import Dpos, Heft
from netsplit.partition.methods.pipedream.pipedream import PipeDream
from netsplit.partition.partitioner import Partitioner
from netsplit.placement.placement import Placement

__all__ = ["LISTED", "annealed", "placements_by_lists"]

LISTED: tuple[Partitioner, ...] = (Heft(), Dpos())
METHODS: tuple[Partitioner, ...] = (*LISTED, MEtf(), Balanced(), PipeDream(straight=True, max_states=400))


def placements_by_lists(problem: Problem) -> Iterator[Placement]:
    """What list schedules answer, where that fits."""
    for method in LISTED:
        with suppress(InfeasibleError):
            yield method.partition(problem)


def annealed(
    problem: Problem, known: Placement, starts: int, deadline: float, methods: Sequence[Partitioner] = METHODS
) -> Placement | None:
    """What a search finds from a placement, and from what methods answer; None where nothing fits.

    Args:
        problem: with a `simulator`; of the graph that the placement is of.
        deadline: on ``time.perf_counter``.
    """
    instance = Instance.of(problem)
    fits = instance.fits(instance.encode(known.device_of))
    own = replace(problem, known=known if fits else None)
    search = Search(own, starts, deadline, methods, f"{known.method}, placed again", simulated=True)
    search.compile()
    answer = search.run(None)
    if answer is None:
        return None
    return replace(search.placement(answer), method=known.method, rewrites=problem.graph.rewrites)
