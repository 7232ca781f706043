"""The critical path of a timeline: back from its end, through what each event waited for, to its start.

    device p   ──forward──┐ ready                        the end of the path is the device that ends last;
    link p→q              └─────send─────┐ arrived       a wait is replaced by the transfer it waits for,
    device q   ───(wait)────────────────▶└─backward──    a transfer goes back to the device that came to the
                                                         rendezvous last, or to what held its link

The spans follow one another without gap or overlap, so that their seconds add up to the iteration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from netsplit.cluster.cluster import Cluster
from netsplit.profile.costs import Costs
from netsplit.program.instructions import Program
from netsplit.simulate.timeline import Event, Timeline

__all__ = ["PathSpan", "critical_path", "merged", "overheads", "totals"]

TOLERANCE = 1e-9  # of the iteration: clocks closer than this are equal

SpanKind = Literal[
    "forward", "backward", "weight", "recompute", "step", "transfer", "reduce", "overhead", "wait"
]
"""``reduce``: a sum over the devices in `where`; ``overhead``: instructions of the device; ``wait``: a
transfer or sum waits for the network, or a device for a transfer that is not in the timeline."""

_MERGING = ("forward", "backward", "weight", "recompute", "step", "overhead")
_Key = tuple[str, str, str, int]
"""Device, peer, name of the send event, micro-batch; for a sum: device, "", its name, its number."""


@dataclass(frozen=True)
class PathSpan:
    """One piece of the critical path. Seconds since the iteration began."""

    what: SpanKind
    where: str  # a device, a link "d0 -> d1", or the devices of a sum "d0, d1"
    start_s: float
    end_s: float
    name: str = ""  # of the segment, or of the variable that moves
    nodes: tuple[str, ...] = ()  # those computed, in order of execution
    microbatch: int = -1

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


def critical_path(
    timeline: Timeline,
    program: Program,
    instruction_s: Mapping[str, float] | None = None,
    message_s: Mapping[str, float] | None = None,
) -> tuple[PathSpan, ...]:
    """The chain of spans that determines the iteration's length, from start to end.

    Args:
        timeline: of one iteration, simulated or measured. A measured transfer that was sent early begins when
            its receiver is ready.
        program: gives the nodes of segments, and when each end reaches a transfer.
        instruction_s: device -> overhead of an instruction, as in `DeviceCosts` of its kind.
        message_s: device -> overhead of a Send or a Recv; missing: `instruction_s`.
    """
    return _PathWalk(timeline, program, instruction_s or {}, message_s or {}).spans()


def overheads(cluster: Cluster, costs: Costs) -> tuple[dict[str, float], dict[str, float]]:
    """Device -> seconds of an instruction, and of a Send or a Recv, for `critical_path`."""
    own = {device.name: costs.of(device.kind) for device in cluster.devices}
    instruction_s = {name: each.instruction_s for name, each in own.items()}
    return instruction_s, {name: each.message_overhead_s for name, each in own.items()}


def merged(path: Iterable[PathSpan]) -> list[PathSpan]:
    """The path with consecutive computations of one kind on one device joined."""
    joined: list[PathSpan] = []
    for span in path:
        last = joined[-1] if joined else None
        same = last is not None and (last.what, last.where) == (span.what, span.where)
        if last is not None and same and span.what in _MERGING:
            i = last.microbatch if last.microbatch == span.microbatch else -1
            nodes = tuple(dict.fromkeys(last.nodes + span.nodes))
            name = last.name if last.name == span.name else f"{last.name} .. {span.name}"
            joined[-1] = replace(last, end_s=span.end_s, nodes=nodes, microbatch=i, name=name)
        else:
            joined.append(span)
    return joined


def totals(path: Iterable[PathSpan]) -> dict[str, float]:
    """Device or link -> its seconds on the path, the most first."""
    sums: Counter[str] = Counter()
    for span in path:
        sums[span.where] += span.seconds  # type: ignore[assignment]
    return {where: float(seconds) for where, seconds in sums.most_common()}


@dataclass(frozen=True)
class _Post:
    """When a device reached a transfer, and how many events of its lane had ended."""

    clock: float
    at: int


class _PathWalk:
    def __init__(
        self,
        timeline: Timeline,
        program: Program,
        instruction_s: Mapping[str, float],
        message_s: Mapping[str, float],
    ) -> None:
        self.end_s = timeline.iteration_s
        self.program = program
        self.lanes: dict[str, list[Event]] = {}
        self.links: dict[tuple[str, str], list[Event]] = {}
        self.sums: dict[str, dict[str, list[Event]]] = {}  # name -> device -> one after another
        # By start, then end; the sort is stable, so events without duration keep their order.
        for event in sorted(timeline.events, key=lambda e: (e.start_s, e.end_s)):
            if event.kind == "send":
                self.links.setdefault((event.device, event.peer), []).append(event)
            elif event.kind == "reduce":
                self.sums.setdefault(event.name, {}).setdefault(event.device, []).append(event)
            elif event.kind != "recv":
                self.lanes.setdefault(event.device, []).append(event)
        self.arrivals = {
            (*ends, event.name, event.microbatch): (link, i)
            for link, events in self.links.items()
            for i, event in enumerate(events)
            for ends in (link, link[::-1])
        }
        self.passed: set[object] = set()
        self.posts: dict[_Key, _Post] = {}
        self.last: dict[str, float] = {p: max(e.end_s for e in lane) for p, lane in self.lanes.items()}
        self._replay(program, instruction_s, message_s)
        self.walked: list[PathSpan] = []

    def spans(self) -> tuple[PathSpan, ...]:
        if self.last and self.end_s > 0:
            device = max(self.last, key=lambda p: self.last[p])
            state: tuple[str, int] | None = (device, len(self.lanes.get(device, ())))
            t = self.end_s
            while state is not None:
                state, t = self._back(*state, t)
        return tuple(reversed(self.walked))

    def _back(self, device: str, at: int, t: float) -> tuple[tuple[str, int] | None, float]:
        """One step back on a device at time t, with `at` events of its lane before."""
        before = self.lanes[device][at - 1] if at else None
        reached = before.end_s if before is not None else 0.0
        if t > reached:
            self._add("overhead", device, reached, t)
        t = min(t, reached)
        if before is None:
            return None, t
        if before.kind == "wait":
            number = self._number_of_sum(before)
            if number is not None and (before.name, number) not in self.passed:
                return self._sum(before.name, number, t)
            arrival = self.arrivals.get((device, before.peer, before.about, before.microbatch))
            if arrival is not None and arrival not in self.passed:
                return self._transfer(*arrival, t)
        self._add(cast(SpanKind, before.kind), device, before.start_s, t, before)
        return (device, at - 1), min(t, before.start_s)

    def _transfer(self, link: tuple[str, str], i: int, t: float) -> tuple[tuple[str, int] | None, float]:
        """Back over a transfer, and earlier ones on the link that made it wait."""
        events = self.links[link]
        where = f"{link[0]} -> {link[1]}"
        while True:
            event = events[i]
            self.passed.add((link, i))
            start = min(t, event.start_s)
            posts = [self._post(p, q, event) for p, q in (link, link[::-1])]
            came = max(post.clock for post in posts)
            if start + TOLERANCE * self.end_s < came < t:
                start = came  # measured: sent before the receiver was there
            self._add("transfer", where, start, t, event)
            t = start
            before = events[i - 1] if i else None
            if before is None or came >= t or before.end_s < came:
                break
            i -= 1
        late = 0 if posts[0].clock >= posts[1].clock else 1
        return self._since(posts[late], link[late], where, t)

    def _since(self, post: _Post, device: str, where: str, t: float) -> tuple[tuple[str, int], float]:
        """Back to when the last device reached a transfer or sum that began at t; in between it waited for a
        busy network card, or for the hop before."""
        if post.clock + TOLERANCE * self.end_s < t:
            self._add("wait", where, post.clock, t)
            t = post.clock
        return (device, post.at), t

    def _number_of_sum(self, wait: Event) -> int | None:
        """Which of the sums of that name a wait is for: the last that began before it ended."""
        events = self.sums.get(wait.name, {}).get(wait.device, [])
        return sum(e.start_s <= wait.end_s for e in events) - 1 if events else None

    def _sum(self, name: str, number: int, t: float) -> tuple[tuple[str, int] | None, float]:
        """Back over a sum, to the last device to reach it."""
        self.passed.add((name, number))
        events = {p: each[number] for p, each in self.sums[name].items() if number < len(each)}
        start = min(t, max(event.start_s for event in events.values()))
        self._add("reduce", ", ".join(events), start, t, next(iter(events.values())))
        posts = {p: self._post(p, "", event, number) for p, event in events.items()}
        last = max(posts, key=lambda p: posts[p].clock)
        return self._since(posts[last], last, ", ".join(events), start)

    def _post(self, device: str, peer: str, event: Event, number: int | None = None) -> _Post:
        """When the device reached the transfer, or the sum of that number."""
        return self.posts[device, peer, event.name, event.microbatch if number is None else number]

    def _add(self, what: SpanKind, where: str, start: float, end: float, event: Event | None = None) -> None:
        nodes: tuple[str, ...] = ()
        name = event.name if event is not None else {"wait": "the network"}.get(what, "instructions")
        if event is not None and name.startswith("segment "):
            nodes = tuple(self.program.segments[int(name.split()[1])].nodes)
            nodes = nodes[::-1] if what in ("backward", "weight") else nodes
        i = event.microbatch if event is not None else -1
        self.walked.append(PathSpan(what, where, min(start, end), end, name, nodes, i))

    def _replay(
        self, program: Program, instruction_s: Mapping[str, float], message_s: Mapping[str, float]
    ) -> None:
        """Find each device's clock at each message, from its lane and instructions."""
        for device, instructions in program.instructions.items():
            lane = self.lanes.setdefault(device, [])
            overhead, clock, at = instruction_s.get(device, 0.0), 0.0, 0
            message = message_s.get(device, overhead)
            begun: Counter[str] = Counter()
            waits_for = ""  # the sum that was begun and not yet waited for
            ins: Any
            for ins in instructions:
                if hasattr(ins, "source"):
                    clock += message
                    name = f"gradient of {ins.source}" if ins.gradient else ins.source
                    self.posts[device, ins.peer, name, ins.microbatch] = _Post(clock, at)
                elif hasattr(ins, "tag"):
                    clock += overhead
                    if at < len(lane) and lane[at].kind == "wait" and lane[at].name == waits_for:
                        clock, at = max(clock, lane[at].end_s), at + 1
                    self.posts[device, "", str(ins), begun[str(ins)]] = _Post(clock, at)
                    begun[str(ins)] += 1
                    waits_for = str(ins)
                else:
                    waits_for = waits_for if hasattr(ins, "segment") else ""
                    clock, at = _computed(lane, at, clock)
            self.last[device] = max(clock, self.last.get(device, 0.0))


def _computed(lane: list[Event], at: int, clock: float) -> tuple[float, int]:
    """Clock and place in the lane after the next computation and its recomputation."""
    while at < len(lane):
        event = lane[at]
        at += 1
        if event.kind not in ("wait", "recompute"):
            return event.end_s, at
    return clock, at
