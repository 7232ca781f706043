"""`ddp`: the whole model on every device, which take the micro-batches in turn and sum their gradients."""

from __future__ import annotations

from dataclasses import dataclass

from netsplit.partition.base import Problem, Stage
from netsplit.partition.partitioner import Choice, Partitioner

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

    def choose(self, problem: Problem) -> Choice:
        nodes, names = problem.graph.nodes, tuple(device.name for device in problem.cluster.devices)
        return Choice(dict.fromkeys(nodes, names[0]), stages=(Stage(tuple(nodes), names),))
