"""The verifier of timelines: does what happened compute the step, with one task and one message at a time?

    forward of segment s ──ends──► send of k, p→q ──ends──► every forward on q that reads k
    backward on p        ◄──ends── gradient of k, q→p ◄──ends── every backward on q that read k

Where q hands k on to r, k from q to r begins after k from p to q has ended; with its gradients the reverse.

From the placement follows what must be sent; from the program only which nodes form a segment, which devices
are replicas and which Step takes which gradients. A backward may come in two parts, or after its forward once
more. Neither the simulator's nor the compiler's code is used, and the timeline is taken as a list of spans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from netsplit.partition.base import Placement, Problem
from netsplit.planning.timeline_index import COMPUTING, Computation, Copy, TimelineIndex, shown
from netsplit.planning.verify import Verdict
from netsplit.planning.verify_seconds import wrong_seconds
from netsplit.program.instructions import Program, Step
from netsplit.simulate.timeline import Event, Timeline

__all__ = ["verify_timeline"]


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
    index = TimelineIndex(problem, placement, program, timeline, predicted)
    wrong = list(index.segments())
    if not wrong:
        wrong = [*index.events(), *index.sort()]
        check = _OrderCheck(index)
        wrong += [*check.exclusive(), *check.counts(), *check.messages(), *check.order(), *check.sums()]
        if predicted:
            wrong += wrong_seconds(index)
    return Verdict(f"the timeline of '{placement.method}'", tuple(wrong))


@dataclass(frozen=True)
class _OrderCheck:
    """What happens, how often, and what before what."""

    index: TimelineIndex

    def exclusive(self) -> Iterator[str]:
        """One computation at a time on a device, one transfer at a time on a directed link."""
        device: dict[str, list[Event]] = {}
        link: dict[tuple[str, str], list[Event]] = {}
        for e in self.index.timeline.events:
            if e.kind in (*COMPUTING, "step"):
                device.setdefault(e.device, []).append(e)
            elif e.kind == "send":
                link.setdefault((e.device, e.peer), []).append(e)
        for p, each in device.items():
            for a, b in self._overlaps(each):
                yield f"Device '{p}' does the {shown(a)} and the {shown(b)} at once."
        for (p, q), each in link.items():
            for a, b in self._overlaps(each):
                yield f"The link from '{p}' to '{q}' has the {shown(a)} and the {shown(b)} at once."

    def _overlaps(self, events: list[Event]) -> Iterator[tuple[Event, Event]]:
        last: Event | None = None
        for e in sorted(events, key=lambda e: (e.start_s, e.end_s)):
            if last is not None and e.start_s < last.end_s - self.index.slack_s and e.end_s > e.start_s:
                yield last, e
            if last is None or e.end_s > last.end_s:
                last = e

    def counts(self) -> Iterator[str]:
        """Every segment once per micro-batch and direction; as many steps as the program says."""
        training = self.index.program.training
        stepping = {p for group in self.index.copying() for p in group if training}
        for s, segment in enumerate(self.index.program.segments):
            trained = training and any(name in self.index.trained for name in segment.nodes)
            anew = self.index.placement.recomputed
            if not anew.isdisjoint(segment.nodes) and not anew.issuperset(segment.nodes):
                yield f"Segment {s} has nodes that are to be recomputed and others."
            if trained:
                stepping.update(segment.replicas or (segment.device,))
            for i in self.index.microbatches:
                for kind, most in (
                    ("forward", 1),
                    ("backward", trained),
                    ("weight", trained),
                    ("recompute", trained and (not anew or anew.issuperset(segment.nodes))),
                ):
                    count = len(self.index.spans.get((kind, s, i), []))
                    if count > most or (count < most and kind in ("forward", "backward")):
                        yield (
                            f"The {kind} of segment {s} of micro-batch {i} happens {count} times"
                            f" instead of {int(most)}."
                        )
        steps = Counter(e.device for e in self.index.timeline.events if e.kind == "step")
        for device in self.index.kind_of:
            asked = sum(isinstance(ins, Step) for ins in self.index.program.instructions.get(device, ()))
            expected = max(asked, 1) if device in stepping else 0
            if steps[device] != expected:
                yield f"Device '{device}' does {steps[device]} optimiser steps instead of {expected}."

    def messages(self) -> Iterator[str]:
        """Each variable once to each device that reads it elsewhere, its gradient once back."""
        graph, where = self.index.problem.graph, self.index.placement.device_of
        expected: set[Copy] = set()
        for k, variable in graph.variables.items():
            if variable.producer is None:
                continue
            first = where[variable.producer]
            for other in dict.fromkeys(where[name] for name in variable.consumers):
                if other == first:
                    continue
                needed = self._trained(k, other)
                if k in self.index.lasting:
                    expected.update((k, q, i, back) for q, i, back in self._once_of(other))
                    yield from self._once(k, first, other, needed)
                    continue
                for i in self.index.microbatches:
                    home, q = self.index.on(first, i), self.index.on(other, i)
                    expected.add((k, q, i, False))
                    yield from self._times(k, home, q, i, gradient=False, needed=True)
                    if self.index.program.training and k in graph.requires_backward:
                        expected.add((k, q, i, True))
                        yield from self._times(k, q, home, i, gradient=True, needed=needed)
        for key, events in self.index.sends.items():
            if key not in expected:
                yield f"Nothing needs the {shown(events[0])} from '{events[0].device}' to '{events[0].peer}'."
            messages = self.index.messages_of(key[0])
            if [e.nbytes for e in _in_turn(events)] != [*messages] * (len(events) // len(messages)):
                yield f"The {shown(events[0])} is not all of it, from its first chunk to its last."

    def _trained(self, k: str, device: str) -> bool:
        """Whether a device, or one that it hands a variable on to, has a gradient of it."""
        where = self.index.placement.device_of
        own = self.index.problem.graph.variables[k].consumers
        return any(where[v] == device and v in self.index.trained for v in own) or any(
            self._trained(k, q) for (name, q), p in self.index.handed_on.items() if (name, p) == (k, device)
        )

    def _once_of(self, other: str) -> Iterator[tuple[str, int, bool]]:
        """With which micro-batches what lasts may be sent to a device, or its replicas, and back."""
        for i in self.index.microbatches:
            yield self.index.on(other, i), i, False
            yield self.index.on(other, i), i, True

    def _once(self, k: str, first: str, other: str, needed: bool) -> Iterator[str]:
        """What lasts: for all micro-batches of a device one value, and one gradient."""
        returns = self.index.program.training and k in self.index.problem.graph.requires_backward
        for q in dict.fromkeys(self.index.on(other, i) for i in self.index.microbatches):
            own = [i for i in self.index.microbatches if self.index.on(other, i) == q]
            for back, least, most in ((False, 1, 1), (True, needed and returns, returns)):
                count = sum(self._count((k, q, i, back)) for i in own)
                if not least <= count <= most:
                    what = f"gradient of variable '{k}'" if back else f"variable '{k}'"
                    ways = f"back from '{q}'" if back else f"to '{q}'"
                    yield f"The {what}, one for all micro-batches, is sent {count} times {ways}."

    def _times(self, k: str, p: str, q: str, i: int, *, gradient: bool, needed: bool) -> Iterator[str]:
        """Once; a gradient that no node needs may be left out (a segment may yet pass one on)."""
        count = self._count((k, p if gradient else q, i, gradient))
        if count > 1 or count < needed:
            what = f"gradient of variable '{k}'" if gradient else f"variable '{k}'"
            yield f"The {what} of micro-batch {i} is sent {count} times from '{p}' to '{q}' instead of once."

    def _count(self, copy: Copy) -> int:
        """How often it is sent, begun or whole."""
        return -(-len(self.index.sends.get(copy, ())) // len(self.index.messages_of(copy[0])))

    def order(self) -> Iterator[str]:
        """Nothing is read before it was made and, where it comes from elsewhere, received."""
        for i in self.index.microbatches:
            for s in range(len(self.index.program.segments)):
                yield from self._after(("backward", s, i), ("forward", s, i))
                yield from self._after(("recompute", s, i), ("forward", s, i))
                yield from self._after(("backward", s, i), ("recompute", s, i))
                yield from self._after(("weight", s, i), ("backward", s, i))
            yield from self._dependencies(i)
            yield from self._handed_on(i)
        for e in self.index.timeline.events:
            if e.kind == "step" and (last := self._last_before(e.device, _step_number(e))) is not None:
                yield from self._precedes(last, e)

    def _last_before(self, device: str, number: int) -> Event | None:
        """The last backward whose gradients a Step takes, or of a device's only Step the last computation
        that uses what it changes."""
        several = self._several
        last: Event | None = None
        for (kind, s, i), e in self._computed.get(device, ()):
            back = kind in ("backward", "weight")
            counts = self.index.update.get((s, i)) == number if several else back or self._steps(s)
            if counts and (back or not several) and (last is None or e.end_s > last.end_s):
                last = e
        return last

    @cached_property
    def _several(self) -> bool:
        """Whether devices step more than once."""
        return any(self.index.update.values())

    @cached_property
    def _computed(self) -> dict[str, list[tuple[Computation, Event]]]:
        """Device -> what it computes."""
        computed: dict[str, list[tuple[Computation, Event]]] = {}
        for what, events in self.index.spans.items():
            for e in events:
                computed.setdefault(e.device, []).append((what, e))
        return computed

    def _steps(self, s: int) -> bool:
        graph = self.index.problem.graph
        own = (k for name in self.index.program.segments[s].nodes for k in graph.nodes[name].initializers)
        return any(graph.initializers[k].requires_grad for k in own)

    def sums(self) -> Iterator[str]:
        """Replicas and copies sum gradients, all at one time, after the backwards and before the step."""
        if not self.index.program.training:
            return
        stepped: dict[str, list[Event]] = {}
        summed: dict[tuple[str, str], list[Event]] = {}
        for e in self.index.timeline.events:
            if e.kind == "step":
                stepped.setdefault(e.device, []).append(e)
            elif e.kind == "reduce":
                summed.setdefault((e.device, e.name), []).append(e)
        for group in self.index.summing():
            what = f"sum of gradients over {', '.join(group)}"
            sums = {p: summed.get((p, what), []) for p in group}
            for p in group:
                steps = stepped.get(p, [])
                if len(sums[p]) != len(steps):
                    yield f"Device '{p}' has the {what} {len(sums[p])} times for {len(steps)} steps."
                    return
                for mine, theirs, step in zip(sums[p], sums[group[0]], steps, strict=True):
                    last = self._last_before(p, _step_number(step))
                    if self.index.predicted and (mine.start_s, mine.end_s) != (theirs.start_s, theirs.end_s):
                        yield f"The {shown(mine)} on '{p}' is not at the time of '{group[0]}'."
                    if last is not None:
                        yield from self._precedes(last, mine)
                    yield from self._precedes(mine, step)

    def _dependencies(self, i: int) -> Iterator[str]:
        graph, where = self.index.problem.graph, self.index.placement.device_of
        for k, variable in graph.variables.items():
            if variable.producer is None:
                continue
            home, s = self.index.on(where[variable.producer], i), self.index.segment_of[variable.producer]
            for t in dict.fromkeys(self.index.segment_of[name] for name in variable.consumers):
                if t == s:
                    continue
                q = self.index.on(self.index.program.segments[t].device, i)
                back = k in graph.requires_backward
                if q == home:
                    yield from self._after(("forward", t, i), ("forward", s, i))
                    if back:
                        yield from self._after(("backward", s, i), ("backward", t, i))
                    continue
                for j in self.index.microbatches if k in self.index.lasting else (i,):
                    for send in self.index.sends.get((k, q, j, False), []):
                        yield from self._between(("forward", s, j), send, ("forward", t, i))
                    for send in self.index.sends.get((k, q, j, True), []) if back else ():
                        yield from self._between(("backward", t, i), send, ("backward", s, j))

    def _handed_on(self, i: int) -> Iterator[str]:
        """Nobody hands a chunk of a value on before it has it, nor of a gradient before those added to it."""
        for (k, r), q in self.index.handed_on.items():
            batches = self.index.microbatches if k in self.index.lasting else (i,)
            for back in (False, True):
                first, then = (r, q) if back else (q, r)
                for j in batches:
                    before = self.index.sends.get((k, self.index.on(first, j), j, back), [])
                    after = self.index.sends.get((k, self.index.on(then, i), i, back), [])
                    for a, b in zip(_in_turn(before), _in_turn(after), strict=False):
                        yield from self._precedes(a, b)

    def _between(self, before: Computation, send: Event, after: Computation) -> Iterator[str]:
        for e in self.index.spans.get(before, []):
            yield from self._precedes(e, send)
        for e in self.index.spans.get(after, []):
            yield from self._precedes(send, e)

    def _after(self, later: Computation, earlier: Computation) -> Iterator[str]:
        for a in self.index.spans.get(earlier, []):
            for b in self.index.spans.get(later, []):
                yield from self._precedes(a, b)

    def _precedes(self, a: Event, b: Event) -> Iterator[str]:
        if b.start_s < a.end_s - self.index.slack_s:
            yield f"The {shown(b)} begins at {b.start_s:.9g} s, before the {shown(a)} ends: {a.end_s:.9g} s."


def _in_turn(sends: list[Event]) -> list[Event]:
    """Chunks of a variable on one way, the first one first."""
    return sorted(sends, key=lambda e: (e.start_s, e.end_s))


def _step_number(e: Event) -> int:
    number = e.name.rpartition(" ")[2]
    return int(number) if number.isdigit() else 0
