"""The search for a whole plan: structures, then methods, orders, single cuts, and annealing.

    for every number of micro-batches:  a line cut into stages for groups of devices  ──┐
                                        answers of methods that take no long           ├─► simulated ─► best
    for all of these that may be best:  the schedules that are best so far             ─┤   of every kind
    for the best of them:               every schedule; every cut moved                ─┤
    between unlike devices:             operators annealed, for each number of these   ─┤
    for all that may be best by it:     an order that is searched for                  ─┤
    for the best of all:                `auto`, annealed under its schedule            ─┤
    where they may be:                  operators in parts, as `auto` has them         ─┤
    with what time is left:             every schedule for all that may be best by it, ─┘
                                        operators annealed for all other numbers

Where no line fits, the quick methods are asked as if there were room, the smallest micro-batches first; where
nothing fits in the end, methods that heed capacities for what keeps least. What cannot be better is not
simulated: no iteration is shorter than a placement's `least_s`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, product, zip_longest

from netsplit.errors import NetSplitError
from netsplit.graph.checks.replicated import why_unreplicable
from netsplit.partition import METHODS
from netsplit.partition.base import Placement, Problem
from netsplit.partition.engines.exploring import Explored
from netsplit.partition.methods.auto.in_parts import best_in_parts
from netsplit.partition.partitioner import Partitioner
from netsplit.planning.fitting import fitted
from netsplit.planning.simulated import simulated_by
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.bounds import of_every_plan_s, without_replicas_s
from netsplit.planning.whole.judge import Judge, Kind, Tried, identity, problem_under
from netsplit.planning.whole.kinds import PLAINEST, every_kind, roomy
from netsplit.planning.whole.lines.line import NodeLine
from netsplit.planning.whole.lines.stages import Group, LineStages, StageCosts, placed, stages_of_line
from netsplit.planning.whole.lines.structures import device_counts, groupings, orders_of_devices
from netsplit.planning.whole.orders import CLOSE, Orders
from netsplit.program.schedules import ZBV, GPipe, OneFOneB, Schedule, SingleBatch

__all__ = ["WholeSearch"]

log = logging.getLogger(__name__)

METHODS_TRIED = (
    "pipedream", "balanced", "m_topo", "heft", "m_etf", "layerwise", "dpos", "m_sct", "round_robin",
)  # fmt: skip
HEEDING = ("auto", "netsplit")  # that search within capacities
STRUCTURES, ORDERS, ANSWERS, ORDERS_AGAIN, MOVED, LOOKED, SEARCHED = 0.3, 0.45, 0.6, 0.7, 0.78, 0.88, 0.95
"""Of the time, when each part ends at the latest; the rest is annealing's."""
LOOK_S = 1.0  # at least, for annealing one number of micro-batches between unlike devices
MOVED_AGAIN = 0.95  # what annealing leaves is for borders until then
STEPS = (1, 2, 4)  # cuts by which the border between two stages is moved
UNSPLIT = 0.6  # of the time, for whole operators, where they may be in parts
WORTH, WORTH_S = 0.1, 2.0  # of the time, and seconds: less is not worth annealing
AGAIN_S = 1.0  # at least, where all that was tried was refused
LITTLE_S = 0.1  # at least, for methods that ask for some
PROVING, ANNEALING = 0.1, 0.8  # of that time; the rest is for what simulates the answer
OTHERS = 0.5  # of it, for a first look at numbers of micro-batches other than the best
SEARCHING = 0.85  # of the time for operators in parts; the rest as well
PROMISING = 1.6  # times the best known: what promises to take longer is not simulated
PRESSED = 1 / 3  # of the time that is left where nothing fits, for each answer
CUTTING = 0.4  # of the time for structures, at most, until they are simulated
ALIKE = 1.03  # a second cut for the same groups is much like the first, and comes after others
NEAR = 1.06  # times the best: whose borders are moved
SLACK = 1.02  # over the best: what is next to a placement may gain so much

STARTS = 8  # annealed of operators in parts

ProblemOf = Callable[[int], Problem]


@dataclass
class WholeSearch:
    """One search; until `deadline` on ``time.perf_counter``, which the judge heeds too.

    Args:
        problem_of: micro-batches to the problem of planning with that many, with what is known of parts.
        counts: of micro-batches.
        method: the user's own choice of one; None: all.
        others: micro-batches of which there are problems, too, for clusters that have one more device.
    """

    problem_of: ProblemOf
    counts: Sequence[int]
    open: AutoSchedule
    judge: Judge
    method: Partitioner | None
    started: float
    deadline: float
    others: Sequence[int] = ()
    first: Sequence[tuple[Group, ...]] = ()  # groups that promise more than others, with every number
    absent: dict[Kind, str] = field(default_factory=dict)  # kinds of which no plan was tried, and why
    of_line: dict[tuple[object, ...], tuple[int, LineStages]] = field(default_factory=dict)  # by `identity`
    known_lines: dict[int, NodeLine] = field(default_factory=dict)
    annealed: set[Schedule] = field(default_factory=set)  # from the best plan under them
    metered_s: float = 0.0  # that measuring parts took, on top of the search's time
    explored: Explored = field(default_factory=Explored)  # of these parts

    def run(self) -> None:
        """Everything that the time allows; the judge has what came of it."""
        if self._splits:
            end, self.deadline = self.deadline, self._until(UNSPLIT)
            self._whole_operators()
            self.deadline = end
            self._in_parts()
        else:
            self._whole_operators()
        self.orders.searched(self.deadline)
        self._go_on()

    @cached_property
    def orders(self) -> Orders:
        return Orders(self.open, self.judge, everywhere=self.method is not None)

    @property
    def _splits(self) -> bool:
        several = len(self.problem_of(self.counts[0]).cluster.devices) > 1
        return self.open.splits and self.method is None and several

    def _whole_operators(self) -> None:
        if self.method is None:
            self._structures(self._until(STRUCTURES))
            if self.judge.winner is None:  # before methods take the time: these rows say what is missing
                every_kind(self.judge, self.counts, self.open, self.line, self._judge_line, PLAINEST)
            self.orders.named(self._until(ORDERS))
            if self.judge.winner is None:
                self._with_room(self._until(ANSWERS))
        self._answers(ANSWERS)
        self.orders.named(self._until(ORDERS_AGAIN))
        if self.judge.winner is None:
            self._squeeze()
        if self.method is None and self.judge.winner is not None:
            self.absent = every_kind(self.judge, self.counts, self.open, self.line, self._judge_line)
        if self.method is None:
            self._moves(self._until(MOVED))
            self._look_around(self._until(LOOKED))
            self.orders.searched(self._until(SEARCHED))
            self._anneal()
            self._moves(self._until(MOVED_AGAIN))

    def run_again(self) -> None:
        """For as long again, as what was tried was refused."""
        now = time.perf_counter()
        self.started, self.deadline = now, now + max(self.deadline - self.started, AGAIN_S)
        self.run()

    def structures(self) -> None:
        """The first part alone, and the orders of what it gives: seconds, for what another cluster brings."""
        self._structures(self._until(0.6))
        self.orders.named(self._until(0.8))
        self._moves(self.deadline)

    def best_groups(self) -> tuple[Group, ...]:
        """Of the best stages, one a device: none where no line fits."""
        ranked = sorted(self.judge.tried, key=lambda tried: tried.rank)
        cuts = [self.of_line[key][1] for each in ranked if (key := identity(each.placement)) in self.of_line]
        return next((cut.groups for cut in cuts if not cut.folded), ())

    def try_groups(self, counts: Iterable[int], groups: tuple[Group, ...]) -> None:
        """Simulate stages for these groups with each of the numbers of micro-batches."""
        for m in counts:
            for _, _, cut in self._cut(self.problem_of(m), m, groups) if groups else ():
                self._judge_line(m, cut)

    def _over(self, until: float) -> bool:
        """Whether the time is up; where nothing fits yet, there is as much again as for everything."""
        more_s = 0.0 if self.judge.winner is not None else self.deadline - self.started
        return time.perf_counter() > until + more_s

    def _until(self, part: float) -> float:
        return self.started + part * (self.deadline - self.started)

    def _structures(self, until: float) -> None:
        """Stages of every number of devices and replicas, the ones that promise most first."""
        promising = sorted(self._cuts(until), key=lambda entry: entry[0])
        for promised_s, m, cut in promising:
            behind = promised_s > PROMISING * self.judge.best_s
            if behind or (self.judge.tried and self._over(until)):
                return
            if m * cut.work_s <= SLACK * self.judge.best_s:
                self._judge_line(m, cut)

    def _cuts(self, until: float) -> Iterator[tuple[float, int, LineStages]]:
        """Promised seconds, micro-batches and stages; one device, and data parallelism with every number, at
        least."""
        begun, least = time.perf_counter(), 2 + len(self.counts) * (1 + len(self.first))
        for asked, (m, groups) in enumerate(self._asked()):
            if asked >= least and time.perf_counter() - begun > CUTTING * (until - begun):
                return
            yield from self._cut(self.problem_of(m), m, groups)

    def _asked(self) -> Iterator[tuple[int, tuple[Group, ...]]]:
        """Micro-batches and groups: each with all numbers of micro-batches, fewer devices last."""
        alone = orders_of_devices(self.problem_of(self.counts[0]), 1)[0]
        yield from ((m, (alone,)) for m in (self.counts[0], self.counts[-1]))
        yield from ((m, groups) for groups in self.first for m in self.counts)
        for count in device_counts(len(self.problem_of(self.counts[0]).cluster.devices)):
            rounds = zip_longest(*(self._groups(m, count) for m in self.counts))
            yield from (each for each in chain.from_iterable(rounds) if each is not None)

    def _groups(self, m: int, count: int) -> Iterator[tuple[int, tuple[Group, ...]]]:
        problem = self.problem_of(m)
        for order in orders_of_devices(problem, count):
            for groups in groupings(order, self.replicates(problem)):
                yield m, groups

    def _cut(
        self, problem: Problem, m: int, groups: tuple[Group, ...]
    ) -> Iterator[tuple[float, int, LineStages]]:
        line = self.line(m)
        if len(groups) >= len(line.places) or max(map(len, groups)) > m:
            return
        seen: set[tuple[tuple[int, int], ...]] = set()
        for added in (False, True):
            costs = StageCosts(problem, line, m, self.open.recompute, added)
            cut = stages_of_line(costs, groups)
            if cut is not None and cut.runs not in seen:
                seen.add(cut.runs)
                yield costs.promised_s(cut) * (ALIKE if added else 1.0), m, cut

    def _judge_line(self, m: int, cut: LineStages, schedule: Schedule | None = None) -> Tried | None:
        placement = placed(self.problem_of(m), self.line(m), cut, m)
        self.of_line[identity(placement)] = (m, cut)
        first = schedule or self._usual(m, cut.folded)
        return self.judge.judge(placement.method, first, placement)

    def _with_room(self, until: float) -> None:
        """Where nothing fits yet: what methods answer that are not told the capacities, the smallest
        micro-batches first, until one fits; and of that method larger ones, as long as they do.

        To ask all of them takes far less than to make one's answer fit.
        """
        for m, name in product(reversed(self.counts), METHODS_TRIED):
            if self._over(until):
                return
            if self._fits_with_room(m, METHODS[name]()):
                larger = (
                    fewer for fewer in reversed(self.counts) if fewer < m and not self._over(self.deadline)
                )
                all(self._fits_with_room(fewer, METHODS[name]()) for fewer in larger)
                return

    def _fits_with_room(self, m: int, method: Partitioner) -> bool:
        """Whether its answer without capacities is within them, which is simulated then."""
        first = self._usual(m)
        problem = problem_under(self.problem_of(m), first)
        try:
            placement = method.partition(roomy(problem))
        except NetSplitError as error:
            log.info("%s has no answer for the whole plan: %s", method.name, error)
            return False
        fits = self._allowed(problem, placement) and _fits(problem, placement)
        if fits:
            self.judge.judge(method.name, first, placement)
        return fits

    def _answers(self, part: float) -> None:
        """Of methods that take no long, or the one that was asked for; until that part of the time."""
        methods = [METHODS[name]() for name in METHODS_TRIED] if self.method is None else [self.method]
        for method in methods:
            took_s = 0.0
            for m in self.counts:
                began = time.perf_counter()
                if self._over(self._until(part) - took_s):
                    break
                first = self._usual(m)
                problem = replace(problem_under(self.problem_of(m), first), time_limit_s=self._limit(method))
                placement = self._answer(problem, first, method)
                took_s = time.perf_counter() - began
                if placement is None or not self._allowed(problem, placement):
                    continue
                if not self._behind(m, placement):
                    with self._metered(m):
                        self.judge.judge(method.name, first, placement)

    def _behind(self, microbatches: int, placement: Placement) -> bool:
        """Whether neither it nor what is next to it can be better."""
        return self.judge.least_s(microbatches, placement) > SLACK * self.judge.best_s

    def _limit(self, method: Partitioner) -> float | None:
        """Of a method that was asked for, each answer's part of the time; others take none to speak of."""
        if self.method is None or getattr(method, "time_limit_s", None) is None:
            return None
        return max((self.deadline - self.started) / len(self.counts), 1.0)

    def _answer(self, problem: Problem, schedule: Schedule, method: Partitioner) -> Placement | None:
        """A method's, where it has one: one that fails takes no other's along.

        Heuristics are asked without the capacities first, as most answers fit without having been told.
        """
        last = self.deadline if self.judge.winner is not None else float("inf")
        try:
            if getattr(method, "time_limit_s", None) is None:
                placement = method.partition(roomy(problem))
                late = not self.judge.affords(schedule, placement)
                if late or self._behind(schedule.microbatches, placement) or _fits(problem, placement):
                    return placement
            return fitted(problem, method, last, lambda nearest: self._near(method, schedule, nearest))
        except NetSplitError as error:
            log.info("%s has no answer for the whole plan: %s", method.name, error)
            return None

    def _near(self, method: Partitioner, schedule: Schedule, placement: Placement) -> None:
        """What lacks least of a method's answers, none of which fits."""
        problem = self.problem_of(schedule.microbatches)
        if self.judge.winner is None and self._allowed(problem, placement):
            self.judge.judge(method.name, schedule, placement)

    def _squeeze(self) -> None:
        """Where nothing fits: methods that heed capacities, with what keeps least, for as long again."""
        methods = [METHODS[name]() for name in HEEDING] if self.method is None else [self.method]
        last = 2 * self.deadline - self.started
        usual = [self._usual(m) for m in reversed(self.counts)]
        others = [schedule for first in usual for schedule in self._frugal(first)]
        for schedule, method in product([*usual, *others], methods):
            left_s = last - time.perf_counter()
            if self.judge.winner is not None or left_s <= 0:
                return
            order = replace(schedule, recompute="auto") if self.open.recompute else schedule  # type: ignore[call-arg]
            problem = problem_under(self.problem_of(schedule.microbatches), order)
            problem = replace(problem, time_limit_s=PRESSED * left_s)
            placement = self._answer(problem, schedule, method)
            if placement is not None and self._allowed(problem, placement):
                self.judge.judge(method.name, schedule, placement)

    def _frugal(self, usual: Schedule) -> list[Schedule]:
        """Beside the usual one the schedule that keeps the fewest micro-batches at once."""
        devices = len(self.problem_of(self.counts[0]).cluster.devices)
        others = [
            each
            for each in self.open.orders(usual.microbatches)
            if not (each.timed or each.name == usual.name)
        ]
        return sorted(others, key=lambda each: each.in_flight(devices))[:1]

    def _moves(self, until: float) -> None:
        """The borders between stages of the best lines, moved as long as that gains."""
        for tried in [each for each in self.orders.leaders() if identity(each.placement) in self.of_line]:
            if tried.iteration_s > NEAR * self.judge.best_s:
                continue
            current, gained = tried, True
            while gained and time.perf_counter() < until:
                gained = False
                m, cut = self.of_line[identity(current.placement)]
                for moved in _neighbours(cut):
                    if time.perf_counter() > until:
                        break
                    other = self._judge_line(m, moved, current.schedule)
                    if other is not None and other.rank < current.rank:
                        current, gained = other, True
                        break

    def _go_on(self) -> None:
        """With the time that is left: every schedule for all that may be better by it, borders moved, and
        other numbers of micro-batches annealed, as long as that gains."""
        best_s = float("inf")
        while self.judge.best_s < best_s and not self._over(self.deadline) and not self._proven:
            best_s = self.judge.best_s
            self.orders.every(self.deadline)
            if self.method is None:
                self._moves(self.deadline)
                self._anneal_others()

    @property
    def _proven(self) -> bool:
        """Whether the quick bound says that no plan is better by anything to speak of."""
        now = time.perf_counter()
        bound_s = of_every_plan_s(self.problem_of, self.counts, self.open, until=now)
        return bound_s >= self.judge.best_s * (1 - CLOSE)

    def _anneal(self) -> None:
        """`auto` from the best plan under its schedule; as long as there is time, and it is worth it."""
        if self.judge.winner is not None:
            self._anneal_from(self.judge.winner, ANNEALING)

    def _look_around(self, until: float) -> None:
        """Between unlike devices, where operators may be better placed than any stages: annealed under the
        schedule that leaves their order open most, with the numbers of micro-batches that are best so far."""
        kinds = {device.kind for device in self.problem_of(self.counts[0]).cluster.devices}
        looks = int((until - time.perf_counter()) / LOOK_S)
        for i, tried in enumerate(self._best_of_counts()[:looks] if len(kinds) > 1 else ()):
            left_s = until - time.perf_counter()
            if left_s < LITTLE_S:
                return
            free = self._usual(tried.schedule.microbatches, wanted=GPipe.name)
            problem = problem_under(self.problem_of(free.microbatches), free)
            asked = replace(problem, time_limit_s=left_s / (looks - i))
            placement = self._answer(asked, free, METHODS["auto"]())
            if placement is not None and self._allowed(problem, placement):
                self.orders.plain("auto", free, placement)

    def _best_of_counts(self) -> list[Tried]:
        """The best plan with every number of micro-batches, the best first."""
        best: dict[int, Tried] = {}
        for tried in sorted(self.judge.tried, key=lambda tried: tried.rank):
            best.setdefault(tried.schedule.microbatches, tried)
        return list(best.values())

    def _anneal_others(self) -> None:
        """From the best plan of every number of micro-batches, if none yet was under its schedule: in equal
        parts of some of the time, the best first. What is better under another schedule then begins there."""
        several = [tried for tried in self._best_of_counts() if tried.schedule not in self.annealed]
        for i, tried in enumerate(several):
            self._anneal_from(tried, ANNEALING * OTHERS / (len(several) - i * OTHERS))

    def _anneal_from(self, start: Tried, part: float) -> None:
        """For that part of the time, unless it is proven that no plan without replicas is better so."""
        left_s = self.deadline - time.perf_counter()
        worth_s = max(WORTH_S, WORTH * (self.deadline - self.started))
        m = start.schedule.microbatches
        problem = problem_under(self.problem_of(m), start.schedule)
        if part / ANNEALING * left_s < worth_s or len(problem.cluster.devices) < 2:
            return
        self.annealed.add(start.schedule)
        if without_replicas_s(problem, PROVING * left_s) >= self.judge.best_s * (1 - CLOSE):
            return
        left_s = max(self.deadline - time.perf_counter(), LITTLE_S)
        asked = replace(problem, time_limit_s=part * left_s, known=start.placement)
        placement = self._answer(asked, start.schedule, METHODS["auto"]())
        if placement is not None and self._allowed(problem, placement):
            self.orders.plain("auto", start.schedule, placement)

    def _in_parts(self) -> None:
        """Operators in parts, with the fewest micro-batches and with as many as the best plan has."""
        winner = self.judge.winner
        known = () if winner is None else (winner.schedule.microbatches,)
        counts = list(dict.fromkeys([self.counts[0], *(known or self.counts[-1:])]))
        for i, m in enumerate(counts):
            now = time.perf_counter()
            last = self.deadline if self.judge.winner is not None else 2 * self.deadline - self.started
            until, usual = now + SEARCHING * max(0.0, last - now) / (len(counts) - i), self._usual(m)
            with self._metered(m):
                problem = problem_under(self.problem_of(m), usual)
                whole = {} if winner is None or winner.placement.replicas else winner.placement.device_of
                parts, explored = best_in_parts(problem, STARTS, until, self.judge.best_s, whole)
                self.explored += explored
                if parts is not None:
                    self.orders.plain(f"auto, {parts.origin}", usual, parts.placement, however_late=True)

    @contextmanager
    def _metered(self, m: int) -> Iterator[None]:
        """What measuring parts takes within is not of the search's time."""
        before_s = self.problem_of(m).metered_s()
        yield
        late_s = self.problem_of(m).metered_s() - before_s
        self.metered_s += late_s
        self.started += late_s
        self.deadline += late_s
        self.judge.pace.deadline += late_s

    def line(self, m: int) -> NodeLine:
        if m not in self.known_lines:
            self.known_lines[m] = NodeLine.of(self.problem_of(m))
        return self.known_lines[m]

    def _usual(self, m: int, folded: bool = False, wanted: str = OneFOneB.name) -> Schedule:
        """The schedule that a placement is first tried under."""
        allowed = self.open.orders(m)
        wanted = SingleBatch.name if m == 1 else ZBV.name if folded else wanted
        return next((each for each in allowed if each.name == wanted), allowed[0])

    def replicates(self, problem: Problem) -> bool:
        return self.open.replicas and why_unreplicable(problem.graph, problem.graph.nodes) is None

    def _allowed(self, problem: Problem, placement: Placement) -> bool:
        """Whether replicas are open, and none writes a buffer that the others would miss."""
        if not placement.replicas:
            return True
        nodes = [v for stage in placement.stages if len(stage.devices) > 1 for v in stage.nodes]
        return self.open.replicas and why_unreplicable(problem.graph, nodes) is None


def _fits(problem: Problem, placement: Placement) -> bool:
    peaks = simulated_by(problem)(placement).peak_bytes
    return all(peaks.get(each.name, 0) <= each.capacity_bytes for each in problem.cluster.devices)


def _neighbours(cut: LineStages) -> Iterator[LineStages]:
    """The same stages with one border elsewhere."""
    for s in range(len(cut.runs) - 1):
        for step in (d * sign for d in STEPS for sign in (1, -1)):
            (begin, border), (_, end) = cut.runs[s], cut.runs[s + 1]
            if begin < border + step < end:
                runs = list(cut.runs)
                runs[s], runs[s + 1] = (begin, border + step), (border + step, end)
                yield replace(cut, runs=tuple(runs))
