"""Lower bounds of the largest load, and what one device can do by itself as a model in HiGHS.

*Core*: some device has group v, so some device's load is at least the least of w(S) + cut(S), its load
with the groups S, over all S with v in it. That is a minimum cut, and its linear relaxation is integral.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from netsplit.partition.common.instance import Floats, Ints
from netsplit.partition.max_load.model import Hypergraph

if TYPE_CHECKING:
    import highspy

__all__ = ["ColumnModel", "core_bound", "quiet", "sharing_bound"]

_INF = np.inf
_ROUNDING = 1e-7  # relative: what the solvers' own tolerances may have moved a value by


class ColumnModel:
    """The sets of groups that one device may have: x [G] binary, and the cut of every net, in HiGHS."""

    def __init__(self, model: Hypergraph, device: int, integral: bool) -> None:
        self.count = model.count
        hop = model.hop[:, device]
        nets = np.flatnonzero(hop > 0)
        self._highs = quiet()
        pins = [model.pins[e] for e in nets.tolist()]
        wide = [len(p) > 2 for p in pins]
        extra = [column for e, w in zip(nets, wide, strict=True) for column in ((e, 1), (e, -1))[: 1 + w]]
        upper = np.concatenate([model.allowed[:, device].astype(float), np.ones(len(extra))])
        self.variables = len(upper)
        self._highs.addVars(self.variables, np.zeros(self.variables), upper)
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
        self.load = np.concatenate([model.weight[:, device], [sign * hop[e] for e, sign in extra]])
        self.upper = upper
        self._row = len(rows)
        self._limited = False
        self._scale = 1.0
        self._priced = True
        if integral:
            import highspy

            kinds = np.full(model.count, highspy.HighsVarType.kInteger)
            self._highs.changeColsIntegrality(model.count, np.arange(model.count, dtype=np.int32), kinds)

    def limit(self, seconds: float) -> None:
        """The load may be at most `seconds`."""
        if self._limited:
            self._highs.changeRowBounds(self._row, -_INF, seconds / self._scale)
            return
        self._scale = seconds  # of the first limit: the row is in its units
        scaled = self.load / seconds
        self._highs.addRow(-_INF, 1.0, self.variables, np.arange(self.variables, dtype=np.int32), scaled)
        self._limited = True

    def most(self, prices: Floats, time_limit_s: float, gap: float) -> tuple[float, Ints | None]:
        """An upper bound of the price [G] of a column, and the groups of the best column found."""
        import highspy

        self._priced = True
        self._costs(np.concatenate([-prices, np.zeros(self.variables - self.count)]))
        self._highs.setOptionValue("time_limit", self._highs.getRunTime() + max(time_limit_s, 0.01))
        self._highs.setOptionValue("mip_rel_gap", gap)
        self._highs.run()
        info = self._highs.getInfo()
        status = self._highs.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return -np.inf, None
        bound = -info.mip_dual_bound
        if not np.isfinite(bound):
            bound = float(np.maximum(prices, 0) @ self.upper[: self.count])
        chosen = None
        if info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible:
            x = np.array(self._highs.getSolution().col_value[: self.count])
            chosen = np.flatnonzero(x > 0.5)
        return bound, chosen

    def least_with(self, group: int, without: int | None = None) -> float:
        """The least load of a device that has a group, and has not another.

        Of the linear relaxation, which is integral; less what the solver's tolerance may have added.
        """
        if not self.upper[group]:
            return float("inf")
        if self._priced:
            self._costs(self.load)
            self._priced = False
        self._highs.changeColBounds(group, 1.0, 1.0)
        if without is not None:
            self._highs.changeColBounds(without, 0.0, 0.0)
        self._highs.run()
        value = float(self._highs.getInfo().objective_function_value)
        self._highs.changeColBounds(group, 0.0, 1.0)
        if without is not None:
            self._highs.changeColBounds(without, 0.0, float(self.upper[without]))
        return value * (1 - _ROUNDING)

    def _costs(self, costs: Floats) -> None:
        self._highs.changeColsCost(self.variables, np.arange(self.variables, dtype=np.int32), costs)


def sharing_bound(model: Hypergraph) -> float:
    """Every group divided at will and nothing paid for cuts: a small linear programme over the classes."""
    highs = quiet()
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
    columns = [ColumnModel(model, d, integral=False) for d in first]
    reach = np.array([sum(model.hop[e].max() for e in model.nets_of[g]) for g in range(model.count)])
    own = np.where(model.allowed, model.weight, np.inf).min(axis=1)
    bound = 0.0
    for g in np.argsort(-(own + reach), kind="stable")[:at_most].tolist():
        if time.perf_counter() > deadline:
            break
        least = float("inf")
        for column in columns:
            least = min(least, column.least_with(g))
            if least <= bound:
                break
        bound = max(bound, least)
    return bound


def quiet() -> highspy.Highs:
    """HiGHS without output, on one thread."""
    import highspy

    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    return highs
