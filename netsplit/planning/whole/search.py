"""The search for a whole plan, in three phases; the judge keeps the results.

structures    a line cut into stages for groups of devices, and placements of quick methods,
              each under a quickly searched order; those that lack room once all are simulated
annealing     single operators moved, from the best plans
refinement    more stages, every schedule for the best, borders between stages, operators in
              parts: in the time left, as long as that gains
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import product

from netsplit.errors import InfeasibleError, NetSplitError
from netsplit.graph.checks.replicated import require_replicable, why_unreplicable
from netsplit.partition import METHODS
from netsplit.partition.base import Problem
from netsplit.partition.bounds.iteration_bound import iteration_bound_s
from netsplit.partition.methods.auto.in_parts import best_in_parts
from netsplit.partition.partitioner import Partitioner
from netsplit.placement.placement import Placement
from netsplit.planning.fitting import fitted, nearest_fill
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.judge import Judge, Tried, any_schedule, of_every_plan_s, problem_under
from netsplit.planning.whole.stages import (
    Group,
    LineStages,
    NodeLine,
    StageCosts,
    device_counts,
    groupings,
    orders_of_devices,
    placed,
    stages_of_line,
)
from netsplit.program.schedules import Schedule

__all__ = ["WORTH_S", "WholeSearch"]

log = logging.getLogger(__name__)

STRUCTURES, ANSWERS, ANNEALED = 0.5, 0.6, 0.8
"""Fractions of the time at which each phase ends at the latest; the rest is refinement's."""
UNSPLIT = 0.6  # of the time, for whole operators, where they may be in parts
CUTTING = 0.3  # of the time for structures, at most, until they are simulated
PROMISING = 1.25  # times the best known, beyond which an estimate is not simulated
QUICK_METHODS = (
    "pipedream", "balanced", "m_topo", "heft", "m_etf", "layerwise", "dpos", "m_sct", "round_robin",
)  # fmt: skip
HEEDING = ("auto", "netsplit")  # methods that search within capacities
PRESSED = 1 / 3  # of the time left while nothing fits, for each placement
NEAR = 1.06  # times the best, within which borders are moved and orders searched
WORTH_S = 1.0  # the least for annealing from one plan
CLOSE = 0.001  # relative gain not worth trying for
STEPS = (1, 2, 4)  # cuts by which the border between two stages is moved
STARTS = 8  # annealed of operators in parts


@dataclass
class WholeSearch:
    """One search, from `started` to `deadline` on ``time.perf_counter``.

    Args:
        counts: numbers of micro-batches.
        method: the user's choice; None: all.
    """

    counts: Sequence[int]
    open: AutoSchedule
    judge: Judge
    method: Partitioner | None
    started: float
    deadline: float
    metered_s: float = 0.0  # for measuring parts, on top
    lines: dict[int, NodeLine] = field(default_factory=dict)
    bounds_s: dict[int, float] = field(default_factory=dict)  # quick ones, of numbers of micro-batches
    asked: Iterator[tuple[int, tuple[Group, ...]]] | None = None  # for which the line is not cut yet
    promising: list[tuple[float, int, LineStages]] = field(default_factory=list)  # not simulated yet
    refusal: NetSplitError | None = None  # the last one of a method

    def run(self) -> None:
        """All phases."""
        if self.method is None:
            self._structures(self._until(STRUCTURES))
        self._ask(self._until(ANSWERS))
        self._fit_waiting(self._until(ANSWERS))
        if self.judge.winner is None:
            self._squeeze()
        if self.open.quick(max(self.counts)) is None:  # anneal from the best named schedule
            self._schedules(PROMISING, self._until(ANNEALED))
        if self.method is None:
            self._anneal(self._until(ANNEALED))
        self._refine(self._until(1.0))
        self._fit_waiting(self._until(1.0), slower=True)
        if self._splits:
            self._in_parts()

    # Structures: stages of a line, and placements of methods.

    def _structures(self, until: float) -> None:
        """Stages of every number of devices and replicas, the most promising first; always one device and
        replicas of everything, however late it is."""
        self._cut(until)
        plain = [(m, cut) for _, m, cut in self.promising if len(cut.groups) == 1]
        self._judge_promising(until)
        for alone in (True, False):
            for m, cut in [each for each in plain if (len(each[1].groups[0]) == 1) is alone][:1]:
                if self._judge_cut(m, cut, fit=False) is None:
                    self._judge_cut(m, cut, self.open.usual(m, cut.folded), however_late=True)
        self._fit_waiting(until)

    def _judge_promising(self, until: float, far: float = PROMISING) -> None:
        """Simulate the remaining stages that promise at most `far` times the best."""
        while self.promising and self.promising[0][0] <= far * self.judge.best_s and not self._over(until):
            _, m, cut = self.promising.pop(0)
            self._judge_cut(m, cut, fit=False)

    def _fit_waiting(self, until: float, slower: bool = False) -> None:
        """Make plans fit, the fastest first: those that may become the best, or `slower` ones too."""
        for key, tried in sorted(self.judge.waiting.items(), key=lambda entry: entry[1].iteration_s):
            if self._over(until) or not (slower or tried.iteration_s < self.judge.best_s):
                return
            self.judge.fit(key)

    def _cut(self, until: float) -> bool:
        """Cut the line for more groups, in at most `CUTTING` of the time: always for one device, and for data
        parallelism. Returns whether any groups were left."""
        begun, known = time.perf_counter(), len(self.promising)
        least = 0 if self.asked else 2 + len(self.counts)
        self.asked = self.asked or self._asked()
        for asked, (m, groups) in enumerate(self.asked, 1):
            costs = self._costs(m)
            cut = stages_of_line(costs, groups)
            if cut is None and len(groups) == 1:  # its simulation says what is missing
                cut = LineStages(((0, len(costs.line.places) - 1),), groups)
            if cut is not None:
                self.promising.append((costs.promised_s(cut), m, cut))
            if asked >= least and time.perf_counter() - begun > CUTTING * (until - begun):
                break
        self.promising.sort(key=lambda entry: entry[0])
        return len(self.promising) > known

    def _asked(self) -> Iterator[tuple[int, tuple[Group, ...]]]:
        """Micro-batches and groups: all groups with all numbers, fewer devices last."""
        problem = self.problem_of(self.counts[0])
        replicas = self.open.replicas and why_unreplicable(problem.graph, problem.graph.nodes) is None
        alone = orders_of_devices(problem, 1)[0]
        yield from ((m, (alone,)) for m in (self.counts[0], self.counts[-1]))
        for count in device_counts(len(problem.cluster.devices)):
            orders = orders_of_devices(problem, count)
            every = (groups for order in orders for groups in groupings(order, replicas))
            for groups, m in product(every, self.counts):
                if len(groups) < len(self._line(m).places) and max(map(len, groups)) <= m:
                    yield m, groups

    def _judge_cut(
        self, m: int, cut: LineStages, schedule: Schedule | None = None, however_late: bool = False,
        fit: bool = True,
    ) -> Tried | None:  # fmt: skip
        placement = placed(self.problem_of(m), self._line(m), cut, m)
        if schedule is not None:
            return self.judge.judge(placement.method, schedule, placement, cut, however_late, fit)
        return self._first(placement.method, self.open.usual(m, cut.folded), placement, cut, fit)

    def _ask(self, until: float) -> None:
        """Placements of quick methods: all without limits, then fitted those that are fast but do not fit. A
        method that the user chose is fitted at once."""
        if self.method is not None:
            self._ask_for(self.method, until)
            return
        missing: list[tuple[float, Partitioner, int]] = []
        best_counts = dict.fromkeys([each.schedule.microbatches for each in self.judge.tried])
        for name, m in product(QUICK_METHODS, {**best_counts, **dict.fromkeys(reversed(self.counts))}):
            if self._over(until):
                break
            method, problem = METHODS[name](), self._usual(m)
            tried = self._answer(_roomy(problem), method, method.partition)
            if tried is not None and tried.missing_bytes > 0:
                missing.append((tried.iteration_s, method, m))
        for seconds, method, m in sorted(missing, key=lambda each: each[0]):
            if seconds < self.judge.best_s and not self._over(until):
                self._fit(self._usual(m), method)

    def _ask_for(self, method: Partitioner, until: float) -> None:
        """First with enough micro-batches for replicas on every device."""
        devices = len(self.problem_of(self.counts[0]).cluster.devices)
        for m in sorted(self.counts, key=lambda m: m < devices):
            if not self._over(until):
                limit_s = max((self.deadline - self.started) / len(self.counts), 1.0)
                self._fit(replace(self._usual(m), time_limit_s=limit_s), method)

    def _squeeze(self) -> None:
        """If nothing fits: capacity-aware methods, smallest micro-batches first, for as long again."""
        methods = [METHODS[name]() for name in HEEDING] if self.method is None else [self.method]
        for m, method in product(reversed(self.counts), methods):
            left_s = self._late(self._until(1.0)) - time.perf_counter()
            if self.judge.winner is not None or left_s <= 0:
                return
            order = self.open.usual(m)
            order = order.recomputing("auto") if self.open.recompute else order
            problem = problem_under(self.problem_of(m), order)
            self._fit(replace(problem, time_limit_s=PRESSED * left_s), method)

    def _fit(self, problem: Problem, method: Partitioner) -> Tried | None:
        last = self.deadline if self.judge.winner is not None else float("inf")
        return self._answer(problem, method, lambda problem: fitted(problem, method, last))

    def _answer(
        self, problem: Problem, method: Partitioner, answer: Callable[[Problem], Placement]
    ) -> Tried | None:
        """A method's placement, simulated; None if the method refuses, gives forbidden replicas, or fails
        though the user did not choose it."""
        first = problem.the_simulator.schedule.recomputing(False)
        try:
            placement = answer(problem)
            if placement.replicas and not self.open.replicas:
                raise InfeasibleError(
                    f"{method.name} gives stages replicas, but {self.open.no_replicas}: leave that out, or "
                    "use another partitioner."
                )
            require_replicable(problem.graph, placement.replicated)
            with self._metered(first.microbatches):
                return self._first(method.name, first, placement)
        except NetSplitError as error:
            self.refusal = error
            log.debug("%s found no whole plan: %s", method.name, error)
        except Exception:  # a plan without one method is better than none
            if self.method is not None:
                raise
            log.exception("%s failed; the search goes on without it", method.name)
        return None

    def fill_in_order(self) -> None:
        """If nothing fits: the packing of all devices that comes nearest."""
        for m in self.counts:
            fill = nearest_fill(self._usual(m))
            self.judge.judge(fill.method, self.open.usual(m), fill)

    # Schedules.

    def _first(
        self, origin: str, usual: Schedule, placement: Placement, cut: LineStages | None = None,
        fit: bool = True,
    ) -> Tried | None:  # fmt: skip
        """Simulate under the quickly searched order; if there is none or it does not fit, the usual one."""
        quick = self.open.quick(usual.microbatches)
        if quick is None or len(set(placement.device_of.values())) == 1:
            return self.judge.judge(origin, usual, placement, cut, fit=fit)
        tried = self.judge.judge(origin, quick, placement, cut, fit=fit)
        if tried is None or tried.missing_bytes <= 0:
            return tried
        other = self.judge.judge(origin, usual, placement, cut, fit=fit)
        return tried if other is None else min(tried, other, key=lambda each: each.rank)

    # Annealing.

    def _anneal(self, until: float) -> None:
        """`auto` moves single operators, from the best plan of each number of micro-batches, the best first,
        in equal time slices, where the bound allows a better plan without replicas."""
        starts: dict[int, Tried] = {}
        for tried in self.judge.tried:
            starts.setdefault(tried.schedule.microbatches, tried)
        left = [self._quickly(tried) for tried in starts.values()]
        for i, start in enumerate(left if self._several and self.judge.winner is not None else ()):
            part_s = (until - time.perf_counter()) / min(len(left) - i, 3)
            if part_s < WORTH_S:
                return
            problem = problem_under(self.problem_of(start.schedule.microbatches), start.schedule)
            alone = any_schedule(problem, start.schedule.microbatches, recompute=True, replicas=False)
            if iteration_bound_s(problem, alone, 0.1 * part_s) < self.judge.best_s * (1 - CLOSE):
                asked = replace(problem, time_limit_s=0.8 * part_s, known=start.placement)
                self._fit(asked, METHODS["auto"]())

    def _quickly(self, tried: Tried) -> Tried:
        """The plan under the quickly searched order, to compare it with its neighbours."""
        quick = self.open.quick(tried.schedule.microbatches)
        if not tried.schedule.timed or quick is None:
            return tried
        return self.judge.judge(tried.origin, quick, tried.placement, tried.cut) or tried

    # Refinement.

    def _refine(self, until: float) -> None:
        """Borders and orders of plans near the best, and stages left over; then every schedule for all, as
        long as that gains and the bound allows."""
        near, before_s = NEAR, float("inf")
        while True:
            if time.perf_counter() > until or self._proven:
                return
            cut = self.method is None and self._cut(until)
            if near != NEAR and self.judge.best_s == before_s and not cut:
                return
            near = float("inf") if self.judge.best_s == before_s else near
            before_s = self.judge.best_s
            if self.method is None:
                now = time.perf_counter()
                self._judge_promising(now + (until - now) / 2, min(near, PROMISING))
                self._fit_waiting(until)
                self._schedules(near, until, quick=True)
                self._borders(until)
            self._schedules(near, until)

    @property
    def _proven(self) -> bool:
        """Whether no number of micro-batches allows a better plan, by quick bounds; the best plan's first."""
        winner = self.judge.winner
        return winner is not None and all(
            self._bound_s(m) >= winner.iteration_s * (1 - CLOSE)
            for m in sorted(self.counts, key=lambda m: m != winner.schedule.microbatches)
        )

    def _bound_s(self, m: int) -> float:
        if m not in self.bounds_s:
            self.bounds_s[m] = of_every_plan_s(self.problem_of, [m], self.open, until=0.0)
        return self.bounds_s[m]

    def _borders(self, until: float) -> None:
        """Move borders between stages of the best lines, as long as that gains."""
        for tried in self.judge.placements():
            if tried.cut is not None and tried.fits and tried.iteration_s <= NEAR * self.judge.best_s:
                best, moves = self._quickly(tried), self._moves(tried.schedule.microbatches, tried.cut)
                while moves and time.perf_counter() <= until:
                    moved = moves.pop(0)
                    other = self._judge_cut(best.schedule.microbatches, moved, best.schedule)
                    if other is not None and other.rank < best.rank:
                        best, moves = other, self._moves(best.schedule.microbatches, moved)

    def _moves(self, m: int, cut: LineStages) -> list[LineStages]:
        """The same stages with one border elsewhere, the most promising first."""
        costs = self._costs(m)
        promised = [(costs.promised_s(moved), k, moved) for k, moved in enumerate(_neighbours(cut))]
        return [
            moved for least_s, _, moved in sorted(promised) if least_s <= PROMISING * costs.promised_s(cut)
        ]

    def _costs(self, m: int) -> StageCosts:
        return StageCosts(self.problem_of(m), self._line(m), m, self.open.recompute, self.judge.shard)

    def _schedules(self, near: float, until: float, quick: bool = False) -> None:
        """Every schedule for placements within `near` times the best, the best placement first; `quick`: no
        long search for an order."""
        for timed, tried in product((False,) if quick else (False, True), self.judge.placements()):
            several = tried.kind not in ("single", "data parallel", "parts")
            if several and tried.iteration_s <= near * self.judge.best_s:
                for schedule in self.open.orders(tried.schedule.microbatches):
                    if schedule.timed is timed and time.perf_counter() < until:
                        self.judge.judge(tried.origin, schedule, tried.placement, tried.cut)

    # Operators in parts.

    def _in_parts(self) -> None:
        """With the fewest micro-batches, and with the best plan's number."""
        winner = self.judge.winner
        best = self.counts[-1] if winner is None else winner.schedule.microbatches
        counts = list(dict.fromkeys([self.counts[0], best]))
        for i, m in enumerate(counts):
            now = time.perf_counter()
            least_s = (1 - UNSPLIT) * (self.deadline - self.started)  # however late it is
            until = now + 0.85 * max(least_s, self._late(self.deadline) - now) / (len(counts) - i)
            usual, quick = self.open.usual(m), self.open.quick(m)
            with self._metered(m):
                parts = best_in_parts(self._usual(m), STARTS, until, self.judge.best_s)
                if parts is not None:
                    origin = f"auto, {parts.origin}"
                    self.judge.judge(origin, usual, parts.placement, however_late=True)
                    if quick is not None:
                        with suppress(NetSplitError):  # of schedules that have no copies
                            self.judge.judge(origin, quick, parts.placement)

    # Time.

    @property
    def _several(self) -> bool:
        return len(self.problem_of(self.counts[0]).cluster.devices) > 1

    @property
    def _splits(self) -> bool:
        return self.open.splits and self.method is None and self._several

    def _until(self, part: float) -> float:
        """When that fraction of the time for whole operators ends."""
        return self.started + part * (UNSPLIT if self._splits else 1.0) * (self.deadline - self.started)

    def _late(self, until: float) -> float:
        """That time; while nothing fits, as much again."""
        return until + (until - self.started) * (self.judge.winner is None)

    def _over(self, until: float) -> bool:
        return time.perf_counter() > self._late(until)

    @contextmanager
    def _metered(self, m: int) -> Iterator[None]:
        """Time for measuring parts inside does not count as the search's."""
        before_s = self.problem_of(m).metered_s()
        yield
        late_s = self.problem_of(m).metered_s() - before_s
        self.metered_s += late_s
        self.started += late_s
        self.deadline += late_s
        self.judge.deadline += late_s

    def problem_of(self, m: int) -> Problem:
        """The problem with that many micro-batches and the parts measured so far."""
        return self.judge.problem_of(m)

    def _usual(self, m: int) -> Problem:
        return problem_under(self.problem_of(m), self.open.usual(m))

    def _line(self, m: int) -> NodeLine:
        if m not in self.lines:
            self.lines[m] = NodeLine.of(self.problem_of(m))
        return self.lines[m]


def _roomy(problem: Problem) -> Problem:
    """The problem with room for everything on every device."""
    cluster, total = problem.cluster, 2 * problem.memory_model.total_bytes
    devices = tuple(replace(each, capacity_bytes=total) for each in cluster.devices)
    return replace(problem, cluster=replace(cluster, devices=devices))


def _neighbours(cut: LineStages) -> Iterator[LineStages]:
    """The same stages with one border elsewhere."""
    for s in range(len(cut.runs) - 1):
        for step in (d * sign for d in STEPS for sign in (1, -1)):
            (begin, border), (_, end) = cut.runs[s], cut.runs[s + 1]
            if begin < border + step < end:
                runs = list(cut.runs)
                runs[s], runs[s + 1] = (begin, border + step), (border + step, end)
                yield replace(cut, runs=tuple(runs))
