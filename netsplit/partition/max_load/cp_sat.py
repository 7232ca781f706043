"""The whole problem in CP-SAT: closes a few hundred (group, device) pairs, where columns may not."""

from __future__ import annotations

import numpy as np

from netsplit.partition.common.instance import Ints
from netsplit.partition.common.interruptible import cp_sat_solver, interruptible
from netsplit.partition.max_load.model import Hypergraph

__all__ = ["solve_small"]

_UNITS = 1e8  # integer units in the known value: seconds are rounded down, so that the bound holds


def solve_small(model: Hypergraph, value: float, time_limit_s: float, seed: int) -> tuple[float, Ints | None]:
    """A lower bound of the max load (at most `value`, seconds of a known answer), and a placement [G]."""
    from ortools.sat.python import cp_model

    unit = value / _UNITS
    cp = cp_model.CpModel()
    most = cp.new_int_var(0, int(_UNITS), "most")
    x = [[cp.new_bool_var("") for _ in range(model.devices)] for _ in range(model.count)]
    for g, row in enumerate(x):
        cp.add_exactly_one(row)
        for d in np.flatnonzero(~model.allowed[g]).tolist():
            cp.add(row[d] == 0)
    for d in range(model.devices):
        terms = [int(model.weight[g, d] / unit) * x[g][d] for g in range(model.count) if model.allowed[g, d]]
        for e in np.flatnonzero(model.hop[:, d] > 0).tolist():
            cut = cp.new_bool_var("")
            first, *rest = model.pins[e].tolist()
            for g in rest:
                cp.add_bool_or(cut, x[first][d], x[g][d].negated())
                cp.add_bool_or(cut, x[first][d].negated(), x[g][d])
            terms.append(int(model.hop[e, d] / unit) * cut)
        cp.add(sum(terms) <= most)
    if model.has_memory:
        for d in range(model.devices):
            used = sum(int(model.state[g]) * x[g][d] for g in range(model.count))
            for h, size in enumerate(model.held_bytes.tolist()):
                here = cp.new_bool_var("")
                cp.add_max_equality(here, [x[g][d] for g in model.held[h].tolist()])
                used += size * here
            cp.add(used <= int(model.capacity[d]))
    cp.minimize(most)
    solver = cp_sat_solver(max(0.01, time_limit_s), seed, 2)
    status = interruptible(lambda: solver.solve(cp), solver.stop_search)
    if status == cp_model.INFEASIBLE:
        return value, None
    bound = min(value, solver.best_objective_bound * unit)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return max(0.0, bound), None
    where = np.array([[solver.boolean_value(v) for v in row] for row in x], bool).argmax(axis=1)
    return max(0.0, bound), where.astype(np.int64)
