"""A method that is not told everything: what each part of the problem is worth.

The answer is made for the poorer problem, and judged, as any other, on the whole one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import mean
from typing import Literal

from netsplit.cluster.cluster import Link
from netsplit.partition.base import Problem
from netsplit.partition.partitioner import Choice, Partitioner

__all__ = ["Ablated", "without_backward", "without_links"]

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
