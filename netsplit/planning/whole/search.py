"""The search for a whole plan: structures, then methods, orders, single cuts, and annealing.

    for every number of micro-batches:  a line cut into stages for groups of devices  ──┐
                                        answers of methods that take no long           ├─► simulated ─► best
    for the best of these:              every schedule; every cut moved                ─┤   of every kind
    for the best of all:                `auto`, annealed under its schedule            ─┘

What cannot be better is not simulated: no iteration is shorter than what its busiest device computes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from netsplit.errors import InfeasibleError, ModelSizeError, NetSplitError
from netsplit.graph.checks.replicated import unreplicable
from netsplit.partition import METHODS
from netsplit.partition.base import Placement, Problem, SolverReport, Stage
from netsplit.partition.common.priority import topological_priority
from netsplit.partition.partitioner import Partitioner
from netsplit.planning.fitting import fitted
from netsplit.planning.simulated import simulated_by
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.bounds import without_replicas_s
from netsplit.planning.whole.judge import KINDS, Judge, Tried, identity, problem_under
from netsplit.planning.whole.line import NodeLine
from netsplit.planning.whole.stages import LineStages, StageCosts, stages_of_line
from netsplit.planning.whole.structures import device_counts, groupings, orders_of_devices
from netsplit.program.schedules import ZBV, OneFOneB, Schedule, SingleBatch

__all__ = ["WholeSearch"]

log = logging.getLogger(__name__)

METHODS_TRIED = (
    "pipedream", "balanced", "m_topo", "heft", "m_etf", "layerwise", "dpos", "m_sct", "round_robin",
)  # fmt: skip
STRUCTURES, ANSWERS, ORDERS, MOVED = 0.3, 0.45, 0.65, 0.78
"""Of the time, when each part ends at the latest; the rest is annealing's."""
FEW = 10  # placements of all that were tried, whose other schedules are looked at
STEPS = (1, 2, 4)  # cuts by which the border between two stages is moved
WORTH_S = 2.0  # less time is not worth annealing
PROMISING = 1.6  # times the best known: what promises to take longer is not simulated
CUTTING = 0.4  # of the time for structures, at most, until they are simulated
ALIKE = 1.03  # a second cut for the same groups is much like the first, and comes after others
SLACK = 1.02  # over the best: a placement may gain by another schedule

CLOSE = 0.001  # relative: so little is not worth annealing for

ProblemOf = Callable[[int], Problem]


@dataclass
class WholeSearch:
    """One search; until `deadline` on ``time.perf_counter``.

    Args:
        problem_of: micro-batches to the problem of planning with that many, made once.
        counts: of micro-batches.
        method: the user's own choice of one; None: all.
    """

    problem_of: ProblemOf
    counts: Sequence[int]
    open: AutoSchedule
    judge: Judge
    method: Partitioner | None
    started: float
    deadline: float
    of_line: dict[tuple[object, ...], tuple[int, LineStages]] = field(default_factory=dict)  # by `identity`
    known_lines: dict[int, NodeLine] = field(default_factory=dict)

    def run(self) -> None:
        """Everything that the time allows; the judge has what came of it."""
        if self.method is None:
            self._structures(self._until(STRUCTURES))
        self._answers(self._until(ANSWERS))
        self._orders(self._until(ORDERS))
        if self.method is None:
            self._moves(self._until(MOVED))
            self._anneal()
        self._search_order()

    def structures(self) -> None:
        """The first part alone, and the orders of what it gives: seconds, for what another cluster brings."""
        self._structures(self._until(0.8))
        self._orders(self.deadline)

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
            if behind or self._over(until):
                return
            if m * cut.work_s <= SLACK * self.judge.best_s:
                self._judge_line(m, cut)

    def _cuts(self, until: float) -> Iterator[tuple[float, int, LineStages]]:
        """Promised seconds, micro-batches and stages; fewer devices come last, where the time may end it."""
        begun = time.perf_counter()
        for count in device_counts(len(self.problem_of(self.counts[0]).cluster.devices)):
            for m in self.counts:
                problem = self.problem_of(m)
                for order in orders_of_devices(problem, count):
                    for groups in groupings(order, self._replicates(problem)):
                        if time.perf_counter() - begun > CUTTING * (until - begun):
                            return
                        yield from self._cut(problem, m, groups)

    def _cut(
        self, problem: Problem, m: int, groups: tuple[tuple[int, ...], ...]
    ) -> Iterator[tuple[float, int, LineStages]]:
        line = self._line(m)
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
        placement = self._placed(m, cut)
        self.of_line[identity(placement)] = (m, cut)
        first = schedule or self._usual(m, cut.folded)
        return self.judge.judge(placement.method, first, placement)

    def _placed(self, m: int, cut: LineStages) -> Placement:
        """Stages as a placement, whose nodes run stage by stage."""
        problem, line = self.problem_of(m), self._line(m)
        stages = cut.stages(line, [device.name for device in problem.cluster.devices], m)
        where = {name: stage.devices[0] for stage in stages for name in stage.nodes}
        number = {name: float(s) for s, stage in enumerate(stages) for name in stage.nodes}
        position = problem.graph.position
        key = {name: number[name] * len(position) + place for name, place in position.items()}
        priority = topological_priority(problem.graph, key)
        report = SolverReport("heuristic", 0.0)
        cuts = _cuts_of(stages, priority)
        return Placement(_words(cut), where, priority, report, _replicated(stages), cuts)

    def _answers(self, until: float) -> None:
        """Of methods that take no long, or the one that was asked for."""
        methods = [METHODS[name]() for name in METHODS_TRIED] if self.method is None else [self.method]
        for method in methods:
            for m in self.counts:
                if self._over(until):
                    return
                first = self._usual(m)
                problem = replace(problem_under(self.problem_of(m), first), time_limit_s=self._limit(method))
                placement = _answer(problem, method)
                if placement is None or not self._allowed(problem, placement):
                    continue
                if self.judge.load_s(m, placement) <= SLACK * self.judge.best_s:
                    self.judge.judge(method.name, first, placement)

    def _limit(self, method: Partitioner) -> float | None:
        """Of a method that was asked for, each answer's part of the time; others take none to speak of."""
        if self.method is None or getattr(method, "time_limit_s", None) is None:
            return None
        return max((self.deadline - self.started) / len(self.counts), 1.0)

    def _orders(self, until: float) -> None:
        """The other schedules of the best placements of all, and of the best of every kind."""
        for tried in self._leaders():
            for schedule in self.open.orders(tried.schedule.microbatches):
                if time.perf_counter() > until:
                    return
                if not schedule.timed:
                    self.judge.judge(tried.origin, schedule, tried.placement)

    def _search_order(self) -> None:
        """An order for the very seconds at hand of the best plan of all."""
        winner = self.judge.winner
        if winner is not None and len(winner.devices) > 1 and time.perf_counter() < self.deadline:
            for schedule in self.open.orders(winner.schedule.microbatches):
                if schedule.timed:
                    self.judge.judge(winner.origin, schedule, winner.placement)

    def _leaders(self) -> list[Tried]:
        """The best few placements, each once, in turn with the best of every kind."""
        ranked = sorted(self.judge.tried, key=lambda tried: tried.rank)
        kinds = [self.judge.best[kind] for kind in KINDS if kind in self.judge.best]
        leaders: dict[tuple[object, ...], Tried] = {}
        for tried in [*ranked[:1], *kinds, *ranked]:
            if len(tried.devices) > 1 or tried.schedule.microbatches == 1:
                leaders.setdefault(identity(tried.placement), tried)
            if len(leaders) >= FEW + len(kinds):
                break
        return list(leaders.values())

    def _moves(self, until: float) -> None:
        """The borders between stages of the best lines, moved as long as that gains."""
        best = [tried for tried in self._leaders() if identity(tried.placement) in self.of_line]
        for tried in best[:3]:
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

    def _anneal(self) -> None:
        """`auto` from the best plan under its schedule, as long as there is time; then under others."""
        winner, left_s = self.judge.winner, self.deadline - time.perf_counter()
        if winner is None or left_s < WORTH_S or len(self.problem_of(self.counts[0]).cluster.devices) < 2:
            return
        m = winner.schedule.microbatches
        problem = problem_under(self.problem_of(m), winner.schedule)
        if without_replicas_s(problem) >= winner.iteration_s * (1 - CLOSE):
            return
        asked = replace(problem, time_limit_s=0.9 * left_s, known=winner.placement)
        placement = _answer(asked, METHODS["auto"]())
        if placement is not None and self._allowed(problem, placement):
            for schedule in self.open.orders(m):
                if not schedule.timed:
                    self.judge.judge("auto", schedule, placement)

    def _line(self, m: int) -> NodeLine:
        if m not in self.known_lines:
            self.known_lines[m] = NodeLine.of(self.problem_of(m))
        return self.known_lines[m]

    def _usual(self, m: int, folded: bool = False) -> Schedule:
        """The schedule that a placement is first tried under."""
        allowed = self.open.orders(m)
        wanted = SingleBatch.name if m == 1 else ZBV.name if folded else OneFOneB.name
        return next((each for each in allowed if each.name == wanted), allowed[0])

    def _replicates(self, problem: Problem) -> bool:
        return self.open.replicas and unreplicable(problem.graph, problem.graph.nodes) is None

    def _allowed(self, problem: Problem, placement: Placement) -> bool:
        """Whether replicas are open, and none writes a buffer that the others would miss."""
        if not placement.replicas:
            return True
        nodes = [v for stage in placement.stages if len(stage.devices) > 1 for v in stage.nodes]
        return self.open.replicas and unreplicable(problem.graph, nodes) is None


def _answer(problem: Problem, method: Partitioner) -> Placement | None:
    """A method's, where it has one: one that fails takes no other's along.

    Heuristics are asked without the capacities first, as most answers fit without having been told.
    """
    try:
        if getattr(method, "time_limit_s", None) is None:
            placement = method.partition(_roomy(problem))
            if _fits(problem, placement):
                return placement
        return fitted(problem, method)
    except (InfeasibleError, ModelSizeError, NetSplitError) as error:
        log.info("%s has no answer for the whole plan: %s", method.name, error)
        return None


def _roomy(problem: Problem) -> Problem:
    """Every device holds everything."""
    cluster, total = problem.cluster, 2 * problem.memory_model.total_bytes
    devices = tuple(replace(each, capacity_bytes=total) for each in cluster.devices)
    return replace(problem, cluster=replace(cluster, devices=devices))


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


def _replicated(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """None where no stage has replicas, as for other placements."""
    return stages if any(len(stage.devices) > 1 for stage in stages) else ()


def _cuts_of(stages: tuple[Stage, ...], priority: Mapping[str, int]) -> tuple[str, ...]:
    """Where a stage follows another on its device: the node it begins with."""
    return tuple(
        min(stage.nodes, key=priority.__getitem__)
        for before, stage in pairwise(stages)
        if before.devices == stage.devices
    )


def _words(cut: LineStages) -> str:
    """As "4 stages x 2 replicas"."""
    sizes = [len(group) for group in cut.groups]
    if cut.folded:
        back = cut.groups[: len(sizes) // 2] == cut.groups[: len(sizes) // 2 - 1 : -1]
        return f"{len(sizes)} stages {'in a V' if back else 'in two rounds'}"
    if sizes == [1]:
        return "one device"
    if len(sizes) == 1:
        return f"{sizes[0]} replicas"
    if max(sizes) == 1:
        return f"{len(sizes)} stages"
    if min(sizes) == max(sizes):
        return f"{len(sizes)} stages x {sizes[0]} replicas"
    return f"{len(sizes)} stages of {', '.join(map(str, sizes))} replicas"
