"""Merges of groups after which the best placement is still there: the model shrinks, its value stays.

Two rules, applied until neither finds anything:

- *forced*: `a` and `b` share nets that cost so much when cut that, wherever the two are apart, one of
  their devices has a load of `below` or more. An answer better than `below` has them together.
- *dominated*: wherever the two are apart, moving `a` to the device of `b`, or `b` to that of `a`, makes
  no device's load larger. The nets that touch
  only the two are saved on both sides; a net that touches `a` and `b` and others is cut as much after
  the move as before; a net of `a` without `b` may be cut newly, and is counted as if it always were.

And a third, which takes more time (`probe`): ``f_d(a, not b)`` is the least load of a device d with a and
without b, a minimum cut. Where it is `below` or more on every device that may have a, or the like for b,
an answer better than `below` has the two together. A device that cannot even hold a group with all that
then has to come is ruled out.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from netsplit.graph.quotient import DisjointSets
from netsplit.partition.common.instance import Floats, Ints
from netsplit.partition.max_load.bounds import ColumnModel
from netsplit.partition.max_load.model import Hypergraph

__all__ = ["contract", "probe"]


def contract(
    model: Hypergraph, below: float, dominance: bool = True, deadline: float = float("inf")
) -> Hypergraph:
    """A smaller model with the same least max load, wherever that is less than `below` (seconds); of a large
    one what is merged until the deadline.

    Its groups' `allowed` leave out the devices where a group alone reaches `below`. `dominance` must be
    False where more is asked of a placement than its loads and bytes (contiguity).
    """
    while True:
        allowed = model.allowed & (model.weight < below)
        label = _Round(model, allowed, below).labels(dominance, deadline)
        smaller = model.merged(label, allowed)
        if smaller.count == model.count or time.perf_counter() >= deadline:
            return smaller
        model = smaller


@dataclass
class _Round:
    """One pass over all pairs that share a net; a group takes part in one dominance merge a pass."""

    model: Hypergraph
    allowed: np.ndarray
    below: float

    def labels(self, dominance: bool, deadline: float) -> Ints:
        model = self.model
        sets = DisjointSets(model.count)
        touched = np.zeros(model.count, bool)
        for a in range(model.count):
            if time.perf_counter() >= deadline:
                break
            shared = self._around(a)[0]
            for b, both in shared.items():
                if self._forced(a, b, both):
                    sets.merge(a, b)
                    touched[[a, b]] = True
            if not dominance or touched[a]:
                continue
            for b in shared:
                if not touched[b] and self._dominated(a, b):
                    sets.merge(a, b)
                    touched[[a, b]] = True
                    break
        label = np.array([sets.find(g) for g in range(model.count)], np.int64)
        return np.unique(label, return_inverse=True)[1].astype(np.int64)

    def _around(self, a: int) -> tuple[dict[int, Floats], dict[int, Floats], Floats]:
        """Seconds [D] of the nets a shares with each b, of those with no third pin, and of all of a's."""
        model = self.model
        shared: dict[int, Floats] = {}
        private: dict[int, Floats] = {}
        total = np.zeros(model.devices)
        for e in model.nets_of[a]:
            total = total + model.hop[e]
            pins = model.pins[e]
            for b in pins.tolist():
                if b != a:
                    shared[b] = shared[b] + model.hop[e] if b in shared else model.hop[e]
                    if len(pins) == 2:
                        private[b] = model.hop[e]
        return shared, private, total

    def _forced(self, a: int, b: int, both: Floats) -> bool:
        """Whether every way to have a on p and b on another q gives p or q a load of `below` or more."""
        weight, allowed = self.model.weight, self.allowed
        p = allowed[a] & (weight[a] + both < self.below)
        q = allowed[b] & (weight[b] + both < self.below)
        return not (p.any() and q.any() and (p.sum() > 1 or q.sum() > 1 or (p != q).any()))

    def _dominated(self, a: int, b: int) -> bool:
        """Whether for all devices p of a and q of b, moving a to q or b to p makes no load larger."""
        allowed = self.allowed
        apart = np.outer(allowed[a], allowed[b]) & ~np.eye(self.model.devices, dtype=bool)
        return not (apart & ~self._free_move(a, b) & ~self._free_move(b, a).T).any()

    def _free_move(self, a: int, b: int) -> np.ndarray:
        """[p, q] whether a may move from p to the device q of b, and nothing gets larger."""
        model = self.model
        if not self._weightless(a, b):
            return np.zeros((model.devices, model.devices), bool)
        shared, private, total = self._around(a)
        others = total - shared[b]
        saved = private.get(b, np.zeros(model.devices))
        leaves = others <= saved + model.weight[a]
        enters = (model.weight[a] + others <= saved) & self.allowed[a]
        return np.logical_and.outer(leaves, enters)

    def _weightless(self, a: int, b: int) -> bool:
        """Whether a takes no bytes on a device that has b."""
        model = self.model
        if model.state[a]:
            return False
        return all(b in model.held[h] for h in model.sets_of[a])


def probe(model: Hypergraph, below: float, deadline: float, dominance: bool = True) -> Hypergraph:
    """`contract`, and what can be proven pair by pair, until nothing more is found or time is up."""
    model = contract(model, below, dominance, deadline)
    while time.perf_counter() < deadline:
        round_ = _Probe(model, below, deadline)
        allowed = round_.follow()
        label = round_.labels()
        smaller = contract(model.merged(label, allowed), below, dominance, deadline)
        if smaller.count == model.count and int(smaller.allowed.sum()) == int(model.allowed.sum()):
            return smaller
        model = smaller
    return model


class _Probe:
    def __init__(self, model: Hypergraph, below: float, deadline: float) -> None:
        self.model, self.below = model, below
        self.classes = model.classes
        self.first = [same[0] for same in self.classes]
        columns = [ColumnModel(model, d, integral=False) for d in self.first]
        pairs = sorted({(a, b) for e in range(len(model.pins)) for a, b in _pairs(model.pins[e].tolist())})
        self.alone = np.array([[b.least_with(g) for b in columns] for g in range(model.count)])
        allowed = model.allowed[:, self.first] & (self.alone < below)
        self.allowed = allowed
        self.apart: dict[tuple[int, int], np.ndarray] = {}  # (a, b): [class] a may be there without b
        for a, b in pairs:
            if time.perf_counter() > deadline:
                break
            self.apart[a, b] = np.array(
                [bool(allowed[a, c]) and columns[c].least_with(a, b) < below for c in range(len(columns))]
            )

    def follow(self) -> np.ndarray:
        """[G, D] what is left of `allowed`: a on d, with all groups that have to be with it there."""
        model = self.model
        needs: list[dict[int, list[int]]] = [{} for _ in self.classes]
        for (a, b), may in self.apart.items():
            for c in range(len(self.classes)):
                if not may[c]:  # b comes with a
                    needs[c].setdefault(a, []).append(b)
                others = np.delete(may, c)
                if len(self.classes[c]) == 1 and not others.any():  # b here, so a, which cannot be elsewhere
                    needs[c].setdefault(b, []).append(a)
        left = np.zeros((model.count, model.devices), bool)
        for c, same in enumerate(self.classes):
            for g in range(model.count):
                together = _closure(g, needs[c])
                fine = self.allowed[together, c].all() and model.weight[together, same[0]].sum() < self.below
                left[g, list(same)] = fine
        return left & model.allowed

    def labels(self) -> np.ndarray:
        sets = DisjointSets(self.model.count)
        for (a, b), may in self.apart.items():
            if a < b and (b, a) in self.apart and not self._separable(may, self.apart[b, a]):
                sets.merge(a, b)
        label = np.array([sets.find(g) for g in range(self.model.count)], np.int64)
        return np.unique(label, return_inverse=True)[1].astype(np.int64)

    def _separable(self, a: np.ndarray, b: np.ndarray) -> bool:
        for c in np.flatnonzero(a):
            for k in np.flatnonzero(b):
                if c != k or len(self.classes[c]) > 1:
                    return True
        return False


def _pairs(pins: list[int]) -> list[tuple[int, int]]:
    """Ordered pairs of pins; of a wide net only those with its first pin."""
    if len(pins) <= 6:
        return [(a, b) for a in pins for b in pins if a != b]
    return [pair for b in pins[1:] for pair in ((pins[0], b), (b, pins[0]))]


def _closure(group: int, needs: dict[int, list[int]]) -> list[int]:
    closure, stack = {group}, [group]
    while stack:
        for b in needs.get(stack.pop(), ()):
            if b not in closure:
                closure.add(b)
                stack.append(b)
    return sorted(closure)
