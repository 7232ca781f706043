"""`single`: everything on one device; the reference that every other method is compared with."""

from __future__ import annotations

from dataclasses import dataclass

from netsplit.errors import ConfigError
from netsplit.partition.base import Problem
from netsplit.partition.partitioner import Choice, Partitioner

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

    def choose(self, problem: Problem) -> Choice:
        cluster = problem.cluster
        chosen = cluster.devices[0] if self.device is None else cluster.device(self.device)
        return Choice(dict.fromkeys(problem.graph.nodes, chosen.name))
