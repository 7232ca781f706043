"""The verifier of timelines: does what happened compute the step, with one task and one message at a time?

    forward of segment s ──ends──► send of k, p→q ──ends──► every forward on q that reads k
    backward on p        ◄──ends── gradient of k, q→p ◄──ends── every backward on q that read k

From the placement follows what must be sent; from the program only which nodes form a segment, which devices
are replicas and which Step takes which gradients. A backward may come in two parts, or after its forward once
more. Neither the simulator's nor the compiler's code is used, and the timeline is taken as a list of spans.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from math import isfinite

from netsplit.partition.base import Placement, Problem
from netsplit.planning.verify import Verdict
from netsplit.profile.costs import DeviceCosts
from netsplit.program.instructions import Program, Segment
from netsplit.simulate.timeline import Event, Timeline

__all__ = ["verify_timeline"]

TOLERANCE = 1e-9  # of the iteration: sums of floats in another order differ by less
_COMPUTING = ("forward", "recompute", "backward", "weight")
_Span = tuple[str, int, int]  # kind, segment, micro-batch
_Message = tuple[str, str, int, bool]  # variable, device that has the copy, micro-batch, gradient?


def verify_timeline(
    problem: Problem, placement: Placement, program: Program, timeline: Timeline, predicted: bool = True
) -> Verdict:
    """Check a timeline of a placement that `verify` found right.

    Args:
        problem: graph, costs and cluster; seconds and bytes are taken from here.
        placement: which device has each node.
        program: which nodes form a segment, and how many micro-batches there are.
        timeline: what is checked.
        predicted: seconds must be those of the costs, and the iteration ends with its last event
            (plus the overhead of instructions). A measured timeline has its own.
    """
    check = _Check(problem, placement, program, timeline, predicted)
    found = list(check.segments())
    if not found:
        found = [*check.events(), *check.index(), *check.exclusive(), *check.counts()]
        found += [*check.messages(), *check.order(), *check.sums()]
        if predicted:
            found += [*check.seconds(), *check.end()]
    return Verdict(f"the timeline of '{placement.method}'", tuple(found))


@dataclass
class _Check:
    problem: Problem
    placement: Placement
    program: Program
    timeline: Timeline
    predicted: bool
    segment_of: dict[str, int] = field(default_factory=dict)
    spans: dict[_Span, list[Event]] = field(default_factory=dict)
    sends: dict[_Message, list[Event]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph = self.problem.graph
        self.slack_s = TOLERANCE * max(abs(self.timeline.iteration_s), 1e-12)
        self.kind_of = {device.name: device.kind for device in self.problem.cluster.devices}
        carrying = graph.carrying
        self.trained = {
            name for name, node in graph.nodes.items() if any(k in carrying for k in node.outputs)
        }
        self.microbatches = range(self.program.microbatches)
        self.replicas = {s.device: s.replicas for s in self.program.segments if s.replicas}
        self.update = {
            (ins.segment, ins.microbatch): ins.update  # type: ignore[union-attr]
            for each in self.program.instructions.values()
            for ins in each
            if hasattr(ins, "update")
        }

    def on(self, device: str, i: int) -> str:
        """Who computes micro-batch i of what was placed on a device."""
        replicas = self.replicas.get(device, (device,))
        return replicas[i % len(replicas)]

    def segments(self) -> Iterator[str]:
        """Every node in one segment, on the node's own device."""
        for s, segment in enumerate(self.program.segments):
            for name in segment.nodes:
                if name not in self.placement.device_of:
                    yield f"Segment {s} has '{name}', which is no node of the graph."
                elif self.placement.device_of[name] != segment.device:
                    yield (
                        f"Segment {s} runs on '{segment.device}' with node '{name}', which was placed on"
                        f" '{self.placement.device_of[name]}'."
                    )
                if name in self.segment_of:
                    yield f"Node '{name}' is in segment {self.segment_of[name]} and in segment {s}."
                self.segment_of[name] = s
        for name in self.problem.graph.nodes:
            if name not in self.segment_of:
                yield f"Node '{name}' is in no segment."

    def events(self) -> Iterator[str]:
        for e in self.timeline.events:
            if e.device not in self.kind_of:
                yield f"The {_read(e)} is on '{e.device}', which is no device of the cluster."
            if not (isfinite(e.start_s) and isfinite(e.end_s) and 0 <= e.start_s <= e.end_s):
                yield f"The {_read(e)} spans {e.start_s} s to {e.end_s} s."

    def index(self) -> Iterator[str]:
        """Sort events by what they are; name those that belong to nothing."""
        graph = self.problem.graph
        names = {f"segment {s}": s for s in range(len(self.program.segments))}
        for e in self.timeline.events:
            if e.kind in _COMPUTING:
                s = names.get(e.name)
                if s is None or e.microbatch not in self.microbatches:
                    yield f"The {_read(e)} belongs to no segment and micro-batch of the program."
                    continue
                if e.device != (home := self.on(self.program.segments[s].device, e.microbatch)):
                    yield f"The {_read(e)} is on '{e.device}', not on '{home}'."
                self.spans.setdefault((e.kind, s, e.microbatch), []).append(e)
            elif e.kind == "send":
                gradient = e.name not in graph.variables and e.name.startswith("gradient of ")
                k = e.name.removeprefix("gradient of ") if gradient else e.name
                if k not in graph.variables or e.microbatch not in self.microbatches:
                    yield f"The {_read(e)} carries no variable and micro-batch of the graph."
                    continue
                copy = e.device if gradient else e.peer
                home = e.peer if gradient else e.device
                producer = graph.variables[k].producer
                if producer is None or self.on(self.placement.device_of[producer], e.microbatch) != home:
                    yield f"The {_read(e)} is from '{e.device}' to '{e.peer}', but '{k}' is not made there."
                if e.nbytes != graph.variables[k].nbytes:
                    yield f"The {_read(e)} has {e.nbytes} bytes of the {graph.variables[k].nbytes} of '{k}'."
                self.sends.setdefault((k, copy, e.microbatch, gradient), []).append(e)

    def exclusive(self) -> Iterator[str]:
        """One computation at a time on a device, one transfer at a time on a directed link."""
        device: dict[str, list[Event]] = {}
        link: dict[tuple[str, str], list[Event]] = {}
        for e in self.timeline.events:
            if e.kind in (*_COMPUTING, "step"):
                device.setdefault(e.device, []).append(e)
            elif e.kind == "send":
                link.setdefault((e.device, e.peer), []).append(e)
        for p, each in device.items():
            for a, b in self._overlaps(each):
                yield f"Device '{p}' does the {_read(a)} and the {_read(b)} at once."
        for (p, q), each in link.items():
            for a, b in self._overlaps(each):
                yield f"The link from '{p}' to '{q}' has the {_read(a)} and the {_read(b)} at once."

    def _overlaps(self, events: list[Event]) -> Iterator[tuple[Event, Event]]:
        last: Event | None = None
        for e in sorted(events, key=lambda e: (e.start_s, e.end_s)):
            if last is not None and e.start_s < last.end_s - self.slack_s and e.end_s > e.start_s:
                yield last, e
            if last is None or e.end_s > last.end_s:
                last = e

    def counts(self) -> Iterator[str]:
        """Every segment once per micro-batch and direction; as many steps as the program says."""
        training = self.program.training
        stepping: set[str] = set()
        for s, segment in enumerate(self.program.segments):
            trained = training and any(name in self.trained for name in segment.nodes)
            if trained:
                stepping.update(segment.replicas or (segment.device,))
            for i in self.microbatches:
                for kind, most in (
                    ("forward", 1),
                    ("backward", trained),
                    ("weight", trained),
                    ("recompute", trained),
                ):
                    found = len(self.spans.get((kind, s, i), []))
                    if found > most or (found < most and kind in ("forward", "backward")):
                        yield (
                            f"The {kind} of segment {s} of micro-batch {i} happens {found} times"
                            f" instead of {int(most)}."
                        )
        steps = [e.device for e in self.timeline.events if e.kind == "step"]
        for device in self.kind_of:
            asked = sum(
                str(ins).startswith("optimiser step") for ins in self.program.instructions.get(device, ())
            )
            expected = max(asked, 1) if device in stepping else 0
            if steps.count(device) != expected:
                yield f"Device '{device}' does {steps.count(device)} optimiser steps instead of {expected}."

    def messages(self) -> Iterator[str]:
        """Each variable once to each device that reads it elsewhere, its gradient once back."""
        graph, where = self.problem.graph, self.placement.device_of
        expected: set[_Message] = set()
        for k, variable in graph.variables.items():
            if variable.producer is None:
                continue
            first = where[variable.producer]
            for other in dict.fromkeys(where[name] for name in variable.consumers):
                if other == first:
                    continue
                needed = any(where[v] == other and v in self.trained for v in variable.consumers)
                for i in self.microbatches:
                    home, q = self.on(first, i), self.on(other, i)
                    expected.add((k, q, i, False))
                    yield from self._times(k, home, q, i, gradient=False, needed=True)
                    if self.program.training and k in graph.carrying:
                        expected.add((k, q, i, True))
                        yield from self._times(k, q, home, i, gradient=True, needed=needed)
        for key, events in self.sends.items():
            if key not in expected:
                yield f"Nothing needs the {_read(events[0])} from '{events[0].device}' to '{events[0].peer}'."

    def _times(self, k: str, p: str, q: str, i: int, *, gradient: bool, needed: bool) -> Iterator[str]:
        """Once; a gradient that no node needs may be left out (a segment may yet pass one on)."""
        found = len(self.sends.get((k, p if gradient else q, i, gradient), []))
        if found > 1 or found < needed:
            what = f"gradient of variable '{k}'" if gradient else f"variable '{k}'"
            yield f"The {what} of micro-batch {i} is sent {found} times from '{p}' to '{q}' instead of once."

    def order(self) -> Iterator[str]:
        """Nothing is read before it was made and, where it comes from elsewhere, received."""
        for i in self.microbatches:
            for s in range(len(self.program.segments)):
                yield from self._after(("backward", s, i), ("forward", s, i))
                yield from self._after(("recompute", s, i), ("forward", s, i))
                yield from self._after(("backward", s, i), ("recompute", s, i))
                yield from self._after(("weight", s, i), ("backward", s, i))
            yield from self._dependencies(i)
        for e in self.timeline.events:
            if e.kind == "step" and (last := self._last_before(e.device, _step_number(e))) is not None:
                yield from self._precedes(last, e)

    def _last_before(self, device: str, number: int) -> Event | None:
        """The last backward whose gradients a Step takes, or of a device's only Step the last computation
        that uses what it changes."""
        several = any(self.update.values())
        last: Event | None = None
        for (kind, s, i), events in self.spans.items():
            back = kind in ("backward", "weight")
            counts = self.update.get((s, i)) == number if several else back or self._steps(s)
            if not counts or (several and not back):
                continue
            for e in events:
                if e.device == device and (last is None or e.end_s > last.end_s):
                    last = e
        return last

    def _steps(self, s: int) -> bool:
        graph = self.problem.graph
        own = (k for name in self.program.segments[s].nodes for k in graph.nodes[name].initializers)
        return any(graph.initializers[k].requires_grad for k in own)

    def sums(self) -> Iterator[str]:
        """Replicas sum their gradients, all at the same time, after the backwards and before the step."""
        if not self.program.training:
            return
        for replicas in self.replicas.values():
            steps = {
                p: [e for e in self.timeline.events if e.kind == "step" and e.device == p] for p in replicas
            }
            found = {
                p: [
                    e
                    for e in self.timeline.events
                    if e.kind == "reduce" and e.device == p and e.name.startswith("sum of gradients")
                ]
                for p in replicas
            }
            for p in replicas:
                if len(found[p]) != len(steps[p]):
                    yield f"Replica '{p}' sums gradients {len(found[p])} times for {len(steps[p])} steps."
                    return
                for mine, theirs, step in zip(found[p], found[replicas[0]], steps[p], strict=True):
                    last = self._last_before(p, _step_number(step))
                    if self.predicted and (mine.start_s, mine.end_s) != (theirs.start_s, theirs.end_s):
                        yield f"The {_read(mine)} on '{p}' is not at the time of '{replicas[0]}'."
                    if last is not None:
                        yield from self._precedes(last, mine)
                    yield from self._precedes(mine, step)

    def _dependencies(self, i: int) -> Iterator[str]:
        graph, where = self.problem.graph, self.placement.device_of
        for k, variable in graph.variables.items():
            if variable.producer is None:
                continue
            home, s = self.on(where[variable.producer], i), self.segment_of[variable.producer]
            for t in dict.fromkeys(self.segment_of[name] for name in variable.consumers):
                if t == s:
                    continue
                q = self.on(self.program.segments[t].device, i)
                back = k in graph.carrying
                if q == home:
                    yield from self._after(("forward", t, i), ("forward", s, i))
                    if back:
                        yield from self._after(("backward", s, i), ("backward", t, i))
                    continue
                for send in self.sends.get((k, q, i, False), []):
                    yield from self._between(("forward", s, i), send, ("forward", t, i))
                for send in self.sends.get((k, q, i, True), []) if back else ():
                    yield from self._between(("backward", t, i), send, ("backward", s, i))

    def _between(self, before: _Span, send: Event, after: _Span) -> Iterator[str]:
        for e in self.spans.get(before, []):
            yield from self._precedes(e, send)
        for e in self.spans.get(after, []):
            yield from self._precedes(send, e)

    def _after(self, later: _Span, earlier: _Span) -> Iterator[str]:
        for a in self.spans.get(earlier, []):
            for b in self.spans.get(later, []):
                yield from self._precedes(a, b)

    def _precedes(self, a: Event, b: Event) -> Iterator[str]:
        if b.start_s < a.end_s - self.slack_s:
            yield f"The {_read(b)} begins at {b.start_s:.9g} s, before the {_read(a)} ends: {a.end_s:.9g} s."

    def seconds(self) -> Iterator[str]:
        """Computations last what their nodes cost on that kind of device, transfers what their link costs."""
        costs, links = self.problem.costs, self.problem.cluster.links
        for (kind, s, i), events in self.spans.items():
            segment = self.program.segments[s]
            table = costs.devices[self.kind_of[self.on(segment.device, i)]].nodes
            trained = [
                table[name] for name in segment.nodes if name in self.trained
            ]  # others have no backward
            if kind in ("forward", "recompute"):
                expected = sum(table[name].forward_s for name in segment.nodes)
            elif kind == "weight":
                expected = sum(each.weight_s for each in trained)
            else:
                split = ("weight", s, i) in self.spans
                expected = sum(each.backward_s - (each.weight_s if split else 0.0) for each in trained)
            for e in events:
                most = self._slowed(e, expected + self._adding_s(segment, e.device))
                if not expected - self.slack_s <= e.end_s - e.start_s <= most + self.slack_s:
                    yield f"The {_read(e)} lasts {e.end_s - e.start_s:.9g} s instead of {expected:.9g} s."
        for events in self.sends.values():
            for e in events:
                if (e.device, e.peer) not in links:
                    yield f"The {_read(e)} has no link from '{e.device}' to '{e.peer}'."
                    continue
                link = links[e.device, e.peer]
                least = link.latency_s + e.nbytes * link.seconds_per_byte
                if e.end_s - e.start_s < least - self.slack_s:
                    yield (
                        f"The {_read(e)} from '{e.device}' to '{e.peer}' lasts {e.end_s - e.start_s:.9g} s,"
                        f" less than {least:.9g} s."
                    )
        yield from self._step_seconds()

    def _slowed(self, e: Event, seconds: float) -> float:
        """The most that a computation of so many seconds may last: contended all the time, and standing
        still while anything is copied."""
        costs = self._costs(e.device)
        most = seconds * costs.contention
        if costs.copy_s_per_byte > 0:
            most += self._copied_s(e.device, e.end_s) - self._copied_s(e.device, e.start_s)
        return most

    def _copied_s(self, device: str, now_s: float) -> float:
        """Seconds of a device's messages up to now, each for itself."""
        starts, ends = self.messages_at.get(device, (_Moments([]), _Moments([])))
        return starts.passed_s(now_s) - ends.passed_s(now_s)

    @cached_property
    def messages_at(self) -> dict[str, tuple[_Moments, _Moments]]:
        """Device -> when its messages start, and when they end."""
        found: dict[str, list[Event]] = {}
        for e in self.timeline.events:
            if e.kind in ("send", "reduce"):
                for device in {e.device, e.peer}:
                    found.setdefault(device, []).append(e)
        return {
            device: (_Moments([e.start_s for e in each]), _Moments([e.end_s for e in each]))
            for device, each in found.items()
        }

    def _adding_s(self, segment: Segment, device: str) -> float:
        """The most that gradients take to be added to those of micro-batches before."""
        initializers = self.problem.graph.initializers
        nodes = self.problem.graph.nodes
        used = {k for name in segment.nodes for k in nodes[name].initializers}
        nbytes = sum(initializers[k].nbytes for k in used if initializers[k].requires_grad)
        return nbytes * self._costs(device).accumulate_s_per_byte

    def _costs(self, device: str) -> DeviceCosts:
        return self.problem.costs.of(self.kind_of.get(device, ""))

    def _step_seconds(self) -> Iterator[str]:
        graph = self.problem.graph
        trainable: dict[str, int] = {}
        seen: set[str] = set()
        for name, node in graph.nodes.items():
            for k in node.initializers:
                if k not in seen and graph.initializers[k].requires_grad:
                    first = self.placement.device_of[name]
                    for home in self.replicas.get(first, (first,)):
                        trainable[home] = trainable.get(home, 0) + graph.initializers[k].nbytes
                seen.add(k)
        for e in self.timeline.events:
            if e.kind == "step" and e.device in self.kind_of:
                expected = trainable.get(e.device, 0) * self._costs(e.device).step_s_per_byte
                most = self._slowed(e, expected)
                if not expected - self.slack_s <= e.end_s - e.start_s <= most + self.slack_s:
                    yield (
                        f"The optimiser step on '{e.device}' lasts {e.end_s - e.start_s:.9g} s"
                        f" instead of {expected:.9g} s."
                    )

    def end(self) -> Iterator[str]:
        """The iteration ends with its last event, or with instructions that are no events themselves."""
        last = max((e.end_s for e in self.timeline.events), default=0.0)
        each_of = {device: self._costs(device) for device in self.kind_of}
        own = {
            device: max(costs.instruction_s, costs.message_overhead_s) for device, costs in each_of.items()
        }
        overhead = max(
            (len(each) * own[device] for device, each in self.program.instructions.items()), default=0.0
        )
        seconds = self.timeline.iteration_s
        if not last - self.slack_s <= seconds <= last + overhead + self.slack_s:
            yield f"The iteration is said to take {seconds:.9g} s, but its last event ends at {last:.9g} s."


class _Moments:
    """Moments, asked how long ago all of those that are past were, together."""

    def __init__(self, moments: list[float]) -> None:
        self.moments = sorted(moments)
        self.sums = [0.0, *accumulate(self.moments)]

    def passed_s(self, now_s: float) -> float:
        past = bisect_left(self.moments, now_s)
        return past * now_s - self.sums[past]


def _step_number(e: Event) -> int:
    number = e.name.rpartition(" ")[2]
    return int(number) if number.isdigit() else 0


def _read(e: Event) -> str:
    part = "" if e.microbatch < 0 else f" of micro-batch {e.microbatch}"
    if e.kind == "step":
        return f"optimiser step on '{e.device}'"
    return e.name if e.kind == "reduce" else f"{e.kind} of {e.name}{part}"
