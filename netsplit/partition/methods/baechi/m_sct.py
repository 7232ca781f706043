"""`m_sct`: small communication times within memory (Baechi's m-SCT).

Source: Jeon et al., "Baechi: Fast Device Placement of Machine Learning Graphs", SoCC 2020, section 3;
the authors' code, github beomyeol/baechi, placer/m_sct.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from netsplit.partition.common.instance import Ints
from netsplit.partition.methods.baechi.baechi import BaechiProblem, Memory, memory_for
from netsplit.partition.methods.baechi.m_etf import NEVER, EtfLoop, MEtf
from netsplit.partition.methods.baechi.sct_relaxation import LpSolver, favourites

__all__ = ["MSct", "SctLoop"]


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
    lp: LpSolver = "auto"

    name = "m_sct"
    optimises = "start of each operator, one by one, with its favourite child kept close"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("threshold", 0 <= self.threshold <= 1, "a number from 0 to 1, as 0.1")
        self.require_choice("lp", LpSolver)

    def guide(self, tasks: BaechiProblem, notes: dict[str, Any]) -> Ints | None:
        favourite, makespan = favourites(tasks, self.threshold, self.lp)
        notes["favourite_children"] = int((favourite >= 0).sum())
        notes["relaxed_makespan_s"] = makespan * self.tick_s
        return favourite

    def loop(self, tasks: BaechiProblem, capacity: Ints, guide: Ints | None) -> EtfLoop:
        assert guide is not None
        return SctLoop(tasks, memory_for(tasks, self.memory, capacity), guide)
