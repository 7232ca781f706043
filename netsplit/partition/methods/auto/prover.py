"""The proof beside `auto`'s search: a lower bound of latency, and on small graphs the optimum."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from netsplit.partition.bounds.iteration_bound import iteration_bound_s
from netsplit.partition.bounds.iteration_tasks import AnySchedule
from netsplit.partition.common.instance import Ints
from netsplit.partition.engines.search import Scheduled, Search
from netsplit.partition.methods.exact.netsplit_exact import as_simulated, completely_modelled, solve_latency

__all__ = ["Prover"]

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
        self.small = completely_modelled(search.instance)
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
        answer = as_simulated(search.instance, answer, hint, search.deadline)
        self.bound_s = max(self.bound_s, answer.bound_s)
        if answer.where is not None and answer.order is not None and search.instance.fits(answer.where):
            value = search.annealer.step.makespan_s(answer.where, answer.order)
            self.answer = Scheduled(answer.where, answer.order, value, "netsplit_exact")

    def _left_s(self) -> float:
        return self.search.deadline - time.perf_counter()

    def _goes_on(self) -> bool:
        if self.bound_s >= self.search.value_s * (1 - CLOSED):
            self.search.stop()
            return False
        return self._left_s() > LEAST_S
