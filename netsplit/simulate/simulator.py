"""From a placement to its program and predicted timeline.

How variables that several devices read may travel; `Simulator.scored` takes the shortest way:

    hosts        A: p            B: q0 q1 q2         C: r0 r1
    to each      p ═► q0, p ═► q1, p ═► q2, p ═► r0, p ═► r1           the NIC of A passes it five times
    broadcast    p ═► q0 ═► r0,  q0 ─► q1, q0 ─► q2, r0 ─► r1          every NIC once; gradients come back so

A broadcast goes from host to host in a chain, and on a host from the first that has it to the others. A
device behind no NIC is its own host.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from netsplit.cluster.cluster import Cluster
from netsplit.graph.ir import Graph
from netsplit.graph.operators import unchanging
from netsplit.placement.exchange import Exchange, ExchangeName
from netsplit.placement.placement import Placement
from netsplit.placement.sharding import Bundle, in_slices
from netsplit.profile.costs import Costs
from netsplit.program.compile import compile_orders
from netsplit.program.instructions import Program
from netsplit.program.other_batches import require_same_operators, with_tail
from netsplit.program.schedules import Schedule
from netsplit.program.transfers import exchanges_that_hold, readers_elsewhere
from netsplit.rewrite.records import Rewrite, reads_copies
from netsplit.rewrite.rewriting import applied
from netsplit.rewrite.seconds import rewritten_costs
from netsplit.simulate.simulate import costed_profiles, simulate, with_peaks
from netsplit.simulate.timeline import Timeline

__all__ = [
    "ONE_BATCH", "ScheduleName", "ScoredPlan", "Simulator", "Turns", "broadcast_over", "exchange_line",
    "exchanges_to_try",
]  # fmt: skip

_SHORTER = 1 - 1e-9
ScheduleName = Literal["single_batch", "gpipe", "1f1b", "eager_1f1b"]
_TURNS: tuple[ScheduleName, ...] = get_args(ScheduleName)


@dataclass(frozen=True)
class Turns:
    """The order of micro-batches, for compiled steps."""

    schedule: ScheduleName = "single_batch"
    microbatches: int = 1
    exact: bool = True  # False: of a schedule that is like it


ONE_BATCH = Turns()


@dataclass(frozen=True)
class ScoredPlan:
    """A placement with its exchanges and its prediction."""

    placement: Placement
    program: Program
    timeline: Timeline

    @property
    def iteration_s(self) -> float:
        return self.timeline.iteration_s

    def missing_bytes(self, room: Mapping[str, int]) -> int:
        return max((nbytes - room[name] for name, nbytes in self.timeline.peak_bytes.items()), default=0)


@dataclass(frozen=True)
class Simulator:
    """The program of a placement under one schedule, and its predicted timeline."""

    graph: Graph
    cluster: Cluster
    costs: Costs
    schedule: Schedule
    training: bool = True
    shared_norm: bool = False  # see `compile_program`
    tail: Graph | None = None  # of a smaller last micro-batch
    like: tuple[Bundle, ...] = ()  # see `compile_orders`

    def __call__(self, placement: Placement) -> Timeline:
        return self.scored(placement).timeline

    def scored(self, placement: Placement, until: float = float("inf")) -> ScoredPlan:
        """With the schedule's exchanges; "auto" hands variables on where that is simulated to be faster.

        They never are at the price of a capacity that is kept without. What would end after `until`, on
        ``time.perf_counter``, is not tried.
        """
        own = self.rewritten(placement.rewrites)
        exchange = self.schedule.exchange
        exchanges = exchanges_to_try(own.graph, self.cluster, exchange, placement)
        if not exchanges:
            program = own.program(placement)
            return ScoredPlan(placement, program, simulate(program, self.cluster, own.costs))
        handed = replace(placement, exchanges=exchanges)
        if exchange == "broadcast":
            return own._with_peaks(own._tried(handed))
        began, plain = time.perf_counter(), own._tried(placement)
        now = time.perf_counter()
        if now + 2 * (now - began) <= until:
            other = own._tried(handed)
            if other.iteration_s < _SHORTER * plain.iteration_s:
                other, room = own._with_peaks(other), {p.name: p.capacity_bytes for p in self.cluster.devices}
                if other.missing_bytes(room) <= 0:
                    return other
                plain = own._with_peaks(plain)
                room = {p: max(nbytes, room[p]) for p, nbytes in plain.timeline.peak_bytes.items()}
                return other if other.missing_bytes(room) <= 0 else plain
        return own._with_peaks(plain)

    def _tried(self, placement: Placement) -> ScoredPlan:
        program = self.whole_microbatches(placement)
        return ScoredPlan(placement, program, simulate(program, self.cluster, self.costs, peaks=False))

    def _with_peaks(self, scored: ScoredPlan) -> ScoredPlan:
        """With peaks, and the last micro-batch at its own size."""
        program, timeline = scored.program, scored.timeline
        if self.tail is None:
            return replace(scored, timeline=with_peaks(timeline, program, self.cluster, self.costs))
        program = with_tail(program, self.graph, self.tail)
        return ScoredPlan(scored.placement, program, simulate(program, self.cluster, self.costs))

    @property
    def hands_on(self) -> bool:
        """Whether a placement may get exchanges, which compiled steps do not support."""
        exchange = self.schedule.exchange
        return exchange == "broadcast" or (exchange == "auto" and bool(self.cluster.nics))

    def rewritten(self, rewrites: Sequence[Rewrite]) -> Simulator:
        """Simulator of the graph, and of the last micro-batch's graph, after these rewrites.

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
        """Turns for compiled steps; 1F1B's for schedules that they do not support.

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
        missing = 0 if self.tail is None else self.graph.batch_size - self.tail.batch_size
        return self.graph.batch_size * self.schedule.microbatches - missing

    def program(self, placement: Placement) -> Program:
        """Raises as `applied`, `compile_program` and `with_tail`."""
        own = self.rewritten(placement.rewrites)
        program = own.whole_microbatches(placement)
        return program if own.tail is None else with_tail(program, own.graph, own.tail)

    def peak_bytes(self, program: Program) -> dict[str, int]:
        """Predicted peak of every device, with the last micro-batch at its own size."""
        if self.tail is not None and program.tail is None:
            own = self.rewritten(program.graph.rewrites)
            assert own.tail is not None
            program = with_tail(program, own.graph, own.tail)
        profiles = costed_profiles(program, self.cluster, self.costs)
        return {device: profile.peak_bytes for device, profile in profiles.items()}

    def whole_microbatches(self, placement: Placement) -> Program:
        """The shortest program if the last micro-batch were as large as the others."""
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
        """Whether every node has costs; other batches' graphs may have unmeasured nodes."""
        used = {name for stage in placement.all_stages for name in stage.devices}
        kinds = {device.kind for device in self.cluster.devices if device.name in used}
        return all(self.graph.nodes.keys() <= self.costs.of(kind).nodes.keys() for kind in kinds)

    def moved_to(self, cluster: Cluster, costs: Costs) -> Simulator:
        return replace(self, cluster=cluster, costs=costs)


def exchanges_to_try(
    graph: Graph, cluster: Cluster, exchange: ExchangeName, placement: Placement
) -> tuple[Exchange, ...]:
    """Broadcasts of all variables to try; may be empty."""
    if exchange == "send_receive" or placement.exchanges or (exchange == "auto" and not cluster.nics):
        return ()
    return tuple(
        each
        for each in _broadcasts(graph, cluster, placement)
        if exchange == "broadcast" or sum(bool(cluster.way(each.hops[0][0], q)) for _, q in each.hops) > 1
    )


def broadcast_over(cluster: Cluster, variable: str, home: str, readers: Sequence[str]) -> Exchange:
    """Hops from host to host by first readers, and from each host's first device to its others."""
    host_of = {
        name: nic.host if (nic := cluster.nic(name)) is not None else name for name in (home, *readers)
    }
    first = {host_of[home]: home}
    hops, last = [], home
    for name in readers:
        host = host_of[name]
        if host not in first:
            hops.append((last, name))
            first[host] = last = name
        else:
            hops.append((first[host], name))
    return Exchange(variable, tuple(hops))


def exchange_line(placement: Placement) -> str:
    count = len(placement.exchanges)
    what = "1 variable is" if count == 1 else f"{count} variables are"
    return f"{what} forwarded from device to device"


def _broadcasts(graph: Graph, cluster: Cluster, placement: Placement) -> list[Exchange]:
    """Exchanges of variables that several devices read elsewhere, unless a detour is a shortcut."""
    lasting = unchanging(graph)
    exchanges = []
    for k, variable in graph.variables.items():
        if variable.producer is None:
            continue
        home, readers = readers_elsewhere(graph, placement.device_of, k)
        if len(readers) < 2 or (k in lasting and not placement.replicas.keys().isdisjoint((home, *readers))):
            continue
        exchange = broadcast_over(cluster, k, home, readers)
        if not _shortcut(exchange, variable.nbytes, cluster):
            exchanges.append(exchange)
    return exchanges


def _shortcut(exchange: Exchange, nbytes: int, cluster: Cluster) -> bool:
    """Whether any device would receive earlier than over the direct link, which bounds exclude."""
    home = exchange.hops[0][0]
    there_s, back_s = {home: 0.0}, {home: 0.0}
    for p, q in exchange.hops:
        there_s[q] = there_s[p] + cluster.transfer_seconds(nbytes, p, q)
        back_s[q] = back_s[p] + cluster.transfer_seconds(nbytes, q, p)
        direct_s = cluster.transfer_seconds(nbytes, home, q), cluster.transfer_seconds(nbytes, q, home)
        if there_s[q] < direct_s[0] * _SHORTER or back_s[q] < direct_s[1] * _SHORTER:
            return True
    return False
