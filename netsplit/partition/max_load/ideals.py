"""Ideals of the order that a pipeline has to keep, and the dynamic programme over them.

An ideal is a set of groups that holds every predecessor of its members. Splits into contiguous stages
are chains of ideals: a stage is the difference of two (Tarnawski et al., NeurIPS 2020, section 5.1).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from netsplit.graph.order import topological_order
from netsplit.graph.quotient import strong_components, successors
from netsplit.partition.common.instance import Csr, Instance, Ints
from netsplit.partition.max_load.model import Hypergraph

__all__ = ["Ideals", "Order"]


@dataclass(frozen=True)
class Order:
    """Which groups come before which: forward edges, and backward edges turned round."""

    before: tuple[frozenset[int], ...]  # [G] direct predecessors

    @classmethod
    def acyclic(cls, instance: Instance, model: Hypergraph) -> tuple[Hypergraph, Order]:
        """The model with the groups of every cycle merged (one stage must hold them), and its order.

        The stages of the backward nodes may follow one another in either direction. The one that
        leaves more groups is taken: most files have backward edges against the forward ones.
        """
        group = model.group_of
        backward = np.array([name in instance.problem.backward_nodes for name in instance.names], bool)
        tail = np.repeat(np.arange(instance.n), np.diff(instance.successors.starts))
        head = instance.successors.items
        chosen: tuple[Ints, set[tuple[int, int]]] | None = None
        for as_is in (~backward[tail], np.ones(len(tail), bool)):
            alike = backward[tail] == backward[head]
            source = np.where(as_is, group[tail], group[head])[alike]
            target = np.where(as_is, group[head], group[tail])[alike]
            arcs = set(zip(source.tolist(), target.tolist(), strict=True))
            label = np.array(strong_components(model.count, arcs), np.int64)
            if chosen is None or label.max(initial=-1) > chosen[0].max(initial=-1):
                chosen = label, arcs
        assert chosen is not None
        label, arcs = chosen
        if label.max(initial=-1) + 1 < model.count:
            model = model.merged(label, model.allowed)
            arcs = {(int(label[a]), int(label[b])) for a, b in arcs}
        return model, cls(tuple(map(frozenset, successors(model.count, ((b, a) for a, b in arcs)))))

    @property
    def after(self) -> list[list[int]]:
        return successors(
            len(self.before), ((a, b) for b, feeders in enumerate(self.before) for a in feeders)
        )

    def linear(self, key: Sequence[float]) -> list[int]:
        """The topological order that takes a ready group of least key first."""
        return topological_order(self.after, key.__getitem__)

    def depths(self) -> list[int]:
        """[G] edges on the longest path from a group without predecessors."""
        depth = [0] * len(self.before)
        after = self.after
        for g in self.linear(range(len(self.before))):
            for b in after[g]:
                depth[b] = max(depth[b], depth[g] + 1)
        return depth


@dataclass(frozen=True)
class Ideals:
    """A family of ideals by ascending size: the first is empty, the last is everything."""

    smaller: Csr  # [I] -> ideals of the family with one group less
    removed: Ints  # beside `smaller.items`: the group that is missing there

    def __len__(self) -> int:
        return len(self.smaller)

    @classmethod
    def prefixes(cls, order: Sequence[int]) -> Ideals:
        """The ideals on one linear order alone."""
        rows: list[list[int]] = [[], *([i] for i in range(len(order)))]
        return cls(Csr.of(rows), np.array(order, np.int64))

    @classmethod
    def of(cls, order: Order, limit: int, deadline: float = float("inf")) -> Ideals | None:
        """All ideals; None where there are more than `limit`, or the clock passes `deadline`."""
        count = len(order.before)
        need = [sum(1 << a for a in groups) for groups in order.before]
        after = order.after
        layer: dict[int, tuple[int, tuple[int, ...]]] = {
            0: (0, tuple(g for g in range(count) if not order.before[g]))
        }
        rows: list[list[int]] = [[]]
        removed: list[list[int]] = [[]]
        for _ in range(count):
            larger: dict[int, tuple[int, tuple[int, ...]]] = {}
            for ideal, (index, ready) in layer.items():
                for g in ready:
                    grown = ideal | 1 << g
                    entry = larger.get(grown)
                    if entry is None:
                        fresh = [b for b in after[g] if need[b] & ~grown == 0]
                        entry = (len(rows), tuple(r for r in ready if r != g) + tuple(fresh))
                        larger[grown] = entry
                        rows.append([])
                        removed.append([])
                    rows[entry[0]].append(index)
                    removed[entry[0]].append(g)
            layer = larger
            if len(rows) > limit or time.perf_counter() > deadline:
                return None
        return cls(Csr.of(rows), np.array([g for row in removed for g in row], np.int64))
