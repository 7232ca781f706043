"""What a placement takes under a schedule, simulated: seconds, bytes, and where the seconds go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from netsplit.graph.order import topological_order
from netsplit.graph.quotient import successors
from netsplit.partition.base import Problem
from netsplit.placement.placement import Placement, device_in_turn
from netsplit.placement.sharding import sharded_levels
from netsplit.planning.recomputation.recomputed_within import nearest_recomputed
from netsplit.planning.whole.pace import SimulationPace
from netsplit.program.schedules import Schedule
from netsplit.simulate.simulate import simulate
from netsplit.simulate.timeline import COMPUTING, Timeline

__all__ = ["KINDS", "Judge", "Kind", "Tried", "identity", "problem_under", "under_any_schedule_s"]


def under_any_schedule_s(problem: Problem, microbatches: int, placement: Placement) -> float:
    """Seconds of an iteration that none is shorter than: of the device that is done last, if none waited.

        device q   |--- head(v) ---|--- rounds x work of all on q that no micro-batch comes to before v ---|

    head(v) is the longest way of a first micro-batch's forward to node v, each node on the fastest of its
    devices; transfers, sums of gradients and what a backward waits for are left out.

    Args:
        problem: of the graph whose operators are placed.
    """
    costs, kinds = problem.costs, {each.name: each.kind for each in problem.cluster.devices}
    forward_s = {
        v: min(costs.forward_s(v, kinds[name]) for name in stage.devices)
        for stage in placement.all_stages
        for v in stage.nodes
    }
    heads: dict[str, float] = {}
    for v in problem.graph.nodes:
        heads[v] = max((heads[u] + forward_s[u] for u in problem.graph.predecessors[v]), default=0.0)
    work: dict[str, list[tuple[float, float]]] = {}
    for stage in placement.all_stages:
        turns = Counter(device_in_turn(stage.in_turn, i) for i in range(microbatches))
        for name, rounds in turns.items():
            own = ((heads[v], rounds * costs.total_s(v, kinds[name])) for v in stage.nodes)
            work.setdefault(name, []).extend(own)
    return max((_done_s(each) for each in work.values()), default=0.0)


def _done_s(work: list[tuple[float, float]]) -> float:
    """When a device has done all, at the earliest; of what comes when, and the seconds that it takes."""
    done_s = 0.0
    for head_s, seconds in sorted(work):
        if seconds > 0.0:
            done_s = max(done_s, head_s) + seconds
    return done_s


Kind = Literal["single", "data parallel", "pipeline", "hybrid", "operators", "parts"]
"""One device; replicas of everything; a stage a device; stages with replicas; operators as they come, or in
parts."""
KINDS: tuple[Kind, ...] = ("single", "data parallel", "pipeline", "hybrid", "operators")
"""Of whole operators."""


@dataclass(frozen=True)
class Tried:
    """A placement under a schedule, and what is predicted of it. Seconds of one iteration of the batch."""

    kind: Kind
    origin: str  # what made the placement
    schedule: Schedule
    placement: Placement
    iteration_s: float
    peak_bytes: dict[str, int]
    missing_bytes: int  # over a capacity, on the device that lacks most; 0: it fits
    missing_on: str
    busiest: str  # the device that computes longest
    compute_s: float  # of it
    recompute_s: float  # of that, for activations again
    sums_s: float  # of it, in sums of gradients

    @property
    def fits(self) -> bool:
        return self.missing_bytes <= 0

    @property
    def recomputes(self) -> bool:
        return bool(self.placement.recomputed)

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """That compute."""
        return tuple(dict.fromkeys(name for stage in self.placement.all_stages for name in stage.devices))

    @property
    def wait_s(self) -> float:
        """The busiest device's bubbles, transfers and overheads."""
        return max(0.0, self.iteration_s - self.compute_s - self.sums_s)

    @cached_property
    def rank(self) -> tuple[bool, float, int, int, int]:
        """Least is best: what fits, by its seconds; else by what is missing.

        Among equals, sums in another order apart, fewer devices, fewer bytes, fewer micro-batches.
        """
        value = float(f"{self.iteration_s:.6g}") if self.fits else float(self.missing_bytes)
        held = max(self.peak_bytes.values(), default=0)
        return (not self.fits, value, len(self.devices), held, self.schedule.microbatches)


@dataclass
class Met:
    """A placement that was simulated under some schedule of so many micro-batches."""

    origin: str
    microbatches: int
    placement: Placement
    least_s: float  # under any schedule
    fastest_s: float  # under those that it was tried under, whether it fits or not


def problem_under(problem: Problem, schedule: Schedule) -> Problem:
    """The same problem under another schedule of as many micro-batches."""
    return replace(
        problem,
        in_flight=schedule.in_flight(len(problem.cluster.devices)),
        simulator=replace(problem.the_simulator, schedule=schedule),
    )


BEHIND = 1.06  # times the best of the same kind, from which its bytes are not asked for


class Judge:
    """Keeps the best of each kind that was tried, and everything that was, once.

    What would be the best in parts is measured, where it was not, and simulated again.

    Args:
        problem_of: micro-batches to the problem of planning with that many, with what is known of parts.
        recompute: whether what does not fit is tried with activations computed again.
        improved: told seconds and origin of a better plan.
        shard: whether the states of replicas that do not fit are tried in slices.
        pace: what would end after its deadline is not begun, once there is a plan that fits.
    """

    def __init__(
        self,
        problem_of: Callable[[int], Problem],
        recompute: bool,
        improved: Callable[[float, str], object] | None = None,
        pace: SimulationPace | None = None,
        shard: bool = False,
    ) -> None:
        self.problem_of = problem_of
        self.recompute, self.shard = recompute, shard
        self.improved = improved
        self.pace = SimulationPace() if pace is None else pace
        self.best: dict[Kind, Tried] = {}
        self.seen: dict[tuple[object, ...], Tried | None] = {}
        self.met: dict[tuple[object, ...], Met] = {}  # everything that was simulated, under any schedule
        self.levels: dict[tuple[object, ...], list[Tried]] = {}  # by `identity`: whole states, and slices
        self.left_out = 0  # for want of time

    def problem_for(self, microbatches: int, placement: Placement) -> Problem:
        """Of so many, and of the operators that are placed."""
        return self.problem_of(microbatches).rewritten(placement.rewrites)

    @property
    def tried(self) -> list[Tried]:
        """All whose bytes are known."""
        return [each for each in self.seen.values() if each is not None]

    @property
    def winner(self) -> Tried | None:
        """The best that fits."""
        fitting = [each for each in self.best.values() if each.fits]
        return min(fitting, key=lambda each: each.rank, default=None)

    @property
    def best_s(self) -> float:
        winner = self.winner
        return winner.iteration_s if winner is not None else float("inf")

    def judge(
        self, origin: str, schedule: Schedule, placement: Placement, however_late: bool = False
    ) -> Tried | None:
        """Simulate it; with recomputation where that is allowed and makes it fit.

        Returns:
            None for what is so far behind the best of its kind that its bytes were not asked for, and for
            what there is no time for.
        """
        if placement.recomputed or placement.shards:
            placement = _kept(placement)
        key = _key(schedule, placement)
        if key not in self.seen:
            if not however_late and not self.affords(schedule, placement):
                self.left_out += 1
                return None
            tried = self._tried(origin, schedule, placement)
            if tried is not None and self._leads(tried) and self._measured(schedule.microbatches, placement):
                tried = self._tried(origin, schedule, placement)
            self.seen[key] = tried
            if tried is not None:
                self._note(tried)
        return self.seen[key]

    def _tried(self, origin: str, schedule: Schedule, placement: Placement) -> Tried | None:
        tried = self._simulated(origin, schedule, placement)
        if tried is not None and not tried.fits and self._worth_recomputing(tried):
            sharded = self._sharded(origin, schedule, placement)
            if sharded:
                self.levels[identity(placement)] = [tried, *sharded]
            again = self._recomputed(origin, schedule, placement)
            tried = min([tried, *sharded, *again], key=lambda each: each.rank)
        return tried

    def _meet(self, origin: str, microbatches: int, placement: Placement, seconds: float) -> None:
        key = microbatches, *identity(placement)
        if key in self.met:
            self.met[key].fastest_s = min(self.met[key].fastest_s, seconds)
        else:
            least_s = self.least_s(microbatches, placement)
            kept = _kept(placement)
            self.met[key] = Met(origin, microbatches, kept, least_s, seconds)

    def met_as(self, tried: Tried) -> Met:
        return self.met[(tried.schedule.microbatches, *identity(tried.placement))]

    def discard(self, tried: Tried) -> None:
        """A plan that was refused is as one that was never tried."""
        key = _key(tried.schedule, tried.placement)
        self.seen[key] = None
        self.best = {}
        for each in self.tried:
            if each.kind not in self.best or each.rank < self.best[each.kind].rank:
                self.best[each.kind] = each

    def affords(self, schedule: Schedule, placement: Placement) -> bool:
        """Whether there is time to simulate it; always, as long as nothing fits."""
        problem = self.problem_for(schedule.microbatches, placement)
        return self.winner is None or self.pace.affords(problem, schedule, placement)

    def _leads(self, tried: Tried) -> bool:
        return tried.fits and (self.winner is None or tried.rank < self.winner.rank)

    def _measured(self, microbatches: int, placement: Placement) -> bool:
        """Whether more is known of what its parts take than before."""
        problem = self.problem_of(microbatches)
        if problem.with_measured_parts(placement.rewrites) is problem:
            return False
        del self.met[(microbatches, *identity(placement))]
        return True

    def _worth_recomputing(self, tried: Tried) -> bool:
        """It gets no faster by that: so what is faster than the best, or where nothing of its kind fits."""
        known = self.best.get(tried.kind)
        first = known is None or not known.fits
        return (self.recompute or self.shard) and (first or tried.iteration_s < self.best_s)

    def _recomputed(self, origin: str, schedule: Schedule, placement: Placement) -> list[Tried]:
        """With activations computed again, where there is time for that and it is worth something."""
        if not self.recompute or not self.affords(schedule, placement):
            return []
        problem = problem_under(self.problem_for(schedule.microbatches, placement), schedule)
        until = float("inf") if self.winner is None else self.pace.deadline
        nearest, _ = nearest_recomputed(problem, placement, until)
        other = self._simulated(origin, schedule, nearest)
        return [] if other is None else [other]

    def _sharded(self, origin: str, schedule: Schedule, placement: Placement) -> list[Tried]:
        """With states of replicas in slices, and activations computed again where that is not enough."""
        graph = self.problem_for(schedule.microbatches, placement).graph
        tried: list[Tried] = []
        for changed in sharded_levels(graph, placement) if self.shard else ():
            if not self.affords(schedule, changed):
                break
            other = self._simulated(origin, schedule, changed)
            if other is not None:
                tried.append(other)
        if tried and not any(each.fits for each in tried):
            tried += self._recomputed(origin, schedule, tried[-1].placement)
        return tried

    def least_s(self, microbatches: int, placement: Placement) -> float:
        """Under any schedule: no iteration is shorter."""
        return under_any_schedule_s(self.problem_for(microbatches, placement), microbatches, placement)

    def _simulated(self, origin: str, schedule: Schedule, placement: Placement) -> Tried | None:
        problem = self.problem_for(schedule.microbatches, placement)
        with self.pace.learning(problem, schedule, placement):
            return self._predicted(problem, origin, schedule, placement)

    def _predicted(
        self, problem: Problem, origin: str, schedule: Schedule, placement: Placement
    ) -> Tried | None:
        simulator, kind = replace(problem.the_simulator, schedule=schedule), _kind_of(problem, placement)
        program = simulator.whole_microbatches(placement)
        timeline = simulate(program, simulator.cluster, simulator.costs, peaks=False)
        self._meet(origin, schedule.microbatches, _kept(placement), timeline.iteration_s)
        known = self.best.get(kind)
        if known is not None and known.fits and timeline.iteration_s > BEHIND * known.iteration_s:
            return None
        timeline = replace(timeline, peak_bytes=simulator.peak_bytes(program))
        capacity = {each.name: each.capacity_bytes for each in problem.cluster.devices}
        over = {name: peak - capacity[name] for name, peak in timeline.peak_bytes.items()}
        on = max(over, key=lambda name: over[name])
        busiest, compute_s, recompute_s, sums_s = _busiest(timeline)
        return Tried(
            kind, origin, schedule, placement, timeline.iteration_s, dict(timeline.peak_bytes),
            max(over[on], 0), on, busiest, compute_s, recompute_s, sums_s,
        )  # fmt: skip

    def _note(self, tried: Tried) -> None:
        before, known = self.best_s, self.best.get(tried.kind)
        if known is None or tried.rank < known.rank:
            self.best[tried.kind] = tried
        if self.improved is not None and tried.fits and tried.iteration_s < before:
            self.improved(tried.iteration_s, f"{tried.origin}, {tried.schedule.name}")


def _kept(placement: Placement) -> Placement:
    """With all activations, and whole states on every device."""
    return replace(placement, recomputed=frozenset(), shards=())


def _key(schedule: Schedule, placement: Placement) -> tuple[Schedule, tuple[object, ...]]:
    return schedule, identity(placement)


def identity(placement: Placement) -> tuple[object, ...]:
    """Equal for placements that are the same but for what they recompute and have in slices."""
    where = tuple(sorted(placement.device_of.items()))
    order = tuple(sorted(placement.priority, key=placement.priority.__getitem__))
    turns, rewrites = tuple(sorted(placement.turns.items())), hash(placement.rewrites)
    return hash(where), hash(order), turns, placement.cuts, rewrites


def _busiest(timeline: Timeline) -> tuple[str, float, float, float]:
    """The device that computes longest, what it computes, of that again, and its sums of gradients."""
    compute: dict[str, float] = {}
    again: dict[str, float] = {}
    sums: dict[str, float] = {}
    for event in timeline.events:
        if event.kind in COMPUTING:
            compute[event.device] = compute.get(event.device, 0.0) + event.seconds
        if event.kind == "recompute":
            again[event.device] = again.get(event.device, 0.0) + event.seconds
        if event.kind == "reduce":
            sums[event.device] = sums.get(event.device, 0.0) + event.seconds
    name = max(compute, key=lambda device: compute[device], default="")
    return name, compute.get(name, 0.0), again.get(name, 0.0), sums.get(name, 0.0)


def _kind_of(problem: Problem, placement: Placement) -> Kind:
    """A pipeline comes to every device once: none waits, by way of others, for what it made itself."""
    homes = {name for stage in placement.all_stages for name in stage.devices}
    if len(homes) == 1:
        return "single"
    if placement.rewrites:
        return "parts"
    if placement.replicas:
        return "data parallel" if len(set(placement.device_of.values())) == 1 else "hybrid"
    if placement.cuts:
        return "pipeline"
    rank = {name: q for q, name in enumerate(sorted(homes))}
    at = {name: rank[device] for name, device in placement.device_of.items()}
    edges = {(at[u], at[v]) for v, feeders in problem.graph.predecessors.items() for u in feeders}
    after = successors(len(rank), edges)
    return "pipeline" if len(topological_order(after, int)) == len(rank) else "operators"
