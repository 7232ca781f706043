"""Lower bounds of the largest load: what one device can do by itself within a load limit.

Two facts about a device d and the set S of groups on it, w(S) + cut(S) its load:

- *core*: some device has group v, so some device's load is at least the least of w(S) + cut(S) over
  all S with v in it. That is a minimum cut, and its linear relaxation is integral.
- *blocks*: an answer with all loads <= T is a partition of the groups into one block a device, each
  with a load <= T. For any prices pi of groups, the blocks hold at most the sum over devices of
  ``P_d = max {pi(S): load_d(S) <= T}``. If that is less than pi of all groups, T cannot be had.
  The prices are the duals of the covering by blocks (Dantzig and Wolfe), found by column generation.

Each looks at one device, so there is no symmetry between devices to break: Archer et al., ICML 2024,
section 5, bound the bottleneck block for that reason; the prices make it hold for all blocks at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import highspy
import numpy as np

from netsplit.partition.instance import Floats, Ints
from netsplit.partition.max_load.annealing import Annealer
from netsplit.partition.max_load.filling import BlockAnnealer, Segments
from netsplit.partition.max_load.model import Hypergraph

__all__ = ["BlockModel", "core_bound", "excluded", "sharing_bound"]

_INF = highspy.kHighsInf
_ROUNDING = 1e-7  # relative: what the solvers' own tolerances may have moved a value by


class BlockModel:
    """The sets of groups that one device may have: x [G] binary, and the cut of every net, in HiGHS."""

    def __init__(self, model: Hypergraph, device: int, integral: bool) -> None:
        self.count = model.count
        hop = model.hop[:, device]
        nets = np.flatnonzero(hop > 0)
        self._highs = _quiet()
        pins = [model.pins[e] for e in nets.tolist()]
        wide = [len(p) > 2 for p in pins]
        extra = [column for e, w in zip(nets, wide, strict=True) for column in ((e, 1), (e, -1))[: 1 + w]]
        upper = np.concatenate([model.allowed[:, device].astype(float), np.ones(len(extra))])
        self.columns = len(upper)
        self._highs.addVars(self.columns, np.zeros(self.columns), upper)
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
        self._priced = True
        if integral:
            kinds = np.full(model.count, highspy.HighsVarType.kInteger)
            self._highs.changeColsIntegrality(model.count, np.arange(model.count, dtype=np.int32), kinds)

    def limit(self, seconds: float) -> None:
        """The load may be at most `seconds`."""
        if self._limited:
            self._highs.changeRowBounds(self._row, -_INF, seconds)
            return
        scaled = self.load / seconds
        self._highs.addRow(-_INF, 1.0, self.columns, np.arange(self.columns, dtype=np.int32), scaled)
        self._limited = True

    def most(self, prices: Floats, time_limit_s: float, gap: float) -> tuple[float, Ints | None]:
        """An upper bound of the price [G] of a block, and the groups of the best block found."""
        self._priced = True
        self._costs(np.concatenate([-prices, np.zeros(self.columns - self.count)]))
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
        self._highs.changeColsCost(self.columns, np.arange(self.columns, dtype=np.int32), costs)


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
    blocks = [BlockModel(model, d, integral=False) for d in first]
    reach = np.array([sum(model.hop[e].max() for e in model.nets_of[g]) for g in range(model.count)])
    own = np.where(model.allowed, model.weight, np.inf).min(axis=1)
    bound = 0.0
    for g in np.argsort(-(own + reach), kind="stable")[:at_most].tolist():
        if time.perf_counter() > deadline:
            break
        least = float("inf")
        for block in blocks:
            least = min(least, block.least_with(g))
            if least <= bound:
                break
        bound = max(bound, least)
    return bound


@dataclass
class _Covering:
    """The master: cover every group by blocks, at most as many as a class has devices; duals are prices."""

    model: Hypergraph
    value: Floats  # [G] what a group is worth where it is left out
    sizes: list[int]
    highs: highspy.Highs = field(init=False)
    columns: dict[tuple[int, bytes], Ints] = field(default_factory=dict)

    def __post_init__(self) -> None:
        g = self.model.count
        self.highs = _quiet()
        self.highs.addVars(2 * g, np.zeros(2 * g), np.full(2 * g, _INF))
        self.highs.changeColsCost(
            2 * g, np.arange(2 * g, dtype=np.int32), np.concatenate([self.value, self.value])
        )
        for v in range(g):
            self.highs.addRow(1.0, 1.0, 2, np.array([v, g + v], np.int32), np.array([1.0, -1.0]))
        for size in self.sizes:
            self.highs.addRow(-_INF, float(size), 0, np.zeros(0, np.int32), np.zeros(0))

    def add(self, groups: Ints, c: int) -> bool:
        """Whether the block is new."""
        key = (c, groups.tobytes())
        if key in self.columns:
            return False
        self.columns[key] = groups
        index = np.append(groups, self.model.count + c).astype(np.int32)
        self.highs.addCol(0.0, 0.0, _INF, len(index), index, np.ones(len(index)))
        return True

    def best(self, c: int, prices: Floats, many: int) -> list[Ints]:
        """The known blocks of a class with the highest price."""
        own = [groups for (k, _), groups in self.columns.items() if k == c]
        return sorted(own, key=lambda groups: -float(prices[groups].sum()))[:many]

    def solve(self) -> tuple[float, Floats, Floats]:
        """What is left uncovered, the prices of groups, and what a block of each class has to reach."""
        self.highs.run()
        duals = np.array(self.highs.getSolution().row_dual)
        value = float(self.highs.getInfo().objective_function_value)
        return value, duals[: self.model.count], -duals[self.model.count :]


def excluded(
    model: Hypergraph,
    below: float,
    deadline: float,
    known: list[Ints],
    orders: list[Ints],
    stop: Callable[[], bool] = lambda: False,
    log: Callable[[str], None] = lambda line: None,
) -> bool:
    """Whether it is proven that every placement has a load of more than `below` seconds.

    Args:
        model: contracted for answers below the limit, at most.
        known: [G] placements whose blocks are likely to be of use.
        orders: linear orders [G] of the groups; pieces of them are likely blocks.
        stop: asked between the steps; True gives up.
    """
    classes = model.classes
    first = [same[0] for same in classes]
    sizes = [len(same) for same in classes]
    if not model.allowed.any(axis=1).all():
        return True
    least = np.where(model.allowed, model.weight, np.inf).min(axis=1)
    value = np.maximum(model.weight[:, first].min(axis=1), 1e-6 * least.sum() / model.count) / least.sum()
    blocks = [BlockModel(model, d, integral=True) for d in first]
    for block in blocks:
        block.limit(below)
    master = _Covering(model, value, sizes)
    for where in known:
        loads = model.loads(where)
        for c, same in enumerate(classes):
            for d in same:
                if loads[d] <= below:
                    master.add(np.flatnonzero(where == d), c)
    annealer = Annealer.of(model)
    fillers = [BlockAnnealer(annealer, d) for d in first]
    segments = [[Segments.of(model, d, order) for order in orders] for d in first]
    within = below * (1 - 1e-9)
    prices = value.copy()
    slots = np.zeros(len(classes))
    centre, record = value.copy(), -np.inf
    idle, last = 0, np.inf
    for turn in range(100_000):
        fresh = False
        for c, filler in enumerate(fillers if turn else []):
            pieces = [groups for s in segments[c] for groups in s.best(prices, within, 6)]
            for groups in pieces:
                if prices[groups].sum() > slots[c] + 1e-7:
                    fresh = master.add(groups, c) or fresh
            starts = [np.zeros(0, np.int64), *master.best(c, prices, 2), *pieces[:2]]
            for k, start in enumerate(starts):
                if stop() or time.perf_counter() > deadline:
                    return False
                hot = 1.0 if k == 0 else (0.3, 0.05, 0.01)[turn % 3]
                groups, price = filler.run(
                    prices, within, start, 30_000 << min(turn // 40, 3), 7 * turn + k, hot
                )
                if price > slots[c] + 1e-7 and len(groups):
                    fresh = master.add(groups, c) or fresh
        exact = not fresh or idle >= 8
        if exact:
            idle = 0
            near = record > -0.02 * float(np.abs(prices).sum())
            precision = 1e-4 if near or not turn else 1e-2
            for at in (0.5 * centre + 0.5 * prices, prices):
                margin = float(at.sum())
                for c in sorted(range(len(blocks)), key=lambda c: float(model.hop[:, first[c]].sum())):
                    left = deadline - time.perf_counter()
                    if left <= 0 or stop():
                        return False
                    top, found = blocks[c].most(at, left, precision)
                    margin -= sizes[c] * max(top, 0.0)
                    if found is not None and len(found):
                        fresh = master.add(found, c) or fresh
                log(f"turn {turn}: margin {margin:.6f} of {np.abs(at).sum():.6f}")
                if margin > 1e-6 * float(np.abs(at).sum()):
                    return True
                if margin > record:
                    record, centre = margin, at
                if fresh:
                    break
            if not fresh:
                return False
        uncovered, prices, slots = master.solve()
        idle += 1 if uncovered > last - 1e-4 else 0
        last = uncovered
        log(f"  {turn} uncovered {uncovered:.6f} columns {len(master.columns)} {exact}")
        if uncovered < 1e-6:
            return False
    return False


def _quiet() -> highspy.Highs:
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    return highs
