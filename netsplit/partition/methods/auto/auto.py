"""`auto`: a portfolio of methods, annealing from the best of them, and a proven bound beside it.

portfolio ──► starts ──► annealing, fewer and longer ──► best placement ──┐
                               one core                                  ├─► objective, bound, gap
lower bound ◄── relaxations, CP-SAT ──────────────── the other core ──────┘
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from netsplit.errors import ConfigError
from netsplit.partition.base import Partitioner, Placement, Problem, SolverReport, Status
from netsplit.partition.common.capacity import check_capacity, infeasible
from netsplit.partition.common.instance import Instance
from netsplit.partition.common.priority import topological_priority

__all__ = ["Auto"]

PROVEN = 1e-6  # relative gap that counts as none: costs are measured to fewer digits
RESERVE = 0.04  # of the time, for what follows the search


@dataclass(frozen=True)
class Auto(Partitioner):
    """The best placement that the known methods and a search from them find, with a proven bound.

    - ``latency``: the portfolio's answers and others are annealed on the very step that the simulator has
      under ``single_batch`` (`anneal`), while the other core proves a bound (`latency_bounds`, and
      `netsplit_exact` where the graph is small enough).
    - ``simulated``: the same on one step and the periods of the further micro-batches; the best found are
      simulated under the schedule, and the best of those is improved by moves that are simulated too.
    - ``max_load``: `max_load.solve_max_load`; for PipeDream files `stage_time.best_stages`.

    Never worse than a method of its portfolio (beyond 1,000 nodes that is `pipedream` with fewer states,
    beyond 10,000 edges without `m_sct`). The search counts its moves, so that the same seed gives
    the same answer unless the clock ends it first (the report's notes then say ``stopped: time``) or the
    prover, which works against the clock, finds a better one.
    """

    time_limit_s: float = 30.0
    starts: int = 16  # annealed at first; then fewer and longer

    name = "auto"
    optimises = "the objective asked for"

    def __post_init__(self) -> None:
        if not self.time_limit_s > 0:
            raise ConfigError(f"auto.time_limit_s is {self.time_limit_s}: give more than 0 seconds.")
        if self.starts < 1:
            raise ConfigError(f"auto.starts is {self.starts}: give 1 or more.")

    def partition(self, problem: Problem) -> Placement:
        started = time.perf_counter()
        check_capacity(problem, self.name)
        limit_s = problem.time_limit_s or self.time_limit_s
        deadline = started + (1 - RESERVE) * limit_s
        if problem.objective == "max_load":
            placement = _max_load(problem, deadline)
        else:
            placement = self._searched(problem, deadline)
        report = replace(placement.report, seconds=time.perf_counter() - started)
        return replace(placement, method=self.name, report=report)

    def _searched(self, problem: Problem, deadline: float) -> Placement:
        from netsplit.partition.methods.auto.prover import Prover
        from netsplit.partition.methods.auto.search import Search

        search = Search(problem, self.starts, deadline)
        search.compile()
        prover = None if search.simulated else Prover(search)
        found = search.run(prover)
        if found is None:
            raise infeasible(problem, self.name)
        names = search.instance.names
        rank = {names[int(v)]: float(i) for i, v in enumerate(found.order)}
        notes = {"found_by": found.source, **search.notes, **({} if prover is None else prover.notes)}
        bound_s = None if prover is None else prover.bound_s
        return Placement(
            method=self.name,
            device_of=search.instance.decode(found.where),
            priority=topological_priority(problem.graph, rank),
            report=_report("feasible", found.value_s, bound_s, "latency", "", notes),
        )


def _max_load(problem: Problem, deadline: float) -> Placement:
    left_s = deadline - time.perf_counter()
    if problem.stage_time:
        from netsplit.partition.methods.pipedream.stage_time import best_stages

        placement = best_stages(problem, left_s)
        report = placement.report
        notes = {**report.notes, "bound_for": "max_load"}
        return replace(placement, report=replace(report, notes=notes))
    from netsplit.partition.max_load import solve_max_load

    instance = Instance.of(problem)
    answer = solve_max_load(instance, left_s, seed=problem.seed, contiguous=problem.contiguous)
    if answer.where is None:
        raise infeasible(problem, Auto.name)
    value_s, bound_s = answer.value_s, answer.bound_s
    return Placement(
        method=Auto.name,
        device_of=instance.decode(answer.where),
        priority=topological_priority(problem.graph, problem.graph.position),
        report=_report(answer.status, value_s, bound_s, "max_load", answer.engine, answer.notes),
    )


def _report(
    status: Status, value_s: float, bound_s: float | None, kind: str, engine: str, notes: dict[str, Any]
) -> SolverReport:
    if bound_s is None:
        return SolverReport(status, 0.0, engine, value_s, notes=notes)
    bound_s = min(bound_s, value_s)
    gap = (value_s - bound_s) / value_s if value_s > 0 else 0.0
    status = "optimal" if gap <= PROVEN else status
    return SolverReport(status, 0.0, engine, value_s, bound_s, gap, {"bound_for": kind, **notes})
