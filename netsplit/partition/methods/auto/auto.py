"""`auto`: a portfolio of methods, annealing from the best of them, and a proven bound beside it.

portfolio ──► starts ──► annealing, fewer and longer ──► best placement ──┐
                               one core                                  ├─► objective, bound, gap
lower bound ◄── work and paths, CP-SAT ───────────── the other core ──────┘

With `splits` the same of whole operators first, then of operators in parts (`in_parts`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from netsplit.graph.arguments import gives_sparse_gradients, storage_of
from netsplit.graph.ir import CALL, INITIALIZER, Graph
from netsplit.partition.base import Latency, Problem
from netsplit.partition.bounds.iteration_bound import iteration_bound_s
from netsplit.partition.bounds.iteration_tasks import AnySchedule
from netsplit.partition.common.instance import Instance, Ints
from netsplit.partition.engines.search import Scheduled, Search
from netsplit.partition.max_load import solve_max_load
from netsplit.partition.methods.auto.in_parts import whole_or_in_parts
from netsplit.partition.methods.auto.large import FAST_METHODS, LARGE, large_answer
from netsplit.partition.methods.baechi.baechi import MTopo
from netsplit.partition.methods.baechi.etf import MEtf, MSct
from netsplit.partition.methods.baselines import Balanced, Ddp, Layerwise, RoundRobin, Single
from netsplit.partition.methods.exact.netsplit_exact import completely_modelled, solve_latency
from netsplit.partition.methods.list_schedulers import Dpos, Heft
from netsplit.partition.methods.pesto.pesto_full import PestoFull
from netsplit.partition.methods.pipedream.best_stages import best_stages
from netsplit.partition.methods.pipedream.pipedream import PipeDream
from netsplit.partition.methods.thesis.netsplit import NetSplit, Pesto
from netsplit.partition.objectives import Period, StageTime
from netsplit.partition.partitioner import Choice, Partitioner, check_capacity

__all__ = ["Auto", "replicable"]

log = logging.getLogger(__name__)

CLOSED = 1e-6  # relative gap at which both may stop
PATIENCE = 0.2  # of the time, for the search to find the first incumbent
LEAST_S = 0.3  # no proof is begun with less


class Prover(threading.Thread):
    """The bound of work and paths, which may end the search; on small graphs `netsplit_exact` follows."""

    def __init__(self, search: Search) -> None:
        super().__init__(daemon=True)
        self.search = search
        self.bound_s = 0.0
        self.small = completely_modelled(search.instance) and not search.hands_on  # it knows no exchanges
        self.answer: Scheduled | None = None
        self.notes: dict[str, Any] = {}

    def run(self) -> None:
        try:
            self.bound_s = iteration_bound_s(self.search.problem, AnySchedule())
            self.search.warm.wait(max(0.0, PATIENCE * self._left_s()))
            if self._goes_on() and self.small:
                self._solve()
        except Exception as error:  # a plan without a proof is better than none
            log.exception("auto: the proof ended early")
            self.notes["proof_failed"] = f"{type(error).__name__}: {error}"

    def finish(self) -> Scheduled | None:
        """Wait for the end; the best answer that the proof came across."""
        self.join()
        return self.answer

    def _solve(self) -> None:
        search = self.search
        best = search.best
        hint: tuple[Ints, Ints] | None = None if best is None else (best.where, best.order)
        answer = solve_latency(search.instance, self._left_s(), search.problem.seed, hint=hint, workers=2)
        self.bound_s = max(self.bound_s, answer.bound_s)
        if answer.where is not None and answer.order is not None and search.instance.fits(answer.where):
            self.answer = Scheduled(answer.where, answer.order, answer.value_s, "netsplit_exact")

    def _left_s(self) -> float:
        return self.search.deadline - time.perf_counter()

    def _goes_on(self) -> bool:
        if self.bound_s >= self.search.value_s * (1 - CLOSED):
            self.search.stop()
            return False
        return self._left_s() > LEAST_S


PROVEN = 1e-6  # relative gap that counts as none: costs are measured to fewer digits
RESERVE = 0.04  # of the time, for what follows the search
COARSE = 1000  # nodes, beyond which the portfolio's `pipedream` takes 400 states: it took 8 s with its own
TANGLED = 10_000  # edges, beyond which `m_sct`, whose relaxation takes seconds, is not in the portfolio


@dataclass(frozen=True)
class Auto(Partitioner):
    """The best placement that the known methods and a search from them find, with a proven bound.

    - ``latency``: the portfolio's answers and others are annealed on the very step that the simulator has
      under ``single_batch`` (`anneal`), while the other core proves a bound (`iteration_bound`, and
      `netsplit_exact` where the graph is small enough).
    - ``simulated``: the same on the iteration under ``gpipe``, ``1f1b`` or ``eager_1f1b``, or the nearest of
      these; then what is found is simulated, and the best of that improved by moves that are simulated too.
    - ``max_load``: `max_load.solve_max_load`; for PipeDream files `best_stages`.

    Never worse than a method of its portfolio by the score that is asked for, replicas included where they
    train what one device trains. The same seed gives the same answer unless the clock ends the search first
    (the report's notes then say ``stopped: time``) or the prover, against the clock, finds a better one.

    With `splits` operators may be in parts, where that is simulated to take less, or where nothing fits
    without: for ``latency`` and ``simulated``. Its bound is of whole operators: an answer in parts has none.
    """

    time_limit_s: float = 30.0
    starts: int = 16  # annealed at first; then fewer and longer
    splits: bool = False  # takes 0.4 of the time from whole operators
    algebra: bool = False  # with splits: operators may be replaced by others

    name = "auto"
    tries_others = True
    optimises = "the objective asked for"

    def __post_init__(self) -> None:
        self.require_time_limit()
        self.require("starts", self.starts >= 1, "1 or more")
        for name in ("splits", "algebra"):
            self.require(name, isinstance(getattr(self, name), bool), "true or false")

    def cuts_operators(self, problem: Problem) -> bool:
        several = problem.simulator is not None and len(problem.cluster.devices) > 1
        return self.splits and several and not isinstance(problem.objective, Period)

    def portfolio(self, problem: Problem) -> Sequence[Partitioner]:
        if isinstance(problem.objective, Period):
            return ()
        if len(problem.graph) > LARGE:
            return FAST_METHODS
        return _portfolio(problem, Instance.of(problem))

    def choose(self, problem: Problem) -> Choice:
        objective, limit_s = problem.objective, (1 - RESERVE) * (problem.time_limit_s or self.time_limit_s)
        if isinstance(objective, StageTime):
            return replace(best_stages(problem, limit_s), bound_for=objective.bound_key)
        if isinstance(objective, Period):
            return _proven(solve_max_load(Instance.of(problem), limit_s, problem.seed, objective.contiguous))

        def of_whole(own: Problem, until: float) -> Choice:
            check_capacity(own, self.name)
            return self._searched(own, until)

        deadline = time.perf_counter() + limit_s
        if self.cuts_operators(problem):
            return whole_or_in_parts(problem, self.starts, deadline, of_whole, self.algebra)
        return of_whole(problem, deadline)

    def _searched(self, problem: Problem, deadline: float) -> Choice:
        simulated = problem.objective.scheduled
        if len(problem.graph) > LARGE:
            return large_answer(problem, self.starts, deadline, simulated)
        methods = _portfolio(problem, Instance.of(problem))
        search = Search(problem, self.starts, deadline, methods, self.name, simulated)
        search.compile()
        prover = None if search.simulated else Prover(search)
        choice = search.choice(search.run(prover))
        if prover is None:
            return choice
        notes = {**choice.notes, **prover.notes}
        return _proven(replace(choice, bound_s=prover.bound_s, bound_for=Latency.bound_key, notes=notes))


def _portfolio(problem: Problem, instance: Instance) -> list[Partitioner]:
    """Methods that take seconds at most on a graph of this size."""
    edges = len(instance.predecessors.items)
    replicates = problem.objective.scheduled and replicable(problem.graph)
    return [
        *([Ddp()] if replicates else []),
        Single(),
        MTopo(),
        Balanced(),
        Layerwise(),
        RoundRobin(),
        Heft(),
        Dpos(),
        MEtf(),
        *([MSct()] if edges <= TANGLED else []),
        PipeDream(max_states=400 if instance.n > COARSE else 1500, straight=not replicates),
        PestoFull(solve=False),
        Pesto(),
        NetSplit(),
    ]


def replicable(graph: Graph) -> bool:
    """Whether replicas train what one device trains, running statistics too: no node writes a buffer, and no
    gradient is sparse.

    What writes has a name that says so, is a normalisation, or a call of Python, of which nothing is known;
    it writes the buffer itself or through a view.
    """
    for node in graph:
        if node.op.startswith(CALL) or gives_sparse_gradients(node):
            return False
        *path, last = node.op.split(".")
        name = (path or [last])[-1]
        writes = last == "out" or name.endswith("_") or "norm" in name
        if not writes:
            continue
        roots = [storage_of(graph, k) for k in node.inputs]
        viewed = [root.removeprefix(INITIALIZER) for root in roots if root.startswith(INITIALIZER)]
        if any(not graph.initializers[k].is_parameter for k in (*node.initializers, *viewed)):
            return False
    return True


def _proven(choice: Choice) -> Choice:
    assert choice.objective_s is not None
    assert choice.bound_s is not None
    closed = choice.objective_s - choice.bound_s <= PROVEN * choice.objective_s
    return replace(choice, status="optimal") if closed else choice
