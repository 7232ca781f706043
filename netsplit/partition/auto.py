"""`auto`: a portfolio of methods, annealing from the best of them, and a proven bound beside it.

portfolio ──► starts ──► annealing in rounds ──► best placement ──┐
                             one core                            ├─► objective, bound, gap
lower bound ◄── relaxations, CP-SAT ─────────── the other core ──┘
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from netsplit.errors import ConfigError
from netsplit.partition.base import Partitioner, Placement, Problem, SolverReport, Status
from netsplit.partition.capacity import check_capacity, infeasible
from netsplit.partition.instance import Instance, Ints
from netsplit.partition.portfolio import Candidate, candidates
from netsplit.partition.priority import topological_priority

if TYPE_CHECKING:
    from netsplit.partition.anneal import Annealed

__all__ = ["Auto"]

log = logging.getLogger(__name__)

PORTFOLIO = (
    "single", "m_topo", "balanced", "layerwise", "heft", "dpos", "m_etf", "m_sct", "round_robin", "pipedream",
    "pesto", "netsplit",
)  # fmt: skip
NODES_A_SECOND = 6.0e6  # visited by annealing on a slow core: its moves are counted, not timed
MOVES_A_CHOICE = 1500  # of an atom and a device, in one round: more of them find nothing new
PROVEN = 1e-6  # relative gap that counts as none: costs are measured to fewer digits
RESERVE = 0.04  # of the time, for what follows the search
WARM = 4  # rounds before the prover starts: its relaxations need a good incumbent
SLICES = (0.4, 0.6)  # of the time left, each for one relaxation; the rest is for the complete model
LEAST_S = 0.3  # no proof is begun with less


@dataclass(frozen=True)
class Auto(Partitioner):
    """The best placement that the known methods and a search from them find, with a proven bound.

    - ``latency``: the portfolio's answers and their list schedules are annealed on the very step that the
      simulator has under ``single_batch`` (`anneal`), while the other core proves a bound
      (`latency_bounds`, and `netsplit_exact` where the graph is small enough).
    - ``simulated``: the same on one step and the periods of the further micro-batches; the best found are
      simulated under the schedule, and the best of those is improved by moves that are simulated too.
    - ``max_load``: `max_load.solve_max_load`; for PipeDream files `stage_time.best_stages`.

    Never worse than a method of its portfolio. The search counts its moves, so that the same seed gives
    the same answer unless the time limit ends it first; the report's notes then say ``stopped: time``.
    """

    time_limit_s: float = 30.0
    rounds: int = 12  # annealing runs: from the portfolio's best, then from the best so far

    name = "auto"
    optimises = "the objective asked for"

    def __post_init__(self) -> None:
        if not self.time_limit_s > 0:
            raise ConfigError(f"auto.time_limit_s is {self.time_limit_s}: give more than 0 seconds.")
        if self.rounds < 1:
            raise ConfigError(f"auto.rounds is {self.rounds}: give 1 or more.")

    def partition(self, problem: Problem) -> Placement:
        started = time.perf_counter()
        check_capacity(problem, self.name)
        limit_s = problem.time_limit_s or self.time_limit_s
        deadline = started + (1 - RESERVE) * limit_s
        if problem.objective == "max_load":
            placement = _max_load(problem, deadline)
        else:
            placement = _Latency(self, problem, started, deadline).partition()
        report = replace(placement.report, seconds=time.perf_counter() - started)
        return replace(placement, method=self.name, report=report)


def _max_load(problem: Problem, deadline: float) -> Placement:
    left_s = deadline - time.perf_counter()
    if problem.stage_time:
        from netsplit.partition.stage_time import best_stages

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


@dataclass
class _Best:
    """The best so far, shared by the two threads."""

    where: Ints | None = None
    order: Ints | None = None
    value_s: float = float("inf")
    source: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def offer(self, where: Ints, order: Ints, value_s: float, source: str) -> None:
        with self.lock:
            if value_s < self.value_s:
                self.where, self.order, self.value_s, self.source = where, order, value_s, source
                log.info("auto: %.6g s by %s", value_s, source)


class _Latency:
    """The search for ``latency`` and ``simulated``."""

    def __init__(self, method: Auto, problem: Problem, started: float, deadline: float) -> None:
        from netsplit.partition.anneal import Annealer

        self.method, self.problem, self.started, self.deadline = method, problem, started, deadline
        self.instance = Instance.of(problem)
        self.simulated = problem.objective == "simulated" and problem.evaluate is not None
        self.annealer = Annealer(self.instance, problem.in_flight - 1.0 if self.simulated else 0.0)
        self.best = _Best()
        self.found: list[Candidate] = []
        self.notes: dict[str, Any] = {}
        self.results: list[Annealed] = []
        self.more: list[Ints] = []  # starts that the prover found
        self.warm = threading.Event()

    def partition(self) -> Placement:
        clock = threading.Timer(max(0.0, self.deadline - time.perf_counter()), self.stop)
        clock.daemon = True
        clock.start()
        prover = None if self.simulated else _Prover(self)
        if prover is not None:
            prover.start()
        try:
            self._portfolio()
            self._anneal()
            if self.simulated:
                self._simulate()
            if prover is not None:
                prover.finish()
        finally:
            clock.cancel()
            self.stop()
        if self.best.where is None or self.best.order is None:
            raise infeasible(self.problem, self.method.name)
        return self._placement(self.best.where, self.best.order, prover)

    def _portfolio(self) -> None:
        until = self.started + 0.3 * (self.deadline - self.started)
        for each in candidates(self.problem, self.instance, PORTFOLIO, self._value_s, until):
            self.found.append(each)
            order = _order_of(self.instance, each.placement)
            if each.fits:
                self.best.offer(each.where, order, each.value_s, each.method)
                value, listed = self.annealer.evaluate(each.where)
                if not self.simulated:
                    self.best.offer(each.where, listed, value, f"{each.method}, list-scheduled")
        self.notes["portfolio"] = {each.method: each.value_s for each in self.found}

    def _anneal(self) -> None:
        """Rounds from the portfolio's best placements in turn, and from the best so far."""
        seeds = np.random.SeedSequence(self.problem.seed % 2**63).spawn(self.method.rounds)
        share = 0.7 if self.simulated else 1.0
        ended = time.perf_counter() + share * max(0.0, self.deadline - time.perf_counter())
        limit_s = self.deadline - self.started
        moves = int(share * NODES_A_SECOND * limit_s / max(20, self.instance.n) / self.method.rounds)
        moves = min(moves, MOVES_A_CHOICE * len(self.instance.atoms) * len(self.instance.devices))
        ranked = sorted(self.found, key=lambda each: (not each.fits, each.value_s, each.method))
        starts = [each.where for each in ranked] or [np.zeros(self.instance.n, np.int64)]
        self.notes["moves"] = 0
        for i, seed in enumerate(seeds):
            if i == WARM:
                self.warm.set()
            if self.annealer.stop[0] or time.perf_counter() > ended:
                self.notes["stopped"] = "time"
                break
            best = self.best.where if i % 2 == 1 else None
            start = starts[(i // 2) % len(starts)] if best is None else best
            heat = 0.1 if best is None else 0.02
            if self.more:
                start, heat = self.more.pop(), 0.02
            answer = self.annealer.run(start, moves, int(seed.generate_state(1)[0]), heat=heat)
            self.notes["moves"] += moves
            self.results.append(answer)
            if np.isfinite(answer.value_s) and not self.simulated:
                self.best.offer(answer.where, answer.order, answer.value_s, "annealing")
        self.warm.set()

    def _simulate(self) -> None:
        """The schedule's own iteration: of what annealing found, and of moves from the best of it."""
        for answer in sorted(self.results, key=lambda each: each.value_s):
            if not np.isfinite(answer.value_s) or time.perf_counter() > self.deadline:
                break
            self._try(answer.where, answer.order, "annealing")
        draw = np.random.default_rng(self.problem.seed % 2**63)
        clusters = [row for i in range(len(self.annealer.clusters)) if len(row := self.annealer.clusters[i])]
        tries = 0
        while self.best.where is not None and time.perf_counter() < self.deadline and tries < 400:
            tries += 1
            atoms = clusters[int(draw.integers(len(clusters)))]
            where = self.best.where.copy()
            where[np.isin(self.instance.atom_of, atoms)] = int(draw.integers(len(self.instance.devices)))
            if not np.array_equal(where, self.best.where) and self.instance.fits(where):
                self._try(where, self.annealer.evaluate(where)[1], "a simulated move")
        self.notes["simulated_moves"] = tries

    def _try(self, where: Ints, order: Ints, source: str) -> None:
        self.best.offer(where, order, self._value_s(self._placement(where, order, None)), source)

    def _value_s(self, placement: Placement) -> float:
        if self.simulated:
            assert self.problem.evaluate is not None
            return float(self.problem.evaluate(placement).iteration_s)
        where = self.instance.encode(placement.device_of)
        return self.annealer.step.makespan_s(where, _order_of(self.instance, placement))

    def _placement(self, where: Ints, order: Ints, prover: _Prover | None) -> Placement:
        rank = {self.instance.names[int(v)]: float(i) for i, v in enumerate(order)}
        notes = {"found_by": self.best.source, **self.notes}
        bound = None if prover is None else prover.bound_s
        if prover is not None:
            notes.update(prover.notes)
        return Placement(
            method=self.method.name,
            device_of=self.instance.decode(where),
            priority=topological_priority(self.problem.graph, rank),
            report=_report("feasible", self.best.value_s, bound, "latency", "", notes),
        )

    def stop(self) -> None:
        self.annealer.stop[0] = 1


class _Prover(threading.Thread):
    """Proves a lower bound while the search runs; on small graphs it may find the optimum itself."""

    def __init__(self, search: _Latency) -> None:
        super().__init__(daemon=True)
        self.search = search
        self.bound_s = 0.0
        self.notes: dict[str, Any] = {}
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._prove()
        except BaseException as error:
            self.error = error

    def finish(self) -> None:
        self.join()
        if self.error is not None:
            raise self.error

    def _prove(self) -> None:
        """Relaxations, each from the incumbent of its time: the better it is, the less they leave open."""
        from netsplit.partition.latency_bounds import relaxation
        from netsplit.partition.netsplit_exact import solve_latency

        search, best = self.search, self.search.best
        search.warm.wait(max(0.0, self._left_s()))
        for rounds, share in enumerate(SLICES, 1):
            if self._left_s() <= LEAST_S or self._closed():
                break
            incumbent_s = best.value_s if np.isfinite(best.value_s) else None
            found = relaxation(
                search.instance, share * self._left_s(), search.problem.seed, incumbent_s, workers=1
            )
            self.bound_s = max(self.bound_s, found.bound_s)
            self.notes["bound"] = {**found.notes, "relaxations": rounds}
            if found.where is not None and search.instance.fits(found.where):
                value, order = search.annealer.evaluate(found.where)
                best.offer(found.where, order, value, "relaxation, list-scheduled")
                search.more.append(found.where)
        if self._left_s() <= LEAST_S or self._closed():
            return
        hint = None if best.where is None or best.order is None else (best.where, best.order)
        answer = solve_latency(search.instance, self._left_s(), search.problem.seed, hint=hint, workers=1)
        self.bound_s = max(self.bound_s, answer.bound_s)
        if answer.where is not None and answer.order is not None and search.instance.fits(answer.where):
            value = search.annealer.step.makespan_s(answer.where, answer.order)
            best.offer(answer.where, answer.order, value, "netsplit_exact")

    def _left_s(self) -> float:
        return self.search.deadline - time.perf_counter()

    def _closed(self) -> bool:
        closed = self.bound_s >= self.search.best.value_s * (1 - PROVEN)
        if closed:
            self.search.stop()
        return closed


def _order_of(instance: Instance, placement: Placement) -> Ints:
    return np.argsort([placement.priority[name] for name in instance.names], kind="stable").astype(np.int64)
