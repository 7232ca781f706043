"""Starts from many methods, annealed in rounds of fewer and longer runs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any, Protocol

import numpy as np

from netsplit.graph.quotient import topological_priority
from netsplit.interrupts import uncollected
from netsplit.partition.base import Problem
from netsplit.partition.common.instance import Instance, Ints
from netsplit.partition.engines.anneal import SLIGHT, Annealer, Neighbourhood, Scheduled
from netsplit.partition.partitioner import (
    Candidate,
    Choice,
    Partitioner,
    candidates,
    drawn_fills,
    fill_in_order,
    infeasible,
    order_of,
)
from netsplit.placement.exchange import Exchange
from netsplit.placement.placement import Placement, SolverReport
from netsplit.simulate.simulate import simulate
from netsplit.simulate.simulator import ONE_BATCH, Turns, exchanges_to_try

__all__ = ["SLIGHT", "Proof", "Scheduled", "Search"]

log = logging.getLogger(__name__)
_value_s = attrgetter("value_s")

NODES_A_SECOND = 6.0e6  # visited by annealing on a slow core: its moves are counted, not timed,
PACED = 30  # unless so many, timed, say that the clock would end them
MOVES_A_CHOICE = 6000  # of an atom and a device, in one round: more of them find nothing new
ROUNDS = ((1.0, 0.25, 0.06), (0.35, 0.25, 0.03), (0.13, 0.2, 0.02), (0.06, 0.3, 0.01))
"""Fraction of the starts that go on, fraction of all moves, and heat of each round."""
COLD_S = 1.0  # loading takes less, compiling takes more
WIDE = 2  # rounds that use both cores; then one is the prover's
LOOKED, LOOKING = 32, 0.5  # placements that are simulated; more of them for that part of the time
CLIMBED = 8  # of them, from which moves begin; from all of them where every placement was looked at
EVERY = 2**12  # placements, of which each is looked at, and none annealed
ANNEALED = 0.85  # of the time, at most, where what is found must be simulated to count
SCORED = 4  # of annealing's answers
MOST_SCORING = 0.3  # of the time
NEAR = 1.2  # times the least, of answers for which that time is kept
PORTFOLIO = 0.3  # of the time, at most, for the methods
TOLD_S = 5.0  # between two lines of progress


@dataclass(frozen=True)
class _AnnealingRound:
    """One round of annealing."""

    count: int  # starts
    moves: int  # of each
    heat: float
    workers: int

    @property
    def turns(self) -> int:
        """Starts that a core anneals one after another."""
        return -(-self.count // self.workers)


class Proof(Protocol):
    """A thread that works on a bound beside the search, and may come across answers."""

    def start(self) -> None: ...

    def finish(self) -> Scheduled | None:
        """Wait for the end; the best answer that it came across."""


class Search:
    """One search for the least step, or simulated iteration; until `deadline` on ``time.perf_counter``.

    Args:
        methods: whose answers are starts, beside contiguous fills.
        name: of the method that searches, for the log.
        simulated: what `Problem.simulator` says is minimised, where there is one; else the step.
        turns: of the compiled step that is minimised, where `simulator` is to say nothing.
    """

    def __init__(
        self,
        problem: Problem,
        starts: int,
        deadline: float,
        methods: Sequence[Partitioner],
        name: str,
        simulated: bool = False,
        turns: Turns | None = None,
    ) -> None:
        self.problem, self.starts, self.methods, self.name = problem, starts, methods, name
        self.started, self.deadline = time.perf_counter(), deadline
        self.searched = deadline  # or earlier: the rest is for `score`
        self._told = self.started
        self.instance = Instance.of(problem)
        self.simulated = simulated and problem.simulator is not None
        self.metered = turns is None and problem.simulator is not None and problem.memory == "lifetimes"
        """Peaks say what fits."""
        if turns is None and self.simulated and problem.simulator is not None:
            turns = problem.simulator.turns
        self.turns = turns or ONE_BATCH
        self.annealer = Annealer(self.instance, self.turns)
        self.comparable = self.turns.exact  # what is annealed is what is minimised
        compiled = not self.simulated or (self.comparable and not self.metered)
        self.hands_on = compiled and problem.simulator is not None and problem.simulator.hands_on
        """What is scored may take less than the compiled step."""
        guessed = problem.simulator is not None and not (self.simulated or self.comparable)
        self.rescores = self.hands_on or guessed  # the compiled step is not the score
        self.results: list[Scheduled] = []  # of annealing, the best first
        self.move_s = 0.0  # of annealing, as measured last
        self.simulation_s = 0.0  # of a placement, the shortest measured
        self.best: Scheduled | None = None
        self.unreplicated: Scheduled | None = None  # the best of those
        self.finalists: list[Scheduled] = []  # to be scored, where the compiled step is not the score
        self._scores: dict[bytes, Scheduled] = {}
        self.notes: dict[str, Any] = {"moves": 0}
        self.warm = threading.Event()  # a good answer is known, and a core is free
        self._seeds = np.random.SeedSequence(problem.seed % 2**63)

    def compile(self) -> None:
        """Load or compile the inner loops. Compiling, once an installation, is not the search's time."""
        began = time.perf_counter()
        self.annealer.run(np.zeros(self.instance.n, np.int64), 0, seed=0)
        if (spent := time.perf_counter() - began) > COLD_S:
            self.started, self.deadline = self.started + spent, self.deadline + spent
            self.searched = self.deadline

    def run(self, prover: Proof | None) -> Scheduled | None:
        """The best found, by the search or the prover; None where nothing fits."""
        clock: threading.Timer | None = None
        try:
            if prover is not None:
                prover.start()
            until = self.started + PORTFOLIO * (self.deadline - self.started)
            known = self.portfolio(until)
            self.searched -= min(self.scoring_s(), MOST_SCORING * (self.deadline - self.started))
            annealed = ANNEALED if self.simulated else 1.0
            self.stops = self.started + annealed * (self.searched - self.started)
            clock = threading.Timer(max(0.0, self.stops - time.perf_counter()), self.stop)
            clock.daemon = True
            clock.start()
            few = self.simulated and self.annealer.choices <= EVERY
            self.results = sorted(self.annealer.every(), key=_value_s) if few else self._anneal(known)
            if self.simulated:
                self._simulate(self.results, LOOKED if few else CLIMBED)
            self.score(self.deadline)
            if prover is not None:
                proven = prover.finish()
                if proven is not None and proven.value_s < (1 - SLIGHT) * self.value_s:
                    self.offer(proven)
        except BaseException:
            self.deadline = self.started  # for the proof too
            raise
        finally:
            if clock is not None:
                clock.cancel()
            self.stop()
            self.warm.set()
        return self.best

    def choice(self, answer: Scheduled | None) -> Choice:
        """The answer for a `Partitioner`; raises InfeasibleError where there is none."""
        if answer is None:
            raise infeasible(self.problem, self.name)
        return Choice(
            self.instance.decode(answer.where),
            {self.instance.names[int(v)]: float(i) for i, v in enumerate(answer.order)},
            status="feasible",
            objective_s=answer.value_s,
            notes={"found_by": answer.source, **self.notes},
            stages=answer.stages,
            exchanges=answer.exchanges,
        )

    @property
    def value_s(self) -> float:
        return float("inf") if self.best is None else self.best.value_s

    def stop(self) -> None:
        self.annealer.stop[0] = 1

    def scheduled(self, where: Ints, source: str) -> Scheduled:
        """A placement in the order of its list schedule."""
        value, order = self.annealer.step.evaluate(where)
        return Scheduled(where, order, value, source)

    def offer(self, answer: Scheduled, finalist: bool = False) -> None:
        """Take it, if it is the best so far; a `finalist` is seen again by `score` even if it is not."""
        if finalist:
            self.finalists.append(answer)
        if answer.value_s < self.value_s:
            self.best = answer
            self._tell(answer)
            if self.problem.improved is not None:
                self.problem.improved(answer.value_s, answer.source)
        if not answer.stages and (self.unreplicated is None or answer.value_s < self.unreplicated.value_s):
            self.unreplicated = answer

    def scoring_s(self) -> float:
        """Seconds that `score` takes, by what the best method's answer does; none, where it does nothing."""
        if not self.rescores or not self.finalists:
            return 0.0
        first = min(self.finalists, key=_value_s)
        began = time.perf_counter()
        value_s = self._score(first).value_s
        took_s = time.perf_counter() - began
        near = [each for each in self.finalists if each.value_s <= NEAR * first.value_s]
        return took_s * (2 + sum(self._least_s(each) < value_s for each in near))

    def score(self, until: float) -> None:
        """Where the compiled step is not the score: take what is scored least of the best so far, of the
        answers of methods and of annealing, as many as there is time for."""
        if not self.rescores or self.best is None:
            return
        annealed = [each for each in self.results[:SCORED] if np.isfinite(each.value_s)]
        best, began, tried = self._score(self.best), time.perf_counter(), 0
        for each in (*sorted(self.finalists, key=_value_s), *annealed):
            if self._least_s(each) >= best.value_s:
                continue
            now = time.perf_counter()
            if tried and now + (now - began) / tried > until:
                self.notes["not_scored"] = each.source
                break
            tried += 1
            if self._quick_score_s(each) < best.value_s:
                best = min(best, self._score(each), key=_value_s)
        if np.isfinite(best.value_s):
            self.best = best

    def _score(self, answer: Scheduled) -> Scheduled:
        """With the seconds and the exchanges of the simulator."""
        key = answer.where.tobytes() + answer.order.tobytes() + repr(answer.stages).encode()
        if key not in self._scores:
            with uncollected():
                value_s, exchanges = self._scored(self.placement(answer))
            self._scores[key] = replace(answer, value_s=value_s, exchanges=exchanges)
        return self._scores[key]

    def _quick_score_s(self, answer: Scheduled) -> float:
        """Seconds that the score is not below: without peaks, the compiled step beside exchanges."""
        if not self.comparable:
            return 0.0
        simulator, placement = self.problem.the_simulator, self.placement(answer)
        least = answer.value_s
        with uncollected():
            asked = simulator.schedule.exchange
            if exchanges := exchanges_to_try(simulator.graph, simulator.cluster, asked, placement):
                program = simulator.whole_microbatches(replace(placement, exchanges=exchanges))
                tried = simulate(program, simulator.cluster, simulator.costs, peaks=False)
                least = min(least, tried.iteration_s)
        return least

    def _least_s(self, answer: Scheduled) -> float:
        """Seconds that the busiest device computes: no exchange makes it less."""
        if answer.stages:
            return 0.0
        instance = self.instance
        seconds = (instance.forward_s + instance.backward_s)[np.arange(instance.n), answer.where]
        return self.turns.microbatches * float(np.bincount(answer.where, weights=seconds).max())

    def _tell(self, answer: Scheduled) -> None:
        """A line now and then; the answer itself is told at the end."""
        now = time.perf_counter()
        level = logging.INFO if now - self._told > TOLD_S else logging.DEBUG
        self._told = now if level == logging.INFO else self._told
        log.log(level, "%s: best so far %.1f ms (from %s)", self.name, 1e3 * answer.value_s, answer.source)

    def portfolio(self, until: float, patience: float = 0.5) -> list[Candidate]:
        """What the methods answer, each of which is offered.

        Args:
            until: on ``time.perf_counter``: none is begun after it.
            patience: the part of the time until then that each is given.
        """
        tried = []
        filled = fill_in_order(self.problem, self.instance.capacity.tolist())
        if filled is not None:  # whatever the clock does, there is an answer
            where = self.instance.encode(filled)
            self._tried(where, self.annealer.step.evaluate(where)[1], "an in-order fill")
        known = self.problem.known
        if known is not None and known.rewrites == self.problem.graph.rewrites:
            where = self.instance.encode(known.device_of)
            order = order_of(self.instance, known)
            self.offer(Scheduled(where, order, self._value_of(known), "an earlier plan"))
        left_out: dict[str, str] = {}
        for each in candidates(
            self.problem, self.instance, self.methods, self._value_of, until, left_out, patience
        ):
            tried.append(each)
            if self._fits(each):
                order = order_of(self.instance, each.placement)
                stages = each.placement.stages if each.placement.replicas else ()
                self.offer(Scheduled(each.where, order, each.value_s, each.method, stages), finalist=True)
                if not self.simulated:
                    self.offer(self.scheduled(each.where, f"{each.method}, list-scheduled"))
        self.notes["portfolio"] = {each.method: each.value_s for each in tried}
        if left_out:
            self.notes["left_out"] = left_out
        return tried

    def _fits(self, candidate: Candidate) -> bool:
        """By peaks, where these say it; a search for one step admits what is counted to fit, too."""
        if self.simulated and self.metered:
            return bool(np.isfinite(candidate.value_s))
        return candidate.fits or (self.metered and np.isfinite(self._scored(candidate.placement)[0]))

    def _anneal(self, starts: Sequence[Candidate]) -> list[Scheduled]:
        """Successive halving: every start a little, the better ones longer and colder."""
        ranked = sorted(starts, key=lambda each: (not each.fits, each.value_s, each.method))
        places = list({each.where.tobytes(): each.where for each in ranked}.values())
        places = places[: max(1, self.starts // 2)]
        places += [
            self.instance.encode(each) for each in drawn_fills(self.problem, self.starts - len(places))
        ]
        results: list[Scheduled] = []
        rounds = self._rounds(len(places)) if places else []
        if places:
            self.move_time_s(places[0])
        for i, each in enumerate(rounds):
            if i == WIDE:
                self.warm.set()
            moves = self._paced(rounds[i:])
            began = time.perf_counter()
            latest = self.anneal_each(places[: each.count], moves, each.heat, each.workers)
            self.move_s = (time.perf_counter() - began) / (moves * each.turns)
            self.notes["moves"] += moves * each.count
            for one in latest:
                if np.isfinite(one.value_s) and not self.simulated:
                    self.offer(one)
            latest.sort(key=_value_s)
            places = [one.where for one in latest]
            results = sorted([*latest, *results], key=_value_s)
            if self.annealer.stop[0]:
                self.notes["stopped"] = "time"
                break
        self.warm.set()
        return results

    def _rounds(self, starts: int) -> list[_AnnealingRound]:
        fraction = 0.6 if self.simulated else 1.0
        total = fraction * NODES_A_SECOND * (self.deadline - self.started) / max(20, self.instance.n)
        most = MOVES_A_CHOICE * len(self.instance.atoms) * len(self.instance.devices)
        least = 2 if self.simulated else 1  # else the other core is the prover's
        rounds, count = [], starts
        for i, (kept, part, heat) in enumerate(ROUNDS):
            count = count if i == 0 else min(count, max(least, round(kept * self.starts)))
            workers = 2 if i < WIDE else least
            rounds.append(_AnnealingRound(count, max(1, int(min(most, part * total / count))), heat, workers))
        return rounds

    def move_time_s(self, where: Ints) -> float:
        """Seconds of a move, measured."""
        began = time.perf_counter()
        for _ in range(PACED):
            self.annealer.step.evaluate(where)
        self.move_s = (time.perf_counter() - began) / PACED
        return self.move_s

    def _paced(self, rounds: Sequence[_AnnealingRound]) -> int:
        """Moves of the first of these rounds: fewer where the clock would end the last before it is cold."""
        needed_s = self.move_s * sum(each.moves * each.turns for each in rounds)
        part = max(0.0, self.stops - time.perf_counter()) / max(needed_s, 1e-9)
        if part >= 1.0:
            return rounds[0].moves
        self.notes["stopped"] = "time"
        return max(1, int(part * rounds[0].moves))

    def anneal_each(self, places: Sequence[Ints], moves: int, heat: float, workers: int) -> list[Scheduled]:
        """Runs of so many moves, one from each placement; until `stop`."""
        seeds = [int(seed.generate_state(1)[0]) for seed in self._seeds.spawn(len(places))]
        with ThreadPoolExecutor(workers) as pool:
            try:
                runs = [
                    pool.submit(self.annealer.run, place, moves, seed, heat)
                    for place, seed in zip(places, seeds, strict=True)
                ]
                return [run.result() for run in runs]
            except BaseException:
                self.stop()  # before the pool waits for its threads
                raise

    def _simulate(self, results: Sequence[Scheduled], climbed: int) -> None:
        """The schedule's own iteration: of what annealing found, and of moves from the best few of it."""
        starts: list[Scheduled] = []
        until = time.perf_counter() + LOOKING * (self.searched - time.perf_counter())
        for i, each in enumerate(results[: climbed if self.comparable else None]):
            late = i >= LOOKED and time.perf_counter() > until
            if np.isfinite(each.value_s) and self._may_simulate and not late:
                starts.append(self._tried(each.where, each.order, "annealing"))
        starts += [] if self.unreplicated is None else [self.unreplicated]
        moves = Neighbourhood(
            self.problem.graph, self.instance, self.annealer.clusters,
            lambda where: self.annealer.step.evaluate(where)[1], self.problem.seed,
        )  # fmt: skip
        moved = partial(self._tried, source="a simulated move")
        for each in sorted(starts, key=_value_s)[:climbed]:
            moves.climb(each, moved, lambda: self._may_simulate)

    def _tried(self, where: Ints, order: Ints, source: str) -> Scheduled:
        tried = Scheduled(where, order, float("inf"), source)
        tried = replace(tried, value_s=self._value_of(self.placement(tried)))
        self.offer(tried)
        return tried

    def placement(self, answer: Scheduled) -> Placement:
        names = self.instance.names
        rank = {names[int(v)]: float(i) for i, v in enumerate(answer.order)}
        priority = topological_priority(self.problem.graph, rank)
        report = SolverReport("feasible", 0.0)
        device_of = self.instance.decode(answer.where)
        return Placement(answer.source, device_of, priority, report, stages=answer.stages)

    def _value_of(self, placement: Placement) -> float:
        compiled = self.comparable and not self.metered and not placement.replicas
        if self.simulated and not compiled:
            return self._scored(placement)[0]
        where = self.instance.encode(placement.device_of)
        return self.annealer.step.makespan_s(where, order_of(self.instance, placement))

    @property
    def _may_simulate(self) -> bool:
        """Whether there is time for one more simulation."""
        return time.perf_counter() + self.simulation_s < self.searched

    def _scored(self, placement: Placement) -> tuple[float, tuple[Exchange, ...]]:
        """Seconds, infinite where it peaks above a capacity, and what is handed on."""
        simulator, began = self.problem.the_simulator, time.perf_counter()
        scored = simulator.scored(placement)
        predicted = scored.timeline
        took_s = time.perf_counter() - began
        self.simulation_s = min(self.simulation_s or took_s, took_s)
        over = self.metered and any(
            predicted.peak_bytes.get(device.name, 0) > device.capacity_bytes
            for device in simulator.cluster.devices
        )
        return float("inf") if over else predicted.iteration_s, scored.placement.exchanges
