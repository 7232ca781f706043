"""`netsplit_exact`: the placement and order of least latency, or of least load, with proof (CP-SAT)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

from netsplit.graph.quotient import topological_priority
from netsplit.partition.base import Latency, Problem
from netsplit.partition.bounds.iteration_bound import iteration_bound_s
from netsplit.partition.bounds.iteration_tasks import AnySchedule
from netsplit.partition.common.instance import Instance, Ints
from netsplit.partition.engines.kernels import CompiledStep
from netsplit.partition.max_load import solve_max_load
from netsplit.partition.methods.baechi.baechi import MTopo
from netsplit.partition.methods.baselines import Balanced
from netsplit.partition.methods.exact.cp_model import LatencyModel, reachable
from netsplit.partition.methods.list_schedulers import Dpos, Heft
from netsplit.partition.methods.thesis.netsplit import NetSplit
from netsplit.partition.objectives import Period
from netsplit.partition.partitioner import (
    Choice,
    Partitioner,
    candidates,
    infeasible,
    order_of,
)
from netsplit.placement.placement import Placement, Status

__all__ = ["ExactAnswer", "NetSplitExact", "completely_modelled", "serial_seconds", "solve_latency"]

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
    value_s: float  # as the simulator has it; inf without a solution
    bound_s: float  # no placement and order take less
    status: Status
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class NetSplitExact(Partitioner):
    """Minimise the problem's objective itself; the report's bound is a proof for it.

    Latency: the CP-SAT model of `cp_model.LatencyModel` has the semantics of the simulator under
    `single_batch`, but for what only delays (instruction overheads, NICs, waiting receivers), so its bound
    holds. The best of some heuristics is its hint, and its answer above 150 nodes or 1500 incomparable pairs
    of them, where the model is not built; the bound is then that of work and paths (`iteration_bound`).
    `max_load` is `max_load.solve_max_load`. For `simulated`, latency is minimised and no bound claimed.
    """

    time_limit_s: float = 60.0
    workers: int = 2  # searches that take turns: the answer does not depend on the machine's load

    name = "netsplit_exact"
    optimises = "latency or max_load, exactly"

    def __post_init__(self) -> None:
        self.require_time_limit()
        self.require("workers", self.workers >= 1, "1 or more")

    def choose(self, problem: Problem) -> Choice:
        began, limit_s = time.perf_counter(), problem.time_limit_s or self.time_limit_s
        instance, objective = Instance.of(problem), problem.objective
        if isinstance(objective, Period):
            return solve_max_load(instance, limit_s, problem.seed, objective.contiguous)
        hint = _known(problem, instance, began + 0.2 * limit_s)
        left_s = began + 0.97 * limit_s - time.perf_counter()
        answer = solve_latency(instance, left_s, problem.seed, hint, workers=self.workers)
        if answer.where is None or answer.order is None:
            raise infeasible(problem, self.name)
        choice = Choice(
            instance.decode(answer.where),
            {instance.names[int(v)]: float(i) for i, v in enumerate(answer.order)},
            status="feasible",
            engine=f"cp-sat {version('ortools')}",
            notes=answer.notes,
        )
        if objective.scheduled:  # of which latency says nothing
            return choice
        bound_s = iteration_bound_s(problem, AnySchedule())
        if problem.simulator is None or not problem.simulator.hands_on:  # the model knows no exchanges
            bound_s = max(bound_s, answer.bound_s)
        closed = answer.status == "feasible" and bound_s >= answer.value_s * (1 - 2 * _GAP)
        return replace(
            choice,
            status="optimal" if closed else answer.status,
            objective_s=answer.value_s,
            bound_s=min(bound_s, answer.value_s),
            bound_for=Latency.bound_key,
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
        Status "infeasible" where no placement fits, "limit" where there is no answer.
    """
    deadline = time.perf_counter() + time_limit_s
    if instance.n == 0:
        empty = np.zeros(0, np.int64)
        return ExactAnswer(empty, empty, 0.0, 0.0, "optimal")
    step = CompiledStep(instance)
    tried, bound_s, notes = [] if hint is None else [hint], 0.0, dict[str, Any]()
    if completely_modelled(instance):
        most_s = min([serial_seconds(instance), *(step.makespan_s(*each) for each in tried)])
        answers, bound_s, notes["tick_s"] = _search(instance, most_s, hint, deadline, seed, workers)
        if answers is None:
            return ExactAnswer(None, None, float("inf"), float("inf"), "infeasible", notes)
        tried = [*answers, *tried]
        if answers:
            tried.append((answers[0][0], step.evaluate(answers[0][0])[1]))
    if not tried:
        return ExactAnswer(None, None, float("inf"), bound_s, "limit", notes)
    value_s, where, order = min(((step.makespan_s(*each), *each) for each in tried), key=itemgetter(0))
    status: Status = "optimal" if bound_s >= value_s * (1 - 2 * _GAP) else "feasible"
    return ExactAnswer(where, order, value_s, min(bound_s, value_s), status, notes)


def serial_seconds(instance: Instance) -> float:
    """No placement with any order takes longer: everything one after the other, at its slowest."""
    latency, pace = np.unique([instance.latency_s.ravel(), instance.seconds_per_byte.ravel()], axis=1)
    transfers = np.max(latency + instance.nbytes[:, None] * pace, axis=1, initial=0.0)
    copies = np.minimum(np.diff(instance.consumers.starts), max(len(instance.devices) - 1, 0))
    nodes = (instance.forward_s + instance.backward_s + instance.step_s).max(axis=1, initial=0.0)
    return float(nodes.sum() + (transfers * copies * (1 + instance.requires_backward)).sum())


def completely_modelled(instance: Instance) -> bool:
    """Whether the graph is small enough for the complete model."""
    return instance.n <= _NODES and _incomparable(instance) <= _PAIRS


def _search(
    instance: Instance, most_s: float, start: Answer | None, deadline: float, seed: int, workers: int
) -> tuple[list[Answer] | None, float, float]:
    """What the complete model finds of at most so many seconds, its bound, and the seconds of a tick.

    An answer is given in the model's order, and by the ends of forwards, by which no sender waits for its
    receiver to come to the receive. None: there is none.
    """
    tick_s = most_s / _TICKS if most_s > 1e-200 else 1.0
    built = LatencyModel(instance, tick_s, _TICKS + 1)
    if start is not None:
        built.hint(*start)
    solved = built.solve(deadline - time.perf_counter(), seed, workers, _GAP)
    bound_s = max(0.0, solved.bound) * tick_s
    if solved.where is None:
        return None if solved.infeasible else [], bound_s, tick_s
    where = solved.where[instance.atom_of]
    rank, ends = (np.array([solved.solver.value(t) for t in own]) for own in (built.pos, built.forward_end))
    key = dict(zip(instance.names, np.lexsort((rank, ends)).argsort().tolist(), strict=True))
    order = topological_priority(instance.problem.graph, key)  # as far as edges and units allow
    by_end = np.argsort([order[name] for name in instance.names]).astype(np.int64)
    return [(where, np.argsort(rank)), (where, by_end)], bound_s, tick_s


def _incomparable(instance: Instance) -> int:
    return instance.n * (instance.n - 1) // 2 - int(reachable(instance).sum())
