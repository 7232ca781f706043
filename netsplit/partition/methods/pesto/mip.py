"""A mixed-integer linear model that HiGHS solves from a known solution, so a time limit has an answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from netsplit.partition.base import Status
from netsplit.partition.engines.mixed_integer import highs, run_highs
from netsplit.partition.engines.rows import Rows, Term

__all__ = ["Mip", "MipAnswer"]


@dataclass(frozen=True)
class MipAnswer:
    """`values` by column; None without a solution. `bound` in the model's units."""

    engine: str
    status: Status
    values: list[float] | None
    bound: float | None


@dataclass
class Mip:
    """A mixed-integer linear model that grows by columns and rows."""

    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    start: list[float] = field(default_factory=list)  # a feasible value of every column
    rows: Rows = field(default_factory=Rows)
    objective: int | None = None  # the column to minimise

    def column(self, start: float, upper: float = 1.0, lower: float = 0.0, integer: bool = False) -> int:
        self.lower.append(lower)
        self.upper.append(upper)
        self.integer.append(integer)
        self.start.append(start)
        return len(self.lower) - 1

    def at_most(self, terms: Iterable[Term], limit: float, equal: bool = False) -> None:
        """``sum of terms <= limit``, or ``=``; terms of one column are added up."""
        summed: dict[int, float] = {}
        for column, value in terms:
            summed[column] = summed.get(column, 0.0) + value
        self.rows.add(summed.items(), limit, equal=equal)

    def solve(self, time_limit_s: float, gap: float, seed: int, with_start: bool = True) -> MipAnswer:
        import highspy

        cost = np.zeros(len(self.lower))
        if self.objective is not None:
            cost[self.objective] = 1.0
        solver = highs(time_limit_s, gap, seed)
        self.rows.model(self.lower, self.upper, cost, self.integer).pass_to(solver)
        if with_start:
            solution = highspy.HighsSolution()
            solution.col_value = self.start
            solver.setSolution(solution)
        run_highs(solver)
        name = f"highs {solver.version()}"
        status, info = solver.getModelStatus(), solver.getInfo()
        if status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
            return MipAnswer(name, "infeasible", None, None)
        bound = info.mip_dual_bound if np.isfinite(info.mip_dual_bound) else None
        if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return MipAnswer(name, "limit", None, bound)
        proven = status == highspy.HighsModelStatus.kOptimal
        if proven and bound is None:  # as where presolve is left with nothing to branch on
            bound = info.objective_function_value
        return MipAnswer(
            name, "optimal" if proven else "feasible", list(solver.getSolution().col_value), bound
        )
