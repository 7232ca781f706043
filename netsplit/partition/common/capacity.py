"""Bytes of sets of nodes under (5-18), the fill of devices in topological order, and what is missing.

All bytes are those of `netsplit.profile.memory`: `node_state_bytes` + copies_alive * variables,
a variable counting once on every device that holds its producer or a consumer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from netsplit.errors import InfeasibleError
from netsplit.graph.quotient import atoms_of
from netsplit.partition.base import Problem
from netsplit.profile.memory import memory_of, node_state_bytes, related_nodes, static_bytes

__all__ = ["Load", "MemoryModel", "check_capacity", "fill_in_order", "infeasible", "read_bytes"]


@dataclass
class Load:
    """What a set of nodes holds: its bytes, and the variables in them."""

    nbytes: int = 0
    variables: set[str] = field(default_factory=set)


class MemoryModel:
    """The parts of (5-18) for one problem, so that a set's bytes are found without a pass over the graph."""

    def __init__(self, problem: Problem) -> None:
        graph, alpha = problem.graph, problem.costs.alpha
        self.state_bytes = node_state_bytes(graph, alpha)
        copies = problem.copies
        self.variable_bytes = {k: copies * v.nbytes for k, v in graph.variables.items()}
        self.touched: dict[str, list[str]] = {name: [] for name in graph.nodes}
        for k, variable in graph.variables.items():
            for name in dict.fromkeys(related_nodes(variable)):
                self.touched[name].append(k)

    def load(self, nodes: Iterable[str]) -> Load:
        nodes = tuple(nodes)
        variables = {k for name in nodes for k in self.touched[name]}
        states = sum(self.state_bytes[name] for name in nodes)
        return Load(states + sum(self.variable_bytes[k] for k in variables), variables)

    def union_bytes(self, a: Load, b: Load) -> int:
        """Bytes of two sets on one device: variables that both touch are held once."""
        few, many = sorted((a.variables, b.variables), key=len)
        return a.nbytes + b.nbytes - sum(self.variable_bytes[k] for k in few if k in many)

    def union(self, a: Load, b: Load) -> Load:
        return Load(self.union_bytes(a, b), a.variables | b.variables)


def fill_in_order(
    problem: Problem, limits: Sequence[int], accepts: Callable[[int, tuple[str, ...]], bool] | None = None
) -> dict[str, str] | None:
    """Place atoms in topological order on the first device until one does not fit, then on the next.

    Args:
        problem: the graph, and the devices in the order they are filled.
        limits: bytes under (5-18) that each device may hold.
        accepts: a further test of (device index, atom); an accepted atom is placed.

    Returns:
        Node name to device name, or None where an atom fits on no device that is left.
    """
    memory, devices = MemoryModel(problem), problem.cluster.devices
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


def check_capacity(problem: Problem, method: str) -> None:
    """Refuse what no method can place: more bytes than all devices have, or one atom than any has.

    The first is the check of NetSplit thesis, Algorithm 3, lines 7-9.
    """
    devices = problem.cluster.devices
    total = sum(device.capacity_bytes for device in devices)
    required = _required_bytes(problem, problem.graph.nodes)
    if required > total:
        raise infeasible(
            problem,
            method,
            f"the model needs at least {read_bytes(required)} and all devices together have"
            f" {read_bytes(total)}: {read_bytes(required - total)} are missing in total",
        )
    memory = MemoryModel(problem)
    largest = max(devices, key=lambda device: device.capacity_bytes)
    for atom in atoms_of(problem.graph):
        missing = memory.load(atom).nbytes - largest.capacity_bytes
        if missing > 0:
            raise infeasible(
                problem,
                method,
                f"{_subject(atom)} {read_bytes(missing + largest.capacity_bytes)} on one device:"
                f" {read_bytes(missing)} are missing on the largest, '{largest.name}'",
            )


def infeasible(problem: Problem, method: str, reason: str | None = None) -> InfeasibleError:
    """The error for a problem whose memory limits cannot be met: what is missing, and what would do.

    The remedy is proven by a placement: the least common rise of all capacities with which the
    fill in topological order succeeds. Without a `reason`, the shortage of that placement is named.
    """
    devices = problem.cluster.devices
    used = static_bytes(problem.graph, _least_fill(problem), problem.costs.alpha, problem.copies)
    worst = max(devices, key=lambda device: used.get(device.name, 0) - device.capacity_bytes)
    missing = used.get(worst.name, 0) - worst.capacity_bytes
    if reason is None:
        reason = (
            f"the best packing found holds {read_bytes(used.get(worst.name, 0))} on device '{worst.name}'"
            f" of {read_bytes(worst.capacity_bytes)}: {read_bytes(missing)} are missing there"
        )
    capacities = {device.capacity_bytes for device in devices}
    if len(capacities) == 1:
        cure = f"a capacity of {read_bytes(worst.capacity_bytes + missing)} on each device is enough"
    else:
        cure = f"{read_bytes(missing)} more on each device is enough"
    return InfeasibleError(
        f"{method} finds no placement that fits on cluster '{problem.cluster.name}', as {reason}; {cure}"
        " (or use more devices, a smaller micro-batch, or an optimizer with less state)."
    )


def read_bytes(nbytes: int) -> str:
    """Bytes for people, with the exact number: ``1.5 GiB (1610612736 bytes)``."""
    value, unit = float(nbytes), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{nbytes} bytes" if unit == "bytes" else f"{value:.4g} {unit} ({nbytes} bytes)"


def _required_bytes(problem: Problem, nodes: Iterable[str]) -> int:
    return memory_of(problem.graph, nodes, problem.costs.alpha, problem.copies)


def _least_fill(problem: Problem) -> dict[str, str]:
    """The fill in topological order with the least common rise of all capacities (by bisection)."""
    capacities = [device.capacity_bytes for device in problem.cluster.devices]
    low, high = -1, max(0, _required_bytes(problem, problem.graph.nodes) - min(capacities))
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


def _subject(atom: tuple[str, ...]) -> str:
    """The start of the sentence that says what an atom needs."""
    shown = ", ".join(f"'{name}'" for name in atom[:3])
    more = f" and {len(atom) - 3} more" if len(atom) > 3 else ""
    one = f"the node {shown} needs"
    return one if len(atom) == 1 else f"the nodes {shown}{more} that must share a device need"
