"""`auto` with operators in parts: what Unity's programme and `os_dpos` answer, the best of it annealed.

Unity's programme ─┐             the best measured ─► annealed ─► best
os_dpos, known     ─┴─► simulated ─┘

Where devices measure parts (`Problem.meter`), those of `os_dpos` are, and the programme is asked again; then
those of what leads are, until what leads is so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from operator import attrgetter

from netsplit.errors import ConfigError, InfeasibleError, NetSplitError
from netsplit.graph.quotient import topological_priority
from netsplit.partition.base import Problem
from netsplit.partition.engines.search import SLIGHT, Search
from netsplit.partition.methods.annealed import annealed, placements_by_lists
from netsplit.partition.methods.os_dpos import OsDpos
from netsplit.partition.methods.unity.unity import Unity
from netsplit.partition.partitioner import Choice, missing_bytes
from netsplit.placement.placement import Placement
from netsplit.rewrite.records import Rewrite

__all__ = ["InParts", "best_in_parts", "whole_or_in_parts"]

log = logging.getLogger(__name__)

WHOLE = 0.6  # of the time, for whole operators
MAPPED = 0.5  # of the rest, when no more mappings are begun
ASKED = 0.7  # of the rest, when mappings are left and os_dpos ends; then the best is annealed
_RANK = attrgetter("rank")
ANNEALED = 2  # of what was judged
GRAPHS = 50  # that algebra makes, of which the programme says the seconds


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
    """

    problem: Problem
    than_s: float
    judged: dict[tuple[Rewrite, ...], list[InParts]] = field(default_factory=dict)
    measured: set[tuple[Rewrite, ...]] = field(default_factory=set)

    @property
    def leaders(self) -> list[InParts]:
        """The best of each, best first."""
        return sorted((min(each, key=_RANK) for each in self.judged.values() if each), key=_RANK)

    def judge(self, origin: str, given: Sequence[Placement]) -> None:
        """Simulate placements of the same rewrites, and what lists make of these."""
        own = self.problem.rewritten(given[0].rewrites)
        of_lists = [] if own is self.problem else list(placements_by_lists(own))
        candidates = filter(None, (_judged(origin, own, each) for each in (*given, *of_lists)))
        self.judged.setdefault(own.graph.rewrites, []).extend(candidates)

    def learn(self, problem: Problem) -> None:
        """Judge all of it by what is known now."""
        if problem.costs is self.problem.costs:
            return
        self.problem, before, self.judged = problem, self.judged, {}
        for each in before.values():
            if each:
                self.judge(each[0].origin, [own.placement for own in each])

    def measure(self, count: int) -> None:
        """Measure until none of the first so many that may be of use is estimated."""
        while first := next(filter(self._is_estimated, self.leaders[:count]), None):
            self.measured.add(first.rewrites)
            try:
                self.learn(self.problem.with_measured_parts(first.rewrites))
            except ConfigError as refusal:
                log.info("%s skipped: %s", first.origin, refusal)
                del self.judged[first.rewrites]

    def _is_estimated(self, each: InParts) -> bool:
        of_use = each.rank < (False, (1 - SLIGHT) * self.than_s)
        return self.problem.meter is not None and of_use and each.rewrites not in self.measured


def whole_or_in_parts(
    problem: Problem,
    starts: int,
    deadline: float,
    of_whole: Callable[[Problem, float], Choice],
    algebra: bool = False,
) -> Choice:
    """What takes less: the answer for whole operators, or one in parts; what fits, where only one does.

    Args:
        problem: with a `simulator`.
        deadline: on ``time.perf_counter``.
        of_whole: the answer for a problem, by then.
        algebra: operators may be replaced by others.

    Raises:
        InfeasibleError: that of whole operators, where nothing in parts fits either.
    """
    loading = Search(problem, starts, deadline, (), "auto")
    loading.compile()
    now, deadline = time.perf_counter(), loading.deadline
    whole, simulated, refusal = None, None, None
    try:
        whole = of_whole(problem, now + WHOLE * (deadline - now))
        order = topological_priority(problem.graph, whole.key or problem.graph.position)
        placement = Placement("auto", whole.device_of, order, whole.report(0.0), whole.stages, whole.cuts)
        placement = replace(placement, rewrites=problem.graph.rewrites)
        simulated = _judged("whole operators", problem, placement)
    except InfeasibleError as error:
        refusal = error
    than_s = inf if simulated is None or simulated.missing_bytes else simulated.iteration_s
    parts = best_in_parts(problem, starts, deadline, than_s, algebra)
    if parts is None and whole is None:
        assert refusal is not None
        raise refusal
    if parts is None or (whole is not None and simulated is not None and not parts.gains(simulated)):
        assert whole is not None
        return whole
    if problem.improved is not None:
        problem.improved(parts.iteration_s, parts.origin)
    priority = parts.placement.priority
    return Choice(
        parts.placement.device_of,
        {name: float(rank) for name, rank in priority.items()},
        status="feasible",
        objective_s=parts.iteration_s,
        notes={"found_by": parts.origin, "whole_s": None if simulated is None else simulated.iteration_s},
        rewrites=parts.rewrites,
    )


def best_in_parts(
    problem: Problem,
    starts: int,
    deadline: float,
    than_s: float = inf,
    algebra: bool = False,
) -> InParts | None:
    """The best found that fits; until `deadline` on ``time.perf_counter``, later by what measuring takes.

    Args:
        problem: of whole operators, with a `simulator`; what is known may be of operators in parts.
        than_s: what takes longer is of no use: its parts are not measured.
        algebra: operators may be replaced by others.
    """
    began, metered_s = time.perf_counter(), problem.metered_s()
    contenders, left_s = _Contenders(replace(problem, improved=None), than_s), deadline - began
    known = problem.known
    if known is not None and known.rewrites != problem.graph.rewrites:
        contenders.judge("an earlier plan", [known])

    def until(part: float) -> float:
        """When that part of the time has passed; all, as long as nothing fits."""
        fits = than_s < inf or any(not each.missing_bytes for each in contenders.leaders)
        part = part if fits else 1.0
        return began + part * left_s + problem.metered_s() - metered_s

    def fastest_s() -> float:
        fit = [each.iteration_s for each in contenders.leaders if not each.missing_bytes]
        return min([than_s, *fit[:1]])

    def ask_the_programme() -> None:
        method = Unity(algebra=algebra, budget=GRAPHS)
        given = contenders.problem, lambda: until(MAPPED), lambda: until(ASKED), fastest_s
        for origin, placement in method.quick(*given):
            if placement.rewrites != problem.graph.rewrites:
                contenders.judge(origin, [placement])

    ask_the_programme()
    asked_s = until(ASKED) - time.perf_counter()
    if asked_s > 0:
        with suppress(NetSplitError):
            alone = replace(contenders.problem, known=None, time_limit_s=asked_s)
            placement = OsDpos().partition(alone)
            if placement.rewrites != problem.graph.rewrites:
                contenders.judge(OsDpos.name, [placement])
                contenders.learn(problem.with_measured_parts(placement.rewrites))
                if contenders.problem.costs is not problem.costs:
                    ask_the_programme()
    contenders.measure(ANNEALED)
    few, ends = contenders.leaders[:ANNEALED], until(1.0)
    for i, each in enumerate(few):
        now = time.perf_counter()
        if now < ends:
            again = annealed(each.problem, each.placement, starts, now + (ends - now) / (len(few) - i))
            if again is not None and (own := _judged(each.origin, each.problem, again)) is not None:
                contenders.judged[each.rewrites].append(own)
    contenders.measure(1)
    return next((each for each in contenders.leaders if not each.missing_bytes), None)


def _judged(origin: str, problem: Problem, placement: Placement) -> InParts | None:
    """None of what the schedule cannot have."""
    simulator = problem.simulator
    assert simulator is not None
    try:
        predicted = simulator(placement)
    except ConfigError as refusal:  # copies of weights, under some
        log.debug("auto: skipped %s: %s", origin, refusal)
        return None
    missing = missing_bytes(problem, placement, predicted, simulator.cluster)
    return InParts(origin, problem, placement, predicted.iteration_s, missing)
