"""Mixed-integer engines: Gurobi where it is licensed for the model's size, else HiGHS; others by PICOS."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from netsplit.errors import ConfigError
from netsplit.interrupts import interruptible
from netsplit.partition.engines.rows import Floats, LinearModel, Outcome
from netsplit.placement.placement import Status

if TYPE_CHECKING:
    import highspy

__all__ = [
    "BYTES_A_COEFFICIENT",
    "MOST_BYTES",
    "PREFIX",
    "check_engine",
    "highs",
    "picos_engines",
    "run_highs",
    "solve",
]

PREFIX = "picos:"

_TOLERANCE = 1e-6  # of a row's terms, for an answer to count as one

_LEAST = 1e-9  # of a coefficient, as in HiGHS; GLPK ends the process over some that are near 0

_Mask = NDArray[np.bool_]


def picos_engines() -> tuple[str, ...]:
    """Those installed that take mixed-integer linear models."""
    import picos

    least = picos.Problem()
    x, y = picos.BinaryVariable("x"), picos.RealVariable("y", lower=0.0)
    least.minimize = y
    least.add_constraint(x + y >= 1)
    named = {name: picos.solvers.get_solver(name) for name in picos.available_solvers()}
    return tuple(name for name, solver in named.items() if solver.supports(least.footprint))


def picos_problem(model: LinearModel) -> tuple[Any, dict[Any, _Mask]]:
    """A `picos.Problem` and its variables, each with the columns that it stands for. Binaries are integers
    between 0 and 1: PICOS gives SCIP its binary variables without these bounds."""
    import picos
    from scipy.sparse import csr_array

    problem, parts = picos.Problem(), dict[Any, _Mask]()
    for kind, own in ((picos.IntegerVariable, model.integer), (picos.RealVariable, ~model.integer)):
        if size := int(own.sum()):
            bounds = {"lower": model.lower[own].tolist(), "upper": model.upper[own].tolist()}
            parts[kind(kind.__name__, size, **bounds)] = own
    a = model.matrix.multiply(abs(model.matrix) >= _LEAST).tocsr()
    equal = model.row_lower == model.row_upper
    for rows in filter(np.any, (equal, ~equal)):
        left = sum(_constant(a[rows][:, own]) * part for part, own in parts.items())
        right = _constant(csr_array(model.row_upper[rows, None]))
        problem.add_constraint(left == right if rows is equal else left <= right)
    problem.minimize = sum(_constant(csr_array(model.cost[None, own])) * part for part, own in parts.items())
    return problem, parts


def _constant(matrix: Any) -> Any:
    """A sparse matrix, as PICOS has it."""
    import cvxopt
    import picos

    own = matrix.tocoo()
    return picos.Constant("A", cvxopt.spmatrix(own.data, own.row, own.col, own.shape))


def by_picos(model: LinearModel, name: str, time_limit_s: float, gap: float) -> Outcome:
    """Minimise the model by one of `picos_engines`, silently.

    PICOS has no word for a bound: there is one where the engine has proven its answer within the gap. After
    Ctrl-C the engine goes on alone until its limit, as PICOS stops none. GLPK proves to the end, and looks at
    its clock only once the relaxation of the whole model is solved.

    Raises:
        ConfigError: the engine fails, as where its licence does not take the model's size.
    """
    import picos

    problem, parts = picos_problem(model)
    problem.options.update(
        solver=name,
        timelimit=max(0.01, time_limit_s),
        rel_bnb_opt_tol=None if name == "glpk" else max(gap, 1e-12),  # PICOS takes no 0
        abs_bnb_opt_tol=None,
        abs_prim_fsb_tol=None,
        abs_dual_fsb_tol=None,
        rel_prim_fsb_tol=None,
        rel_dual_fsb_tol=None,
        integrality_tol=1e-9 if name == "gurobi" else None,
        primals=None,  # whatever there is
        duals=False,
        apply_solution=False,
        license_warnings=False,
        verbosity=-1,
        max_footprints=1,  # the model as it is, not rewritten for the engine
    )
    engine = f"{PREFIX}{name} (PICOS {picos.__version__})"
    outcome = interruptible(lambda: _solved(problem, parts, model, name, gap), lambda: None)
    return replace(outcome, engine=engine)


def _solved(problem: Any, parts: dict[Any, _Mask], model: LinearModel, name: str, gap: float) -> Outcome:
    """All that touches the engine, which ends with it: GLPK's memory belongs to the thread that took it."""
    from picos.modeling.solution import PS_INF_OR_UNB, PS_INFEASIBLE, SS_OPTIMAL

    try:
        answer = problem.solve()
    except Exception as error:  # each engine has errors of its own, SCIP one where it found nothing
        native = None if problem.strategy is None else problem.strategy.solver.int
        end = None if native is None else _end_without_answer(native, name)
        if end is None:
            said = " ".join(str(error).split())
            raise ConfigError(f"engine '{PREFIX}{name}' cannot be used: {said}; use 'highs'.") from None
        return Outcome("", end)
    try:
        native = problem.strategy.solver.int
        values = np.clip(0.0, model.lower, model.upper)  # of variables that no row has: PICOS leaves them out
        for part, given in answer.primals.items():
            values[parts[part]] = np.nan if given is None else np.array(given, np.float64).ravel()
        if not _keeps(model, values):
            infeasible = answer.problemStatus in (PS_INFEASIBLE, PS_INF_OR_UNB)
            return Outcome("", "infeasible" if infeasible else _end_without_answer(native, name) or "limit")
        optimal = answer.primalStatus == SS_OPTIMAL
        value = float(model.cost @ values)
        bound = value - (0.0 if name == "glpk" else gap * abs(value)) if optimal else None
        return Outcome("", "optimal" if optimal else "feasible", bound=bound, values=values)
    finally:
        problem.strategy.solver.reset_problem()


def _keeps(model: LinearModel, values: Floats) -> bool:
    """Whether these are an answer: an engine that was stopped may give any numbers."""
    if not np.isfinite(values).all():
        return False
    total = model.matrix @ values
    slack = _TOLERANCE * np.maximum(1.0, abs(model.matrix) @ np.abs(values))
    whole = values[model.integer]
    return bool(
        np.all(total <= model.row_upper + slack)
        and np.all(total >= model.row_lower - slack)
        and np.all(values >= model.lower - _TOLERANCE * np.maximum(1.0, np.abs(values)))
        and np.all(values <= model.upper + _TOLERANCE * np.maximum(1.0, np.abs(values)))
        and np.all(np.abs(whole - np.round(whole)) <= 1e-5)
    )


def _end_without_answer(native: Any, name: str) -> Status | None:
    """What GLPK and SCIP say of a search that found nothing, where PICOS says "unknown" or raises."""
    if name == "scip":
        said = native.getStatus()
        if said == "timelimit":
            return "limit"
        return "infeasible" if said in ("infeasible", "inforunbd") else None
    if name != "glpk":
        return None
    import swiglpk

    options = swiglpk.glp_iocp()
    swiglpk.glp_init_iocp(options)
    options.presolve, options.msg_lev, options.tm_lim = swiglpk.GLP_ON, swiglpk.GLP_MSG_OFF, 1
    return "infeasible" if swiglpk.glp_intopt(native, options) == swiglpk.GLP_ENOPFS else None


MOST_BYTES = 2_000_000_000
"""For one model and all that the engine makes of it: several methods and a training share a machine."""

BYTES_A_COEFFICIENT = 3200
"""The most that HiGHS was seen to take in two minutes: 830 to 3,180 of models of 10,000 to 1,500,000, for
copies, presolve, factors and cuts, more of few groups on many devices. The model itself has 13."""

_log = logging.getLogger(__name__)


class _Unlicensed(Exception):
    """Gurobi is missing, has no licence, or its licence does not take this size."""


def check_engine(engine: str) -> None:
    """Raises ConfigError: not "auto", "gurobi", "highs", or "picos:" and an engine that PICOS has here, which
    takes mixed-integer models."""
    if engine.startswith(PREFIX) and engine not in (here := [PREFIX + each for each in picos_engines()]):
        raise ConfigError(
            f"engine '{engine}' is not installed: PICOS finds {', '.join(here) or 'none'}; install that "
            "engine's Python package, or use 'auto', 'gurobi' or 'highs'."
        )
    if not engine.startswith(PREFIX) and engine not in ("auto", "gurobi", "highs"):
        raise ConfigError(
            f"engine '{engine}' is not known: use auto, gurobi, highs or one that PICOS finds, such as "
            "picos:glpk."
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
    codes = gurobipy.GRB
    name = "gurobi " + ".".join(map(str, gurobipy.gurobi.version()))
    try:
        with contextlib.ExitStack() as stack:
            environment = stack.enter_context(gurobipy.Env(empty=True))
            options = {"OutputFlag": 0, "MIPGap": gap, "Seed": seed, "IntFeasTol": 1e-9}
            for key, value in options.items():
                environment.setParam(key, value)
            environment.start()
            solver = stack.enter_context(gurobipy.Model(env=environment))
            kinds = np.where(model.integer, codes.INTEGER, codes.CONTINUOUS)
            x = solver.addMVar(len(model.cost), model.lower, model.upper, model.cost, kinds)
            senses = np.where(model.row_lower == model.row_upper, codes.EQUAL, codes.LESS_EQUAL)
            solver.addMConstr(model.matrix, x, senses, model.row_upper)
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
