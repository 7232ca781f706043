"""`netsplit_exact`: the placement and order of least latency, or of least load, with proof (CP-SAT)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any, TypeAlias

import numpy as np

from netsplit.interrupts import cp_sat_solver, interruptible
from netsplit.partition.base import Latency, Problem
from netsplit.partition.bounds.iteration_bound import iteration_bound_s
from netsplit.partition.bounds.iteration_tasks import AnySchedule
from netsplit.partition.common.capacity import fill_in_order, infeasible
from netsplit.partition.common.instance import Floats, Instance, Ints
from netsplit.partition.common.interchangeable import interchangeable_devices
from netsplit.partition.engines.candidates import candidates, order_of
from netsplit.partition.engines.kernels import CompiledStep
from netsplit.partition.max_load import solve_max_load
from netsplit.partition.methods.baechi.m_topo import MTopo
from netsplit.partition.methods.balanced import Balanced
from netsplit.partition.methods.dpos import Dpos
from netsplit.partition.methods.exact.cp_model import LatencyModel, reachable
from netsplit.partition.methods.exact.cp_schedule import Durations, latency_of, schedule
from netsplit.partition.methods.exact.enumeration import enumerated
from netsplit.partition.methods.heft import Heft
from netsplit.partition.methods.thesis.netsplit import NetSplit
from netsplit.partition.partitioner import Choice, Partitioner
from netsplit.placement.placement import Placement, Status
from netsplit.placement.priority import topological_priority

__all__ = ["ExactAnswer", "NetSplitExact", "as_simulated", "solve_latency"]

Answer: TypeAlias = tuple[Ints, Ints]  # device of each node, nodes in their order

_TICKS = 2_000_000  # of the horizon: what the optimum is exact to, per activity on the critical path
_GAP = 1e-5  # of value and bound at which the full model counts as solved: the last ticks take longest
_NODES = 150  # up to which the full model is built
_PAIRS = 1500  # incomparable pairs of nodes up to which the full model is built


@dataclass(frozen=True, eq=False)
class ExactAnswer:
    """The best placement and order found, and the proof of how good it is."""

    where: Ints | None  # [n] device index; None without a solution
    order: Ints | None  # [n] node indices, first to last; a topological order
    value_s: float  # the schedule's own length, from unrounded seconds; inf without a solution
    bound_s: float  # no placement and order take less
    status: Status
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class NetSplitExact(Partitioner):
    """Minimise the problem's objective itself; the report's bound is a proof for it.

    Latency: the CP-SAT model of `cp_model.LatencyModel` has the semantics of the simulator under
    `single_batch` with every operator timed on its own, but for three things that only delay: instruction
    overheads, NICs, and that a transfer waits for its receiver too. Its bound holds, its answer is measured
    as the simulator does, and on graphs of up to 8 nodes all orders are tried where the two differ
    (`enumeration`). The best of some heuristics is its complete hint, and its answer above 150 nodes or 1500
    incomparable pairs of them, where the model is not built; the bound is then that of work and paths
    (`iteration_bound`).
    `max_load` is `max_load.solve_max_load`. For `simulated`, latency is minimised and no bound claimed.

    Status "limit" says that nothing was found in time and the answer is the fill in topological order.
    """

    time_limit_s: float = 60.0
    workers: int = 2  # searches that take turns: the answer does not depend on the machine's load

    name = "netsplit_exact"
    optimises = "latency or max_load, exactly"

    def __post_init__(self) -> None:
        self.require_time_limit()
        self.require("workers", self.workers >= 1, "1 or more")

    def choose(self, problem: Problem) -> Choice:
        return problem.objective.solved_by(_ExactSolvers(self, problem, time.perf_counter()))


@dataclass(frozen=True)
class _ExactSolvers:
    method: NetSplitExact
    problem: Problem
    started: float

    def latency(self) -> Choice:
        answer, choice = self._least_latency()
        bound_s = max(answer.bound_s, iteration_bound_s(self.problem, AnySchedule()))
        return replace(
            choice,
            status=answer.status,
            objective_s=answer.value_s,
            bound_s=min(bound_s, answer.value_s),
            bound_for=Latency.bound_key,
        )

    def iteration(self) -> Choice:
        return self._least_latency()[1]

    def max_load(self, contiguous: bool) -> Choice:
        instance = Instance.of(self.problem)
        left_s = self.started + self._limit_s - time.perf_counter()
        return solve_max_load(instance, left_s, self.problem.seed, contiguous).choice(instance)

    def stage_time(self, contiguous: bool) -> Choice:
        return self.max_load(contiguous)

    @property
    def _limit_s(self) -> float:
        return self.problem.time_limit_s or self.method.time_limit_s

    def _least_latency(self) -> tuple[ExactAnswer, Choice]:
        """The answer, and a choice which claims nothing of its value."""
        problem, instance = self.problem, Instance.of(self.problem)
        deadline = self.started + 0.97 * self._limit_s
        hint = _known(problem, instance, self.started + 0.2 * self._limit_s)
        left_s = deadline - time.perf_counter()
        answer = solve_latency(instance, left_s, problem.seed, hint, workers=self.method.workers)
        answer = as_simulated(instance, answer, hint, deadline)
        if answer.where is None or answer.order is None:
            raise infeasible(problem, self.method.name)
        key = {instance.names[int(v)]: float(i) for i, v in enumerate(answer.order)}
        where = instance.decode(answer.where)
        return answer, Choice(
            where, key, status="feasible", engine=f"cp-sat {version('ortools')}", notes=answer.notes
        )


def _known(problem: Problem, instance: Instance, deadline: float) -> Answer | None:
    """The best answer of the heuristics that fits, as the simulator has it."""
    step = CompiledStep(instance)

    def value_s(placement: Placement) -> float:
        return step.makespan_s(instance.encode(placement.device_of), order_of(instance, placement))

    heuristics = (MTopo(), Balanced(), Heft(), Dpos(), NetSplit())
    fitting = [e for e in candidates(problem, instance, heuristics, value_s, deadline) if e.fits]
    if not fitting:
        return None
    best = min(fitting, key=lambda each: each.value_s)
    return best.where, order_of(instance, best.placement)


def as_simulated(
    instance: Instance, answer: ExactAnswer, hint: Answer | None, deadline: float
) -> ExactAnswer:
    """The answer with the simulator's seconds; the hint or a list schedule where that is better."""
    if answer.where is None or answer.order is None:
        return answer
    step = CompiledStep(instance)
    tried = [(answer.where, answer.order), (answer.where, step.list_schedule(answer.where))]
    tried += [hint] if hint is not None else []
    value, where, order = min(((step.makespan_s(*each), *each) for each in tried), key=lambda each: each[0])
    bound, notes = answer.bound_s, answer.notes
    if bound < value * (1 - _GAP):
        every = enumerated(instance, where, order, deadline)
        if every is not None:
            where, order, value, complete = every
            bound = value if complete else bound
            notes = {**notes, "enumerated": complete}
    status: Status = answer.status
    if status in ("optimal", "feasible"):
        status = "optimal" if bound >= value * (1 - 2 * _GAP) else "feasible"
    return ExactAnswer(where, order, value, min(bound, value), status, notes)


def solve_latency(
    instance: Instance,
    time_limit_s: float,
    seed: int = 0,
    hint: Answer | None = None,
    workers: int = 2,
) -> ExactAnswer:
    """The least latency over all placements and orders, as far as the time allows.

    Args:
        instance: the problem as arrays.
        time_limit_s: seconds of all of it, building the model included.
        seed: of the search.
        hint: a feasible answer to start from; the result is never worse.
        workers: of CP-SAT; they take turns, so that the same search gives the same answer.

    Returns:
        Status "infeasible" where no placement fits, "limit" without a proof
        where the answer is None or a fill in topological order.
    """
    deadline = time.perf_counter() + time_limit_s
    if instance.n == 0:
        empty = np.zeros(0, np.int64)
        return ExactAnswer(empty, empty, 0.0, 0.0, "optimal")
    start = hint or _filled(instance)
    value = latency_of(instance, *start) if start else float("inf")
    if not completely_modelled(instance):
        if start is None:
            return ExactAnswer(None, None, float("inf"), 0.0, "limit")
        return ExactAnswer(*start, value, 0.0, "feasible")
    search = _FullModelSearch(instance, min(value, instance.serial_s), seed, workers)
    answer = search.run(start, deadline)
    if start is None or answer.status == "infeasible":
        return answer
    if answer.where is None:
        status: Status = "feasible" if hint else "limit"
        return ExactAnswer(*start, value, min(answer.bound_s, value), status, answer.notes)
    if answer.value_s > value:  # rounding to ticks may hide a small difference
        answer = replace(answer, where=start[0], order=start[1], value_s=value)
    return replace(answer, bound_s=min(answer.bound_s, answer.value_s))


def completely_modelled(instance: Instance) -> bool:
    """Whether the graph is small enough for the complete model."""
    return instance.n <= _NODES and _incomparable(instance) <= _PAIRS


def _by_end(instance: Instance, order: Ints, ends: Floats) -> Ints:
    """The order by ends of forwards: then no sender waits for its receiver to come to the receive."""
    at = np.argsort(order, kind="stable")
    rank = np.lexsort((at, ends)).argsort().astype(float)
    keys = dict(zip(instance.names, rank.tolist(), strict=True))
    sorted_ = topological_priority(instance.problem.graph, keys)
    return np.array(sorted(range(instance.n), key=lambda v: sorted_[instance.names[v]]), np.int64)


class _FullModelSearch:
    """One run of the full model."""

    def __init__(
        self,
        instance: Instance,
        most_s: float,
        seed: int,
        workers: int,
    ) -> None:
        self.instance, self.seed, self.workers = instance, seed, workers
        self.tick_s = most_s / _TICKS if most_s > 1e-200 else 1.0
        durations = Durations.ticks(instance, self.tick_s)
        self.built = LatencyModel(instance, durations, _TICKS + 1)

    def run(self, start: Answer | None, deadline: float) -> ExactAnswer:
        from ortools.sat.python import cp_model

        instance, built = self.instance, self.built
        if start is not None:
            where = canonical(instance, start[0])
            built.hint(where, start[1], schedule(instance, where, start[1], built.d))
        solver = cp_sat_solver(max(0.01, deadline - time.perf_counter()), self.seed, self.workers)
        solver.parameters.interleave_search = self.workers > 1
        solver.parameters.relative_gap_limit = _GAP
        code = interruptible(lambda: solver.solve(built.model), solver.stop_search)
        notes = {"incomparable_pairs": _incomparable(instance), "tick_s": self.tick_s}
        bound_s = max(0.0, solver.best_objective_bound) * self.tick_s
        if code == cp_model.INFEASIBLE:
            return ExactAnswer(None, None, float("inf"), float("inf"), "infeasible", notes)
        if code not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return ExactAnswer(None, None, float("inf"), bound_s, "limit", notes)
        where = np.array(
            [next(d for d in built.devices if solver.value(row[d])) for row in built.x], np.int64
        )
        order = np.argsort([solver.value(p) for p in built.pos], kind="stable").astype(np.int64)
        value = latency_of(instance, where, order)
        known = schedule(instance, where, order)
        sorted_ = _by_end(
            instance,
            order,
            np.array([known.forward[v] + instance.forward_s[v, where[v]] for v in range(instance.n)]),
        )
        if latency_of(instance, where, sorted_) <= value:
            order, value = sorted_, latency_of(instance, where, sorted_)
        status: Status = "optimal" if code == cp_model.OPTIMAL else "feasible"
        return ExactAnswer(where, order, value, min(bound_s, value), status, notes)


def canonical(instance: Instance, where: Sequence[int] | Ints) -> Ints:
    """The same placement with devices that may swap names named in the order of their first atoms."""
    where = np.asarray(where, np.int64)
    first = [int(instance.atom_of[where == p].min(initial=instance.n)) for p in range(len(instance.devices))]
    name = np.arange(len(instance.devices))
    for alike in interchangeable_devices(instance):
        for to, p in zip(alike, sorted(alike, key=lambda p: first[p]), strict=True):
            name[p] = to
    return np.asarray(name[where])


def _filled(instance: Instance) -> Answer | None:
    """The fill of the devices in topological order, where it fits."""
    problem = instance.problem
    filled = fill_in_order(problem, [device.capacity_bytes for device in problem.cluster.devices])
    if filled is None:
        return None
    rank = topological_priority(problem.graph, problem.graph.position)
    order = sorted(range(instance.n), key=lambda v: rank[instance.names[v]])
    return instance.encode(filled), np.array(order, np.int64)


def _incomparable(instance: Instance) -> int:
    return instance.n * (instance.n - 1) // 2 - int(reachable(instance).sum())
