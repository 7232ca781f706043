"""What partitioning methods answer in a search for a whole plan: first as if there were room."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product, takewhile

from netsplit.errors import InfeasibleError, NetSplitError, TimeLimitError
from netsplit.graph.checks.replicated import why_unreplicable
from netsplit.partition import METHODS
from netsplit.partition.base import Problem
from netsplit.partition.partitioner import Partitioner
from netsplit.placement.placement import Placement
from netsplit.planning.fitting import fitted
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.judge import Judge, problem_under
from netsplit.planning.whole.kinds import roomy
from netsplit.planning.whole.orders import Orders
from netsplit.planning.whole.search.search_time import SearchTime
from netsplit.program.schedules import ZBV, OneFOneB, Schedule, SingleBatch

__all__ = ["SLACK", "MethodAnswers"]

log = logging.getLogger(__name__)

METHODS_TRIED = (
    "pipedream", "balanced", "m_topo", "heft", "m_etf", "layerwise", "dpos", "m_sct", "round_robin",
)  # fmt: skip
HEEDING = ("auto", "netsplit")  # that search within capacities
PRESSED = 1 / 3  # of the time that is left where nothing fits, for each answer
SLACK = 1.02  # over the best: what is next to a placement may gain so much


@dataclass
class MethodAnswers:
    """Of methods for the problems that the judge knows, which has what came of them.

    Args:
        counts: of micro-batches.
        method: the user's own choice of one; None: all.
    """

    counts: Sequence[int]
    open: AutoSchedule
    judge: Judge
    method: Partitioner | None
    time: SearchTime
    orders: Orders
    _told: set[str] = field(default_factory=set)  # methods of which a refusal was said

    def with_room(self, until: float) -> None:
        """Where nothing fits yet: what methods answer that are not told the capacities, the smallest
        micro-batches first, until one fits; and of that method larger ones, as long as they do.

        To ask all of them takes far less than to make one's answer fit.
        """
        for m, name in product(reversed(self.counts), METHODS_TRIED):
            if self.time.over(until):
                return
            if self._fits_with_room(m, METHODS[name]()):
                larger = (fewer for fewer in reversed(self.counts) if fewer < m)
                timely = takewhile(lambda _: not self.time.over(self.time.deadline), larger)
                all(self._fits_with_room(fewer, METHODS[name]()) for fewer in timely)
                return

    def _fits_with_room(self, m: int, method: Partitioner) -> bool:
        """Whether its answer without capacities is within them, which is simulated then."""
        first = self.usual(m)
        problem = problem_under(self.judge.problem_of(m), first)
        placement = self._made(method, lambda: method.partition(roomy(problem)))
        if placement is None:
            return False
        fits = self.allowed(problem, placement) and _fits(problem, placement)
        if fits:
            self.orders.first(method.name, first, placement)
        return fits

    def ask(self, part: float) -> None:
        """Of methods that take no long, or the one that was asked for; until that part of the time.

        Of the latter, which may be replicas, there is first what gives every device a micro-batch.
        """
        methods = [METHODS[name]() for name in METHODS_TRIED] if self.method is None else [self.method]
        devices = len(self.judge.problem_of(self.counts[0]).cluster.devices)
        counts = self.counts if self.method is None else sorted(self.counts, key=lambda m: m < devices)
        for method in methods:
            took_s = 0.0
            for m in counts:
                began = time.perf_counter()
                if self.time.over(self.time.until(part) - took_s):
                    break
                first = self.usual(m)
                problem = problem_under(self.judge.problem_of(m), first)
                problem = replace(problem, time_limit_s=self._limit(method))
                placement = self.answer(problem, first, method)
                took_s = time.perf_counter() - began
                if placement is None or not self.allowed(problem, placement):
                    continue
                if not self._behind(m, placement):
                    with self.time.metered(m):
                        self.orders.first(method.name, first, placement)

    def _behind(self, microbatches: int, placement: Placement) -> bool:
        """Whether neither it nor what is next to it can be better."""
        return self.judge.least_s(microbatches, placement) > SLACK * self.judge.best_s

    def _limit(self, method: Partitioner) -> float | None:
        """Of a method that was asked for, each answer's part of the time; others take none to speak of."""
        if self.method is None or method.time_limit_s is None:
            return None
        return max(self.time.all_s / len(self.counts), 1.0)

    def answer(self, problem: Problem, schedule: Schedule, method: Partitioner) -> Placement | None:
        """A method's, where it has one: one that fails takes no other's along.

        Heuristics are asked without the capacities first, as most answers fit without having been told.
        """
        return self._made(method, lambda: self._asked(problem, schedule, method))

    def _asked(self, problem: Problem, schedule: Schedule, method: Partitioner) -> Placement:
        last = self.time.deadline if self.judge.winner is not None else float("inf")
        if method.time_limit_s is None:
            placement = method.partition(roomy(problem))
            late = not self.judge.affords(schedule, placement)
            if late or self._behind(schedule.microbatches, placement) or _fits(problem, placement):
                return placement
        return fitted(problem, method, last, lambda nearest: self._near(method, schedule, nearest))

    def _made(self, method: Partitioner, answer: Callable[[], Placement]) -> Placement | None:
        """None where it refuses; or fails, unless it is the only one that was asked for."""
        try:
            return answer()
        except NetSplitError as error:
            self._tell(method.name, error)
        except Exception:  # a plan without one method is better than none
            if self.method is not None:
                raise
            log.exception("%s failed and is left out", method.name)
        return None

    def _tell(self, name: str, error: NetSplitError) -> None:
        """Of each method once, in short: it may refuse for every number of micro-batches alike."""
        if name not in self._told:
            log.info("%s skipped where %s", name, _in_short(error))
            self._told.add(name)
        log.debug("%s has no answer for the whole plan: %s", name, error)

    def _near(self, method: Partitioner, schedule: Schedule, placement: Placement) -> None:
        """What lacks least of a method's answers, none of which fits."""
        problem = self.judge.problem_of(schedule.microbatches)
        if self.judge.winner is None and self.allowed(problem, placement):
            self.judge.judge(method.name, schedule, placement)

    def squeeze(self) -> None:
        """Where nothing fits: methods that heed capacities, with what keeps least, for as long again."""
        methods = [METHODS[name]() for name in HEEDING] if self.method is None else [self.method]
        last = self.time.last
        usual = [self.usual(m) for m in reversed(self.counts)]
        others = [schedule for first in usual for schedule in self._frugal(first)]
        for schedule, method in product([*usual, *others], methods):
            left_s = last - time.perf_counter()
            if self.judge.winner is not None or left_s <= 0:
                return
            order = schedule.recomputing("auto") if self.open.recompute else schedule
            problem = problem_under(self.judge.problem_of(schedule.microbatches), order)
            problem = replace(problem, time_limit_s=PRESSED * left_s)
            placement = self.answer(problem, schedule, method)
            if placement is not None and self.allowed(problem, placement):
                self.judge.judge(method.name, schedule, placement)

    def _frugal(self, usual: Schedule) -> list[Schedule]:
        """Beside the usual one the schedule that keeps the fewest micro-batches at once."""
        devices = len(self.judge.problem_of(self.counts[0]).cluster.devices)
        others = [
            each
            for each in self.open.orders(usual.microbatches)
            if not (each.timed or each.name == usual.name)
        ]
        return sorted(others, key=lambda each: each.in_flight(devices))[:1]

    def usual(self, m: int, folded: bool = False, wanted: str = OneFOneB.name) -> Schedule:
        """The schedule that a placement is first tried under."""
        allowed = self.open.orders(m)
        wanted = SingleBatch.name if m == 1 else ZBV.name if folded else wanted
        return next((each for each in allowed if each.name == wanted), allowed[0])

    def replicates(self, problem: Problem) -> bool:
        return self.open.replicas and why_unreplicable(problem.graph, problem.graph.nodes) is None

    def allowed(self, problem: Problem, placement: Placement) -> bool:
        """Whether replicas are open, and none writes a buffer that the others would miss."""
        if not placement.replicas:
            return True
        nodes = [v for stage in placement.stages if len(stage.devices) > 1 for v in stage.nodes]
        return self.open.replicas and why_unreplicable(problem.graph, nodes) is None


def _fits(problem: Problem, placement: Placement) -> bool:
    peaks = problem.the_simulator(placement).peak_bytes
    return all(peaks.get(each.name, 0) <= each.capacity_bytes for each in problem.cluster.devices)


def _in_short(error: NetSplitError) -> str:
    if isinstance(error, InfeasibleError | TimeLimitError):
        return "it finds nothing that fits" + " in its time" * isinstance(error, TimeLimitError)
    return f"it refuses: {re.split('[:;] ', str(error), maxsplit=1)[0].rstrip('.')}"
