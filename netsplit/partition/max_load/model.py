"""The max-load problem as a hypergraph: groups of atoms to place, nets that cost every device they touch.

A variable costs device d its `hop_s` if it is made on d and read elsewhere, or made elsewhere and
read on d (`Instance.loads`). That is so exactly when some but not all of its nodes are on d, so the
direction does not matter: a net of pins, which costs `hop_s[d]` on every device where it is cut.
Nets with the same pins are added up. Index letters: `g` group, `e` net, `d` device, `h` held set.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from netsplit.partition.common.instance import Csr, Floats, Instance, Ints, Packed, interchangeable
from netsplit.partition.objectives import MaxLoad
from netsplit.partition.partitioner import Choice

__all__ = ["Hypergraph", "HypergraphArrays", "answer_of"]


class HypergraphArrays(NamedTuple):
    """`Hypergraph` for compiled functions, of all devices or some."""

    weight: Floats  # [G, D]
    allowed: NDArray[np.bool_]  # [G, D]
    nets: Packed  # [G] -> nets with the group as a pin
    pins: Packed  # [E] -> groups
    size: Ints  # [E] how many pins
    hop: Floats  # [E, D]
    state: Ints  # [G]
    sets: Packed  # [G] -> held sets with the group in them
    held_bytes: Ints  # [h]
    capacity: Ints  # [D]


@dataclass(frozen=True, eq=False)
class Hypergraph:
    """Groups, nets and devices of one instance. Seconds and bytes; n nodes, G groups, E nets, D devices."""

    group_of: Ints  # [n] group of each node of the instance
    weight: Floats  # [G, D] seconds of all nodes of the group, forward and backward
    pins: Csr  # [E] -> groups, ascending, two or more
    hop: Floats  # [E, D] seconds on every device where the net is cut
    state: Ints  # [G] bytes that stay where the group is
    held: Csr  # [h] -> groups, two or more: bytes once on every device with any of them
    held_bytes: Ints  # [h]
    capacity: Ints  # [D]
    allowed: NDArray[np.bool_]  # [G, D] where an answer that is looked for may have the group

    @classmethod
    def of(cls, instance: Instance, group_of: Ints | None = None) -> Hypergraph:
        """Groups by their numbers [n], else one an atom; what falls together is added up. Memory is left out
        (no bytes) where every device holds the whole graph."""
        group_of = np.asarray(instance.atom_of if group_of is None else group_of, np.int64)
        count, devices = int(group_of.max(initial=-1)) + 1, len(instance.devices)
        seconds = np.zeros((count, devices))
        np.add.at(seconds, group_of, instance.forward_s + instance.backward_s)
        cost: dict[tuple[int, ...], Floats] = {}
        for u, row in enumerate(instance.hop_s):
            members = group_of[[instance.producer[u], *instance.consumers[u]]]
            key = tuple(sorted(set(members.tolist())))
            if len(key) > 1 and row.any():
                cost[key] = cost[key] + row if key in cost else row
        own, shared = [0] * count, dict[tuple[int, ...], int]()
        if (instance.state_bytes.sum() + instance.held_bytes.sum() > instance.capacity).any():
            own, shared = instance.bytes_of_groups(group_of)
        state, pins, sets = np.array(own, np.int64), sorted(cost), sorted(shared)
        return cls(
            group_of=group_of,
            weight=seconds,
            pins=Csr.of(pins),
            hop=np.array([cost[key] for key in pins]).reshape(len(pins), devices),
            state=state,
            held=Csr.of(sets),
            held_bytes=np.array([shared[key] for key in sets], np.int64),
            capacity=instance.capacity,
            allowed=np.isfinite(seconds) & (state[:, None] <= instance.capacity),
        )

    @property
    def count(self) -> int:
        return len(self.weight)

    @property
    def devices(self) -> int:
        return self.weight.shape[1]

    @cached_property
    def nets_of(self) -> Csr:
        """[G] -> nets with the group as a pin."""
        return _transposed(self.pins, self.count)

    @cached_property
    def sets_of(self) -> Csr:
        """[G] -> held sets with the group in them."""
        return _transposed(self.held, self.count)

    def arrays(self, devices: list[int], unit_s: float = 1.0) -> HypergraphArrays:
        """Arrays for compiled functions: these devices alone, seconds in units of `unit_s`."""
        return HypergraphArrays(
            np.ascontiguousarray(self.weight[:, devices]) / unit_s,
            np.ascontiguousarray(self.allowed[:, devices]),
            self.nets_of.packed,
            self.pins.packed,
            np.diff(self.pins.starts),
            np.ascontiguousarray(self.hop[:, devices]) / unit_s,
            self.state,
            self.sets_of.packed,
            self.held_bytes,
            self.capacity[devices],
        )

    @property
    def has_memory(self) -> bool:
        return bool(self.state.any() or len(self.held))

    @cached_property
    def classes(self) -> tuple[tuple[int, ...], ...]:
        """Devices that are alike in everything that counts here, by their first device."""
        own = [
            (self.weight[:, d].tobytes(), self.hop[:, d].tobytes(), int(room) if self.has_memory else 0)
            for d, room in enumerate(self.capacity)
        ]
        return tuple(map(tuple, interchangeable(own)))

    def counts(self, where: Ints, rows: Csr) -> Ints:
        """[rows, D] how many groups of the row are on each device."""
        counts = np.zeros((len(rows), self.devices), np.int64)
        np.add.at(counts, (np.repeat(np.arange(len(rows)), np.diff(rows.starts)), where[rows.items]), 1)
        return counts

    def loads(self, where: Ints) -> Floats:
        """[D] seconds, of [G] device of each group."""
        loads = np.bincount(where, weights=self.weight[np.arange(self.count), where], minlength=self.devices)
        count = self.counts(where, self.pins)
        cut = (count > 0) & (count < np.diff(self.pins.starts)[:, None])
        return np.asarray(loads + (self.hop * cut).sum(axis=0))

    def used_bytes(self, where: Ints) -> Ints:
        """[D] bytes, of [G] device of each group."""
        used = np.zeros(self.devices, np.int64)
        np.add.at(used, where, self.state)
        return np.asarray(used + self.held_bytes @ (self.counts(where, self.held) > 0))

    def nodes(self, where: Ints) -> Ints:
        """[n] device of each node, of [G] device of each group."""
        return np.asarray(where[self.group_of], np.int64)

    def groups(self, where: Ints) -> Ints:
        """[G] device of each group, of [n] device of each node (any node of a group speaks for it)."""
        device_of = np.zeros(self.count, np.int64)
        device_of[self.group_of] = where
        return device_of


def _transposed(rows: Csr, count: int) -> Csr:
    order, row = np.argsort(rows.items, kind="stable"), np.repeat(np.arange(len(rows)), np.diff(rows.starts))
    return Csr.grouped(rows.items[order], row[order], count)


def answer_of(instance: Instance, where: Ints, bound_s: float, gap: float, engine: str) -> Choice:
    """The answer with its exact value; "optimal" where the bound is within `gap` of it."""
    value = float(instance.loads(where).max(initial=0.0))
    bound = max(0.0, min(bound_s, value))
    return Choice(
        instance.decode(where),
        status="optimal" if value - bound <= gap * value else "feasible",
        engine=engine,
        objective_s=value,
        bound_s=bound,
        bound_for=MaxLoad.bound_key,
    )
