"""What a method is measured on: a graph under one objective on one cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from netsplit.cluster.cluster import Cluster
from netsplit.cluster.described import ClusterDescription
from netsplit.config import build
from netsplit.partition import METHODS, Partitioner, Problem
from netsplit.planning.workload import Workload

__all__ = ["CONF", "MIXED", "Setting", "described"]

CONF = Path(__file__).resolve().parent.parent / "conf"
MIXED = ("mixed3", "mixed4")


@dataclass(frozen=True)
class Setting:
    """A graph under one objective on one cluster."""

    suite: str
    title: str
    workload: Workload
    cluster: Cluster | ClusterDescription | None
    problem_keys: dict[str, Any]
    methods: Sequence[str]
    partitioners: dict[str, Partitioner] = field(default_factory=dict)  # where other than at their defaults
    known: dict[str, float] = field(default_factory=dict)  # by method, or "" for all; in `unit`
    own_objective: bool = False  # what the method itself counts, instead of the common score
    unit: str = "ms"
    unit_s: float = 1e-3

    @property
    def key(self) -> str:
        return f"{self.suite}: {self.title}"

    def problem(self, time_limit_s: float) -> Problem:
        return self.workload.problem(self.cluster, time_limit_s=time_limit_s, **self.problem_keys)

    def partitioner(self, method: str) -> Partitioner:
        return self.partitioners.get(method) or METHODS[method]()


@cache
def described(name: str) -> ClusterDescription:
    description: ClusterDescription = build(OmegaConf.load(CONF / "cluster" / f"{name}.yaml"))  # type: ignore[arg-type]
    return description
