"""Whether a timeline computes its step, by code that shares nothing with the compiler or the simulator.

    forward of segment s ──ends──► sends of k, p→q ──end──► every forward on q that reads k
    backward on p        ◄──ends── gradient of k, q→p ◄──ends── every backward on q that read k

Where q hands k on to r, a chunk from q to r begins after it has come to q; with its gradients the reverse.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from netsplit.graph.operators import unchanging
from netsplit.partition.base import Problem
from netsplit.placement.placement import Placement, device_in_turn
from netsplit.program.instructions import Program, Step
from netsplit.simulate.timeline import GRADIENT_OF, Event, Timeline

COMPUTING = ("forward", "recompute", "backward", "weight")
Copy = tuple[str, str, int]  # variable, device that has the copy, micro-batch (-1: one for all)


def wrong_in(problem: Problem, placement: Placement, program: Program, timeline: Timeline) -> list[str]:
    """What a predicted timeline does wrong, in sentences; costs and links are those of the problem."""
    check = TimelineCheck(problem, placement, program, timeline)
    parts = (
        check.counts(),
        check.exclusive(),
        check.reads(),
        check.messages(),
        check.steps(),
        check.seconds(),
    )
    return [each for part in parts for each in part]


class TimelineCheck:
    def __init__(self, problem: Problem, placement: Placement, program: Program, timeline: Timeline) -> None:
        self.problem, self.placement, self.program, self.timeline = problem, placement, program, timeline
        graph = self.graph = problem.graph
        self.slack_s = 1e-9 * max(timeline.iteration_s, 1e-12)
        self.backward = graph.requires_backward if program.training else frozenset()
        self.trained = {v for v, node in graph.nodes.items() if not self.backward.isdisjoint(node.outputs)}
        self.lasting = frozenset() if program.asynchronous else unchanging(graph)
        self.microbatches = range(program.microbatches)
        self.segment_of = {v: s for s, each in enumerate(program.segments) for v in each.nodes}
        self.turns = {each.device: each.turns for each in program.segments if each.turns}
        self.computed: dict[tuple[str, int, int], list[Event]] = {}
        self.arrived: dict[Copy, list[Event]] = {}
        self.returned: dict[Copy, list[Event]] = {}
        for e in sorted(timeline.events, key=lambda e: (e.start_s, e.end_s)):
            k = e.name.removeprefix(GRADIENT_OF)
            i = -1 if k in self.lasting else e.microbatch
            if e.kind in COMPUTING:
                s = int(e.name.removeprefix("segment "))
                self.computed.setdefault((e.kind, s, e.microbatch), []).append(e)
            elif e.kind == "send" and k == e.name:
                self.arrived.setdefault((k, e.peer, i), []).append(e)
            elif e.kind == "send":
                self.returned.setdefault((k, e.device, i), []).append(e)

    def at(self, s: int, i: int) -> str:
        device = self.program.segments[s].device
        return device_in_turn(self.turns.get(device, (device,)), i)

    def done(self, kind: str, s: int, i: int) -> list[Event]:
        return self.computed.get((kind, s, i), [])

    def precedes(self, earlier: Sequence[Event], later: Sequence[Event]) -> Iterator[str]:
        for a in earlier:
            for b in later:
                if b.start_s < a.end_s - self.slack_s:
                    yield f"{b} begins before the end of {a}."

    def counts(self) -> Iterator[str]:
        """Every node in one segment on its device; every segment once per micro-batch and direction."""
        placed = [(v, each.device) for each in self.program.segments for v in each.nodes]
        if sorted(placed) != sorted(self.placement.device_of.items()):
            yield "The segments are not those of the placement."
        anew = self.placement.recomputed
        for s, segment in enumerate(self.program.segments):
            trained = not self.trained.isdisjoint(segment.nodes)
            again = trained and (not anew or anew.issuperset(segment.nodes))
            for i in self.microbatches:
                parts = [self.done(kind, s, i) for kind in COMPUTING]
                forward, recompute, backward, weight = map(len, parts)
                if forward != 1 or backward != trained or weight > trained or recompute > again:
                    yield f"Segment {s} computes micro-batch {i} {[len(each) for each in parts]} times."
                if any(e.device != self.at(s, i) for each in parts for e in each):
                    yield f"Segment {s} computes micro-batch {i} elsewhere."
                for a, b in pairwise([part for part in parts if part]):
                    yield from self.precedes(a, b)

    def exclusive(self) -> Iterator[str]:
        """One computation at a time on a device, one transfer on a link and in a direction of a NIC."""
        spans: dict[object, list[tuple[float, float, Event]]] = {}
        for e in self.timeline.events:
            if e.kind in (*COMPUTING, "step"):
                spans.setdefault(e.device, []).append((e.start_s, e.end_s, e))
            elif e.kind == "send":
                spans.setdefault((e.device, e.peer), []).append((e.start_s, e.end_s, e))
                for nic, pace in self.problem.cluster.way(e.device, e.peer):
                    spans.setdefault(nic, []).append((e.start_s, e.start_s + e.nbytes * pace, e))
        for where, each in spans.items():
            some = sorted((one for one in each if one[1] > one[0]), key=lambda one: one[:2])
            for (_, end_s, a), (start_s, _, b) in pairwise(some):
                if start_s < end_s - self.slack_s:
                    yield f"{where} has at once {a} and {b}."

    def readers(self, k: str) -> list[tuple[int, bool]]:
        """Segments that read a variable of another one, and whether a gradient of it comes from there."""
        variable = self.graph.variables[k]
        if variable.producer is None:
            return []
        where: dict[int, bool] = {}
        for v in variable.consumers:
            t = self.segment_of[v]
            where[t] = where.get(t, False) or (v in self.trained and k in self.backward)
        return [(t, back) for t, back in where.items() if t != self.segment_of[variable.producer]]

    def reads(self) -> Iterator[str]:
        """Nothing is read before it was made and, where it comes from elsewhere, received in full."""
        for k, variable in self.graph.variables.items():
            for t, _ in self.readers(k):
                s = self.segment_of[variable.producer or ""]
                for i in self.microbatches:
                    q, forward = self.at(t, i), self.done("forward", t, i)
                    if q == self.at(s, i):
                        yield from self.precedes(self.done("forward", s, i), forward)
                        if k in self.backward:
                            yield from self.precedes(self.done("backward", t, i), self.done("backward", s, i))
                        continue
                    came = self.arrived.get((k, q, -1 if k in self.lasting else i), [])
                    if sum(e.nbytes for e in came) != variable.nbytes:
                        yield f"'{q}' gets {len(came)} messages of '{k}', micro-batch {i}: not all of it."
                    yield from self.precedes(came, forward)

    def messages(self) -> Iterator[str]:
        """Everything is sent by who has it to who needs it, and its gradient back the same way."""
        for copy in self.returned.keys() - self.arrived.keys():
            yield f"Nothing needs {self.returned[copy][0]}."
        for (k, q, i), came in self.arrived.items():
            s = self.segment_of[self.graph.variables[k].producer or ""]
            back = self.returned.get((k, q, i), [])
            own = [(t, j) for t, _ in self.readers(k) for j in (self.microbatches if i < 0 else (i,))]
            own = [(t, j) for t, j in own if self.at(t, j) == q]
            onward = [each for each in self.arrived if (each[0], each[2]) == (k, i)]
            onward = [each for each in onward if self.arrived[each][0].device == q]
            if not own and not onward:
                yield f"Nothing needs {came[0]}."
            for e in came:
                if e.device == self.at(s, e.microbatch):
                    yield from self.precedes(self.done("forward", s, e.microbatch), [e])
                elif (k, e.device, i) not in self.arrived:
                    yield f"'{e.device}' has nothing of {e}."
            for t, j in own:
                yield from self.precedes(self.done("backward", t, j) if k in self.backward else [], back)
            for r in onward:
                for a, b in zip(came, self.arrived[r], strict=False):
                    yield from self.precedes([a], [b])
                for a, b in zip(self.returned.get(r, []), back, strict=False):
                    yield from self.precedes([a], [b])
            for e in back:
                if e.peer != came[0].device:
                    yield f"{e} does not go where '{k}' came from."
                if e.peer == self.at(s, e.microbatch):
                    yield from self.precedes([e], self.done("backward", s, e.microbatch))
            nbytes, all_of_it = sum(e.nbytes for e in back), self.graph.variables[k].nbytes
            if nbytes not in (0, all_of_it) or (self.returns((k, q, i)) and nbytes != all_of_it):
                yield f"{nbytes} bytes of the gradient of '{k}', micro-batch {i}, come back from '{q}'."

    def returns(self, copy: Copy) -> bool:
        """Whether a device, or one that it hands a variable on to, has a gradient of it."""
        k, q, i = copy
        own = (t for t, back in self.readers(k) if back)
        if any(self.at(t, j) == q for t in own for j in (self.microbatches if i < 0 else (i,))):
            return True
        onward = (each for each in self.arrived if (each[0], each[2]) == (k, i) and each[1] != q)
        return any(self.arrived[each][0].device == q and self.returns(each) for each in onward)

    def steps(self) -> Iterator[str]:
        """Devices step as often as they are asked to, after their backwards and the sums of their gradients,
        which all devices of one have at one time."""
        sums: dict[str, dict[str, list[tuple[float, float]]]] = {}
        for p, instructions in self.program.instructions.items():
            mine = [e for e in self.timeline.events if e.device == p]
            steps = [e for e in mine if e.kind == "step"]
            summed = [e for e in mine if e.kind == "reduce"]
            backward = [e for e in mine if e.kind in ("backward", "weight")]
            asked = sum(isinstance(ins, Step) for ins in instructions)
            if len(steps) != asked or (backward and not asked):
                yield f"'{p}' steps {len(steps)} times instead of {asked}."
            for e in summed:
                sums.setdefault(e.name, {}).setdefault(p, []).append((e.start_s, e.end_s))
            if asked == 1:
                yield from self.precedes([*backward, *summed], steps)
                yield from self.precedes(backward, summed)
        for name, of_device in sums.items():
            if len({tuple(each) for each in of_device.values()}) > 1:
                yield f"The {name} is not at one time: {of_device}."

    def seconds(self) -> Iterator[str]:
        """Computations last what their nodes cost, longer only where devices slow one another or gradients
        are added up; transfers what their link costs at least; and the iteration ends with what is last."""
        costs, cluster = self.problem.costs, self.problem.cluster
        kind_of = {device.name: device.kind for device in cluster.devices}
        slowdowns = costs.slowdowns(cluster.devices)
        for (kind, s, i), events in self.computed.items():
            nodes = self.program.segments[s].nodes
            for e in events:
                own = costs.devices[kind_of[e.device]]
                trained = [own.nodes[v] for v in nodes if v in self.trained]
                weight_s = sum(each.weight_s for each in trained)
                split = bool(self.done("weight", s, i))
                backward_s = sum(each.backward_s for each in trained) - split * weight_s
                expected = {"backward": backward_s, "weight": weight_s}.get(
                    kind, sum(own.nodes[v].forward_s for v in nodes)
                )
                disturbed = slowdowns[e.device][-1] > 1 or own.copy_s_per_byte or own.accumulate_s_per_byte
                over_s = e.seconds - expected
                if over_s < -self.slack_s or (over_s > self.slack_s and not disturbed):
                    yield f"{e} lasts {e.seconds} s instead of {expected} s."
        yield from (f"{e} ends before it begins." for e in self.timeline.events if e.end_s < e.start_s)
        for e in (e for e in self.timeline.events if e.kind == "send"):
            link = cluster.links[e.device, e.peer]
            if e.seconds < link.latency_s + e.nbytes * link.seconds_per_byte - self.slack_s:
                yield f"{e} is faster than its link."
        last_s = max((e.end_s for e in self.timeline.events), default=0.0)
        if self.timeline.iteration_s < last_s - self.slack_s:
            yield f"The iteration ends at {self.timeline.iteration_s} s, its last event at {last_s} s."
