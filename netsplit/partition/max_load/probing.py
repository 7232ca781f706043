"""Merges that minimum cuts prove: groups that no device can hold one of without the other.

``f_d(a, not b)`` is the least load of a device d with a and without b: a minimum cut. Where it is
`below` or more on every device that may have a, or the like for b, an answer better than `below` has
the two together. A device that cannot even hold a group with all that then has to come is ruled out.
"""

from __future__ import annotations

import time

import numpy as np

from netsplit.partition.common.atoms import DisjointSets
from netsplit.partition.max_load.bounds import BlockModel
from netsplit.partition.max_load.contraction import contract
from netsplit.partition.max_load.model import Hypergraph

__all__ = ["probe"]


def probe(model: Hypergraph, below: float, deadline: float, dominance: bool = True) -> Hypergraph:
    """`contract`, and what can be proven pair by pair, until nothing more is found or time is up."""
    model = contract(model, below, dominance)
    while time.perf_counter() < deadline:
        round_ = _Probe(model, below, deadline)
        allowed = round_.follow()
        label = round_.labels()
        smaller = contract(model.merged(label, allowed), below, dominance)
        if smaller.count == model.count and int(smaller.allowed.sum()) == int(model.allowed.sum()):
            return smaller
        model = smaller
    return model


class _Probe:
    def __init__(self, model: Hypergraph, below: float, deadline: float) -> None:
        self.model, self.below = model, below
        self.classes = model.classes
        self.first = [same[0] for same in self.classes]
        blocks = [BlockModel(model, d, integral=False) for d in self.first]
        pairs = sorted({(a, b) for e in range(len(model.pins)) for a, b in _pairs(model.pins[e].tolist())})
        self.alone = np.array([[b.least_with(g) for b in blocks] for g in range(model.count)])
        allowed = model.allowed[:, self.first] & (self.alone < below)
        self.allowed = allowed
        self.apart: dict[tuple[int, int], np.ndarray] = {}  # (a, b): [class] a may be there without b
        for a, b in pairs:
            if time.perf_counter() > deadline:
                break
            self.apart[a, b] = np.array(
                [bool(allowed[a, c]) and blocks[c].least_with(a, b) < below for c in range(len(blocks))]
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
    found, stack = {group}, [group]
    while stack:
        for b in needs.get(stack.pop(), ()):
            if b not in found:
                found.add(b)
                stack.append(b)
    return sorted(found)
