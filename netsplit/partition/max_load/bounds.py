"""Lower bounds of the largest load.

*Core*: some device has group v, so some device's load is at least the least of w(S) + cut(S), its load
with the groups S, over all S with v in it. That is a minimum cut, and its linear relaxation is integral.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from netsplit.partition.max_load.model import Hypergraph

if TYPE_CHECKING:
    import highspy

__all__ = ["core_bound", "sharing_bound"]

_INF = np.inf
_ROUNDING = 1e-7  # relative: what the solvers' own tolerances may have moved a value by


class _LoneDevice:
    """The groups that one device may have: x [G] from 0 to 1, and the cut of every net, in HiGHS."""

    def __init__(self, model: Hypergraph, device: int) -> None:
        hop = model.hop[:, device]
        nets = np.flatnonzero(hop > 0)
        pins = [model.pins[e] for e in nets.tolist()]
        wide = [len(p) > 2 for p in pins]
        extra = [column for e, w in zip(nets, wide, strict=True) for column in ((e, 1), (e, -1))[: 1 + w]]
        self._upper = np.concatenate([model.allowed[:, device].astype(float), np.ones(len(extra))])
        load = np.concatenate([model.weight[:, device], [sign * hop[e] for e, sign in extra]])
        count = len(self._upper)
        self._highs = _quiet()
        self._highs.addVars(count, np.zeros(count), self._upper)
        self._highs.changeColsCost(count, np.arange(count, dtype=np.int32), load)
        rows: list[tuple[list[int], list[float]]] = []
        k = model.count
        for p, w in zip(pins, wide, strict=True):
            if w:  # any pin here, minus all pins here
                rows += [([int(v), k], [1.0, -1.0]) for v in p] + [([k + 1, int(v)], [1.0, -1.0]) for v in p]
            else:
                a, b = int(p[0]), int(p[1])
                rows += [([a, b, k], [1.0, -1.0, -1.0]), ([b, a, k], [1.0, -1.0, -1.0])]
            k += 1 + w
        starts = np.cumsum([0, *(len(index) for index, _ in rows)])[:-1].astype(np.int32)
        flat = np.array([i for index, _ in rows for i in index], np.int32)
        value = np.array([c for _, entries in rows for c in entries], float)
        if rows:
            self._highs.addRows(
                len(rows), np.full(len(rows), -_INF), np.zeros(len(rows)), len(flat), starts, flat, value
            )

    def least_with(self, group: int) -> float:
        """The least load of a device that has a group.

        Of the linear relaxation, which is integral; less what the solver's tolerance may have added.
        """
        if not self._upper[group]:
            return float("inf")
        self._highs.changeColBounds(group, 1.0, 1.0)
        self._highs.run()
        value = float(self._highs.getInfo().objective_function_value)
        self._highs.changeColBounds(group, 0.0, 1.0)
        return value * (1 - _ROUNDING)


def sharing_bound(model: Hypergraph) -> float:
    """Every group divided at will and nothing paid for cuts: a small linear programme over the classes."""
    highs = _quiet()
    classes = model.classes
    sizes = [len(same) for same in classes]
    weight = np.where(model.allowed, model.weight, 0.0)[:, [same[0] for same in classes]]
    allowed = model.allowed[:, [same[0] for same in classes]]
    g, c = model.count, len(classes)
    highs.addVars(g * c + 1, np.zeros(g * c + 1), np.concatenate([allowed.ravel().astype(float), [_INF]]))
    highs.changeColCost(g * c, 1.0)
    for v in range(g):
        highs.addRow(1.0, 1.0, c, np.arange(v * c, (v + 1) * c, dtype=np.int32), np.ones(c))
    for k in range(c):
        index = np.append(np.arange(k, g * c, c), g * c).astype(np.int32)
        highs.addRow(-_INF, 0.0, g + 1, index, np.append(weight[:, k], -float(sizes[k])))
    highs.run()
    return float(highs.getInfo().objective_function_value) * (1 - _ROUNDING)


def core_bound(model: Hypergraph, deadline: float, at_most: int = 200) -> float:
    """The largest, over the groups of most seconds, of the least load of a device that has the group."""
    first = [same[0] for same in model.classes]
    devices = [_LoneDevice(model, d) for d in first]
    reach = np.array([sum(model.hop[e].max() for e in model.nets_of[g]) for g in range(model.count)])
    own = np.where(model.allowed, model.weight, np.inf).min(axis=1)
    bound = 0.0
    for g in np.argsort(-(own + reach), kind="stable")[:at_most].tolist():
        if time.perf_counter() > deadline:
            break
        least = float("inf")
        for device in devices:
            least = min(least, device.least_with(g))
            if least <= bound:
                break
        bound = max(bound, least)
    return bound


def _quiet() -> highspy.Highs:
    """HiGHS without output, on one thread."""
    import highspy

    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    return highs
