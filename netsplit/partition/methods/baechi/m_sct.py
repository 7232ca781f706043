"""`m_sct`: small communication times within memory (Baechi's m-SCT).

Source: Jeon et al., "Baechi: Fast Device Placement of Machine Learning Graphs", SoCC 2020, section 3;
the authors' code, github beomyeol/baechi, placer/m_sct.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from netsplit.partition.common.instance import Floats, Ints
from netsplit.partition.engines.rows import LinearModel
from netsplit.partition.methods.baechi.baechi import BaechiProblem, Memory, memory_for
from netsplit.partition.methods.baechi.m_etf import NEVER, EtfLoop, MEtf

__all__ = ["MSct", "SctLoop", "assign", "favourite_lp", "favourites"]


def favourites(tasks: BaechiProblem, threshold: float) -> tuple[Ints, float]:
    """[n] the favourite child of every node, -1 for none; and the relaxed makespan in ticks."""
    compute = tasks.compute.mean(axis=1)
    pairs = max(1, tasks.devices * (tasks.devices - 1))
    hop = tasks.hops @ np.bincount(tasks.link_of.ravel()) / pairs
    ends = [(i, j) for i, j, _ in tasks.edges]
    cost = np.array([hop[list(variables)].sum() for _, _, variables in tasks.edges])
    if not ends:
        return np.full(tasks.n, -1, np.int64), float(compute.max(initial=0.0))
    x, makespan = favourite_lp(compute, ends, cost)
    return assign(tasks.n, ends, x < threshold), makespan


def favourite_lp(compute: Floats, ends: Sequence[tuple[int, int]], cost: Floats) -> tuple[Floats, float]:
    """Minimise the makespan w on as many devices as one likes, at a corner of the optima, as Mosek does.

    Of every node one child at most, and of every child one parent at most, is spared its transfer::

        min w   s_i + p_i + c_ij x_ij <= s_j        every edge i -> j
                sum_j x_ij >= |succ(i)| - 1         every i with successors
                sum_i x_ij >= |pred(j)| - 1         every j with predecessors
                s_i + p_i <= w,  s_i >= 0,  0 <= x_ij <= 1

    Args:
        compute: [n] p, above zero, in any unit.
        ends: [e] producer and consumer of every edge, which together make a DAG.
        cost: [e] c, in the same unit.

    Returns:
        [e] x, 0 for a favourite child; and w.
    """
    import highspy
    from scipy.sparse import coo_array

    unit = max(1.0, float(np.max(compute, initial=0.0)), float(np.max(cost, initial=0.0)))
    n, e, seconds = len(compute), len(ends), compute / unit
    source, target = np.array(ends, np.int64).reshape(-1, 2).T
    edge, node, one = np.arange(e), np.arange(n), np.ones(e)
    columns = e + n + 1  # x, s, w
    entries = [
        (edge, edge, cost / unit),
        (edge, e + source, one),
        (edge, e + target, -one),
        (e + source, edge, -one),
        (e + n + target, edge, -one),
        (e + 2 * n + node, e + node, np.ones(n)),
        (e + 2 * n + node, np.full(n, e + n), -np.ones(n)),
    ]
    row, column, value = (np.concatenate(part) for part in zip(*entries, strict=True))
    degrees = np.concatenate([np.bincount(source, minlength=n), np.bincount(target, minlength=n)])
    most = np.concatenate([-seconds[source], 1.0 - degrees, -seconds])
    rows = coo_array((value, (row, column)), (len(most), columns)).tocsr()
    model = LinearModel(
        lower=np.zeros(columns), upper=np.where(np.arange(columns) < e, 1.0, np.inf),
        cost=np.append(np.zeros(columns - 1), 1.0), integer=np.zeros(columns, bool),
        row_lower=np.full(len(most), -np.inf), row_upper=most,
        starts=rows.indptr, columns=rows.indices, values=rows.data,
    )  # fmt: skip
    engine = highspy.Highs()
    engine.setOptionValue("output_flag", False)
    model.pass_to(engine)
    for solver in ("ipm", "simplex"):  # the interior point may fail on badly scaled numbers
        engine.setOptionValue("solver", solver)
        engine.run()
        if engine.getModelStatus() == highspy.HighsModelStatus.kOptimal:
            break
    values = np.array(engine.getSolution().col_value, float)
    return values[:e], float(values[-1]) * unit


def assign(n: int, ends: Sequence[tuple[int, int]], chosen: Iterable[bool]) -> Ints:
    """[n] favourite child of each node from the chosen edges, -1 for none.

    Rounding may choose several edges at a node. They are walked in order and a later one replaces an
    earlier one at its producer, and takes the child away from an earlier parent.
    """
    favourite, parent = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    for (i, j), wanted in zip(ends, chosen, strict=True):
        if not wanted:
            continue
        favourite[i] = j
        if parent[j] >= 0:
            favourite[parent[j]] = -1
        parent[j] = i
    return favourite


class SctLoop(EtfLoop):
    """m-ETF, in which a device may wait, AWAKE, for the favourite child of what it ran last.

    It does so if the child is ready and has no device, and no other device could start it sooner. While
    it waits it takes the child as soon as it can start, and, before that, an urgent operator: one that
    could start now on every device that can take it.
    """

    def __init__(self, tasks: BaechiProblem, memory: Memory, favourite: Ints) -> None:
        self._favourite = favourite  # [n] node, -1 for none
        super().__init__(tasks, memory)

    def proposals(self, idle: list[int], now: int, table: Ints) -> list[tuple[int, int, int]]:
        plain = super().proposals(idle, now, table)
        return [self._patient(c, now, table) or proposal for c, proposal in zip(idle, plain, strict=True)]

    def _patient(self, c: int, now: int, table: Ints) -> tuple[int, int, int] | None:
        """What the device of a column proposes where it waits for a child."""
        row = self._awaited(c, table)
        if row < 0:
            return None
        urgent, ticks = self._urgent(c, table)
        if ticks <= now:
            return c, urgent, ticks
        if table[row, c] <= now:
            return c, row, int(table[row, c])
        return c, row, min(int(table[row, c]), ticks)

    def _awaited(self, c: int, table: Ints) -> int:
        """The row of the child for which the device stays awake, or -1."""
        last = self.last[self.asked[c]]
        child = int(self._favourite[last]) if last >= 0 else -1
        if child < 0 or self.where[child] >= 0:
            return -1
        row = self.row_of(child)
        return row if row >= 0 and table[row].min() == table[row, c] < NEVER else -1

    @staticmethod
    def _urgent(c: int, table: Ints) -> tuple[int, int]:
        """The operator that could first start on all its devices, of those that this can run, and when."""
        latest = np.where(table < NEVER, table, 0).max(axis=1)
        latest[table[:, c] == NEVER] = NEVER
        row = int(latest.argmin())
        return row, int(latest[row])


@dataclass(frozen=True)
class MSct(MEtf):
    """m-ETF with devices that wait for favourite children, which a linear relaxation finds.

    Parameters in common with `MEtf` mean the same. The report's notes hold the relaxed makespan, which
    knows neither the number of devices nor their memory.
    """

    threshold: float = 0.1  # an edge whose relaxed x is below it leads to a favourite child

    name = "m_sct"
    optimises = "start of each operator, one by one, with its favourite child kept close"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("threshold", 0 <= self.threshold <= 1, "a number from 0 to 1, such as 0.1")

    def loop(self, tasks: BaechiProblem, notes: dict[str, Any]) -> EtfLoop:
        favourite, makespan = favourites(tasks, self.threshold)
        notes["favourite_children"] = int((favourite >= 0).sum())
        notes["relaxed_makespan_s"] = makespan * self.tick_s
        return SctLoop(tasks, memory_for(tasks, self.memory), favourite)
