"""`netsplit`: the method of the NetSplit thesis, co-placement and constrained optimisation (5.2)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import mean
from typing import Literal

import numpy as np

from netsplit.cluster.cluster import Link
from netsplit.partition.base import Latency, Problem
from netsplit.partition.common.instance import Instance
from netsplit.partition.engines.anneal import Annealer
from netsplit.partition.engines.rows import Outcome
from netsplit.partition.engines.search import Scheduled, Search
from netsplit.partition.methods.thesis.formulation import thesis_times
from netsplit.partition.methods.thesis.grouped import Grouped, Groups
from netsplit.partition.partitioner import Choice, Partitioner
from netsplit.placement.placement import Status

__all__ = ["Ablated", "NetSplit"]

STARTS = 16  # annealed at first, as in `auto`


def shortest_step(
    problem: Problem, groups: tuple[tuple[str, ...], ...], deadline: float
) -> tuple[Outcome, dict[str, str] | None]:
    """The placement of the groups whose list-scheduled step is the shortest, within the capacities.

    All placements are tried where there are few enough; else they are annealed from contiguous fills.
    Status "optimal": all were tried.
    """
    graph = replace(problem.graph, colocated=tuple(group for group in groups if len(group) > 1))
    grouped = replace(problem, graph=graph, objective=Latency(), simulator=None)
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


@dataclass(frozen=True)
class NetSplit(Grouped):
    """Groups by co-placement, then the placement of groups with the least makespan (5-11).

    As in the thesis: nodes of one device may overlap in the model, memory is a sum in which a variable
    counts once on a device, of groups too (Algorithm 1), and co-placement stops at 2 x devices groups
    (Algorithm 3). The sum is the thesis's own (5-18) under ``memory=static``; by default it is what lives
    from forward to backward, corrected by simulated peaks. One thing is added: where these groups cannot be
    packed, the number of groups is doubled until they can, as finer groups might. Not the thesis's are
    `group_bytes="added"`, which ends groups earlier (`coplace`), another number of `groups`, and `exclusive`.

    With `exclusive`, devices compute one operator at a time and links carry one transfer at a time: the
    placement with the shortest list-scheduled step is taken, by trying all or, with many groups, by
    annealing. `gap` and `engine` count for nothing then, and there is a bound only where all were tried.

    The report's objective is the makespan of the answer in seconds.
    """

    exclusive: bool = False  # one operator at a time on a device, one transfer on a link

    name = "netsplit"

    @property
    def optimises(self) -> str:  # type: ignore[override]
        if self.exclusive:
            return "one pass; a device runs one operator at a time, as (5-11) asks"
        return "one pass, without exclusive devices (5-11): operators of one device may overlap"

    def limit_s(self, problem: Problem) -> float:
        return min(self.time_limit_s, problem.time_limit_s or self.time_limit_s)

    def place(
        self, problem: Problem, groups: Groups, deadline: float
    ) -> tuple[Outcome, dict[str, str] | None]:
        if self.exclusive:
            return shortest_step(problem, groups, deadline)
        return super().place(problem, groups, deadline)

    def times(self, problem: Problem, device_of: Mapping[str, str]) -> tuple[float, Mapping[str, float]]:
        if self.exclusive:
            return list_scheduled(problem, device_of)
        times = thesis_times(problem, device_of)
        return times.makespan, times.start_fp


Part = Literal["backward", "links"]


@dataclass(frozen=True)
class Ablated(Partitioner):
    """`method` without a part of what there is to know.

    Args:
        without: ``backward``: no backward takes time, as where forward seconds alone are measured;
            ``links``: every link is the mean of all.
    """

    method: Partitioner
    without: Part

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.method.name} without {self.without}"

    @property
    def respects_capacity(self) -> bool:  # type: ignore[override]
        return self.method.respects_capacity

    def check(self, problem: Problem) -> None:
        self.method.check(problem)

    def choose(self, problem: Problem) -> Choice:
        poorer = _ABLATIONS[self.without](problem)
        return self.method.choose(problem.moved_to(poorer.cluster, poorer.costs))


def without_backward(problem: Problem) -> Problem:
    """No backward takes time."""
    return replace(problem, costs=problem.costs.without_backward())


def without_links(problem: Problem) -> Problem:
    """Every link is the mean of all."""
    links = problem.cluster.links
    if not links:
        return problem
    common = Link(
        mean(link.latency_s for link in links.values()),
        mean(link.seconds_per_byte for link in links.values()),
    )
    cluster = problem.cluster.with_links(dict.fromkeys(links, common))
    return replace(problem, cluster=cluster)


_ABLATIONS = {"backward": without_backward, "links": without_links}
