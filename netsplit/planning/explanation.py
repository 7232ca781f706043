"""Why a placement takes as long as it does: what binds, the edges that it cuts, and the critical path.

device p   ──forward──┐ ready                        the end of the path is the device that ends last;
link p→q              └─────send─────┐ arrived       a wait is replaced by the transfer it waits for,
device q   ───(wait)────────────────▶└─backward──    a transfer goes back to the end that was ready last,
                                                     or to what held its link
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, cast

import numpy as np

from netsplit.partition.base import Loads, Objective, Problem
from netsplit.partition.common.instance import Instance, Ints
from netsplit.placement.placement import Placement
from netsplit.program.instructions import Program
from netsplit.simulate.timeline import Event, Timeline
from netsplit.tables import counted, nbytes, percent, seconds, short

__all__ = ["Explanation", "PathSpan", "critical_path", "explain", "path_lines", "totals"]

TOLERANCE = 1e-9  # of the iteration: clocks closer than this are equal

SpanKind = Literal[
    "forward", "backward", "weight", "recompute", "step", "transfer", "reduce", "overhead", "wait"
]
"""``reduce``: a sum over the devices in `where`; ``overhead``: instructions of the device, and what its next
transfer waits for in the network."""
_WORK = {
    "forward": ("forward", "recompute"), "backward": ("backward", "weight"), "instructions": ("overhead",),
}  # fmt: skip
_MERGING = ("forward", "backward", "weight", "recompute", "step", "overhead")


@dataclass(frozen=True)
class PathSpan:
    """One piece of the critical path. Seconds since the iteration began."""

    what: SpanKind
    where: str  # a device, a link "d0 -> d1", or the devices of a sum "d0, d1"
    start_s: float
    end_s: float
    name: str = "instructions"  # of the segment, or of the variable that moves
    nodes: tuple[str, ...] = ()  # those computed, in order of execution
    microbatch: int = -1

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True)
class CutEdge:
    """A variable that one device makes and another reads: moved once, however many nodes read it there.

    Seconds of one micro-batch, without waiting for the link. Under `max_load` both ends pay; the sender pays
    once, at the variable's first reader.
    """

    variable: str
    producer: str
    readers: tuple[str, ...]
    source: str
    target: str
    nbytes: int
    value_s: float
    gradient_s: float  # 0 where no gradient comes back

    @property
    def seconds(self) -> float:
        return self.value_s + self.gradient_s


@dataclass(frozen=True)
class Explanation:
    """One placement explained. Seconds and bytes."""

    method: str
    objective: Objective
    objective_s: float
    binds: str  # the device or link that is the bottleneck
    why: str  # it is that, in a sentence
    made_of: Mapping[str, float]
    """Seconds of the objective: by device and link of the critical path, or by part of the largest load."""
    cuts: tuple[CutEdge, ...]  # all of them, the costliest first
    path: tuple[PathSpan, ...] = ()  # the critical path from start to end; empty under `max_load`

    def lines(self, top: int = 8) -> list[str]:
        """The bottleneck, then the `top` costliest cut edges, and the path's longest spans."""
        lines = [
            f"{self.method}: {self.objective.says} {seconds(self.objective_s)}",
            f"  {self.why}",
            *_cuts(self.cuts, top),
        ]
        if self.path:
            lines += path_lines(self.path, self.objective_s, 2 * top)
        return lines

    def to_dict(self, top: int = 50) -> dict[str, Any]:
        """Numbers, strings, lists and mappings only; the `top` costliest cut edges."""
        return {
            "method": self.method,
            "objective": self.objective.name,
            "objective_s": self.objective_s,
            "binds": self.binds,
            "why": self.why,
            "seconds_of": dict(self.made_of),
            "cut": {
                "edges": len(self.cuts),
                "bytes": sum(edge.nbytes for edge in self.cuts),
                "seconds": sum(edge.seconds for edge in self.cuts),
                "costliest": [asdict(edge) | {"seconds": edge.seconds} for edge in self.cuts[:top]],
            },
            "critical_path": [asdict(span) for span in _merged(self.path)],
        }


def explain(
    problem: Problem, placement: Placement, simulated: tuple[Program, Timeline] | None = None
) -> Explanation:
    """Explain a placement.

    Args:
        simulated: the program and its timeline, if the objective is simulated.
    """
    instance = Instance.of(problem)
    loads = problem.objective.loads(problem, placement)
    path: tuple[PathSpan, ...] = ()
    if loads is not None:
        p = int(np.argmax(loads.seconds))
        objective_s, binds = loads.period_s, instance.devices[p]
        why = _why_load(loads, p, binds)
        made_of = {f"{part} of the largest load": float(each[p]) for part, each in loads.parts.items()}
    else:
        assert simulated is not None, "an iteration is explained by its timeline"
        program, timeline = simulated
        objective_s = timeline.iteration_s
        path = critical_path(timeline, program)
        made_of = totals(path)
        binds = next(iter(made_of), "")
        why = _why_path(path, made_of, objective_s)
    cuts = _cut_edges(instance, instance.encode(placement.device_of))
    return Explanation(placement.method, problem.objective, objective_s, binds, why, made_of, cuts, path)


def _cut_edges(instance: Instance, where: Ints) -> tuple[CutEdge, ...]:
    """Every cut edge, the costliest first."""
    both_pay = instance.problem.objective.both_ends_pay
    edges = []
    for u, variable in enumerate(instance.variables):
        p = int(where[instance.producer[u]])
        readers: dict[int, list[str]] = {}
        for v in instance.consumers[u]:
            readers.setdefault(int(where[v]), []).append(instance.names[v])
        targets = sorted(q for q in readers if q != p)
        for q in targets:
            back = bool(instance.requires_backward[u])
            if both_pay:
                hop = instance.hop_s[u] / (1 + back)
                value = float(hop[q] + (hop[p] if q == targets[0] else 0.0))
                gradient = value * back
            else:
                value = float(instance.transfer_s[u, p, q])
                gradient = float(instance.transfer_s[u, q, p]) * back
            producer, size = instance.names[instance.producer[u]], int(instance.nbytes[u])
            ends = instance.devices[p], instance.devices[q]
            edges.append(CutEdge(variable, producer, tuple(readers[q]), *ends, size, value, gradient))
    return tuple(sorted(edges, key=lambda e: (-e.seconds, -e.nbytes, e.variable, e.target)))


def _why_path(path: Sequence[PathSpan], made_of: Mapping[str, float], iteration_s: float) -> str:
    """The device or link with the most seconds of the critical path."""
    if not iteration_s:
        return "No bottleneck: the iteration takes no time."
    (name, spent), *others = made_of.items()
    rest = ", ".join(
        f"{where} another {percent(s, iteration_s)}" for where, s in others[:2] if s > 0.1 * iteration_s
    )
    rest = f"; {rest}" if rest else ""
    own = [span for span in path if span.where == name]
    if " -> " in name:
        most = max(own, key=lambda span: span.seconds)
        return (
            f"The link {name} is the bottleneck: its transfers are {percent(spent, iteration_s)} of the "
            f"critical path, mainly {most.name} with {seconds(most.seconds)}{rest}."
        )
    spent_by = [
        f"{words} {seconds(sum(span.seconds for span in own if span.what in kinds))}"
        for words, kinds in _WORK.items()
    ]
    return (
        f"{name} is the bottleneck: it takes {percent(spent, iteration_s)} of the critical path "
        f"({', '.join(spent_by)}){rest}."
    )


def _why_load(loads: Loads, p: int, name: str) -> str:
    """The device with the largest load, and the parts of that load."""
    load = float(loads.seconds[p])
    if load <= 0:
        return "No bottleneck: no device has a load."
    made_of = ", ".join(
        f"{part} {seconds(float(each[p]))} ({percent(float(each[p]), load)})"
        for part, each in sorted(loads.parts.items(), key=lambda item: -item[1][p])
        if each[p] > 0
    )
    beside = ", with transfers overlapping the computation" if loads.beside else ""
    return f"{name} is the bottleneck, with a load of {seconds(load)}: {made_of}{beside}."


def _cuts(cuts: Sequence[CutEdge], top: int) -> Iterator[str]:
    if not cuts:
        yield "no edge is cut"
        return
    total = sum(edge.seconds for edge in cuts)
    size = nbytes(sum(e.nbytes for e in cuts))
    yield f"{counted(len(cuts), 'cut edge')}: {size}, {seconds(total)} with gradients, per micro-batch"
    for edge in cuts[:top]:
        readers = _node_run(edge.readers, 16)
        back = f" + {seconds(edge.gradient_s)} back" if edge.gradient_s else ""
        yield (
            f"  {short(edge.variable, 28)}: {edge.source} -> {edge.target}, {nbytes(edge.nbytes)},"
            f" {seconds(edge.value_s)}{back}; {short(edge.producer, 24)} to {readers}"
        )
    if len(cuts) > top:
        yield f"  and {len(cuts) - top} more"


def path_lines(path: Sequence[PathSpan], whole: float, limit: int) -> Iterator[str]:
    """A critical path of `whole` seconds: where it is spent, then its `limit` longest spans in order."""
    parts = [f"{percent(s, whole)} on {where}" for where, s in totals(path).items() if s > 0]
    yield f"critical path: {', '.join(parts[:8])}"
    spans = [span for span in _merged(path) if span.seconds > 0]
    longest = sorted(range(len(spans)), key=lambda i: (-spans[i].seconds, i))[:limit]
    shown = sorted(longest)
    for before, i in zip([-1, *shown], [*shown, len(spans)], strict=False):
        if i - before > 1:
            left = spans[before + 1 : i]
            yield f"  {'...':>21}  {len(left)} shorter, {seconds(sum(s.seconds for s in left))}"
        if i < len(spans):
            yield f"  {_span(spans[i])}"


def _span(span: PathSpan) -> str:
    when = f"{seconds(span.start_s):>9} {'+' + seconds(span.seconds):>10}"
    i = f", micro-batch {span.microbatch}" if span.microbatch > 0 else ""
    what = _node_run(span.nodes, 24) if span.nodes else short(span.name, 40)
    if span.what == "transfer":
        return f"{when}  {span.where}: {what}{i}"
    if span.what in ("step", "overhead", "reduce", "wait"):
        return f"{when}  {span.where}: {'waits for ' * (span.what == 'wait')}{span.name}"
    return f"{when}  {span.where}: {span.what} of {what}{i}"


def _node_run(nodes: Sequence[str], length: int) -> str:
    """``n0``, ``n0, n1``, or ``n0 .. n9 (10 nodes)``."""
    if len(nodes) <= 2:
        return ", ".join(short(name, length) for name in nodes)
    return f"{short(nodes[0], length)} .. {short(nodes[-1], length)} ({len(nodes)} nodes)"


def totals(path: Iterable[PathSpan]) -> dict[str, float]:
    """Device or link -> its seconds on the path, the most first."""
    sums: Counter[str] = Counter()
    for span in path:
        sums[span.where] += span.seconds  # type: ignore[assignment]
    return {where: float(seconds) for where, seconds in sums.most_common()}


def _merged(path: Iterable[PathSpan]) -> list[PathSpan]:
    """The path with consecutive computations of one kind on one device joined."""
    joined: list[PathSpan] = []
    for span in path:
        last = joined[-1] if joined else span
        if joined and (last.what, last.where) == (span.what, span.where) and span.what in _MERGING:
            i = last.microbatch if last.microbatch == span.microbatch else -1
            nodes = tuple(dict.fromkeys(last.nodes + span.nodes))
            name = last.name if last.name == span.name else f"{last.name} .. {span.name}"
            joined[-1] = replace(last, end_s=span.end_s, nodes=nodes, microbatch=i, name=name)
        else:
            joined.append(span)
    return joined


def critical_path(timeline: Timeline, program: Program) -> tuple[PathSpan, ...]:
    """The chain of spans that determines a simulated iteration's length, from start to end.

    The spans follow one another without gap or overlap, so that their seconds add up to the iteration.
    """
    return _PathWalk(timeline, program).spans()


class _PathWalk:
    """Back from the end, through what each event waited for, to the start."""

    def __init__(self, timeline: Timeline, program: Program) -> None:
        self.end_s, self.program = timeline.iteration_s, program
        self.least_s = TOLERANCE * self.end_s
        self.lanes: dict[str, list[Event]] = {}
        self.links: dict[tuple[str, str], list[Event]] = {}
        self.sums: dict[tuple[str, str], list[Event]] = {}  # name and device -> one after another
        for event in sorted(timeline.events, key=lambda e: (e.start_s, e.end_s)):
            if event.kind == "send":
                self.links.setdefault((event.device, event.peer), []).append(event)
            elif event.kind == "reduce":
                self.sums.setdefault((event.name, event.device), []).append(event)
            elif event.kind != "recv" and event.seconds > 0:
                self.lanes.setdefault(event.device, []).append(event)
        self.sends = {
            (*ends, event.name, event.microbatch): (link, i)
            for link, events in self.links.items()
            for i, event in enumerate(events)
            for ends in (link, link[::-1])
        }
        self.passed: set[object] = set()
        self.walked: list[PathSpan] = []

    def spans(self) -> tuple[PathSpan, ...]:
        if not self.lanes or not self.end_s:
            return ()
        device = max(self.lanes, key=lambda p: self.lanes[p][-1].end_s)
        at, t = len(self.lanes[device]), self.end_s
        while True:
            before = self.lanes[device][at - 1] if at else None
            reached = before.end_s if before is not None else 0.0
            if t > reached:
                self.walked.append(PathSpan("overhead", device, reached, t))
            t = min(t, reached)
            if before is None:
                return tuple(reversed(self.walked))
            moved = self._back_from_wait(before, t) if before.kind == "wait" else None
            if moved is None:
                t = self._add(cast(SpanKind, before.kind), device, before.start_s, t, before)
                at -= 1
            else:
                device, at, t = moved

    def _back_from_wait(self, wait: Event, t: float) -> tuple[str, int, float] | None:
        """Device, place in its lane and time before what a wait is for; None: that is not known."""
        begun = [each for each in self.sums.get((wait.name, wait.device), ()) if each.start_s <= wait.end_s]
        if begun and (wait.name, number := len(begun) - 1) not in self.passed:
            self.passed.add((wait.name, number))
            sums = [each for (name, _), each in self.sums.items() if name == wait.name]
            events = [each[number] for each in sums if number < len(each)]
            devices = [event.device for event in events]
            start = max(event.start_s for event in events)
            t = self._add("reduce", ", ".join(devices), start, t, events[0])
            device, at, _ = self._last_of(devices, t)
            return device, at, t
        send = self.sends.get((wait.device, wait.peer, wait.about, wait.microbatch))
        if send is None or send in self.passed:
            return None
        link, i = send
        while True:  # over earlier transfers that held the link
            event, before = self.links[link][i], self.links[link][i - 1] if i else None
            self.passed.add((link, i))
            t = self._add("transfer", " -> ".join(link), event.start_s, t, event)
            device, at, reached = self._last_of(link, t)
            if before is None or before.end_s <= reached or before.end_s < t - self.least_s:
                return device, at, t
            i -= 1

    def _last_of(self, devices: Iterable[str], t: float) -> tuple[str, int, float]:
        """The last end that what begins at t waited for; its place in its lane, and when."""
        places = {}
        for p in devices:
            lane = self.lanes.get(p, [])
            at = bisect_right(lane, t + self.least_s, key=lambda event: event.end_s)
            places[p] = lane[at - 1].end_s if at else 0.0, at
        device = max(places, key=lambda p: places[p][0])
        return device, places[device][1], places[device][0]

    def _add(self, what: SpanKind, where: str, start: float, end: float, event: Event) -> float:
        """Add a span; its start."""
        nodes: tuple[str, ...] = ()
        if event.name.startswith("segment "):
            nodes = tuple(self.program.segments[int(event.name.split()[1])].nodes)
            nodes = nodes[::-1] if what in ("backward", "weight") else nodes
        start = min(start, end)
        self.walked.append(PathSpan(what, where, start, end, event.name, nodes, event.microbatch))
        return start
