"""The best order of a few tasks, or a better one than is known, by constraint programming."""

from __future__ import annotations

from collections.abc import Sequence

from netsplit.interrupts import cp_sat_solver, interruptible
from netsplit.program.schedules.rows import TaskRows

__all__ = ["cp_sat_order"]

_UNITS = 10_000  # integer units in the makespan that is known


def cp_sat_order(rows: TaskRows, known: Sequence[int], work: float) -> list[int]:
    """An order of the tasks, as good as the known one or better.

    Args:
        work: the solver's own deterministic measure of it, about seconds: the answer is the same everywhere.
    """
    from ortools.sat.python import cp_model

    most, start = rows.starts(known)
    if most <= 0.0:
        return list(known)
    unit = most / _UNITS
    lasts = [round(seconds / unit) for seconds in rows.seconds]
    cp = cp_model.CpModel()
    horizon = 2 * _UNITS + len(known)
    begins = [cp.new_int_var(0, horizon, "") for _ in known]
    total = cp.new_int_var(0, horizon, "")
    for t, before in enumerate(rows.before):
        cp.add(begins[t] + lasts[t] <= total)
        for u, delay in before:
            cp.add(begins[t] >= begins[u] + lasts[u] + round(delay / unit))
        cp.add_hint(begins[t], round(start[t] / unit))
    for d, limit in enumerate(rows.limit):
        own = [t for t in known if rows.device[t] == d]
        cp.add_no_overlap([cp.new_fixed_size_interval_var(begins[t], max(lasts[t], 1), "") for t in own])
        counted = [t for t in own if rows.change[t]]
        if sum(rows.change[t] > 0 for t in counted) > limit:
            times = [begins[t] + (0 if rows.change[t] > 0 else lasts[t]) for t in counted]
            cp.add_reservoir_constraint(times, [rows.change[t] for t in counted], 0, limit)
    cp.minimize(total)
    solver = cp_sat_solver(60.0, 0, 1)
    solver.parameters.max_deterministic_time = work
    status = interruptible(lambda: solver.solve(cp), solver.stop_search)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return list(known)
    place = {t: n for n, t in enumerate(known)}
    order = sorted(known, key=lambda t: (solver.value(begins[t]), place[t]))
    return order if rows.within(order) and rows.starts(order)[0] <= most else list(known)
