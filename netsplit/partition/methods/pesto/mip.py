"""A mixed-integer linear model that HiGHS solves from a known solution, so a time limit has an answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from netsplit.partition.base import Status
from netsplit.partition.engines.mixed_integer import highs, run_highs

__all__ = ["Mip", "MipAnswer", "Term"]

Term = tuple[int, float]  # (column, coefficient)


@dataclass(frozen=True)
class MipAnswer:
    """`values` by column; None without a solution. `bound` in the model's units."""

    engine: str
    status: Status
    values: list[float] | None
    bound: float | None


@dataclass
class Mip:
    """A mixed-integer linear model, given to HiGHS without a file so that it can start from a solution."""

    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    start: list[float] = field(default_factory=list)  # a feasible value of every column
    row_limits: list[float] = field(default_factory=list)
    row_starts: list[int] = field(default_factory=lambda: [0])
    columns: list[int] = field(default_factory=list)
    coefficients: list[float] = field(default_factory=list)
    equal: list[bool] = field(default_factory=list)
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
        self.columns += summed.keys()
        self.coefficients += summed.values()
        self.row_starts.append(len(self.columns))
        self.row_limits.append(limit)
        self.equal.append(equal)

    def solve(self, time_limit_s: float, gap: float, seed: int, with_start: bool = True) -> MipAnswer:
        import highspy

        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = len(self.lower), len(self.row_limits)
        model.col_lower_, model.col_upper_ = np.array(self.lower), np.array(self.upper)
        model.col_cost_ = np.zeros(len(self.lower))
        if self.objective is not None:
            model.col_cost_ = np.eye(1, len(self.lower), self.objective)[0]
        limits = np.array(self.row_limits, float)
        model.row_upper_, model.row_lower_ = limits, np.where(self.equal, limits, -highspy.kHighsInf)
        kinds = highspy.HighsVarType
        model.integrality_ = [kinds.kInteger if whole else kinds.kContinuous for whole in self.integer]
        matrix = model.a_matrix_
        matrix.format_ = highspy.MatrixFormat.kRowwise
        matrix.num_col_, matrix.num_row_ = model.num_col_, model.num_row_
        matrix.start_, matrix.index_ = np.array(self.row_starts, np.int32), np.array(self.columns, np.int32)
        matrix.value_ = np.array(self.coefficients, float)

        solver = highs(time_limit_s, gap, seed)
        passed = solver.passModel(model)
        assert passed != highspy.HighsStatus.kError, "HiGHS refuses the model"
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
