"""Reference points that heed no costs: `single`, `random`, `round_robin`, `layerwise` and `ddp`."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from netsplit.errors import ConfigError
from netsplit.graph.quotient import atoms_of
from netsplit.partition.base import Problem
from netsplit.partition.common.capacity import fill_in_order, infeasible
from netsplit.partition.common.instance import Instance
from netsplit.partition.methods.baechi.baechi import footprints
from netsplit.partition.partitioner import Choice, Partitioner
from netsplit.placement.placement import Stage

__all__ = ["Ddp", "Layerwise", "Random", "RoundRobin", "Single"]


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


@dataclass(frozen=True)
class Layerwise(Partitioner):
    """Cut the atoms, in topological order, into runs of equal bytes: one for each device.

    An atom's bytes are its footprint (alpha * initializers + copies * own outputs). It goes to the device
    in whose share the middle of its bytes lies. Where that exceeds a capacity under (5-18), the devices
    are filled in order instead, and the report's notes say ``fallback: fill in order``.
    """

    name = "layerwise"
    optimises = "equal bytes on each device, contiguous"

    def choose(self, problem: Problem) -> Choice:
        atoms = atoms_of(problem.graph)
        devices = problem.cluster.devices
        own = footprints(problem)
        sizes = np.array([sum(own[name] for name in atom) for atom in atoms], float)
        middle = np.cumsum(sizes) - sizes / 2
        places = np.minimum(middle * len(devices) // max(sizes.sum(), 1.0), len(devices) - 1).astype(int)
        device_of: dict[str, str] | None = {
            name: devices[p].name for atom, p in zip(atoms, places, strict=True) for name in atom
        }
        notes: dict[str, Any] = {}
        instance = Instance.of(problem)
        if not instance.fits(instance.encode(device_of or {})):
            notes["fallback"] = "fill in order"
            device_of = fill_in_order(problem, [device.capacity_bytes for device in devices])
        if device_of is None:
            raise infeasible(problem, self.name)
        return Choice(device_of, notes=notes)


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
