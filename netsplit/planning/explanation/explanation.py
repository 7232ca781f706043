"""What explaining a placement gives: numbers for a file, or lines of text, at most 100 columns wide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from netsplit.partition.base import Objective, Placement, Problem, Stage
from netsplit.partition.common.instance import Instance
from netsplit.partition.exchange import Exchange
from netsplit.planning.explanation.binding import Binding, load_binding, path_binding, stages_binding
from netsplit.planning.explanation.notation import node_run, percent, seconds, short, wrapped
from netsplit.planning.explanation.parts import PlacedSplit, parts_lines, placed_splits
from netsplit.planning.explanation.path import PathSpan, critical_path, merged, overheads, predicted, totals
from netsplit.planning.explanation.uses import CutEdge, DeviceUse, Holding, cut_edges, device_uses
from netsplit.tables import nbytes

if TYPE_CHECKING:
    from netsplit.program.instructions import Program
    from netsplit.simulate.timeline import Timeline

__all__ = ["Explanation", "explain", "path_lines"]

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
        }


def _lines(explanation: Explanation, top: int) -> list[str]:
    """What binds first, then devices, cut edges and the critical path."""
    says = f"{explanation.objective.says} {seconds(explanation.objective_s)}"
    lines = wrapped(f"{explanation.method}: {says}")
    lines += wrapped(explanation.binding.sentence, "  ", "  ")
    for number, stage in enumerate(explanation.stages):
        replicas = f", {len(stage.devices)} replicas" if len(stage.devices) > 1 else ""
        if stage.turns:
            taken = ", ".join(percent(part, 1.0) for part in stage.parts.values())
            replicas += f" that take {taken} of the micro-batches"
        lines += wrapped(
            f"stage {number}: {node_run(stage.nodes)} on {', '.join(stage.devices)}{replicas},"
            f" {stage.warm_up} forwards of warm-up",
            "  ",
        )
    for device, nodes in explanation.recomputed:
        count = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
        lines += wrapped(f"{device} computes {count} again for the backward: {node_run(nodes)}", "  ")
    for text in parts_lines(explanation.splits):
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
        timeline: predicted, of the placement. None: `problem.evaluate` is asked; `max_load` needs none.
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
    )


def _recomputed(instance: Instance, placement: Placement) -> tuple[tuple[str, tuple[str, ...]], ...]:
    nodes: dict[str, list[str]] = {device: [] for device in instance.devices}
    for name in instance.names:
        if name in placement.recomputed:
            nodes[placement.device_of[name]].append(name)
    return tuple((device, tuple(own)) for device, own in nodes.items() if own)
