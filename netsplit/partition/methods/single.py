"""`single`: everything on one device; the reference that every other method is compared with."""

from __future__ import annotations

import time
from dataclasses import dataclass

from netsplit.errors import ConfigError
from netsplit.partition.base import Partitioner, Placement, Problem, SolverReport
from netsplit.partition.common.priority import topological_priority

__all__ = ["Single"]


@dataclass(frozen=True)
class Single(Partitioner):
    """All nodes on one device, in captured order, whether they fit or not."""

    device: str | None = None  # None: the first of the cluster

    name = "single"
    optimises = "nothing"
    respects_capacity = False

    def __post_init__(self) -> None:
        if self.device == "":
            raise ConfigError("single.device is empty: give a device name, or null for the first device.")

    def partition(self, problem: Problem) -> Placement:
        started = time.perf_counter()
        cluster, graph = problem.cluster, problem.graph
        chosen = cluster.devices[0] if self.device is None else cluster.device(self.device)
        return Placement(
            method=self.name,
            device_of=dict.fromkeys(graph.nodes, chosen.name),
            priority=topological_priority(graph, graph.position),
            report=SolverReport("heuristic", time.perf_counter() - started),
        )
