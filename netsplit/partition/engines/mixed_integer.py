"""Mixed-integer engines: Gurobi where it is licensed for the model's size, else HiGHS; others by PICOS."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from netsplit.errors import ConfigError
from netsplit.partition.base import Status
from netsplit.partition.common.interruptible import interruptible
from netsplit.partition.engines.by_picos import PREFIX, by_picos, check_picos_engine
from netsplit.partition.engines.outcome import Outcome
from netsplit.partition.engines.rows import LinearModel

if TYPE_CHECKING:
    import highspy

__all__ = ["MOST_BYTES", "check_engine", "engine_bytes", "highs", "run_highs", "solve"]

MOST_BYTES = 2_000_000_000
"""For one model and all that the engine makes of it: several methods and a training share a machine."""

_BYTES_A_COEFFICIENT = 3200
"""The most that HiGHS was seen to take in two minutes: 830 to 3,180 of models of 10,000 to 1,500,000, for
copies, presolve, factors and cuts, more of few groups on many devices. The model itself has 13."""

_log = logging.getLogger(__name__)


def engine_bytes(coefficients: int) -> int:
    """What a model of so many takes at the engine's peak, the model itself included."""
    return coefficients * _BYTES_A_COEFFICIENT


class _Unlicensed(Exception):
    """Gurobi is missing, has no licence, or its licence does not take this size."""


def check_engine(engine: str) -> None:
    """Raises ConfigError: not "auto", "gurobi", "highs", or "picos:" and an engine that PICOS has here."""
    if engine.startswith(PREFIX):
        check_picos_engine(engine.removeprefix(PREFIX))
    elif engine not in ("auto", "gurobi", "highs"):
        raise ConfigError(
            f"engine '{engine}' is not known: use auto, gurobi, highs or one that PICOS finds, as picos:glpk."
        )


def solve(
    model: LinearModel,
    *,
    engine: str,
    time_limit_s: float,
    gap: float,
    seed: int,
    start: Sequence[float] | None = None,
) -> Outcome:
    """Minimise a mixed-integer linear model, silently.

    Args:
        start: a feasible value of every column, from which Gurobi and HiGHS begin; PICOS's engines do not.

    Raises:
        ConfigError: `engine` is one that cannot take the model.
    """
    deadline = time.perf_counter() + time_limit_s
    seed %= 2_000_000_000
    notes: dict[str, Any] = {"variables": len(model.cost), "constraints": len(model.row_upper)}
    if engine.startswith(PREFIX):
        return replace(by_picos(model, engine.removeprefix(PREFIX), time_limit_s, gap), notes=notes)
    if engine != "highs":
        try:
            return replace(_gurobi(model, deadline, gap, seed, start), notes=notes)
        except _Unlicensed as reason:
            if engine == "gurobi":
                raise ConfigError(f"engine 'gurobi' cannot be used: {reason}; use 'highs'.") from None
            _log.debug("falling back to highs: %s", reason)
            notes["gurobi_not_used"] = str(reason)
    return replace(_highs(model, deadline - time.perf_counter(), gap, seed, start), notes=notes)


_FEW_COLUMNS = 5000
"""Below it HiGHS does not restart: 1.14 then lost the optimum of a model of three operators, and called
another answer optimal."""


def highs(time_limit_s: float, gap: float, seed: int) -> highspy.Highs:
    """HiGHS, silent, on one thread: the same problem has the same answer."""
    import highspy

    solver = highspy.Highs()
    options: dict[str, Any] = {
        "output_flag": False,
        "time_limit": max(0.01, time_limit_s),
        "mip_rel_gap": gap,
        "random_seed": seed % 2_000_000_000,
        "parallel": "off",
    }
    for key, value in options.items():
        solver.setOptionValue(key, value)
    return solver


def run_highs(solver: highspy.Highs) -> None:
    """Solve its model, which may take as long as its limit."""
    solver.HandleUserInterrupt = True
    interruptible(solver.run, solver.cancelSolve)


def _highs(
    model: LinearModel, time_limit_s: float, gap: float, seed: int, start: Sequence[float] | None
) -> Outcome:
    import highspy

    solver = highs(time_limit_s, gap, seed)
    model.pass_to(solver)
    if solver.getNumCol() < _FEW_COLUMNS:
        solver.setOptionValue("mip_allow_restart", False)
    if start is not None:
        solution = highspy.HighsSolution()
        solution.col_value = start
        solver.setSolution(solution)
    run_highs(solver)

    name = f"highs {solver.version()}"
    status, info = solver.getModelStatus(), solver.getInfo()
    infeasible = (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible)
    if status in infeasible:
        return Outcome(name, "infeasible")
    bound = info.mip_dual_bound if np.isfinite(info.mip_dual_bound) else None
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return Outcome(name, "limit", bound=bound)
    values = np.array(solver.getSolution().col_value, np.float64)
    proven = status == highspy.HighsModelStatus.kOptimal
    if proven and bound is None:  # as where presolve is left with nothing to branch on
        bound = info.objective_function_value
    return Outcome(name, "optimal" if proven else "feasible", bound=bound, values=values)


def _gurobi(
    model: LinearModel, deadline: float, gap: float, seed: int, start: Sequence[float] | None
) -> Outcome:
    try:
        import gurobipy
    except ImportError:
        raise _Unlicensed("gurobipy is not installed") from None
    from scipy.sparse import csr_array

    codes = gurobipy.GRB
    name = "gurobi " + ".".join(map(str, gurobipy.gurobi.version()))
    rows, columns = len(model.row_upper), len(model.cost)
    try:
        with contextlib.ExitStack() as stack:
            environment = stack.enter_context(gurobipy.Env(empty=True))
            options = {"OutputFlag": 0, "MIPGap": gap, "Seed": seed, "IntFeasTol": 1e-9}
            for key, value in options.items():
                environment.setParam(key, value)
            environment.start()
            solver = stack.enter_context(gurobipy.Model(env=environment))
            kinds = np.where(model.integer, codes.INTEGER, codes.CONTINUOUS)
            x = solver.addMVar(columns, model.lower, model.upper, model.cost, kinds)
            a = csr_array((model.values, model.columns, model.starts), (rows, columns))
            senses = np.where(model.row_lower == model.row_upper, codes.EQUAL, codes.LESS_EQUAL)
            solver.addMConstr(a, x, senses, model.row_upper)
            if start is not None:
                x.setAttr("Start", np.asarray(start))
            solver.setParam("TimeLimit", max(0.01, deadline - time.perf_counter()))
            interruptible(solver.optimize, solver.terminate)
            if solver.Status in (codes.INFEASIBLE, codes.INF_OR_UNBD):
                return Outcome(name, "infeasible")
            bound = solver.ObjBound if abs(solver.ObjBound) < codes.INFINITY else None
            if not solver.SolCount:
                return Outcome(name, "limit", bound=bound)
            status: Status = "optimal" if solver.Status == codes.OPTIMAL else "feasible"
            return Outcome(name, status, bound=bound, values=np.array(x.X))
    except gurobipy.GurobiError as error:
        if error.errno not in (codes.Error.NO_LICENSE, codes.Error.SIZE_LIMIT_EXCEEDED):
            raise
        raise _Unlicensed(str(error)) from None
