"""Whether a predicted timeline lasts what its costs, links and NICs say.

host A  out  [d0→d4 bytes    ][d1→d5 bytes    ]        a link's latency may pass beside the next bytes
host B  in   [d0→d4 bytes    ][d1→d5 bytes    ]
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from netsplit.planning.timeline_index import TimelineIndex, shown
from netsplit.program.instructions import Segment
from netsplit.simulate.timeline import Event

__all__ = ["wrong_seconds"]


def wrong_seconds(index: TimelineIndex) -> list[str]:
    """What lasts longer or shorter than it must, in sentences."""
    check, network = _SecondsCheck(index), _NetworkCheck(index)
    return [*check.seconds(), *check.end(), *network.sums(), *network.exclusive()]


@dataclass
class _SecondsCheck:
    index: TimelineIndex

    def seconds(self) -> Iterator[str]:
        """Computations last what their nodes cost on that kind of device, transfers what their link costs."""
        costs, links = self.index.problem.costs, self.index.problem.cluster.links
        for (kind, s, i), events in self.index.spans.items():
            segment = self.index.program.segments[s]
            table = costs.devices[self.index.kind_of[self.index.on(segment.device, i)]].nodes
            trained = [
                table[name] for name in segment.nodes if name in self.index.trained
            ]  # others have no backward
            if kind in ("forward", "recompute"):
                expected = sum(table[name].forward_s for name in segment.nodes)
            elif kind == "weight":
                expected = sum(each.weight_s for each in trained)
            else:
                split = ("weight", s, i) in self.index.spans
                expected = sum(each.backward_s - (each.weight_s if split else 0.0) for each in trained)
            for e in events:
                most = self._slowed(e, expected + self._adding_s(segment, e.device))
                if not expected - self.index.slack_s <= e.end_s - e.start_s <= most + self.index.slack_s:
                    yield f"The {shown(e)} lasts {e.end_s - e.start_s:.9g} s instead of {expected:.9g} s."
        for events in self.index.sends.values():
            for e in events:
                if (e.device, e.peer) not in links:
                    yield f"The {shown(e)} has no link from '{e.device}' to '{e.peer}'."
                    continue
                link = links[e.device, e.peer]
                least = link.latency_s + e.nbytes * link.seconds_per_byte
                if e.end_s - e.start_s < least - self.index.slack_s:
                    yield (
                        f"The {shown(e)} from '{e.device}' to '{e.peer}' lasts {e.end_s - e.start_s:.9g} s,"
                        f" less than {least:.9g} s."
                    )
        yield from self._step_seconds()

    def _slowed(self, e: Event, seconds: float) -> float:
        """The most that a computation of so many seconds may last: contended all the time, and standing
        still while anything is copied."""
        costs = self.index.costs_of(e.device)
        most = seconds * self.slowdowns.get(e.device, (1.0,))[-1]  # no device: said elsewhere
        if costs.copy_s_per_byte > 0:
            most += self._copied_s(e.device, e.end_s) - self._copied_s(e.device, e.start_s)
        return most

    @cached_property
    def slowdowns(self) -> dict[str, tuple[float, ...]]:
        """`Costs.slowdowns`: the last is while all devices of the host compute."""
        return self.index.problem.costs.slowdowns(self.index.problem.cluster.devices)

    def _copied_s(self, device: str, now_s: float) -> float:
        """Seconds of a device's messages up to now, each for itself."""
        starts, ends = self.messages_at.get(device, (_Moments([]), _Moments([])))
        return starts.passed_s(now_s) - ends.passed_s(now_s)

    @cached_property
    def messages_at(self) -> dict[str, tuple[_Moments, _Moments]]:
        """Device -> when its messages start, and when they end."""
        messages: dict[str, list[Event]] = {}
        for e in self.index.timeline.events:
            if e.kind in ("send", "reduce"):
                for device in {e.device, e.peer}:
                    messages.setdefault(device, []).append(e)
        return {
            device: (_Moments([e.start_s for e in each]), _Moments([e.end_s for e in each]))
            for device, each in messages.items()
        }

    def _adding_s(self, segment: Segment, device: str) -> float:
        """The most that gradients take to be added to those of micro-batches before."""
        initializers = self.index.problem.graph.initializers
        nodes = self.index.problem.graph.nodes
        used = {k for name in segment.nodes for k in nodes[name].initializers}
        nbytes = sum(initializers[k].nbytes for k in used if initializers[k].requires_grad)
        read = {k for name in segment.nodes for k in nodes[name].inputs if k in self.index.lasting}
        nbytes += sum(self.index.problem.graph.variables[k].nbytes for k in read)
        return nbytes * self.index.costs_of(device).accumulate_s_per_byte

    def _step_seconds(self) -> Iterator[str]:
        graph = self.index.problem.graph
        trainable: dict[str, int] = {}
        seen: set[str] = set()
        there: set[tuple[str, str]] = set()  # of several copies a device has one
        for name, node in graph.nodes.items():
            for k in node.initializers:
                if k not in seen and graph.initializers[k].requires_grad:
                    first = self.index.placement.device_of[name]
                    for home in self.index.replicas.get(first, (first,)):
                        if (own := (graph.initializers[k].held_as, home)) not in there:
                            trainable[home] = trainable.get(home, 0) + graph.initializers[k].nbytes
                            there.add(own)
                seen.add(k)
        for e in self.index.timeline.events:
            if e.kind == "step" and e.device in self.index.kind_of:
                expected = trainable.get(e.device, 0) * self.index.costs_of(e.device).step_s_per_byte
                most = self._slowed(e, expected)
                if not expected - self.index.slack_s <= e.end_s - e.start_s <= most + self.index.slack_s:
                    yield (
                        f"The optimiser step on '{e.device}' lasts {e.end_s - e.start_s:.9g} s"
                        f" instead of {expected:.9g} s."
                    )

    def end(self) -> Iterator[str]:
        """The iteration ends with its last event, or with instructions that are no events themselves."""
        last = max((e.end_s for e in self.index.timeline.events), default=0.0)
        each_of = {device: self.index.costs_of(device) for device in self.index.kind_of}
        own = {
            device: max(costs.instruction_s, costs.message_overhead_s) for device, costs in each_of.items()
        }
        overhead = max(
            (
                sum(getattr(ins, "chunks", 1) for ins in each) * own[device]
                for device, each in self.index.program.instructions.items()
            ),
            default=0.0,
        )
        seconds = self.index.timeline.iteration_s
        if not last - self.index.slack_s <= seconds <= last + overhead + self.index.slack_s:
            yield f"The iteration is said to take {seconds:.9g} s, but its last event ends at {last:.9g} s."


class _Moments:
    """Moments, asked how long ago all of those that are past were, together."""

    def __init__(self, moments: list[float]) -> None:
        self.moments = sorted(moments)
        self.sums = [0.0, *accumulate(self.moments)]

    def passed_s(self, now_s: float) -> float:
        past = bisect_left(self.moments, now_s)
        return past * now_s - self.sums[past]


@dataclass(frozen=True)
class _Passage:
    """The bytes of a transfer or a sum while they go through one direction of a NIC."""

    start_s: float
    end_s: float
    event: Event


@dataclass
class _NetworkCheck:
    index: TimelineIndex

    def sums(self) -> Iterator[str]:
        """2 (r - 1) rounds, each of which takes an r-th of the bytes over every link of the ring."""
        links = self.index.problem.cluster.links
        for e in self._sums():
            ring, nbytes = self._ring_of(e), self._bytes_of(e)
            missing = [pair for pair in ring if pair not in links]
            if missing:
                yield f"The {shown(e)} has no link from '{missing[0][0]}' to '{missing[0][1]}'."
                continue
            r = len(ring)
            rounds = [links[pair].latency_s + nbytes / r * links[pair].seconds_per_byte for pair in ring]
            expected = 2 * (r - 1) * max(rounds, default=0.0)
            if abs(e.end_s - e.start_s - expected) > self.index.slack_s:
                yield f"The {shown(e)} lasts {e.end_s - e.start_s:.9g} s instead of {expected:.9g} s."

    def exclusive(self) -> Iterator[str]:
        """One transfer or sum at a time in each direction of a NIC."""
        for (host, direction), each in self._passages().items():
            last: _Passage | None = None
            for one in sorted(each, key=lambda one: (one.start_s, one.end_s)):
                overlaps = last is not None and one.start_s < last.end_s - self.index.slack_s
                if last is not None and overlaps and one.end_s > one.start_s:
                    yield (
                        f"The NIC of host '{host}' has the {shown(last.event)} and the {shown(one.event)} on "
                        f"their way {direction} at once."
                    )
                if last is None or one.end_s > last.end_s:
                    last = one

    def _passages(self) -> dict[tuple[str, str], list[_Passage]]:
        passages: dict[tuple[str, str], list[_Passage]] = {}
        cluster = self.index.problem.cluster
        if not cluster.nics:
            return passages
        sends = [
            ((e.device, e.peer), float(e.nbytes), e) for e in self.index.timeline.events if e.kind == "send"
        ]
        for e in self._sums():
            ring = self._ring_of(e)
            part = 2 * (len(ring) - 1) / len(ring) * self._bytes_of(e) if ring else 0.0
            sends += [(pair, part, e) for pair in ring]
        for (p, q), nbytes, e in sends:
            for nic in cluster.nics:
                goes, comes = p in nic.devices, q in nic.devices
                if goes != comes:
                    pace = nic.out_s_per_byte if goes else nic.in_s_per_byte
                    passage = _Passage(e.start_s, e.start_s + nbytes * pace, e)
                    passages.setdefault((nic.host, "out" if goes else "in"), []).append(passage)
        return passages

    def _sums(self) -> Iterator[Event]:
        """Each once, though every device of it has its event."""
        for e in self.index.timeline.events:
            if e.kind == "reduce" and e.device == e.name.rpartition(" over ")[2].partition(", ")[0]:
                yield e

    def _ring_of(self, e: Event) -> list[tuple[str, str]]:
        """From each device to the next of its host, and from the last one there to the next host."""
        host_of = {p: nic.host for nic in self.index.problem.cluster.nics for p in nic.devices}
        hosts: dict[tuple[bool, str], list[str]] = {}
        for p in e.name.rpartition(" over ")[2].split(", "):
            hosts.setdefault((p in host_of, host_of.get(p, p)), []).append(p)
        order = [p for each in hosts.values() for p in each]
        return [(p, order[(i + 1) % len(order)]) for i, p in enumerate(order)] if len(order) > 1 else []

    def _bytes_of(self, e: Event) -> int:
        """Of the parameters that just the devices of a sum hold; a norm is a number."""
        if not e.name.startswith("sum of gradients over "):
            return 0
        group = frozenset(e.name.rpartition(" over ")[2].split(", "))
        return sum(nbytes for homes, nbytes in self._held.values() if homes == group)

    @cached_property
    def _held(self) -> dict[str, tuple[frozenset[str], int]]:
        """Trained parameter -> the devices that hold it, and its bytes."""
        graph, where = self.index.problem.graph, self.index.placement.device_of
        homes: dict[str, set[str]] = {}
        nbytes: dict[str, int] = {}
        for name, node in graph.nodes.items():
            for init in (graph.initializers[k] for k in node.initializers):
                if init.requires_grad:
                    own = self.index.replicas.get(where[name], (where[name],))
                    homes.setdefault(init.held_as, set()).update(own)
                    nbytes[init.held_as] = init.nbytes
        return {k: (frozenset(each), nbytes[k]) for k, each in homes.items()}
