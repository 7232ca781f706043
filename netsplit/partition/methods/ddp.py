"""`ddp`: the whole model on every device, which take the micro-batches in turn and sum their gradients."""

from __future__ import annotations

import time
from dataclasses import dataclass

from netsplit.partition.base import Partitioner, Placement, Problem, SolverReport, Stage
from netsplit.partition.common.priority import topological_priority

__all__ = ["Ddp"]


@dataclass(frozen=True)
class Ddp(Partitioner):
    """Data parallelism, as a placement: one stage with all devices as its replicas, whether it fits or not.

    Trains what one device trains, but for running statistics of normalisations: every replica's come from
    its own micro-batches, and the first one's are the model's (as DistributedDataParallel has it).
    """

    name = "ddp"
    optimises = "nothing"
    respects_capacity = False

    def partition(self, problem: Problem) -> Placement:
        started = time.perf_counter()
        graph, names = problem.graph, tuple(device.name for device in problem.cluster.devices)
        return Placement(
            method=self.name,
            device_of=dict.fromkeys(graph.nodes, names[0]),
            priority=topological_priority(graph, graph.position),
            report=SolverReport("heuristic", time.perf_counter() - started),
            stages=(Stage(tuple(graph.nodes), names),),
        )
