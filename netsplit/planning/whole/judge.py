"""The judge of whole plans: simulates a placement under a schedule, makes it fit, and keeps the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from netsplit.cluster.cluster import Cluster
from netsplit.graph.checks.replicated import unreplicable_nodes
from netsplit.graph.quotient import successors, topological_order
from netsplit.partition.base import Problem
from netsplit.partition.bounds.iteration_bound import LIMIT_S, iteration_bound_s
from netsplit.partition.bounds.iteration_tasks import AnySchedule
from netsplit.placement.placement import Placement
from netsplit.placement.sharding import sharded_levels
from netsplit.planning.recomputation import nearest_recomputed
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.stages import LineStages
from netsplit.program.schedules import Schedule, Searched
from netsplit.simulate.simulate import simulate
from netsplit.simulate.timeline import Timeline

__all__ = [
    "KINDS",
    "Judge",
    "Kind",
    "Tried",
    "any_schedule",
    "identity",
    "of_every_plan_s",
    "problem_under",
    "tried_as",
]

Kind = Literal["single", "data parallel", "pipeline", "hybrid", "operators", "parts", "mesh"]
"""One device; replicas of all; stages; those with replicas; any; in parts; data x tensor x pipeline."""
KINDS: tuple[Kind, ...] = ("single", "data parallel", "pipeline", "hybrid", "operators")
"""Kinds of plans that keep every operator whole."""
Key = tuple[object, ...]  # a schedule, and what `identity` says of a placement
BEHIND = 1.06  # times the best of the same kind, beyond which bytes are not simulated


@dataclass(frozen=True)
class Tried:
    """A placement under a schedule and its prediction. Seconds are of one iteration."""

    kind: Kind
    origin: str  # what made the placement
    schedule: Schedule
    placement: Placement
    iteration_s: float
    peak_bytes: dict[str, int]  # empty: not simulated, far behind the best of its kind
    missing_bytes: int  # on the device that lacks most; 0: it fits
    missing_on: str
    busiest: str  # the device that computes longest
    compute_s: float  # of the busiest device
    recompute_s: float  # part of it, for recomputed activations
    sums_s: float  # of the busiest device, in sums of gradients
    cut: LineStages | None = None  # the stages that the placement was made from

    @property
    def fits(self) -> bool:
        return bool(self.peak_bytes) and self.missing_bytes <= 0

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """The devices that compute."""
        return tuple(dict.fromkeys(name for stage in self.placement.all_stages for name in stage.devices))

    @property
    def wait_s(self) -> float:
        """The busiest device's bubbles, transfers and overheads."""
        return max(0.0, self.iteration_s - self.compute_s - self.sums_s)

    @cached_property
    def rank(self) -> tuple[bool, float, int, int, int]:
        """Least is best: plans that fit by seconds to six digits, then devices, bytes and micro-batches;
        others by missing bytes."""
        value = float(f"{self.iteration_s:.6g}") if self.fits else float(self.missing_bytes)
        held = max(self.peak_bytes.values(), default=0)
        return (not self.fits, value, len(self.devices), held, self.schedule.microbatches)

    @cached_property
    def where(self) -> tuple[object, ...]:
        """Equal for the same placement and number of micro-batches under any schedule."""
        return (self.schedule.microbatches, *identity(self.placement))


def problem_under(problem: Problem, schedule: Schedule) -> Problem:
    """The problem under another schedule with the same number of micro-batches."""
    return replace(
        problem,
        in_flight=schedule.in_flight(len(problem.cluster.devices)),
        simulator=replace(problem.the_simulator, schedule=schedule),
    )


@dataclass(eq=False)
class Judge:
    """Simulates each plan once and keeps it. A new best with operators in parts has them measured first.

    Args:
        problem_of: number of micro-batches -> its problem, with the parts measured so far.
        recompute: whether to recompute activations where a plan does not fit.
        shard: whether to slice states of replicas where a plan does not fit.
        improved: called with seconds and origin of each better plan.
        deadline: on ``time.perf_counter``; once a plan fits, nothing begins that would end later.
    """

    problem_of: Callable[[int], Problem]
    recompute: bool = False
    shard: bool = False
    improved: Callable[[float, str], object] | None = None
    deadline: float = float("inf")
    seen: dict[Key, Tried | None] = field(default_factory=dict)  # None: verification refused
    waiting: dict[Key, Tried] = field(default_factory=dict)  # to be made to fit
    took_s: dict[str, float] = field(default_factory=dict)  # `_orders` -> the quickest simulation
    began: set[int] = field(default_factory=set)  # numbers of micro-batches that were simulated

    @property
    def tried(self) -> list[Tried]:
        """All plans with known bytes, the best first."""
        known = (each for each in self.seen.values() if each is not None and each.peak_bytes)
        return sorted(known, key=lambda each: each.rank)

    def placements(self) -> list[Tried]:
        """Every placement under its fastest schedule; those that fit come first."""
        fastest: dict[object, Tried] = {}
        every = (each for each in self.seen.values() if each is not None)
        for each in sorted(every, key=lambda each: (not each.fits, each.iteration_s)):
            fastest.setdefault(each.where, each)
        return list(fastest.values())

    def best(self, kind: Kind) -> Tried | None:
        """The best of a kind, which may not fit."""
        return next((each for each in self.tried if each.kind == kind), None)

    @property
    def winner(self) -> Tried | None:
        """The best that fits."""
        return next((each for each in self.tried if each.fits), None)

    @property
    def best_s(self) -> float:
        winner = self.winner
        return winner.iteration_s if winner is not None else float("inf")

    def judge(
        self,
        origin: str,
        schedule: Schedule,
        placement: Placement,
        cut: LineStages | None = None,
        however_late: bool = False,
        fit: bool = True,
    ) -> Tried | None:
        """Simulate a plan, with slices and recomputation if open and needed to make it fit; None if there is
        no time, or if verification refused it.

        Args:
            however_late: simulate it after the deadline, too.
            fit: make it fit at once; False: it waits for `fit`.
        """
        placement = replace(placement, recomputed=frozenset(), shards=())
        key = schedule, *identity(placement)
        if key not in self.seen:
            if not (however_late or self._affords(schedule)):
                return None
            tried = self._simulated(origin, schedule, placement, cut)
            leads = tried.fits and (self.winner is None or tried.rank < self.winner.rank)
            problem = self.problem_of(schedule.microbatches)
            if leads and problem.with_measured_parts(placement.rewrites) is not problem:
                tried = self._simulated(origin, schedule, placement, cut)
            self._keep(key, tried)
            if tried.missing_bytes:
                self.waiting[key] = tried
        if fit:
            self.fit(key)
        return self.seen[key]

    def fit(self, key: Key) -> None:
        """Slices and recomputation for a waiting plan that may then be the best, or the first of its kind."""
        tried = self.waiting.pop(key, None)
        if tried is not None:
            known = self.best(tried.kind)  # recomputation makes nothing faster
            if not known or not known.fits or tried.iteration_s < self.best_s:
                self._keep(key, self._fitted(tried))

    def _keep(self, key: Key, tried: Tried) -> None:
        if tried.fits and tried.iteration_s < self.best_s and self.improved is not None:
            self.improved(tried.iteration_s, f"{tried.origin}, {tried.schedule.name}")
        self.seen[key] = tried

    def discard(self, tried: Tried) -> None:
        """Forget a plan that verification refused."""
        self.seen[tried.schedule, *identity(tried.placement)] = None

    def _affords(self, schedule: Schedule) -> bool:
        """Whether a simulation may end in time, by the quickest of its kind; True until a plan fits."""
        least_s = self.took_s.get(_orders(schedule), 0.0)
        return self.winner is None or time.perf_counter() + least_s < self.deadline

    def _fitted(self, tried: Tried) -> Tried:
        """The best of the plan, of it with sliced states, with recomputation, and if need be with both."""
        schedule, options = tried.schedule, [tried]
        problem = self.problem_of(schedule.microbatches).rewritten(tried.placement.rewrites)
        problem = problem_under(problem, schedule)
        for changed in sharded_levels(problem.graph, tried.placement) if self.shard else ():
            if self._affords(schedule):
                options.append(self._simulated(tried.origin, schedule, changed, tried.cut))
        kept = [tried] if len(options) == 1 or any(each.fits for each in options) else [tried, options[-1]]
        for each in kept if self.recompute else ():
            if self._affords(schedule):
                until = float("inf") if self.winner is None else self.deadline
                nearest, _ = nearest_recomputed(problem, each.placement, until)
                options.append(self._simulated(tried.origin, schedule, nearest, tried.cut))
        return min(options, key=lambda each: each.rank)

    def _simulated(
        self, origin: str, schedule: Schedule, placement: Placement, cut: LineStages | None
    ) -> Tried:
        began = time.perf_counter()
        problem = self.problem_of(schedule.microbatches).rewritten(placement.rewrites)
        simulator, kind = replace(problem.the_simulator, schedule=schedule), _kind_of(problem, placement)
        program = simulator.whole_microbatches(placement)
        timeline = simulate(program, simulator.cluster, simulator.costs, peaks=False)
        best = self.best(kind)
        if best is None or not best.fits or timeline.iteration_s <= BEHIND * best.iteration_s:
            if simulator.hands_on and timeline.iteration_s <= BEHIND * self.best_s:
                timeline = simulator.scored(placement, self.deadline).timeline
            else:
                timeline = replace(timeline, peak_bytes=simulator.peak_bytes(program))
        took_s, orders = time.perf_counter() - began, _orders(schedule)
        if schedule.microbatches in self.began:  # the first prepares what the others use
            self.took_s[orders] = min(took_s, self.took_s.get(orders, took_s))
        self.began.add(schedule.microbatches)
        return tried_as(kind, origin, schedule, placement, timeline, problem.cluster, cut)


def tried_as(
    kind: Kind, origin: str, schedule: Schedule, placement: Placement, timeline: Timeline, cluster: Cluster,
    cut: LineStages | None = None,
) -> Tried:  # fmt: skip
    """A simulated plan, with what its busiest device spends its seconds on."""
    capacity = {each.name: each.capacity_bytes for each in cluster.devices}
    over = {name: peak - capacity[name] for name, peak in timeline.peak_bytes.items()}
    on = max(over, key=lambda name: over[name], default="")
    busiest = max(capacity, key=timeline.busy_s)
    again_s, sums_s = (
        sum(each.seconds for each in timeline.events if (each.device, each.kind) == (busiest, what))
        for what in ("recompute", "reduce")
    )
    return Tried(
        kind, origin, schedule, placement, timeline.iteration_s, dict(timeline.peak_bytes),
        max(over.get(on, 0), 0), on, busiest, timeline.busy_s(busiest), again_s, sums_s, cut,
    )  # fmt: skip


def identity(placement: Placement) -> tuple[object, ...]:
    """Equal for placements that differ only in recomputation and slices."""
    where = tuple(sorted(placement.device_of.items()))
    order = tuple(sorted(placement.priority, key=placement.priority.__getitem__))
    turns, rewrites = tuple(sorted(placement.turns.items())), hash(placement.rewrites)
    return hash(where), hash(order), turns, placement.cuts, rewrites


def _orders(schedule: Schedule) -> str:
    """How many orders a simulation tries."""
    quick = isinstance(schedule, Searched) and schedule.quick
    return "a few" if quick else "many" if schedule.timed else "one"


def _kind_of(problem: Problem, placement: Placement) -> Kind:
    """The placement's kind. In a pipeline no device waits, through others, for its own output."""
    homes = sorted({name for stage in placement.all_stages for name in stage.devices})
    if len(homes) == 1:
        return "single"
    if placement.rewrites:
        return "parts"
    if placement.replicas:
        return "data parallel" if len(set(placement.device_of.values())) == 1 else "hybrid"
    if placement.cuts:
        return "pipeline"
    at = {name: homes.index(device) for name, device in placement.device_of.items()}
    edges = {(at[u], at[v]) for v, feeders in problem.graph.predecessors.items() for u in feeders}
    after = successors(len(homes), edges)
    return "pipeline" if len(topological_order(after, int)) == len(homes) else "operators"


def of_every_plan_s(
    problem_of: Callable[[int], Problem],
    counts: Sequence[int],
    open_: AutoSchedule,
    until: float = float("inf"),
) -> float:
    """Lower bound on an iteration's seconds with any of these numbers of micro-batches and open schedules.

    Every number has a quick bound; the least ones are refined until `until` on ``time.perf_counter``.
    """

    def bound_s(m: int, limit_s: float) -> float:
        schedule = any_schedule(problem_of(m), m, open_.recompute, open_.replicas and m > 1)
        return iteration_bound_s(problem_of(m), schedule, limit_s)

    bounds = {m: bound_s(m, 0.0) for m in counts}
    refined: set[int] = set()
    while (least := min(bounds, key=lambda m: bounds[m])) not in refined:
        left_s = until - time.perf_counter()
        if left_s <= 0:
            break
        refined.add(least)
        bounds[least] = max(bounds[least], bound_s(least, min(left_s, LIMIT_S)))
    return bounds[least]


def any_schedule(problem: Problem, microbatches: int, recompute: bool, replicas: bool) -> AnySchedule:
    """Any schedule with that many micro-batches, for bounds."""
    return AnySchedule(
        microbatches,
        problem.the_simulator.training,
        kept=0 if recompute or problem.costs.offload.activations else 1,
        alone=unreplicable_nodes(problem.graph) if replicas else frozenset(problem.graph.nodes),
    )
