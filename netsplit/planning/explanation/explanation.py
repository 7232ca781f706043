"""Why a placement takes as long as it does, in numbers or lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from netsplit.partition.base import Loads, Objective, Problem
from netsplit.partition.common.instance import Instance, Ints
from netsplit.placement.placement import Placement
from netsplit.planning.explanation.notation import counted, node_run, percent, seconds, short
from netsplit.planning.explanation.path import PathSpan, critical_path, merged, overheads, totals
from netsplit.program.instructions import Program
from netsplit.simulate.timeline import Timeline
from netsplit.tables import nbytes

__all__ = ["Explanation", "explain", "path_lines"]


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
class Binding:
    """The bottleneck: the answer to "why is it not faster?"."""

    what: Literal["device", "link", "nothing"]
    name: str  # of the device or of the link
    seconds: float  # of the objective that it accounts for
    sentence: str


@dataclass(frozen=True)
class Explanation:
    """One placement explained. Seconds and bytes."""

    method: str
    objective: Objective
    objective_s: float
    binding: Binding
    made_of: Mapping[str, float]
    """Seconds of the objective: by device and link of the critical path, or by part of the largest load."""
    cuts: tuple[CutEdge, ...]  # all of them, the costliest first
    path: tuple[PathSpan, ...] = ()  # the critical path from start to end; empty under `max_load`

    def lines(self, top: int = 8) -> list[str]:
        """The bottleneck, then the `top` costliest cut edges, and the path's longest spans."""
        lines = [
            f"{self.method}: {self.objective.says} {seconds(self.objective_s)}",
            f"  {self.binding.sentence}",
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
            "binds": asdict(self.binding),
            "seconds_of": dict(self.made_of),
            "cut": {
                "edges": len(self.cuts),
                "bytes": sum(edge.nbytes for edge in self.cuts),
                "seconds": sum(edge.seconds for edge in self.cuts),
                "costliest": [asdict(edge) | {"seconds": edge.seconds} for edge in self.cuts[:top]],
            },
            "critical_path": [asdict(span) for span in merged(self.path)],
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
        objective_s, binding = loads.period_s, _load_binding(loads, instance.devices)
        p = int(np.argmax(loads.seconds))
        made_of = {f"{part} of the largest load": float(each[p]) for part, each in loads.parts.items()}
    else:
        assert simulated is not None, "an iteration is explained by its timeline"
        program, timeline = simulated
        objective_s = timeline.iteration_s
        path = critical_path(timeline, program, *overheads(problem.cluster, problem.costs))
        binding, made_of = _path_binding(path, objective_s), totals(path)
    cuts = _cut_edges(instance, instance.encode(placement.device_of))
    return Explanation(placement.method, problem.objective, objective_s, binding, made_of, cuts, path)


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


def _path_binding(path: Sequence[PathSpan], iteration_s: float) -> Binding:
    """The device or link with the most seconds of the critical path."""
    by_place = [(where, s) for where, s in totals(path).items() if s > 0]
    if not by_place:
        return Binding("nothing", "", 0.0, "No bottleneck: the iteration takes no time.")
    name, spent = by_place[0]
    others = [
        f"{where} another {percent(s, iteration_s)}" for where, s in by_place[1:3] if s > 0.1 * iteration_s
    ]
    rest = "; " + ", ".join(others) if others else ""
    if " -> " in name:
        most = max((span for span in path if span.where == name), key=lambda span: span.seconds)
        sentence = (
            f"The link {name} is the bottleneck: its transfers are {percent(spent, iteration_s)} of the "
            f"critical path, mainly {most.name} with {seconds(most.seconds)}{rest}."
        )
        return Binding("link", name, spent, sentence)
    forward, backward = (
        sum(s.seconds for s in path if s.where == name and s.what in parts)
        for parts in (("forward", "recompute"), ("backward", "weight"))
    )
    sentence = (
        f"{name} is the bottleneck: it takes {percent(spent, iteration_s)} of the critical path (forward "
        f"{seconds(forward)}, backward {seconds(backward)}){rest}."
    )
    return Binding("device", name, spent, sentence)


def _load_binding(loads: Loads, devices: Sequence[str]) -> Binding:
    """The device with the largest load, and the parts of that load."""
    p = int(np.argmax(loads.seconds))
    name, load = devices[p], float(loads.seconds[p])
    if load <= 0:
        return Binding("nothing", "", 0.0, "No bottleneck: no device has a load.")
    made_of = ", ".join(
        f"{part} {seconds(float(each[p]))} ({percent(float(each[p]), load)})"
        for part, each in sorted(loads.parts.items(), key=lambda item: -item[1][p])
        if each[p] > 0
    )
    beside = ", with transfers overlapping the computation" if loads.beside else ""
    return Binding(
        "device", name, load, f"{name} is the bottleneck, with a load of {seconds(load)}: {made_of}{beside}."
    )


def _cuts(cuts: Sequence[CutEdge], top: int) -> Iterator[str]:
    if not cuts:
        yield "no edge is cut"
        return
    total = sum(edge.seconds for edge in cuts)
    size = nbytes(sum(e.nbytes for e in cuts))
    yield f"{counted(len(cuts), 'cut edge')}: {size}, {seconds(total)} with gradients, per micro-batch"
    for edge in cuts[:top]:
        readers = node_run(edge.readers, 16)
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
    spans = [span for span in merged(path) if span.seconds > 0]
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
    what = node_run(span.nodes, 24) if span.nodes else short(span.name, 40)
    if span.what == "transfer":
        return f"{when}  {span.where}: {what}{i}"
    if span.what in ("step", "overhead", "reduce", "wait"):
        return f"{when}  {span.where}: {'waits for ' * (span.what == 'wait')}{span.name}"
    return f"{when}  {span.where}: {span.what} of {what}{i}"
