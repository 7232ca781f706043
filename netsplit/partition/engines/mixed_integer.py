"""Mixed-integer engines: Gurobi where it is licensed for the model's size, else HiGHS.

HiGHS takes the model's arrays; Gurobi reads the file that HiGHS writes of them.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from netsplit.errors import ConfigError
from netsplit.partition.base import Status
from netsplit.partition.common.interruptible import interruptible
from netsplit.partition.engines.rows import Floats, LinearModel

if TYPE_CHECKING:
    import gurobipy
    import highspy

__all__ = [
    "MOST_BYTES",
    "EngineName",
    "Outcome",
    "check_engine",
    "engine_bytes",
    "highs",
    "run_highs",
    "solve",
]

EngineName = Literal["auto", "gurobi", "highs"]

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


@dataclass(frozen=True)
class Outcome:
    """What an engine found, in the model's own units; `values` [columns] is None without a solution."""

    engine: str
    status: Status
    bound: float | None = None
    values: Floats | None = None
    notes: dict[str, Any] = field(default_factory=dict)  # size of the model, why Gurobi was not used


def check_engine(engine: str) -> None:
    if engine not in get_args(EngineName):
        raise ConfigError(f"engine '{engine}' is not known: use one of {', '.join(get_args(EngineName))}.")


def solve(model: LinearModel, *, engine: EngineName, time_limit_s: float, gap: float, seed: int) -> Outcome:
    """Minimise a mixed-integer linear model, silently.

    Raises:
        ConfigError: `engine` is "gurobi" and Gurobi cannot take the model.
    """
    deadline = time.perf_counter() + time_limit_s
    seed %= 2_000_000_000
    notes: dict[str, Any] = {"variables": len(model.cost), "constraints": len(model.row_upper)}
    if engine != "highs":
        try:
            outcome = _gurobi(model, deadline, gap, seed)
            return replace(outcome, notes=notes)
        except _Unlicensed as reason:
            if engine == "gurobi":
                raise ConfigError(f"engine 'gurobi' cannot be used: {reason}; use 'highs'.") from None
            _log.debug("falling back to highs: %s", reason)
            notes["gurobi_not_used"] = str(reason)
    outcome = _highs(model, deadline - time.perf_counter(), gap, seed)
    return replace(outcome, notes=notes)


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


def _highs(model: LinearModel, time_limit_s: float, gap: float, seed: int) -> Outcome:
    import highspy

    solver = highs(time_limit_s, gap, seed)
    model.pass_to(solver)
    run_highs(solver)

    name = f"highs {solver.version()}"
    status, info = solver.getModelStatus(), solver.getInfo()
    infeasible = (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible)
    if status in infeasible:
        return Outcome(name, "infeasible")
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return Outcome(name, "limit")
    values = np.array(solver.getSolution().col_value, np.float64)
    proven = status == highspy.HighsModelStatus.kOptimal
    return Outcome(name, "optimal" if proven else "feasible", bound=info.mip_dual_bound, values=values)


def _gurobi(model: LinearModel, deadline: float, gap: float, seed: int) -> Outcome:
    try:
        import gurobipy
    except ImportError:
        raise _Unlicensed("gurobipy is not installed") from None

    try:
        with contextlib.ExitStack() as stack:
            environment = stack.enter_context(gurobipy.Env(empty=True))
            options = {"OutputFlag": 0, "MIPGap": gap, "Seed": seed, "IntFeasTol": 1e-9}
            for key, value in options.items():
                environment.setParam(key, value)
            environment.start()
            _take_size(stack.enter_context(gurobipy.Model(env=environment)), model)
            read = stack.enter_context(_read_by_gurobi(model, environment))
            read.setParam("TimeLimit", max(0.01, deadline - time.perf_counter()))
            interruptible(read.optimize, read.terminate)
            return _answer_of_gurobi(read, len(model.cost))
    except gurobipy.GurobiError as error:
        codes = gurobipy.GRB.Error
        if error.errno not in (codes.NO_LICENSE, codes.SIZE_LIMIT_EXCEEDED):
            raise
        raise _Unlicensed(str(error)) from None


def _take_size(empty: gurobipy.Model, model: LinearModel) -> None:
    """Raise what Gurobi raises of a licence that does not take so many columns, before a file is written."""
    empty.addMVar(len(model.cost))
    empty.optimize()


def _read_by_gurobi(model: LinearModel, environment: gurobipy.Env) -> gurobipy.Model:
    """As HiGHS writes it: a file that both know, with columns c0, c1, ..."""
    import gurobipy

    solver = highs(1.0, 0.0, 0)
    model.pass_to(solver)
    with tempfile.TemporaryDirectory(prefix="netsplit-") as folder:
        path = str(Path(folder) / "model.mps")
        solver.writeModel(path)
        return gurobipy.read(path, environment)


def _answer_of_gurobi(read: gurobipy.Model, columns: int) -> Outcome:
    import gurobipy

    name, codes = "gurobi " + ".".join(map(str, gurobipy.gurobi.version())), gurobipy.GRB
    if read.Status in (codes.INFEASIBLE, codes.INF_OR_UNBD):
        return Outcome(name, "infeasible")
    if not read.SolCount:
        return Outcome(name, "limit")
    values = np.zeros(columns)
    for variable in read.getVars():
        values[int(variable.VarName.removeprefix("c"))] = variable.X
    status: Status = "optimal" if read.Status == codes.OPTIMAL else "feasible"
    return Outcome(name, status, bound=read.ObjBound, values=values)
