"""`round_robin`: atoms dealt to the devices in turn: a reference that ignores costs, bytes and reads."""

from __future__ import annotations

from dataclasses import dataclass

from netsplit.graph.quotient import atoms_of
from netsplit.partition.base import Problem
from netsplit.partition.partitioner import Choice, Partitioner

__all__ = ["RoundRobin"]


@dataclass(frozen=True)
class RoundRobin(Partitioner):
    """The i-th atom in topological order on device i modulo their number, whether they fit or not."""

    name = "round_robin"
    respects_capacity = False
    optimises = "nothing: atoms in turn"

    def choose(self, problem: Problem) -> Choice:
        devices = problem.cluster.devices
        device_of: dict[str, str] = {}
        for i, atom in enumerate(atoms_of(problem.graph)):
            device_of.update(dict.fromkeys(atom, devices[i % len(devices)].name))
        return Choice(device_of)
