"""`layerwise`: consecutive layers to each device, of equal bytes; what people do by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from netsplit.graph.quotient import atoms_of
from netsplit.partition.base import Problem
from netsplit.partition.common.capacity import fill_in_order, infeasible
from netsplit.partition.common.instance import Instance
from netsplit.partition.methods.baechi.m_topo import footprints
from netsplit.partition.partitioner import Choice, Partitioner

__all__ = ["Layerwise"]


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
