"""From a placement to its program and predicted timeline: the one way there is."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from netsplit.cluster.cluster import Cluster
from netsplit.graph.ir import Graph
from netsplit.placement.placement import Placement
from netsplit.placement.sharding import in_slices
from netsplit.profile.costs import Costs
from netsplit.program.compile import compile_orders
from netsplit.program.instructions import Program
from netsplit.program.other_batches import require_same_operators, with_tail
from netsplit.program.schedules import Schedule
from netsplit.program.slices import Bundle
from netsplit.program.transfers import exchanges_that_hold
from netsplit.rewrite.records import Rewrite, reads_copies
from netsplit.rewrite.rewriting import applied
from netsplit.rewrite.seconds import rewritten_costs
from netsplit.simulate.exchanges import exchanges_to_try
from netsplit.simulate.memory import costed_profiles
from netsplit.simulate.simulate import simulate, with_peaks
from netsplit.simulate.timeline import Timeline

__all__ = ["ONE_BATCH", "ScheduleName", "ScoredPlan", "Simulator", "Turns"]

_SHORTER = 1 - 1e-9
ScheduleName = Literal["single_batch", "gpipe", "1f1b", "eager_1f1b"]
_TURNS: tuple[ScheduleName, ...] = get_args(ScheduleName)


@dataclass(frozen=True)
class Turns:
    """The order of micro-batches, as compiled steps know it."""

    schedule: ScheduleName = "single_batch"
    microbatches: int = 1
    exact: bool = True  # False: of a schedule that is like it


ONE_BATCH = Turns()


@dataclass(frozen=True)
class ScoredPlan:
    """A placement with its exchanges, and what is predicted of it."""

    placement: Placement
    program: Program
    timeline: Timeline

    @property
    def iteration_s(self) -> float:
        return self.timeline.iteration_s

    def missing_bytes(self, room: Mapping[str, int]) -> int:
        """Where most are."""
        return max((nbytes - room[name] for name, nbytes in self.timeline.peak_bytes.items()), default=0)


@dataclass(frozen=True)
class Simulator:
    """The program of a placement under one schedule, and its predicted timeline.

    The graph is as it was captured, or rewritten already as the placements that it is asked for.
    """

    graph: Graph
    cluster: Cluster
    costs: Costs
    schedule: Schedule
    training: bool = True
    shared_norm: bool = False  # see `compile_program`
    tail: Graph | None = None  # of the last micro-batch, where that has fewer samples
    like: tuple[Bundle, ...] = ()  # see `compile_orders`

    def __call__(self, placement: Placement) -> Timeline:
        return self.scored(placement).timeline

    def scored(self, placement: Placement, until: float = float("inf")) -> ScoredPlan:
        """With exchanges as the schedule asks for them; with auto where that is simulated to be shorter.

        They never are at the price of a capacity that is kept without.

        Args:
            until: on ``time.perf_counter``: what would end later is not tried.

        Raises:
            NetSplitError: as of `program`.
        """
        own = self.rewritten(placement.rewrites)
        asked = self.schedule.exchange
        others = exchanges_to_try(own.graph, self.cluster, asked, placement)
        if not others:
            program = own.program(placement)
            return ScoredPlan(placement, program, simulate(program, self.cluster, own.costs))
        began, trials = time.perf_counter(), list[ScoredPlan]()
        for exchanges in others if asked == "broadcast" else ((), *others):
            now = time.perf_counter()
            if trials and now + 2 * (now - began) / len(trials) > until:
                break
            tried = replace(placement, exchanges=exchanges)
            program = own.whole_microbatches(tried)
            trials.append(ScoredPlan(tried, program, simulate(program, self.cluster, own.costs, peaks=False)))
        if asked == "broadcast":
            return own._with_peaks(min(trials, key=lambda each: each.iteration_s))
        plain, room = trials[0], {each.name: each.capacity_bytes for each in self.cluster.devices}
        for each in sorted(trials[1:], key=lambda each: each.iteration_s):
            if each.iteration_s < _SHORTER * plain.iteration_s:
                other = own._with_peaks(each)
                if other.missing_bytes(room) > 0 and not plain.timeline.peak_bytes:
                    plain = own._with_peaks(plain)
                    room = {p: max(nbytes, room[p]) for p, nbytes in plain.timeline.peak_bytes.items()}
                if other.missing_bytes(room) <= 0:
                    return other
        return plain if plain.timeline.peak_bytes else own._with_peaks(plain)

    def _with_peaks(self, scored: ScoredPlan) -> ScoredPlan:
        """And with the last micro-batch as it is."""
        program, timeline = scored.program, scored.timeline
        if self.tail is None:
            return replace(scored, timeline=with_peaks(timeline, program, self.cluster, self.costs))
        program = with_tail(program, self.graph, self.tail)
        return ScoredPlan(scored.placement, program, simulate(program, self.cluster, self.costs))

    @property
    def hands_on(self) -> bool:
        """Whether a placement may get exchanges, of which compiled steps do not know."""
        asked = self.schedule.exchange
        return asked == "broadcast" or (asked == "auto" and bool(self.cluster.nics))

    def rewritten(self, rewrites: Sequence[Rewrite]) -> Simulator:
        """Of the graph after these rewrites, and of the last micro-batch's.

        Raises:
            NetSplitError: as `applied`; or the last micro-batch has other operators than these are of.
        """
        if self.tail is not None and len(rewrites) > len(self.graph.rewrites):
            require_same_operators(self.graph, self.tail)
        graph = applied(self.graph, rewrites, scaled=True)
        tail = None if self.tail is None else applied(self.tail, rewrites, graph)
        if graph is self.graph and tail is self.tail:
            return self
        costs = rewritten_costs(self.costs, self.graph, graph)
        return replace(self, graph=graph, tail=tail, costs=costs)

    @property
    def turns(self) -> Turns:
        """Of schedules that compiled steps do not know: 1F1B's, which those are kinds of.

        They do not know the sums of copies' gradients.
        """
        schedule, trained = self.schedule, self.training or not self.graph.requires_backward
        summed = reads_copies(self.graph.rewrites)
        plain = trained and not (
            schedule.recompute in (True, "selective", "full")
            or schedule.delay_weights
            or self.shared_norm
            or summed
        )
        for name in _TURNS:
            if schedule.name == name:
                return Turns(name, schedule.microbatches, plain)
        return Turns("1f1b", schedule.microbatches, exact=False)

    @property
    def batch_size(self) -> int:
        """Samples of all micro-batches."""
        missing = 0 if self.tail is None else self.graph.batch_size - self.tail.batch_size
        return self.graph.batch_size * self.schedule.microbatches - missing

    def program(self, placement: Placement) -> Program:
        """Raises as `applied`, `compile_program` and `with_tail`."""
        own = self.rewritten(placement.rewrites)
        program = own.whole_microbatches(placement)
        return program if own.tail is None else with_tail(program, own.graph, own.tail)

    def peak_bytes(self, program: Program) -> dict[str, int]:
        """Predicted peak of every device, with the last micro-batch as it is."""
        if self.tail is not None and program.tail is None:
            own = self.rewritten(program.graph.rewrites)
            assert own.tail is not None
            program = with_tail(program, own.graph, own.tail)
        profiles = costed_profiles(program, self.cluster, self.costs)
        return {device: profile.peak_bytes for device, profile in profiles.items()}

    def whole_microbatches(self, placement: Placement) -> Program:
        """The program as if the last micro-batch were as large as the others; raises as `program`.

        Of a schedule that has several orders, the one with the least simulated iteration.
        """
        if placement.rewrites not in ((), self.graph.rewrites):
            return self.rewritten(placement.rewrites).whole_microbatches(placement)
        if self.schedule.shard != "none":
            placement = in_slices(self.graph, placement, self.schedule.shard)
        timed = self.schedule.timed and self._has_costs(placement)
        exchanges = exchanges_that_hold(self.graph, placement.device_of, placement.exchanges)
        programs = compile_orders(
            self.graph, replace(placement, exchanges=exchanges), self.cluster, self.schedule, self.training,
            self.shared_norm, self.costs if timed else None, self.like,
        )  # fmt: skip
        if not timed:
            return next(programs)
        return min(
            programs, key=lambda each: simulate(each, self.cluster, self.costs, peaks=False).iteration_s
        )

    def _has_costs(self, placement: Placement) -> bool:
        """Of every node: graphs of other kinds of batches may have nodes that were never measured."""
        used = {name for stage in placement.all_stages for name in stage.devices}
        kinds = {device.kind for device in self.cluster.devices if device.name in used}
        return all(self.graph.nodes.keys() <= self.costs.of(kind).nodes.keys() for kind in kinds)

    def moved_to(self, cluster: Cluster, costs: Costs) -> Simulator:
        """The same on another cluster with other costs."""
        return replace(self, cluster=cluster, costs=costs)
