"""The search for a whole plan: structures, then methods, orders, single cuts, and annealing.

    for every number of micro-batches:  a line cut into stages for groups of devices  ──┐
                                        answers of methods that take no long           ├─► simulated ─► best
    each in an order searched quickly:  the best few under all named schedules         ─┤   of every kind
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

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, zip_longest

from netsplit.partition import METHODS
from netsplit.partition.base import Problem
from netsplit.partition.methods.auto.in_parts import best_in_parts
from netsplit.partition.partitioner import Partitioner
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.bounds import of_every_plan_s, without_replicas_s
from netsplit.planning.whole.judge import Judge, Kind, Tried, identity, problem_under
from netsplit.planning.whole.kinds import PLAINEST, every_kind
from netsplit.planning.whole.lines.line import NodeLine
from netsplit.planning.whole.lines.stages import (
    Group,
    LineStages,
    StageCosts,
    device_counts,
    groupings,
    orders_of_devices,
    placed,
    stages_of_line,
)
from netsplit.planning.whole.orders import CLOSE, Orders
from netsplit.planning.whole.search.answers import SLACK, MethodAnswers
from netsplit.planning.whole.search.search_time import SearchTime
from netsplit.program.schedules import GPipe, Schedule

__all__ = ["WholeSearch"]

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
CUTTING = 0.4  # of the time for structures, at most, until they are simulated
ALIKE = 1.03  # a second cut for the same groups is much like the first, and comes after others
NEAR = 1.06  # times the best: whose borders are moved

STARTS = 8  # annealed of operators in parts

ProblemOf = Callable[[int], Problem]


@dataclass
class WholeSearch:
    """One search, in its time, which the judge heeds too.

    Args:
        counts: of micro-batches.
        method: the user's own choice of one; None: all.
    """

    counts: Sequence[int]
    open: AutoSchedule
    judge: Judge
    method: Partitioner | None
    time: SearchTime
    absent: dict[Kind, str] = field(default_factory=dict)  # kinds of which no plan was tried, and why
    of_line: dict[tuple[object, ...], tuple[int, LineStages]] = field(default_factory=dict)  # by `identity`
    known_lines: dict[int, NodeLine] = field(default_factory=dict)
    annealed: set[Schedule] = field(default_factory=set)  # from the best plan under them

    def run(self) -> None:
        """Everything that the time allows; the judge has what came of it."""
        if self._splits:
            with self.time.shortened(UNSPLIT):
                self._whole_operators()
            self._in_parts()
        else:
            self._whole_operators()
        self.orders.searched(self.time.deadline)
        self._go_on()

    @property
    def problem_of(self) -> ProblemOf:
        """Micro-batches to the problem of planning with that many, with what is known of parts."""
        return self.judge.problem_of

    @cached_property
    def answers(self) -> MethodAnswers:
        return MethodAnswers(self.counts, self.open, self.judge, self.method, self.time, self.orders)

    @cached_property
    def orders(self) -> Orders:
        return Orders(self.open, self.judge, everywhere=self.method is not None)

    @property
    def _splits(self) -> bool:
        several = len(self.problem_of(self.counts[0]).cluster.devices) > 1
        return self.open.splits and self.method is None and several

    def _whole_operators(self) -> None:
        if self.method is None:
            self._structures(self.time.until(STRUCTURES))
            if self.judge.winner is None:  # before methods take the time: these rows say what is missing
                every_kind(self.judge, self.counts, self.open, self.line, self._judge_line, PLAINEST)
            self.orders.named(self.time.until(ORDERS))
            if self.judge.winner is None:
                self.answers.with_room(self.time.until(ANSWERS))
        self.answers.ask(ANSWERS)
        self.orders.named(self.time.until(ORDERS_AGAIN))
        if self.judge.winner is None:
            self.answers.squeeze()
        if self.method is None and self.judge.winner is not None:
            self.absent = every_kind(self.judge, self.counts, self.open, self.line, self._judge_line)
        if self.method is None:
            self._moves(self.time.until(MOVED))
            self._look_around(self.time.until(LOOKED))
            self.orders.searched(self.time.until(SEARCHED))
            self._anneal()
            self._moves(self.time.until(MOVED_AGAIN))

    def run_again(self) -> None:
        """For as long again, as what was tried was refused."""
        self.time.again(AGAIN_S)
        self.run()

    def _structures(self, until: float) -> None:
        """Stages of every number of devices and replicas, the ones that promise most first."""
        promising = sorted(self._cuts(until), key=lambda entry: entry[0])
        for promised_s, m, cut in promising:
            behind = promised_s > PROMISING * self.judge.best_s
            if behind or (self.judge.tried and self.time.over(until)):
                return
            if m * cut.work_s <= SLACK * self.judge.best_s:
                self._judge_line(m, cut)

    def _cuts(self, until: float) -> Iterator[tuple[float, int, LineStages]]:
        """Promised seconds, micro-batches and stages; one device, and data parallelism with every number, at
        least."""
        begun, least = time.perf_counter(), 2 + len(self.counts)
        for asked, (m, groups) in enumerate(self._asked()):
            if asked >= least and time.perf_counter() - begun > CUTTING * (until - begun):
                return
            yield from self._cut(self.problem_of(m), m, groups)

    def _asked(self) -> Iterator[tuple[int, tuple[Group, ...]]]:
        """Micro-batches and groups: each with all numbers of micro-batches, fewer devices last."""
        alone = orders_of_devices(self.problem_of(self.counts[0]), 1)[0]
        yield from ((m, (alone,)) for m in (self.counts[0], self.counts[-1]))
        for count in device_counts(len(self.problem_of(self.counts[0]).cluster.devices)):
            rounds = zip_longest(*(self._groups(m, count) for m in self.counts))
            yield from (each for each in chain.from_iterable(rounds) if each is not None)

    def _groups(self, m: int, count: int) -> Iterator[tuple[int, tuple[Group, ...]]]:
        problem = self.problem_of(m)
        for order in orders_of_devices(problem, count):
            for groups in groupings(order, self.answers.replicates(problem)):
                yield m, groups

    def _cut(
        self, problem: Problem, m: int, groups: tuple[Group, ...]
    ) -> Iterator[tuple[float, int, LineStages]]:
        line = self.line(m)
        if len(groups) >= len(line.places) or max(map(len, groups)) > m:
            return
        seen: set[tuple[tuple[int, int], ...]] = set()
        for added in (False, True):
            costs = StageCosts(problem, line, m, self.open.recompute, added, self.judge.shard)
            cut = stages_of_line(costs, groups)
            if cut is not None and cut.runs not in seen:
                seen.add(cut.runs)
                yield costs.promised_s(cut) * (ALIKE if added else 1.0), m, cut

    def _judge_line(self, m: int, cut: LineStages, schedule: Schedule | None = None) -> Tried | None:
        placement = placed(self.problem_of(m), self.line(m), cut, m)
        self.of_line[identity(placement)] = (m, cut)
        if schedule is not None:
            return self.judge.judge(placement.method, schedule, placement)
        return self.orders.first(placement.method, self.answers.usual(m, cut.folded), placement)

    def _moves(self, until: float) -> None:
        """The borders between stages of the best lines, moved as long as that gains."""
        for tried in [each for each in self.orders.leaders() if identity(each.placement) in self.of_line]:
            if tried.iteration_s > NEAR * self.judge.best_s:
                continue
            current, gained = self._quickly(tried), True
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

    def _quickly(self, tried: Tried) -> Tried:
        """Under the order that moves begin from, where they found one, as its neighbours are."""
        quick = self.orders.quick(tried.schedule.microbatches)
        if not tried.schedule.timed or quick is None:
            return tried
        return self.judge.judge(tried.origin, quick, tried.placement) or tried

    def _go_on(self) -> None:
        """With the time that is left: every schedule for all that may be better by it, borders moved, and
        other numbers of micro-batches annealed, as long as that gains."""
        best_s = float("inf")
        while self.judge.best_s < best_s and not self.time.over(self.time.deadline) and not self._proven:
            best_s = self.judge.best_s
            self.orders.every(self.time.deadline)
            if self.method is None:
                self._moves(self.time.deadline)
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
            free = self.answers.usual(tried.schedule.microbatches, wanted=GPipe.name)
            problem = problem_under(self.problem_of(free.microbatches), free)
            asked = replace(problem, time_limit_s=left_s / (looks - i))
            placement = self.answers.answer(asked, free, METHODS["auto"]())
            if placement is not None and self.answers.allowed(problem, placement):
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
        several = [
            tried for tried in self._best_of_counts() if self._quickly(tried).schedule not in self.annealed
        ]
        for i, tried in enumerate(several):
            self._anneal_from(tried, ANNEALING * OTHERS / (len(several) - i * OTHERS))

    def _anneal_from(self, start: Tried, part: float) -> None:
        """For that part of the time, unless it is proven that no plan without replicas is better so."""
        start = self._quickly(start)
        left_s = self.time.left_s
        worth_s = max(WORTH_S, WORTH * self.time.all_s)
        m = start.schedule.microbatches
        problem = problem_under(self.problem_of(m), start.schedule)
        if part / ANNEALING * left_s < worth_s or len(problem.cluster.devices) < 2:
            return
        self.annealed.add(start.schedule)
        if without_replicas_s(problem, PROVING * left_s) >= self.judge.best_s * (1 - CLOSE):
            return
        left_s = max(self.time.left_s, LITTLE_S)
        asked = replace(problem, time_limit_s=part * left_s, known=start.placement)
        placement = self.answers.answer(asked, start.schedule, METHODS["auto"]())
        if placement is not None and self.answers.allowed(problem, placement):
            self.orders.plain("auto", start.schedule, placement)

    def _in_parts(self) -> None:
        """Operators in parts, with the fewest micro-batches and with as many as the best plan has."""
        winner = self.judge.winner
        known = () if winner is None else (winner.schedule.microbatches,)
        counts = list(dict.fromkeys([self.counts[0], *(known or self.counts[-1:])]))
        for i, m in enumerate(counts):
            now = time.perf_counter()
            until = now + SEARCHING * max(0.0, self.time.last - now) / (len(counts) - i)
            usual = self.answers.usual(m)
            with self.time.metered(m):
                problem = problem_under(self.problem_of(m), usual)
                parts = best_in_parts(problem, STARTS, until, self.judge.best_s)
                if parts is not None:
                    self.orders.plain(f"auto, {parts.origin}", usual, parts.placement, however_late=True)

    def line(self, m: int) -> NodeLine:
        if m not in self.known_lines:
            self.known_lines[m] = NodeLine.of(self.problem_of(m))
        return self.known_lines[m]


def _neighbours(cut: LineStages) -> Iterator[LineStages]:
    """The same stages with one border elsewhere."""
    for s in range(len(cut.runs) - 1):
        for step in (d * sign for d in STEPS for sign in (1, -1)):
            (begin, border), (_, end) = cut.runs[s], cut.runs[s + 1]
            if begin < border + step < end:
                runs = list(cut.runs)
                runs[s], runs[s + 1] = (begin, border + step), (border + step, end)
                yield replace(cut, runs=tuple(runs))
