"""Drawn changes of a placement and of the order its nodes are taken in, for searches that simulate each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from netsplit.graph.ir import Graph
from netsplit.partition.common.instance import Csr, Instance, Ints
from netsplit.placement.exchange import Exchange
from netsplit.placement.placement import Stage
from netsplit.placement.priority import topological_priority

__all__ = ["SLIGHT", "Neighbourhood", "Scheduled"]

TRIES, TRIES_A_NODE = 400, 20  # moves in vain, one after another, at most, before a climb ends
SLIGHT = 1e-9  # relative: a difference by rounding

ORDER = 0.5  # of moves change the order alone
KEPT = 0.5  # of moves that change devices keep the order


@dataclass(frozen=True, eq=False)
class Scheduled:
    """A placement, the order of its nodes, and what they take."""

    where: Ints  # [n]
    order: Ints  # [n]
    value_s: float
    source: str
    stages: tuple[Stage, ...] = ()  # where a stage has replicas
    exchanges: tuple[Exchange, ...] = ()  # where it was scored


@dataclass
class Neighbourhood:
    """Moves of a placement: a set of atoms to another device, or one node to an earlier or later place.

    A list schedule's order is one of many, and segments end where the order crosses devices: under several
    micro-batches another order of the same placement may be much shorter.

    Args:
        clusters: -> atoms, which go together.
        listed: the order of a placement's list schedule.
    """

    graph: Graph
    instance: Instance
    clusters: Csr
    listed: Callable[[Ints], Ints]
    seed: int
    draw: np.random.Generator = field(init=False)
    position: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.draw = np.random.default_rng(self.seed % 2**63)
        self.position = {name: v for v, name in enumerate(self.instance.names)}

    def climb(
        self, current: Scheduled, tried: Callable[[Ints, Ints], Scheduled], timely: Callable[[], bool]
    ) -> int:
        """Moves from there as long as one of so many gains; how many were drawn.

        Args:
            tried: gives what a placement and its order are worth, and keeps the best.
            timely: whether there is time for one more.
        """
        drawn, in_vain = 0, 0
        most = min(TRIES, TRIES_A_NODE * len(self.instance.names))
        while in_vain < most and timely():
            drawn, in_vain = drawn + 1, in_vain + 1
            moved = self.next_to(current.where, current.order)
            if moved is None:
                continue
            trial = tried(*moved)
            in_vain = 0 if trial.value_s < (1 - SLIGHT) * current.value_s else in_vain
            current = trial if trial.value_s <= current.value_s else current
        return drawn

    def next_to(self, where: Ints, order: Ints) -> tuple[Ints, Ints] | None:
        """[n] devices and [n] nodes by priority; None where the move that was drawn changes nothing, or does
        not fit."""
        if self.draw.random() < ORDER:
            other = self._reordered(order)
            return None if np.array_equal(other, order) else (where, other)
        atoms = self.clusters[int(self.draw.integers(len(self.clusters)))]
        moved = where.copy()
        moved[np.isin(self.instance.atom_of, atoms)] = int(self.draw.integers(len(self.instance.devices)))
        if np.array_equal(moved, where) or not self.instance.fits(moved):
            return None
        return moved, order if self.draw.random() < KEPT else self.listed(moved)

    def _reordered(self, order: Ints) -> Ints:
        """With a node at another place between the last that it reads from and the first that reads it."""
        names, rank = self.instance.names, np.argsort(order)
        name = names[int(self.draw.integers(len(names)))]
        ahead = [rank[self.position[u]] for u in self.graph.predecessors[name]]
        behind = [rank[self.position[u]] for u in self.graph.successors[name]]
        place = int(self.draw.integers(max(ahead, default=-1) + 1, min(behind, default=len(names))))
        key = {v: float(rank[q]) for v, q in self.position.items()}
        key[name] = place + (0.5 if place > key[name] else -0.5 if place < key[name] else 0.0)
        taken = topological_priority(self.graph, key)
        return np.array(sorted(self.position.values(), key=lambda q: taken[names[q]]), np.int64)
