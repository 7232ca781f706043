"""Mixed-integer engines: Gurobi where it is licensed for the model's size, else HiGHS.

The model leaves PICOS as an LP file, which both engines read, and the answer comes back by variable
name. Without a licensed engine PICOS writes only continuous models, and it writes ``x(3)-1 y(0)``
where Gurobi wants ``x_3 - 1 y_0``; `write_lp` mends both.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import tempfile
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import picos

from netsplit.errors import ConfigError
from netsplit.partition.base import Status
from netsplit.partition.common.interruptible import interruptible

if TYPE_CHECKING:
    import highspy

__all__ = ["EngineName", "Outcome", "check_engine", "highs", "run_highs", "solve", "write_lp"]

EngineName = Literal["auto", "gurobi", "highs"]

_log = logging.getLogger(__name__)


class _Unlicensed(Exception):
    """Gurobi is missing, has no licence, or its licence does not take this size."""


@dataclass(frozen=True)
class Outcome:
    """What an engine found, in the model's own units; `values` is None without a solution."""

    engine: str
    status: Status
    bound: float | None = None
    values: dict[str, float] | None = None
    notes: dict[str, Any] = field(default_factory=dict)  # size of the model, why Gurobi was not used

    def vector(self, name: str, length: int) -> list[float]:
        """Values of one variable vector of the model."""
        assert self.values is not None
        names = _element_names(name, length)
        return [self.values[element] for element in names]


def check_engine(engine: str) -> None:
    if engine not in get_args(EngineName):
        raise ConfigError(f"engine '{engine}' is not known: use one of {', '.join(get_args(EngineName))}.")


def solve(model: picos.Problem, *, engine: EngineName, time_limit_s: float, gap: float, seed: int) -> Outcome:
    """Minimise a mixed-integer linear model, silently.

    Raises:
        ConfigError: `engine` is "gurobi" and Gurobi cannot take the model.
    """
    seed %= 2_000_000_000
    notes: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="netsplit-") as folder:
        path = Path(folder) / "model.lp"
        write_lp(model, path)
        outcome: Outcome | None = None
        if engine != "highs":
            try:
                outcome = _gurobi(path, time_limit_s, gap, seed)
            except _Unlicensed as reason:
                if engine == "gurobi":
                    raise ConfigError(f"engine 'gurobi' cannot be used: {reason}; use 'highs'.") from None
                _log.debug("falling back to highs: %s", reason)
                notes["gurobi_not_used"] = str(reason)
        if outcome is None:
            outcome = _highs(path, time_limit_s, gap, seed)
    return replace(outcome, notes={**outcome.notes, **notes})


def write_lp(model: picos.Problem, path: Path) -> None:
    """Write a mixed-integer linear model to an LP file with element names ``x_3``."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(action="ignore"):
        model.continuous_relaxation().write_to_file(str(path))
    binaries = [
        element
        for name, variable in model.variables.items()
        if isinstance(variable, picos.BinaryVariable)
        for element in _element_names(name, len(variable))
    ]
    names = "|".join(map(re.escape, model.variables))
    text = re.sub(rf"\b({names})\((\d+)\)", r"\1_\2", path.read_text())
    text = re.sub(rf"\b((?:{names})(?:_\d+)?)", r"\1 ", text)
    body, marker, _ = text.rpartition("Binaries\n")
    assert marker, "PICOS wrote an LP file without a section for binaries"
    path.write_text("\n".join([body + "Binaries", *binaries, "End", ""]))


def _element_names(name: str, length: int) -> list[str]:
    return [name] if length == 1 else [f"{name}_{i}" for i in range(length)]


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


def _highs(path: Path, time_limit_s: float, gap: float, seed: int) -> Outcome:
    import highspy

    solver = highs(time_limit_s, gap, seed)
    read = solver.readModel(str(path))
    assert read != highspy.HighsStatus.kError, "HiGHS cannot read the model"
    run_highs(solver)

    name = f"highs {solver.version()}"
    status, info = solver.getModelStatus(), solver.getInfo()
    notes = {"variables": solver.getNumCol(), "constraints": solver.getNumRow()}
    infeasible = (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible)
    if status in infeasible:
        return Outcome(name, "infeasible", notes=notes)
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return Outcome(name, "limit", notes=notes)
    values = dict(zip(solver.getLp().col_names_, solver.getSolution().col_value, strict=True))
    proven = status == highspy.HighsModelStatus.kOptimal
    return Outcome(
        name,
        "optimal" if proven else "feasible",
        bound=info.mip_dual_bound,
        values=values,
        notes=notes,
    )


def _gurobi(path: Path, time_limit_s: float, gap: float, seed: int) -> Outcome:
    try:
        import gurobipy
    except ImportError:
        raise _Unlicensed("gurobipy is not installed") from None

    name = "gurobi " + ".".join(map(str, gurobipy.gurobi.version()))
    codes = gurobipy.GRB
    options = {"OutputFlag": 0, "TimeLimit": max(0.01, time_limit_s), "MIPGap": gap, "Seed": seed}
    try:
        with contextlib.ExitStack() as stack:
            environment = stack.enter_context(gurobipy.Env(empty=True))
            for key, value in options.items():
                environment.setParam(key, value)
            environment.setParam("IntFeasTol", 1e-9)
            environment.start()
            model = stack.enter_context(gurobipy.read(str(path), environment))
            interruptible(model.optimize, model.terminate)
            notes = {"variables": model.NumVars, "constraints": model.NumConstrs}
            if model.Status in (codes.INFEASIBLE, codes.INF_OR_UNBD):
                return Outcome(name, "infeasible", notes=notes)
            if not model.SolCount:
                return Outcome(name, "limit", notes=notes)
            values = {variable.VarName: variable.X for variable in model.getVars()}
            status: Status = "optimal" if model.Status == codes.OPTIMAL else "feasible"
            return Outcome(name, status, bound=model.ObjBound, values=values, notes=notes)
    except gurobipy.GurobiError as error:
        licence = (codes.Error.NO_LICENSE, codes.Error.SIZE_LIMIT_EXCEEDED)
        if error.errno not in licence:
            raise
        raise _Unlicensed(str(error)) from None
