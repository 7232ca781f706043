"""What explaining a placement gives: numbers for a file, or lines of text, at most 100 columns wide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from netsplit.partition.base import Loads, Objective, Problem
from netsplit.partition.common.instance import Instance
from netsplit.placement.exchange import Exchange
from netsplit.placement.placement import Placement, Stage
from netsplit.planning.explanation.notation import node_run, percent, seconds, short, wrapped
from netsplit.planning.explanation.parts import (
    PlacedSplit,
    algebra_lines,
    parallel_graph,
    parts_lines,
    placed_splits,
    placed_sums,
    step_lines,
)
from netsplit.planning.explanation.path import PathSpan, critical_path, merged, overheads, predicted, totals
from netsplit.planning.explanation.uses import CutEdge, DeviceUse, Holding, cut_edges, device_uses
from netsplit.rewrite.pcg import ParallelGraph
from netsplit.tables import nbytes

if TYPE_CHECKING:
    from netsplit.program.instructions import Program
    from netsplit.simulate.timeline import Timeline

__all__ = ["Explanation", "explain", "longest_chain", "path_lines"]

_CHAIN = 0.9  # of the iteration: from here on the chain of nodes itself is what binds


@dataclass(frozen=True)
class Binding:
    """The answer to "why is it not faster?"; seconds of the objective."""

    what: Literal["device", "link", "chain", "nothing"]
    name: str  # of the device, of the link, or the chain's first and last node
    seconds: float  # of the objective that it accounts for
    sentence: str


def longest_chain(instance: Instance) -> tuple[float, tuple[str, ...]]:
    """Forward and backward seconds along one path, each node on its fastest device, no transfers.

    No placement has a shorter latency; of a task graph whose backward computations are nodes too.
    """
    own = (instance.forward_s + instance.backward_s).min(axis=1)
    ends, best = np.zeros(instance.n), np.full(instance.n, -1)
    for v in range(instance.n):
        before = instance.predecessors[v]
        if len(before):
            best[v] = before[int(np.argmax(ends[before]))]
            ends[v] = ends[best[v]]
        ends[v] += own[v]
    if not instance.n:
        return 0.0, ()
    v, path = int(np.argmax(ends)), []
    longest = float(ends[v])
    while v >= 0:
        path.append(instance.names[v])
        v = int(best[v])
    return longest, tuple(reversed(path))


def path_binding(instance: Instance, path: Sequence[PathSpan], iteration_s: float) -> Binding:
    """What the critical path is made of, in one sentence."""
    by_place = [(where, s) for where, s in totals(path).items() if s > 0]
    if not by_place:
        return Binding("nothing", "", 0.0, "Nothing binds: the iteration takes no time.")
    chain_s, chain = longest_chain(instance)
    if chain_s >= _CHAIN * iteration_s:
        return Binding(
            "chain",
            f"{chain[0]} .. {chain[-1]}",
            chain_s,
            f"The chain {node_run(chain)} binds: each node on its fastest device and without transfers,"
            f" it takes {seconds(chain_s)}, {percent(chain_s, iteration_s)} of the iteration.",
        )
    name, spent = by_place[0]
    others = [
        f"{where} another {percent(s, iteration_s)}" for where, s in by_place[1:3] if s > 0.1 * iteration_s
    ]
    rest = "; " + ", ".join(others) if others else ""
    if " -> " in name:
        sent = [span for span in path if span.where == name]
        most = max(sent, key=lambda span: span.seconds)
        sentence = (
            f"The link {name} binds: its transfers are {percent(spent, iteration_s)} of the critical path,"
            f" most of all {most.name} with {seconds(most.seconds)}{rest}."
        )
        return Binding("link", name, spent, sentence)
    kinds = {
        kind: sum(s.seconds for s in path if s.where == name and s.what in parts)
        for kind, parts in (("forward", ("forward", "recompute")), ("backward", ("backward", "weight")))
    }
    sentence = (
        f"The time of {name} binds: it is {percent(spent, iteration_s)} of the critical path"
        f" (forward {seconds(kinds['forward'])}, backward {seconds(kinds['backward'])}){rest}."
    )
    return Binding("device", name, spent, sentence)


def load_binding(loads: Loads, devices: Sequence[str]) -> Binding:
    """The device with the largest load, and what the load is made of."""
    p = int(np.argmax(loads.seconds))
    name, load, transfer = devices[p], float(loads.seconds[p]), float(loads.transfer_s[p])
    if load <= 0:
        return Binding("nothing", "", 0.0, "Nothing binds: no device has a load.")
    if loads.beside and transfer < load:
        return Binding("device", name, load, f"The computing of {name} binds, {seconds(load)}.")
    if loads.beside:
        way = "from" if loads.send_s[p] >= transfer else "to"
        return Binding("device", name, load, f"The transfers {way} {name} bind, {seconds(load)}.")
    made_of = ", ".join(
        f"{part} {seconds(float(each[p]))} ({percent(float(each[p]), load)})"
        for part, each in sorted(loads.parts.items(), key=lambda item: -item[1][p])
        if each[p] > 0
    )
    after = ""
    if len(devices) > 1:
        q = max((q for q in range(len(devices)) if q != p), key=lambda q: loads.seconds[q])
        after = f"; the next is {devices[q]} at {percent(float(loads.seconds[q]), load)} of it"
    return Binding("device", name, load, f"The load of {name} binds, {seconds(load)}: {made_of}{after}.")


def stages_binding(loads: Loads, devices: Sequence[str]) -> Binding:
    """The stage whose replicas compute longest, each its part; the rest of the period is communication."""
    compute_s = dict(zip(devices, loads.forward_s + loads.backward_s, strict=True))
    replica_s = [float(compute_s[stage.devices[0]]) for stage in loads.stages]
    k = max(range(len(replica_s)), key=replica_s.__getitem__)
    spent, names = replica_s[k], ", ".join(loads.stages[k].devices)
    sentence = (
        f"Stage {k} on {names} computes most: {seconds(spent)} a micro-batch and replica,"
        f" {percent(spent, loads.period_s)} of the period; transfers and synchronisation of weights make the"
        " rest."
    )
    return Binding("device", names, spent, sentence)


_NO_LIMIT = 2**50  # bytes; graph files have devices without a limit


@dataclass(frozen=True)
class Explanation:
    """One placement explained. Seconds and bytes; `lines()` for people, `to_dict()` for a file."""

    method: str
    objective: Objective
    objective_s: float
    devices: tuple[DeviceUse, ...]  # in rank order
    cuts: tuple[CutEdge, ...]  # all of them, the costliest first
    binding: Binding
    path: tuple[PathSpan, ...]  # the critical path from start to end; empty under `max_load`
    stages: tuple[Stage, ...] = ()
    recomputed: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Device, and its nodes that are computed again for the backward."""
    splits: tuple[PlacedSplit, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    algebra: tuple[str, ...] = ()
    """Rules that replaced operators, in order."""
    parallel: ParallelGraph | None = None
    sums: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Operator, and the devices on which its partial sums are added."""

    @property
    def path_totals(self) -> dict[str, float]:
        """Device or link -> seconds on the critical path, the most first."""
        return totals(self.path)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self, top: int = 8) -> list[str]:
        """Readable text of at most 100 columns; the `top` costliest cut edges and longest spans."""
        return _lines(self, top)

    def to_dict(self, top: int = 50) -> dict[str, Any]:
        """Numbers, strings, lists and mappings only; the `top` costliest cut edges."""
        return {
            "method": self.method,
            "objective": self.objective.name,
            "objective_s": self.objective_s,
            "devices": [
                asdict(use)
                | {"busy_s": use.busy_s, "transfer_s": use.transfer_s}
                | {"filled": use.filled if use.capacity_bytes else None}
                for use in self.devices
            ],
            "cut": {
                "edges": len(self.cuts),
                "bytes": sum(edge.nbytes for edge in self.cuts),
                "seconds": sum(edge.seconds for edge in self.cuts),
                "costliest": [asdict(edge) | {"seconds": edge.seconds} for edge in self.cuts[:top]],
            },
            "binds": asdict(self.binding),
            "critical_path": {
                "seconds_of": self.path_totals,
                "spans": [_span_facts(span) for span in merged(self.path)],
            },
            "stages": [asdict(stage) for stage in self.stages],
            "recomputed": {device: list(nodes) for device, nodes in self.recomputed},
            "splits": [asdict(split) for split in self.splits],
            "exchanges": [each.to_dict() for each in self.exchanges],
            "algebra": list(self.algebra),
            "parallel_graph": None if self.parallel is None else self.parallel.to_dict(),
            "sums": {operator: list(devices) for operator, devices in self.sums.items()},
        }


def _lines(explanation: Explanation, top: int) -> list[str]:
    """What binds first, then devices, cut edges and the critical path."""
    says = f"{explanation.objective.says} {seconds(explanation.objective_s)}"
    lines = wrapped(f"{explanation.method}: {says}")
    lines += wrapped(explanation.binding.sentence, "  ", "  ")
    for number, stage in enumerate(explanation.stages):
        replicas = f", {len(stage.devices)} replicas" if len(stage.devices) > 1 else ""
        if stage.turns:
            percents = ", ".join(percent(part, 1.0) for part in stage.parts.values())
            replicas += f" that take {percents} of the micro-batches"
        lines += wrapped(
            f"stage {number}: {node_run(stage.nodes)} on {', '.join(stage.devices)}{replicas},"
            f" {stage.warm_up} forwards of warm-up",
            "  ",
        )
    for device, nodes in explanation.recomputed:
        count = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
        lines += wrapped(f"{device} computes {count} again for the backward: {node_run(nodes)}", "  ")
    algebra = [f"algebra: {line}" for line in explanation.algebra]
    steps = step_lines(explanation.parallel, explanation.sums)
    for text in (*algebra, *parts_lines(explanation.splits), *steps):
        lines += wrapped(text, "  ")
    for exchange in explanation.exchanges[:top]:
        way = ", ".join(f"{p} -> {q}" for p, q in exchange.hops)
        cut = f" in {exchange.chunks} chunks" if exchange.chunks > 1 else ""
        lines += wrapped(f"{short(exchange.variable)} is handed on{cut}: {way}", "  ")
    lines.append("devices")
    for use in explanation.devices:
        lines += _device(use, explanation.objective_s)
    lines += _cuts(explanation.cuts, top)
    if explanation.path:
        lines += path_lines(explanation.path, explanation.objective_s, 2 * top)
    return lines


def _device(use: DeviceUse, whole: float) -> Iterator[str]:
    parts = [("forward", use.forward_s), ("backward", use.backward_s), ("step", use.step_s)]
    made_of = ", ".join(f"{name} {seconds(s)}" for name, s in parts if s > 0)
    count = "1 node" if use.nodes == 1 else f"{use.nodes} nodes"
    busy = f"busy {seconds(use.busy_s)} ({percent(use.busy_s, whole)}{': ' if made_of else ''}{made_of})"
    moved = f"sends {seconds(use.send_s)}, receives {seconds(use.receive_s)}"
    yield from wrapped(
        f"{use.device} ({short(use.kind)}): {count}; {busy}; waits {seconds(use.wait_s)}; {moved}",
        "  ",
        "      ",
    )
    fill = [
        _filled("states", use.state_bytes, use.owners),
        _filled("variables", use.variable_bytes, use.variables),
        _filled("copies", use.copy_bytes, use.copies),
    ]
    held = f"{nbytes(use.used_bytes)} of {nbytes(use.capacity_bytes)}"
    held += f" ({percent(use.used_bytes, use.capacity_bytes)})" if use.capacity_bytes else ""
    if use.capacity_bytes >= _NO_LIMIT:
        held = f"{nbytes(use.used_bytes)}, no limit"
    if use.memory == "lifetimes":
        held = f"peaks at {held}; in the linear count"
    yield from wrapped("; ".join([held, *(text for text in fill if text)]), "      ", "      ")


def _filled(what: str, total: int, largest: Sequence[Holding]) -> str:
    if not total:
        return ""
    names = [
        f"{short(h.name, 24)}{f' from {h.source}' if h.source else ''} {nbytes(h.nbytes)}" for h in largest
    ]
    rest = ", ..." if sum(h.nbytes for h in largest) < total else ""
    return f"{what} {nbytes(total)} ({', '.join(names)}{rest})"


def _cuts(cuts: Sequence[CutEdge], top: int) -> Iterator[str]:
    if not cuts:
        yield "no edge is cut"
        return
    count = "1 cut edge" if len(cuts) == 1 else f"{len(cuts)} cut edges"
    total = sum(edge.seconds for edge in cuts)
    yield f"{count}: {nbytes(sum(e.nbytes for e in cuts))}, {seconds(total)} with gradients, a micro-batch"
    for edge in cuts[:top]:
        readers = node_run(edge.readers, 16)
        back = f" + {seconds(edge.gradient_s)} back" if edge.gradient_s else ""
        yield from wrapped(
            f"{short(edge.variable, 28)}: {edge.source} -> {edge.target}, {nbytes(edge.nbytes)},"
            f" {seconds(edge.value_s)}{back}; {short(edge.producer, 24)} to {readers}",
            "  ",
            "      ",
        )
    if len(cuts) > top:
        rest = cuts[top:]
        size, spent = sum(edge.nbytes for edge in rest), sum(edge.seconds for edge in rest)
        yield f"  and {len(rest)} more: {nbytes(size)}, {seconds(spent)}"


def path_lines(path: Sequence[PathSpan], whole: float, limit: int) -> Iterator[str]:
    """A critical path of `whole` seconds: where it is spent, then its `limit` longest spans in order."""
    parts = [f"{percent(s, whole)} on {where}" for where, s in totals(path).items() if s > 0]
    yield from wrapped(f"critical path: {', '.join(parts[:8])}", "", "  ")
    spans = [span for span in merged(path) if span.seconds > 0]
    longest = sorted(range(len(spans)), key=lambda i: (-spans[i].seconds, i))[:limit]
    shown = sorted(longest)
    for before, i in zip([-1, *shown], [*shown, len(spans)], strict=False):
        if i - before > 1:
            left = spans[before + 1 : i]
            yield f"  {'...':>21}  {len(left)} shorter, {seconds(sum(s.seconds for s in left))}"
        if i < len(spans):
            yield from wrapped(_span(spans[i]), "  ", " " * 25)


def _span(span: PathSpan) -> str:
    when = f"{seconds(span.start_s):>9} {'+' + seconds(span.seconds):>10}"
    i = f", micro-batch {span.microbatch}" if span.microbatch > 0 else ""
    what = node_run(span.nodes, 24) if span.nodes else short(span.name, 40)
    if span.what == "transfer":
        why = {"link": "the link was busy", "nic": "a NIC was busy", "receiver": "the receiver came late"}
        late = f" ({why[span.after]})" if span.after in why else ""
        return f"{when}  {span.where}: {what}{i}{late}"
    if span.what in ("step", "overhead", "reduce"):
        return f"{when}  {span.where}: {span.name}"
    return f"{when}  {span.where}: {span.what} of {what}{i}"


def _span_facts(span: PathSpan) -> dict[str, Any]:
    facts = asdict(span) | {"seconds": span.seconds, "node_count": len(span.nodes)}
    del facts["nodes"]
    return facts | {"first": span.nodes[0], "last": span.nodes[-1]} if span.nodes else facts


def explain(
    problem: Problem,
    placement: Placement,
    timeline: Timeline | None = None,
    program: Program | None = None,
) -> Explanation:
    """Explain a placement.

    Args:
        timeline: predicted, of the placement. None: `problem.simulator` is asked; `max_load` needs none.
        program: the program that was simulated; without it segments on the critical path have no names.

    Raises:
        ValueError: a latency without a timeline, and without a way to get one.
    """
    instance = Instance.of(problem)
    where = instance.encode(placement.device_of)
    cuts = cut_edges(instance, where)
    path: tuple[PathSpan, ...] = ()
    loads = problem.objective.loads(problem, placement)
    if loads is not None:
        objective_s, uses = loads.period_s, device_uses(instance, placement, loads)
        binding = (stages_binding if loads.stages else load_binding)(loads, instance.devices)
    else:
        timeline = predicted(problem, placement) if timeline is None else timeline
        if timeline is None:
            raise ValueError("a timeline is needed to explain a latency")
        objective_s, uses = timeline.iteration_s, device_uses(instance, placement, timeline)
        path = critical_path(timeline, program, *overheads(problem.cluster, problem.costs), problem.cluster)
        binding = path_binding(instance, path, objective_s)
    parallel = parallel_graph(placement, problem.graph)
    return Explanation(
        method=placement.method,
        objective=problem.objective,
        objective_s=objective_s,
        devices=uses,
        cuts=cuts,
        binding=binding,
        path=path,
        stages=placement.stages,
        recomputed=_recomputed(instance, placement),
        splits=placed_splits(placement, problem.graph),
        exchanges=placement.exchanges,
        algebra=algebra_lines(placement),
        parallel=None if parallel is None else parallel[1],
        sums=placed_sums(placement, problem.graph),
    )


def _recomputed(instance: Instance, placement: Placement) -> tuple[tuple[str, tuple[str, ...]], ...]:
    nodes: dict[str, list[str]] = {device: [] for device in instance.devices}
    for name in instance.names:
        if name in placement.recomputed:
            nodes[placement.device_of[name]].append(name)
    return tuple((device, tuple(own)) for device, own in nodes.items() if own)
