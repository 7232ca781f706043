"""The proof beside `auto`'s search: lower bounds of latency, and what their solutions are worth."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import numpy as np

from netsplit.partition.bounds.latency_bounds import critical_path_s, least_load_s, relaxation
from netsplit.partition.common.instance import Ints
from netsplit.partition.engines.search import Scheduled, Search
from netsplit.partition.methods.exact.netsplit_exact import as_simulated, completely_modelled, solve_latency

__all__ = ["Prover"]

log = logging.getLogger(__name__)

CLOSED = 1e-6  # relative gap at which both may stop
SLICES = (0.3, 0.97)  # of the time left, each for one relaxation: the bounds of long ones are better
SMALL_SLICES = (0.6,)  # where the complete model has the rest
PATIENCE = 0.2  # of the time, for the search to find the first incumbent
LEAST_S = 0.3  # no proof is begun with less


class Prover(threading.Thread):
    """Relaxations, each from the incumbent of its time: the better it is, the less they leave open.

    On small graphs `netsplit_exact` follows, and may find the optimum itself.
    """

    def __init__(self, search: Search) -> None:
        super().__init__(daemon=True)
        self.search = search
        self.bound_s = 0.0
        self.small = completely_modelled(search.instance)
        self.answer: Scheduled | None = None
        self.notes: dict[str, Any] = {}

    def run(self) -> None:
        try:
            self._begin()
            self._relax()
            if self.small and self._goes_on():
                self._solve()
        except Exception as error:  # a plan without a proof is better than none
            log.exception("auto: the proof ended early")
            self.notes["proof_failed"] = f"{type(error).__name__}: {error}"

    def finish(self) -> Scheduled | None:
        """Wait for the end; the best answer that the proof came across."""
        self.join()
        return self.answer

    def _begin(self) -> None:
        """What costs nothing; then wait for a good incumbent, but not for long."""
        path_s, load_s = critical_path_s(self.search.instance), least_load_s(self.search.instance)
        self.bound_s = max(path_s, load_s)
        self.notes["bound"] = {"critical_path_s": path_s, "load_s": load_s}
        self.search.warm.wait(max(0.0, PATIENCE * self._left_s()))

    def _relax(self) -> None:
        search = self.search
        for rounds, fraction in enumerate(SMALL_SLICES if self.small else SLICES, 1):
            if not self._goes_on():
                return
            value_s = self._value_s()
            relaxed = relaxation(
                search.instance,
                fraction * self._left_s(),
                search.problem.seed,
                value_s if np.isfinite(value_s) else None,
                workers=rounds,  # by the second, the search has mostly ended
            )
            self.bound_s = max(self.bound_s, relaxed.bound_s)
            self.notes["bound"] = {**relaxed.notes, "relaxations": rounds}
            if relaxed.where is not None and search.instance.fits(relaxed.where):
                self._offer(search.scheduled(relaxed.where, "relaxation, list-scheduled"))

    def _solve(self) -> None:
        search = self.search
        best = min((f for f in (search.best, self.answer) if f), key=lambda f: f.value_s, default=None)
        hint: tuple[Ints, Ints] | None = None if best is None else (best.where, best.order)
        answer = solve_latency(
            search.instance,
            self._left_s(),
            search.problem.seed,
            hint=hint,
            workers=2,
            least_s=self.bound_s,
        )
        answer = as_simulated(search.instance, answer, hint, search.deadline)
        self.bound_s = max(self.bound_s, answer.bound_s)
        if answer.where is not None and answer.order is not None and search.instance.fits(answer.where):
            value = search.annealer.step.makespan_s(answer.where, answer.order)
            self._offer(Scheduled(answer.where, answer.order, value, "netsplit_exact"))

    def _offer(self, answer: Scheduled) -> None:
        if self.answer is None or answer.value_s < self.answer.value_s:
            self.answer = answer

    def _value_s(self) -> float:
        return min(self.search.value_s, float("inf") if self.answer is None else self.answer.value_s)

    def _left_s(self) -> float:
        return self.search.deadline - time.perf_counter()

    def _goes_on(self) -> bool:
        if self.bound_s >= self._value_s() * (1 - CLOSED):
            self.search.stop()
            return False
        return self._left_s() > LEAST_S
