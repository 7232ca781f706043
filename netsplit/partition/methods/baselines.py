"""Reference points: `single`, `random`, `round_robin`, `layerwise` and `ddp`; and `balanced`, the best chain.

`balanced` is the chain partitioning problem of parallel computing (Pinar and Aykanat, JPDC 2004), over
processors in a given order and of different speeds, here with memory limits.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from netsplit.errors import ConfigError
from netsplit.graph.quotient import atoms_of
from netsplit.partition.base import Problem
from netsplit.partition.common.instance import Floats, Instance, Ints
from netsplit.partition.methods.baechi.baechi import footprints
from netsplit.partition.partitioner import Choice, Partitioner, fill_in_order, infeasible
from netsplit.placement.placement import Stage

__all__ = ["Balanced", "Ddp", "Layerwise", "Random", "RoundRobin", "Single", "slowest_run"]


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

    An atom's bytes are its footprint (alpha * initializers + copies * own outputs). Where that exceeds a
    capacity under (5-18), the devices are filled in order instead (``fallback: fill in order`` in the notes).
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


_PARTS = (1.0, 0.5, 0.6, 0.4, 0.7, 0.3, 0.8, 0.2, 0.9, 0.1)
"""The fraction of a device's capacity for its first run where both must fit; 1: let each try all."""


@dataclass(frozen=True)
class Balanced(Partitioner):
    """The runs of atoms, in topological order, whose slowest device is the fastest; transfers do not count.

    Exact for this order of the atoms and the cluster's order of the devices, within the capacities under
    (5-18); a device may stay empty. The report's objective is the slowest device's compute seconds.

    With `v` the runs go over the devices and back in a V.
    """

    v: bool = False

    name = "balanced"
    optimises = "the slowest device's compute, contiguous"

    def choose(self, problem: Problem) -> Choice:
        if self.v:
            return self._v_shaped(problem)
        instance = Instance.of(problem)
        until = _seconds_until(instance)
        first = _first_that_fits(problem, [int(c) for c in instance.capacity])
        slowest, begins = slowest_run(until, first)
        if not np.isfinite(slowest):
            raise infeasible(problem, self.name)
        runs = _runs(begins)
        return Choice(instance.decode(runs[instance.atom_of]), objective_s=slowest)

    def _v_shaped(self, problem: Problem) -> Choice:
        """Two runs a device, the second half of the chain in the devices' opposite order.

        The slowest of the 2p runs is as fast as it can be, where both runs of a device fit as they are; else
        each gets a part of the capacity, one of a few.
        """
        instance = Instance.of(problem)
        devices = len(instance.devices)
        lane = np.concatenate([np.arange(devices), np.arange(devices)[::-1]])  # [2 D] device of each run
        until = _seconds_until(instance)[:, lane]
        for part in _PARTS:
            there = instance.capacity * part
            back = instance.capacity if part == 1.0 else instance.capacity - there
            first = _first_that_fits(problem, [int(c) for c in np.concatenate([there, back[::-1]])])
            slowest, begins = slowest_run(until, first)
            if np.isfinite(slowest):
                runs = _runs(begins)[instance.atom_of]
                if instance.fits(lane[runs]):
                    return _folded(instance, runs, lane)
        raise infeasible(problem, self.name)


def _folded(instance: Instance, runs: Ints, lane: Ints) -> Choice:
    """A choice of runs, [n] by node, of which two in a row may be on one device."""
    own = instance.forward_s + instance.backward_s
    load = np.bincount(lane[runs], own[np.arange(instance.n), lane[runs]], len(instance.devices))
    first: dict[int, str] = {}
    for name, run in zip(instance.names, runs, strict=True):
        first.setdefault(int(run), name)
    used = sorted(first)
    turns = [b for a, b in pairwise(used) if lane[a] == lane[b]]
    return Choice(
        instance.decode(lane[runs]),
        key=dict(zip(instance.names, (runs * instance.n + np.arange(instance.n)).tolist(), strict=True)),
        objective_s=float(load.max(initial=0.0)),
        cuts=tuple(first[run] for run in turns),
    )


def _seconds_until(instance: Instance) -> Floats:
    """[A + 1, D] seconds of the first atoms on each device."""
    sums = instance.by_atom(instance.forward_s + instance.backward_s)
    return np.vstack([np.zeros(len(instance.devices)), np.cumsum(sums, axis=0)])


def _runs(begins: Ints) -> Ints:
    """[A] the run of each atom, by where runs begin (`slowest_run`)."""
    end = begins.shape[1] - 1
    where = np.zeros(end, np.int64)
    for p in reversed(range(len(begins))):
        begin = int(begins[p, end])
        where[begin:end] = p
        end = begin
    return where


def slowest_run(until: Floats, first: Ints) -> tuple[float, Ints]:
    """Least slowest device, and [D, A + 1] where device p's run begins if the first i atoms end with it. With
    f the answer for the devices before p, that run begins at the k with the least ``max(f[k], until[i] -
    until[k])``: f grows with k and the other falls, so it is where they meet."""
    count, devices = until.shape
    ends = np.arange(count)
    least = np.full(count, np.inf)
    least[0] = 0.0
    begins = np.zeros((devices, count), np.int64)
    for p in range(devices):
        time_p = until[:, p]
        meet = np.searchsorted(least + time_p, time_p)
        trials = [np.clip(meet + d, first[p], ends) for d in (0, -1)]
        slow = [np.maximum(least[k], time_p - time_p[k]) for k in trials]
        begins[p] = np.where(slow[0] <= slow[1], trials[0], trials[1])
        least = np.minimum(slow[0], slow[1])
    return float(least[-1]), begins


def _first_that_fits(problem: Problem, capacities: list[int]) -> Ints:
    """[D, A + 1] least k such that atoms k..i-1 fit on the device."""
    atoms = atoms_of(problem.graph)
    memory = problem.memory_model
    states = [sum(memory.state_bytes[name] for name in atom) for atom in atoms]
    touched = [sorted({k for name in atom for k in memory.held[name]}) for atom in atoms]
    by_capacity: dict[int, list[int]] = {}
    for capacity in dict.fromkeys(capacities):
        held, begin, count = 0, 0, dict.fromkeys(memory.variable_bytes, 0)
        first = [0]
        for i, own in enumerate(touched):
            held += states[i]
            for k in own:
                held += memory.variable_bytes[k] * (not count[k])
                count[k] += 1
            while held > capacity and begin <= i:
                held -= states[begin]
                for k in touched[begin]:
                    count[k] -= 1
                    held -= memory.variable_bytes[k] * (not count[k])
                begin += 1
            first.append(begin)
        by_capacity[capacity] = first
    return np.array([by_capacity[capacity] for capacity in capacities], np.int64)
