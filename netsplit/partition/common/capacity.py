"""The fill of devices in topological order, and what is missing where nothing fits.

All bytes are those of `Problem.memory_model`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from netsplit.cluster.cluster import Cluster
from netsplit.errors import InfeasibleError
from netsplit.graph.quotient import atoms_of
from netsplit.partition.base import Problem
from netsplit.partition.common.instance import Instance, Ints
from netsplit.placement.placement import Placement
from netsplit.profile.memory import Load
from netsplit.simulate.timeline import Timeline
from netsplit.tables import nbytes

__all__ = [
    "atom_needs",
    "check_capacity",
    "drawn_fills",
    "fill_in_order",
    "infeasible",
    "missing_bytes",
    "needed_bytes",
    "read_bytes",
]


def fill_in_order(
    problem: Problem, limits: Sequence[int], accepts: Callable[[int, tuple[str, ...]], bool] | None = None
) -> dict[str, str] | None:
    """Place atoms in topological order on the first device until one does not fit, then on the next.

    Args:
        problem: the graph, and the devices in the order they are filled.
        limits: bytes that each device may hold.
        accepts: a further test of (device index, atom); an accepted atom is placed.

    Returns:
        Node name to device name, or None where an atom fits on no device that is left.
    """
    memory, devices = problem.memory_model, problem.cluster.devices
    device_of: dict[str, str] = {}
    p, held = 0, Load()
    for atom in atoms_of(problem.graph):
        load = memory.load(atom)
        while memory.union_bytes(held, load) > limits[p] or (accepts is not None and not accepts(p, atom)):
            p, held = p + 1, Load()
            if p == len(devices):
                return None
        held = memory.union(held, load)
        device_of.update(dict.fromkeys(atom, devices[p].name))
    return device_of


def drawn_fills(problem: Problem, count: int) -> list[dict[str, str]]:
    """Contiguous placements: devices in drawn orders, filled to drawn fractions of their capacity."""
    draw, cluster, fills = random.Random(problem.seed), problem.cluster, []
    for _ in range(count):
        devices = draw.sample(cluster.devices, len(cluster.devices))
        own = replace(problem, cluster=replace(cluster, devices=tuple(devices)))
        limits = [round(device.capacity_bytes * draw.uniform(0.6, 1.0)) for device in devices]
        limits[-1] = sum(device.capacity_bytes for device in devices)
        fills.append(fill_in_order(own, limits))
    return [each for each in fills if each is not None]


def check_capacity(problem: Problem, method: str) -> None:
    """Refuse what no method can place: more bytes than all devices have, or one atom than any has.

    The first is the check of NetSplit thesis, Algorithm 3, lines 7-9.
    """
    devices = problem.cluster.devices
    total = sum(device.capacity_bytes for device in devices)
    required = problem.memory_model.total_bytes
    if required > total:
        needed, there, lacking = map(read_bytes, (required, total, required - total))
        reason = (
            f"the model needs at least {needed} but all devices together have {there}: {lacking} are missing"
        )
        raise infeasible(problem, method, f"{reason} in total")
    memory = problem.memory_model
    largest = max(devices, key=lambda device: device.capacity_bytes)
    for atom in atoms_of(problem.graph):
        missing = memory.load(atom).nbytes - largest.capacity_bytes
        if missing > 0:
            needed = f"{atom_needs(atom)} {read_bytes(missing + largest.capacity_bytes)} on one device"
            lacking = f"{read_bytes(missing)} are missing on the largest, '{largest.name}'"
            raise infeasible(problem, method, f"{needed}: {lacking}")


def missing_bytes(problem: Problem, placement: Placement, predicted: Timeline, cluster: Cluster) -> int:
    """What the device that lacks most lacks: by the count of (5-18), or at the peaks that were predicted.

    Args:
        problem: of the graph after the placement's rewrites.
        cluster: with the capacities that there are, where a method is told others (`Simulator.cluster`).
    """
    if problem.memory == "lifetimes":
        over = [predicted.peak_bytes.get(each.name, 0) - each.capacity_bytes for each in cluster.devices]
    else:
        instance = Instance.of(problem)
        over = (instance.totals(placement.all_stages).nbytes - instance.capacity).tolist()
    return max(0, *map(int, over))


def infeasible(problem: Problem, method: str, reason: str | None = None) -> InfeasibleError:
    """The error for a problem whose memory limits cannot be met: what is missing, and what would do.

    The remedy is proven by a placement: the least common rise of all capacities with which the
    fill in topological order succeeds. Without a `reason`, the shortage of that placement is named.
    """
    devices = problem.cluster.devices
    used = problem.memory_model.by_device(_least_fill(problem))
    worst = max(devices, key=lambda device: used.get(device.name, 0) - device.capacity_bytes)
    missing = used.get(worst.name, 0) - worst.capacity_bytes
    if reason is None and missing <= 0:
        return InfeasibleError(
            f"{method} finds no placement that fits on cluster '{problem.cluster.name}', though a fill in "
            "topological order fits: use another method, or devices with more memory."
        )
    if reason is None:
        reason = (
            f"the best packing found holds {read_bytes(used.get(worst.name, 0))} on device '{worst.name}', "
            f"which has {read_bytes(worst.capacity_bytes)}: {read_bytes(missing)} are missing there"
        )
    capacities = {device.capacity_bytes for device in devices}
    if len(capacities) == 1:
        cure = f"a capacity of {read_bytes(worst.capacity_bytes + missing, True)} on each device is enough"
    else:
        cure = f"{read_bytes(missing, True)} more on each device is enough"
    return InfeasibleError(
        f"{method} finds no placement that fits on cluster '{problem.cluster.name}', as {reason}; {cure}"
        " (or use more devices, a smaller micro-batch, or an optimizer with less state)."
    )


def read_bytes(size: int, enough: bool = False) -> str:
    """Bytes for people, with the exact number: ``1.5 MiB (1572864 bytes)``; `enough`: rounded up."""
    return f"{size} bytes" if size < 2**20 else f"{nbytes(size, enough)} ({size} bytes)"


def _least_fill(problem: Problem) -> dict[str, str]:
    """The fill in topological order with the least common rise of all capacities (by bisection)."""
    capacities = [device.capacity_bytes for device in problem.cluster.devices]
    low, high = -1, max(0, problem.memory_model.total_bytes - min(capacities))
    placed = fill_in_order(problem, [c + high for c in capacities])
    assert placed is not None
    while high - low > 1:
        rise = (low + high) // 2
        trial = fill_in_order(problem, [c + rise for c in capacities])
        if trial is None:
            low = rise
        else:
            placed, high = trial, rise
    return placed


def atom_needs(atom: Sequence[str]) -> str:
    """The start of the sentence that says what an atom needs."""
    shown = ", ".join(f"'{name}'" for name in atom[:3])
    more = f" and {len(atom) - 3} more" if len(atom) > 3 else ""
    one = f"the node {shown} needs"
    return one if len(atom) == 1 else f"the nodes {shown}{more} that must share a device need"


def needed_bytes(instance: Instance, placement: Placement, predicted: Timeline | None = None) -> Ints:
    """[D] bytes by `Problem.memory`: under (5-18), or the simulated peaks; each replica holds its stage.

    Args:
        predicted: of the placement; None: `Problem.simulator` is asked where peaks are needed.
    """
    problem = instance.problem
    if problem.memory == "static":
        return instance.totals(placement.all_stages).nbytes
    if predicted is None:
        assert problem.simulator is not None, "lifetimes are those of a schedule"
        predicted = problem.simulator(placement)
    return np.array([predicted.peak_bytes.get(name, 0) for name in instance.devices], np.int64)
