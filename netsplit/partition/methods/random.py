"""`random`: a seeded uniform placement; the floor of comparisons, and a source of odd ones for tests."""

from __future__ import annotations

import random
from dataclasses import dataclass

from netsplit.graph.quotient import atoms_of
from netsplit.partition.base import Problem
from netsplit.partition.partitioner import Choice, Partitioner

__all__ = ["Random"]


@dataclass(frozen=True)
class Random(Partitioner):
    """Every atom on a device drawn uniformly with the problem's seed, whether they fit or not."""

    name = "random"
    optimises = "nothing"
    respects_capacity = False

    def choose(self, problem: Problem) -> Choice:
        draw = random.Random(problem.seed)
        names = [device.name for device in problem.cluster.devices]
        device_of: dict[str, str] = {}
        for atom in atoms_of(problem.graph):
            device_of.update(dict.fromkeys(atom, draw.choice(names)))
        return Choice(device_of)
