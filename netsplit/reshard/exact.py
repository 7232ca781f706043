"""Senders and an order by constraint programming (AlpaComm, equations 1 to 3)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from netsplit.interrupts import cp_sat_solver, interruptible
from netsplit.reshard.host_schedule import HostSchedule, HostTask, timed

__all__ = ["exact"]

_UNITS = 1_000_000  # integer units in the seconds that are known
_WORK = 10.0


def exact(tasks: Sequence[HostTask], known: HostSchedule, seed: int = 0, work: float = _WORK) -> HostSchedule:
    """The best schedule, to one part in a million a task, or the best that was met; never above the known.

    Args:
        work: the solver's own deterministic measure of it, about seconds: the answer is the same everywhere.
    """
    from ortools.sat.python import cp_model

    if known.seconds <= 0.0:
        return replace(known, proven=True)
    unit = known.seconds / _UNITS
    cp = cp_model.CpModel()
    total = cp.new_int_var(0, _UNITS + len(tasks), "total")
    nics: dict[tuple[str, bool], list[Any]] = defaultdict(list)
    begins, sends = [], []
    for i, task in enumerate(tasks):
        begin = cp.new_int_var(0, _UNITS + len(tasks), "")
        senders = [cp.new_bool_var("") for _ in task.senders]
        cp.add_exactly_one(senders)
        cp.add_hint(begin, round(known.starts[i] / unit))
        for s, sender in enumerate(senders):
            units = round(task.seconds[s] / unit)
            interval = cp.new_optional_fixed_size_interval_var(begin, units, sender, "")
            nics[task.senders[s], True].append(interval)
            for host in task.receivers:
                nics[host, False].append(interval)
            cp.add(total >= begin + units).only_enforce_if(sender)
            cp.add_hint(sender, s == known.chosen[i])
        begins.append(begin)
        sends.append(senders)
    for intervals in nics.values():
        cp.add_no_overlap(intervals)
    cp.minimize(total)
    solver = cp_sat_solver(600.0, seed, 1)
    solver.parameters.max_deterministic_time = work
    status = interruptible(lambda: solver.solve(cp), solver.stop_search)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return known
    chosen = [next(s for s, each in enumerate(senders) if solver.value(each)) for senders in sends]
    order = sorted(range(len(tasks)), key=lambda i: (solver.value(begins[i]), i))
    best = min(known, timed(tasks, order, chosen), key=lambda each: each.seconds)
    return replace(best, proven=status == cp_model.OPTIMAL)
