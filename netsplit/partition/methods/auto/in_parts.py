"""`auto` with operators in parts: a few structures and what `os_dpos` answers, the best of them annealed.

products by columns and rows  ─┐                          the best measured ─► annealed ─► best
data parallelism of the batch ─┼─► parts side by side, or listed ─► simulated ─┘
os_dpos, what is known        ─┘

Where devices measure parts (`Problem.meter`), some are that may gain although they are estimated not to
(`engines.exploring`); then those of what leads, until what leads is so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf
from types import MappingProxyType

from netsplit import rewrite
from netsplit.errors import ConfigError, InfeasibleError, NetSplitError, RewriteError
from netsplit.graph.ir import Graph
from netsplit.partition.base import Problem
from netsplit.partition.common.capacity import missing_bytes
from netsplit.partition.common.instance import Instance
from netsplit.partition.engines.exploring import Explored, Explorer, cuts_of_longest
from netsplit.partition.engines.search import SLIGHT, Search
from netsplit.partition.methods.auto.part_structures import StructureInParts, equal_or_by_speed, structures
from netsplit.partition.methods.baechi.m_etf import MEtf
from netsplit.partition.methods.balanced import Balanced
from netsplit.partition.methods.dpos import Dpos
from netsplit.partition.methods.heft import Heft
from netsplit.partition.methods.os_dpos.os_dpos import PART_S, OsDpos
from netsplit.partition.methods.pipedream.pipedream import PipeDream
from netsplit.partition.partitioner import Choice, Partitioner
from netsplit.placement.placement import Placement, SolverReport
from netsplit.placement.priority import topological_priority
from netsplit.profile.costs import Costs
from netsplit.rewrite.records import Rewrite

__all__ = ["InParts", "best_in_parts", "whole_or_in_parts"]

log = logging.getLogger(__name__)

LISTED: tuple[Partitioner, ...] = (Heft(), Dpos())
METHODS: tuple[Partitioner, ...] = (
    Heft(),
    Dpos(),
    MEtf(),
    Balanced(),
    PipeDream(straight=True, max_states=400),
)
WHOLE = 0.6  # of the time, for whole operators
FASTT, JUDGED = 0.7, 0.5  # of the rest, when os_dpos and structures have ended; then it is annealed
EXPLORED = 0.5  # as long as this part of the time may measuring take of what is estimated not to gain
ANNEALED = 2  # of what was judged
NOWHERE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class InParts:
    """A placement of a rewritten graph."""

    origin: str
    problem: Problem  # of the rewritten graph
    placement: Placement
    iteration_s: float
    missing_bytes: int  # over the capacity of the device that lacks most

    @property
    def rewrites(self) -> tuple[Rewrite, ...]:
        return self.problem.graph.rewrites

    @property
    def rank(self) -> tuple[bool, float]:
        """Least is best: what fits, by its seconds; else by what is missing."""
        return self.missing_bytes > 0, float(self.missing_bytes or self.iteration_s)

    def gains(self, other: InParts) -> bool:
        """Whether this one fits and takes less, or alone fits."""
        better = self.iteration_s < (1 - SLIGHT) * other.iteration_s
        return not self.missing_bytes and (better or other.missing_bytes > 0)


@dataclass(eq=False)
class _Contenders:
    """What was judged, by its rewrites; seconds of parts are estimated until they are measured.

    Args:
        problem: of whole operators, with what is known of parts.
        than_s: what is not faster is of no use.
        whole: where whole operators are; without it all are on the first device.
    """

    problem: Problem
    than_s: float
    whole: Mapping[str, str]
    explored: Explored = field(default_factory=Explored)
    judged: dict[tuple[Rewrite, ...], list[InParts]] = field(default_factory=dict)
    measured: set[tuple[Rewrite, ...]] = field(default_factory=set)
    known: dict[tuple[Rewrite, ...], Costs] = field(default_factory=dict)  # when they were judged

    @property
    def leaders(self) -> list[InParts]:
        """The best of each, best first."""
        return sorted((min(each, key=_rank) for each in self.judged.values()), key=_rank)

    def judge(
        self, origin: str, rewrites: tuple[Rewrite, ...], given: Sequence[Placement], listed: bool = False
    ) -> None:
        """Simulate placements; `listed`: and those that lists give."""
        own, self.known[rewrites] = self.problem.rewritten(rewrites), self.problem.costs
        several = [*given, *(_listed(own) if listed else ())]
        some = filter(None, (_judged(origin, own, each) for each in several))
        self.judged.setdefault(rewrites, []).extend(some)
        if not self.judged[rewrites]:
            del self.judged[rewrites]

    def explore(self, until: float, limit_s: float) -> None:
        """Measure some of what may gain although it is estimated not to, and judge again.

        Args:
            until: no more is looked at, on ``time.perf_counter``.
            limit_s: for measuring.
        """
        if self.problem.meter is None:
            return
        explorer = Explorer(self.problem, self.than_s, limit_s, self.whole)
        judged = ((each.origin, each.rewrites) for each in self.leaders)
        longest = cuts_of_longest(self.problem, self.whole, equal_or_by_speed(self.problem))
        for origin, rewrites in chain(judged, longest):
            if time.perf_counter() > until:
                break
            explorer.consider(origin, rewrites)
        self.problem = explorer.measure()
        self.explored = explorer.explored
        for each in self.leaders if explorer.measured else ():
            if self._knows_more(each):
                self._again(each)
        for cut in explorer.measured:
            if cut.rewrites not in self.judged:
                self.judge(cut.origin, cut.rewrites, [cut.placement], listed=True)

    def _knows_more(self, leader: InParts) -> bool:
        """Whether any of its seconds are others than when it was judged."""
        now, then = self.problem.rewritten(leader.rewrites).costs, leader.problem.costs
        return any(own.nodes != then.devices[kind].nodes for kind, own in now.devices.items())

    def measure(self, count: int) -> None:
        """Until none of the first so many is estimated that may be of use."""
        while (first := self._estimated(count)) is not None:
            self.measured.add(first.rewrites)
            try:
                self.problem = self.problem.with_measured_parts(first.rewrites)
            except ConfigError as refusal:
                log.info("%s skipped: %s", first.origin, refusal)
                del self.judged[first.rewrites]
                continue
            if self.problem.costs is self.known[first.rewrites]:
                continue
            now = self._again(first)
            log.info(
                "%s: %.4g ms with the operators in parts measured (%.4g ms estimated)",
                first.origin,
                1e3 * now.iteration_s,
                1e3 * first.iteration_s,
            )

    def _again(self, leader: InParts) -> InParts:
        """The best of its rewrites by what is known now."""
        before = self.judged.pop(leader.rewrites)
        self.judge(leader.origin, leader.rewrites, [each.placement for each in before], listed=True)
        return min(self.judged[leader.rewrites], key=_rank)

    def _estimated(self, count: int) -> InParts | None:
        if self.problem.meter is None:
            return None
        near = [each for each in self.leaders[:count] if each.rank < (False, (1 - SLIGHT) * self.than_s)]
        return next((each for each in near if each.rewrites not in self.measured), None)


def _rank(each: InParts) -> tuple[bool, float]:
    return each.rank


def whole_or_in_parts(
    problem: Problem, starts: int, deadline: float, of_whole: Callable[[Problem, float], Choice]
) -> Choice:
    """What takes less: the answer for whole operators, or one in parts; what fits, where only one does.

    Args:
        problem: with a `simulator`.
        deadline: on ``time.perf_counter``.
        of_whole: the answer for a problem, by then.

    Raises:
        InfeasibleError: that of whole operators, where nothing in parts fits either.
    """
    loading = Search(problem, starts, deadline, (), "auto")
    loading.compile()
    now, deadline = time.perf_counter(), loading.deadline
    whole, told, refusal = None, None, None
    try:
        whole = of_whole(problem, now + WHOLE * (deadline - now))
        told = _judged("whole operators", problem, _placed(problem.graph, whole))
    except InfeasibleError as error:
        refusal = error
    than_s = inf if told is None or told.missing_bytes else told.iteration_s
    there = {} if told is None else told.placement.device_of
    parts, explored = best_in_parts(problem, starts, deadline, than_s, there)
    tried = {"explored": explored.to_dict()} if explored.origins else {}
    if parts is None and whole is None:
        assert refusal is not None
        raise refusal
    if parts is None or (whole is not None and told is not None and not parts.gains(told)):
        assert whole is not None
        return replace(whole, notes={**whole.notes, **tried})
    if problem.improved is not None:
        problem.improved(parts.iteration_s, parts.origin)
    priority = parts.placement.priority
    return Choice(
        parts.placement.device_of,
        {name: float(rank) for name, rank in priority.items()},
        status="feasible",
        objective_s=parts.iteration_s,
        notes={"found_by": parts.origin, "whole_s": None if told is None else told.iteration_s, **tried},
        rewrites=parts.rewrites,
    )


def best_in_parts(
    problem: Problem,
    starts: int,
    deadline: float,
    than_s: float = inf,
    whole: Mapping[str, str] = NOWHERE,
) -> tuple[InParts | None, Explored]:
    """The best found that fits, and what was explored; until `deadline` on ``time.perf_counter``, later by
    what measuring takes.

    Args:
        problem: of whole operators, with a `simulator`; what is known may be of operators in parts.
        than_s: what takes longer is of no use: its parts are not measured, save a few that are explored.
        whole: where whole operators are that take so long; by default on the first device.
    """
    began, metered_s = time.perf_counter(), problem.metered_s()
    contenders = _Contenders(replace(problem, improved=None), than_s, whole)

    def until(part: float) -> float:
        """When that part of the time has passed; all, as long as nothing fits."""
        part = part if any(not each.missing_bytes for each in contenders.leaders) else 1.0
        late_s = problem.metered_s() - metered_s
        return began + part * (deadline - began) + late_s

    for origin, rewrites, how in _asked(contenders, until, EXPLORED * (deadline - began)):
        try:
            listed = isinstance(how, StructureInParts)
            contenders.judge(origin, rewrites, _places(problem, rewrites, how), listed)
        except RewriteError as refusal:
            log.debug("auto: no %s: %s", origin, refusal)
    contenders.measure(ANNEALED)
    deadline += problem.metered_s() - metered_s
    few = contenders.leaders[:ANNEALED]
    for i, each in enumerate(few):
        now = time.perf_counter()
        if now < deadline:
            contenders.judged[each.rewrites] += _annealed(
                each, starts, now + (deadline - now) / (len(few) - i)
            )
    contenders.measure(1)
    best = next((each for each in contenders.leaders if not each.missing_bytes), None)
    return best, contenders.explored


def _places(
    problem: Problem, rewrites: tuple[Rewrite, ...], how: Placement | StructureInParts
) -> list[Placement]:
    """Raises `RewriteError`: the graph cannot be rewritten so."""
    if isinstance(how, Placement):
        return [how]
    graph = rewrite.applied(problem.graph, rewrites, scaled=True)
    return [_placement(graph, each) for each in how.places(graph, problem.cluster)]


def _asked(
    contenders: _Contenders, until: Callable[[float], float], exploring_s: float
) -> Iterator[tuple[str, tuple[Rewrite, ...], Placement | StructureInParts]]:
    """Origin, rewrites, and the placement, or what says of several; what would take too long is left out,
    by what the ones before took. Once structures are judged, parts of some are explored."""
    problem = contenders.problem
    known = problem.known
    if known is not None and known.rewrites != problem.graph.rewrites:
        yield "an earlier plan", known.rewrites, known
    seen: set[tuple[Rewrite, ...]] = set()
    part_s, left_out = PART_S, False
    for each in structures(problem):
        began = time.perf_counter()
        if began + part_s * each.parts > until(JUDGED):
            log.debug("auto: no time for %s", each.origin)
            left_out = True
            continue
        rewrites = (*problem.graph.rewrites, *each.rewrites())
        if len(rewrites) > len(problem.graph.rewrites) and rewrites not in seen:
            seen.add(rewrites)
            yield each.origin, rewrites, each
        part_s = max(part_s, (time.perf_counter() - began) / max(each.parts, 1))
    contenders.explore(until(JUDGED), exploring_s)
    left_s = until(FASTT) - time.perf_counter()
    if left_s > 0:
        with suppress(NetSplitError):
            own = replace(contenders.problem, known=None, improved=None, time_limit_s=left_s, meter=None)
            placement = OsDpos(start="whole" if left_out else "data_parallel").partition(own)
            if placement.rewrites != problem.graph.rewrites:
                yield OsDpos.name, placement.rewrites, placement


def _listed(problem: Problem) -> Iterator[Placement]:
    for method in LISTED:
        with suppress(InfeasibleError):
            yield method.partition(problem)


def _placed(graph: Graph, choice: Choice) -> Placement:
    order = topological_priority(graph, choice.key or graph.position)
    report = choice.report(0.0)
    return Placement(
        "auto", choice.device_of, order, report, choice.stages, choice.cuts, rewrites=graph.rewrites
    )


def _placement(graph: Graph, device_of: dict[str, str], rank: Mapping[str, float] | None = None) -> Placement:
    order = topological_priority(graph, rank or graph.position)
    return Placement("auto", device_of, order, SolverReport("feasible", 0.0), rewrites=graph.rewrites)


def _judged(origin: str, problem: Problem, placement: Placement) -> InParts | None:
    """None of what the schedule cannot have."""
    simulator = problem.simulator
    assert simulator is not None
    try:
        predicted = simulator(placement)
    except ConfigError as refusal:  # copies of weights, under some
        log.debug("auto: no %s: %s", origin, refusal)
        return None
    missing = missing_bytes(problem, placement, predicted, simulator.cluster)
    return InParts(origin, problem, placement, predicted.iteration_s, missing)


def _annealed(start: InParts, starts: int, deadline: float) -> list[InParts]:
    """What a search from it finds."""
    instance = Instance.of(start.problem)
    fits = instance.fits(instance.encode(start.placement.device_of))
    problem = replace(start.problem, known=start.placement if fits else None)
    search = Search(problem, starts, deadline, METHODS, "auto, in parts", simulated=True)
    search.compile()
    answer = search.run(None)
    if answer is None:
        return []
    rank = {instance.names[int(v)]: float(i) for i, v in enumerate(answer.order)}
    placement = _placement(problem.graph, instance.decode(answer.where), rank)
    return [each for each in (_judged(start.origin, start.problem, placement),) if each is not None]
