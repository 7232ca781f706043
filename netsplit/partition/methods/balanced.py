"""`balanced`: consecutive layers to each device so that the slowest device is as fast as it can be.

The chain partitioning problem of parallel computing (Pinar and Aykanat, JPDC 2004), over processors in a
given order and of different speeds, here with memory limits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from netsplit.graph.quotient import atoms_of
from netsplit.partition.base import Problem
from netsplit.partition.common.capacity import infeasible
from netsplit.partition.common.instance import Floats, Instance, Ints
from netsplit.partition.partitioner import Choice, Partitioner

__all__ = ["Balanced"]


@dataclass(frozen=True)
class Balanced(Partitioner):
    """The runs of atoms, in topological order, whose slowest device is the fastest; transfers do not count.

    Exact for this order of the atoms and the cluster's order of the devices, within the capacities under
    (5-18); a device may stay empty. The report's objective is the slowest device's compute seconds.
    """

    name = "balanced"
    optimises = "the slowest device's compute, contiguous"

    def choose(self, problem: Problem) -> Choice:
        instance = Instance.of(problem)
        sums = np.zeros((len(instance.atoms), len(instance.devices)))
        np.add.at(sums, instance.atom_of, instance.forward_s + instance.backward_s)
        until = np.vstack([np.zeros(len(instance.devices)), np.cumsum(sums, axis=0)])  # [A + 1, D]
        first = _first_that_fits(problem, [int(c) for c in instance.capacity])
        slowest, begins = _slowest(until, first)
        if not np.isfinite(slowest):
            raise infeasible(problem, self.name)
        where = np.zeros(len(instance.atoms), np.int64)
        end = len(where)
        for p in reversed(range(len(instance.devices))):
            begin = int(begins[p, end])
            where[begin:end] = p
            end = begin
        return Choice(instance.decode(where[instance.atom_of]), objective_s=slowest)


def _slowest(until: Floats, first: Ints) -> tuple[float, Ints]:
    """Least slowest device, and [D, A + 1] where device p's run begins if the first i atoms end with it.

    With f the answer for the devices before p, that run begins at the k with the least
    ``max(f[k], until[i] - until[k])``: f grows with k and the other falls, so it is where they meet.
    """
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
