"""`m_topo`: fill devices in topological order up to an even part of the memory (Baechi's m-TOPO).

Sources: Baechi (github beomyeol/baechi, placer/m_topo.py); NetSplit thesis, section 6.2.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from netsplit.partition.base import Problem
from netsplit.partition.common.capacity import fill_in_order, infeasible
from netsplit.partition.methods.baechi.baechi import authors_makespan_s, breadth_first, footprints
from netsplit.partition.partitioner import Choice, Partitioner

__all__ = ["MTopo", "Order", "even_level", "footprints"]

Order = Literal["captured", "breadth_first"]


@dataclass(frozen=True)
class MTopo(Partitioner):
    """Place atoms in topological order; go to the next device, for good, when one does not fit.

    Baechi's cap of every device is ``floor(total / devices) + largest node``, where a node's bytes
    are its footprint. A node fits if ``used + its bytes <= cap``; a colocated set is placed whole at
    its first node, and fits if ``used + its bytes < cap``. Baechi tests the cap alone, and its variant
    for devices of unequal memory tests the real limit in place of the cap. Here both must hold:

    - (5-18) within the device's capacity, copies of received variables included;
    - the footprints within ``floor(level) + largest node``, where `level` is an even part of the
      total, except that no device's part is more than its capacity. With roomy devices it is Baechi's.

    Where that leaves atoms over, as large colocated sets may, only the capacity is tested, as in
    Baechi's variant, and the report's notes say ``cap: capacity``.

    Baechi's order is `breadth_first`; `captured` is the order in which the model runs, which keeps
    branches together. The report's objective is the seconds of the forward computations in the authors'
    VirtualScheduler.
    """

    order: Order = "captured"

    name = "m_topo"
    optimises = "nothing: an even part of the memory"

    def __post_init__(self) -> None:
        self.require_choice("order", Order)

    def choose(self, problem: Problem) -> Choice:
        capacities = [device.capacity_bytes for device in problem.cluster.devices]
        sizes = footprints(problem)
        cap = even_level(sum(sizes.values()), capacities) + max(sizes.values(), default=0)
        used = [0] * len(capacities)

        def within_cap(p: int, atom: tuple[str, ...]) -> bool:
            grown = used[p] + sum(sizes[name] for name in atom)
            fits = grown <= cap if len(atom) == 1 else grown < cap
            if fits:
                used[p] = grown
            return fits

        ordered = problem if self.order == "captured" else _breadth_first(problem)
        notes: dict[str, int | str] = {"cap_bytes": cap}
        device_of = fill_in_order(ordered, capacities, within_cap)
        if device_of is None:
            notes = {"cap": "capacity"}
            device_of = fill_in_order(ordered, capacities)
        if device_of is None and ordered is not problem:
            notes = {"cap": "capacity", "order": "captured"}
            device_of = fill_in_order(problem, capacities)
        if device_of is None:
            raise infeasible(problem, self.name)
        return Choice(device_of, objective_s=authors_makespan_s(problem, device_of), notes=notes)


def _breadth_first(problem: Problem) -> Problem:
    """The same problem with the nodes of its graph in the authors' topological order."""
    graph = problem.graph
    nodes = {name: graph.nodes[name] for name in breadth_first(graph)}
    return replace(problem, graph=replace(graph, nodes=nodes))


def even_level(total: int, capacities: Sequence[int]) -> int:
    """The least level, rounded down, at which ``sum of min(level, capacity)`` reaches `total`.

    With equal capacities that is ``total // devices``. Smaller devices are filled, the others share
    the rest evenly. If all capacities together are too small, the largest of them.
    """
    left = total
    ascending = sorted(capacities)
    for i, capacity in enumerate(ascending):
        level = left // (len(ascending) - i)
        if level <= capacity:
            return level
        left -= capacity
    return ascending[-1]
