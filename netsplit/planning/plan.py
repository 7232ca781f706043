"""The answer to a problem: what was asked, what was chosen, and what it will take.

`decide` makes it, verified; `experiment.session` deploys it, `runners.partition` prints and writes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from html import escape
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from netsplit.errors import ConfigError
from netsplit.files import plain
from netsplit.graph.ir import Graph
from netsplit.graph.onnx.write import NodeNotes, write_onnx
from netsplit.partition.base import Problem
from netsplit.partition.common.capacity import needed_bytes
from netsplit.partition.common.instance import Instance
from netsplit.pictures.drawing import ShownFigure
from netsplit.pictures.graph_figure import graph_figure
from netsplit.pictures.timeline_figure import memory_figure, timeline_figure
from netsplit.placement.placement import Placement, Status
from netsplit.placement.sharding import shard_line
from netsplit.planning.explanation.explanation import Explanation, explain
from netsplit.planning.explanation.notation import counted
from netsplit.planning.explanation.parts import (
    PlacedSplit,
    algebra_lines,
    parallel_graph,
    parts_summary,
    placed_splits,
)
from netsplit.planning.plan_diff import PlanDiff, placement_change, played_devices, with_devices
from netsplit.program.instructions import Forward, Program
from netsplit.rewrite.node_parts import node_parts
from netsplit.rewrite.pcg import ParallelGraph
from netsplit.simulate.device_times import memory_course
from netsplit.simulate.exchanges import exchange_line
from netsplit.simulate.memory import costed_profiles
from netsplit.simulate.simulator import Simulator
from netsplit.simulate.timeline import Timeline
from netsplit.simulate.trace import EventParts, parts_of_events
from netsplit.tables import Column, Table, nbytes

__all__ = ["DeviceLoad", "Plan", "PlanSummary"]

PROVED = 1e-4  # relative gap up to which an answer is optimal, as solvers of integer programmes have it

_PLOTS = ("graph", "timeline", "memory")
_DEVICES: tuple[Column, ...] = (
    Column("device", text=True),
    Column("operators", ",d"),
    Column("parameters", ",d"),
    Column("busy ms", ",.1f", 1e3),
    Column("sends ms", ",.1f", 1e3),
    Column("peak", in_bytes=True),
    Column("limit", in_bytes=True),
    Column("full %", ",.0f", 100.0),
)
_STATIC = Column("static", in_bytes=True)


@dataclass(frozen=True)
class DeviceLoad:
    """What one device does and holds. Seconds of one step, or of one period under `max_load`."""

    nodes: int
    operators: int  # that it computes, or parts of, each once; what only moves tensors for parts is none
    compute_s: float
    transfer_s: float  # max_load: as `Objective.loads` has it; else the sends it makes
    seconds: float  # max_load: its load; else that it is busy
    nbytes: int  # `needed_bytes`
    capacity_bytes: int

    @property
    def filled(self) -> float:
        return self.nbytes / self.capacity_bytes if self.capacity_bytes else 0.0


@dataclass(frozen=True)
class PlanSummary:
    """`str` has it as plain text."""

    lines: tuple[str, ...]
    devices: Table

    def __str__(self) -> str:
        return "\n".join([*self.lines, *self.devices.lines()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        lines = "<br>".join(map(escape, self.lines))
        return f"<p>{lines}</p>{self.devices.html()}"


@dataclass(frozen=True)
class Plan:
    """A verified placement with its score; compiled and simulated too, where its objective asks for that.

    `verified` makes it. `asked` is the problem before the placement's rewrites, `problem` that after them.
    """

    asked: Problem
    problem: Problem
    placement: Placement
    seconds: float  # that the decision took
    objective_s: float
    bound_s: float | None
    program: Program | None = None  # None where the objective is not simulated
    timeline: Timeline | None = None  # predicted of the program

    @property
    def gap(self) -> float | None:
        """(objective - bound) / objective."""
        if self.bound_s is None:
            return None
        return max(0.0, 1.0 - self.bound_s / self.objective_s) if self.objective_s > 0 else 0.0

    @property
    def status(self) -> Status:
        """The status for the asked objective, which is not always the method's own.

        None of operators in parts is optimal: its bound is of these parts, and others may be cut.
        """
        if self.gap is not None and self.gap <= PROVED and not self.placement.rewrites:
            return "optimal"
        own = self.placement.report.status
        return "feasible" if own == "optimal" else own

    @cached_property
    def loads(self) -> dict[str, DeviceLoad]:
        """Device name to what it does, in rank order."""
        return _loads(self.problem, self.placement, self.timeline)

    @property
    def compiler(self) -> Simulator:
        """What made the program; of an objective that is simulated."""
        return self.problem.the_simulator

    @property
    def simulated(self) -> tuple[Program, Timeline]:
        """The program, and what is predicted of it.

        Raises:
            TypeError: the objective is not simulated.
        """
        if self.program is None or self.timeline is None:
            name = self.problem.objective.name
            raise TypeError(f"a plan for {name} has no program: its objective is not simulated")
        return self.program, self.timeline

    @property
    def iteration_s(self) -> float:
        """What an iteration is predicted to take, with what the controller does for it.

        Raises:
            TypeError: the objective is not simulated.
        """
        return self.simulated[1].iteration_s + self.problem.costs.controller_s

    @property
    def nodes(self) -> dict[str, int]:
        """Device -> nodes that it computes, where any; each replica computes all of its stage."""
        return {name: load.nodes for name, load in self.loads.items() if load.nodes}

    @cached_property
    def splits(self) -> tuple[PlacedSplit, ...]:
        """The operators that are in parts."""
        sampled = node_parts(self.problem.graph).sampled
        splits = placed_splits(self.placement, self.problem.graph)
        return tuple(replace(each, samples=each.operator in sampled) for each in splits)

    @cached_property
    def parallel_graph(self) -> tuple[Graph, ParallelGraph] | None:
        """The operators after algebra, and what lies between their parts; None: nothing is rewritten, or what
        is lies on no mesh."""
        return parallel_graph(self.placement, self.problem.graph)

    @property
    def lines_on_parts(self) -> list[str]:
        """What algebra replaced, and which operators are in parts."""
        cut = parts_summary(self.splits)
        algebra = [f"algebra: {line}" for line in algebra_lines(self.placement)]
        return [*algebra, *([cut] if cut else [])]

    def explain(self) -> Explanation:
        """What binds it, what its cut edges cost, and its critical path."""
        return explain(self.problem, self.placement, None if self.program is None else self.simulated)

    def moved_from(self, before: Plan) -> PlanDiff:
        """What moved from another plan of the same problem, and what that brings.

        Devices that are alike in every way may play one another's part. Where the plans' rewrites differ, an
        operator counts as moved from where its parts, or what they are of, were.

        Raises:
            ConfigError: the other plan is for other devices.
        """
        problem, old = self.problem, before.placement
        played = played_devices(problem, old, self.placement)
        new = with_devices(self.placement, played)
        change = placement_change(problem, old, new)
        was, now = before.explain(), self.explain()
        after = {
            " -> ".join(played.get(end, end) for end in where.split(" -> ")): seconds
            for where, seconds in now.made_of.items()
        }
        return PlanDiff(
            old.method, new.method, was.objective_s, now.objective_s, was.made_of, after, played, change
        )

    @cached_property
    def event_parts(self) -> Mapping[str, EventParts]:
        """Parts of operators by what an event of its timelines is about (`Event.about`)."""
        return {} if self.program is None else parts_of_events(self.program, self.problem.graph)

    def summary(self) -> PlanSummary:
        """The decision: what was chosen and of what it is the best, and a table of the devices.

        Its text is `str` of it; a notebook shows it as a table.
        """
        method = f"{self.placement.method}: {self.placement.report.summary()}"
        if self.program is None:
            return self._summary_of_loads(method)
        program, predicted = self.simulated
        schedule, size = self.compiler.schedule.name, self.problem.graph.batch_size
        sent_bytes = sum(event.nbytes for event in predicted.events if event.kind == "send")
        predicted_line = (
            f"predicted: {1e3 * predicted.iteration_s:,.1f} ms per iteration, "
            f"{counted(program.transfers, 'transfer')} of {nbytes(sent_bytes)} in all"
        )
        cut = f"{counted(program.microbatches, 'micro-batch', 'es')} of {counted(size, 'sample')}"
        lines = [method, f"{schedule} with {cut}", predicted_line, *self.lines_on_parts]
        if self.placement.shards:
            lines.append(shard_line(self.placement))
        if self.placement.recomputed:
            lines.append(_recomputation_line(self.compiler, self.placement, program, predicted))
        if self.problem.costs.predicted:
            lines.append("operator times are predicted, not measured")
        if self.placement.exchanges:
            lines.append(exchange_line(self.placement))
        if predicted.host_bytes:
            sizes = (f"{name} {nbytes(size)}" for name, size in predicted.host_bytes.items())
            lines.append(f"offload {self.problem.costs.offload.name}: on the host {', '.join(sizes)}")
        initializers, rows = program.graph.initializers, []
        counted_whole = self.problem.memory == "static"
        for name, load in self.loads.items():
            held = [initializers[k] for k in program.held[name]]
            rows.append((
                name, load.operators, sum(prod(init.shape) for init in held if init.is_parameter),
                predicted.busy_s(name), load.transfer_s, predicted.peak_bytes.get(name, 0),
                *([load.nbytes] if counted_whole else []), load.capacity_bytes,
                load.filled if load.capacity_bytes else None,
            ))  # fmt: skip
        columns, notes = _DEVICES, ["peak: the most bytes alive at once; it must stay within the limit"]
        if counted_whole:
            columns = (*_DEVICES[:-2], _STATIC, *_DEVICES[-2:])
            notes = ["static: all parameters and variables at once; it must stay within the limit"]
        return PlanSummary(tuple(lines), Table(columns, rows, notes=notes))

    def _summary_of_loads(self, method: str) -> PlanSummary:
        objective = self.problem.objective
        columns = (
            Column("device", text=True),
            Column("operators", ",d"),
            Column(f"{objective.column} ms", ",.1f", 1e3),
            Column("bytes", in_bytes=True),
            Column("limit", in_bytes=True),
        )
        rows = [
            (name, load.operators, load.seconds, load.nbytes, load.capacity_bytes)
            for name, load in self.loads.items()
        ]
        said = f"{objective.name}: {objective.says} {1e3 * self.objective_s:.1f} ms"
        return PlanSummary((method, said), Table(columns, rows))

    def plot(self, kind: str, measured: Timeline | None = None) -> ShownFigure:
        """A picture that a notebook shows; `save` writes it.

        Args:
            kind: "graph": operators coloured by device; "timeline": what is computed and sent when;
                "memory": bytes alive on every device in the course of an iteration.
            measured: drawn below the predicted timeline; its peaks beside the predicted bytes.

        Raises:
            ConfigError: another kind; `measured` is no timeline; or of an objective that is not simulated
                anything but the graph.
        """
        if kind not in _PLOTS:
            raise ConfigError(f"there is no plot {kind!r}: choose one of {', '.join(_PLOTS)}.")
        if not isinstance(measured, Timeline | None):
            raise ConfigError(
                f"plot's second argument must be a measured timeline, not {measured!r}: write the picture "
                f"to a file with plot({kind!r}).save(path)."
            )
        problem, placement = self.problem, self.placement
        title = f"{kind} of {placement.method}"
        if kind == "graph":
            drawn = graph_figure(problem.graph, placement, None, problem.costs, problem.cluster)
            return ShownFigure(drawn, title)
        if self.program is None or self.timeline is None:
            name = problem.objective.name
            raise ConfigError(f"a plan for {name} is not simulated and has no {kind}: plot its graph.")
        if kind == "timeline":
            timed = measured if measured is not None and measured.events else None
            return ShownFigure(timeline_figure(self.timeline, timed), title)
        profiles = costed_profiles(self.program, problem.cluster, problem.costs)
        courses = {q: memory_course(self.program, self.timeline, each) for q, each in profiles.items()}
        capacities = {name: load.capacity_bytes for name, load in self.loads.items()}
        peaks = {} if measured is None else measured.peak_bytes
        return ShownFigure(memory_figure(courses, capacities, peaks), title)

    def write_onnx(self, path: str | Path) -> None:
        """Write the placed graph as an ONNX file for Netron.

        Metadata of a node: its device (of a replicated stage the first), seconds there, and bytes. Errors as
        of `netsplit.graph.onnx.write_onnx`.
        """
        cluster, costs = self.problem.cluster, self.problem.costs.devices
        device = self.placement.device_of
        known = {name: costs[cluster.device(place).kind].nodes[name] for name, place in device.items()}
        forward_s = {name: each.forward_s for name, each in known.items()}
        backward_s = {name: each.backward_s for name, each in known.items()}
        write_onnx(self.problem.graph, path, NodeNotes(device, forward_s, backward_s))

    def to_dict(self, unit: str = "s", unit_s: float = 1.0) -> dict[str, Any]:
        """JSON-ready. All times in `unit`, of `unit_s` seconds each, except `seconds`: how long it took."""
        report = self.placement.report
        return {
            "method": self.placement.method,
            "status": self.status,
            "objective_name": self.problem.objective.name,
            "objective": self.objective_s / unit_s,
            "bound": None if self.bound_s is None else self.bound_s / unit_s,
            "gap": self.gap,
            "unit": unit,
            "seconds": self.seconds,
            "seed": self.problem.seed,
            "engine": report.engine,
            "own_status": report.status,
            "own_objective": None if report.objective is None else report.objective / unit_s,
            "own_bound": None if report.bound is None else report.bound / unit_s,
            "cluster": self.problem.cluster.name,
            "device_of": dict(self.placement.device_of),
            "per_device": {
                name: {
                    "nodes": load.nodes,
                    "seconds": load.seconds / unit_s,
                    "compute": load.compute_s / unit_s,
                    "transfer": load.transfer_s / unit_s,
                    "bytes": load.nbytes,
                    "capacity": load.capacity_bytes,
                }
                for name, load in self.loads.items()
            },
            "stages": [
                {
                    "nodes": list(stage.nodes),
                    "devices": list(stage.devices),
                    "replicas": len(stage.devices),
                    "warm_up": stage.warm_up,
                    "turns": list(stage.turns),
                }
                for stage in self.placement.stages
            ],
            "cuts": list(self.placement.cuts),
            "exchanges": [each.to_dict() for each in self.placement.exchanges],
            "shards": [asdict(each) for each in self.placement.shards],
            "begins": list(self.placement.begins),
            "rewrites": [each.to_dict() for each in self.placement.rewrites],
            "priority": sorted(self.placement.priority, key=self.placement.priority.__getitem__),
            "recomputed": sorted(self.placement.recomputed, key=self.placement.priority.__getitem__),
            "notes": plain(report.notes),
        }


def _loads(problem: Problem, placement: Placement, timeline: Timeline | None) -> dict[str, DeviceLoad]:
    instance = Instance.of(problem)
    totals = instance.totals(placement.all_stages)
    compute, used = totals.forward_s + totals.backward_s, needed_bytes(instance, placement, timeline)
    loads = problem.objective.loads(problem, placement)
    if loads is not None:
        seconds, transfer = loads.seconds, loads.transfer_s
    else:
        assert timeline is not None
        sent: Counter[str] = Counter()
        for event in timeline.events:
            if event.kind == "send":
                sent[event.device] += event.seconds  # type: ignore[assignment]
        transfer = np.array([float(sent[name]) for name in instance.devices])
        seconds = np.array([timeline.busy_s(name) for name in instance.devices])
    operators = _operators(problem, placement)
    return {
        name: DeviceLoad(
            int(totals.nodes[p]), len(operators.get(name, ())),
            float(compute[p]), float(transfer[p]), float(seconds[p]), int(used[p]),
            int(instance.capacity[p]),
        )
        for p, name in enumerate(instance.devices)
    }  # fmt: skip


def _operators(problem: Problem, placement: Placement) -> dict[str, set[str]]:
    """Device -> the operators that it computes, or parts of."""
    parts = node_parts(problem.graph)
    own: dict[str, set[str]] = {}
    for stage in placement.all_stages:
        computed = (v for v in stage.nodes if v not in parts.moving)
        names = {parts.of[v].operator if v in parts.of else v for v in computed}
        for device in stage.devices:
            own.setdefault(device, set()).update(names)
    return own


def _recomputation_line(
    compiler: Simulator, placement: Placement, program: Program, predicted: Timeline
) -> str:
    """ "recomputes 5 of 12 parts on cpu:1 (310 MiB less), for 4.0 % more time".

    Beside the same placement with everything kept. A device of replicas is named by the first of them.
    """
    kept = compiler(replace(placement, recomputed=frozenset()))
    devices = []
    for name in dict.fromkeys(segment.device for segment in program.segments):
        own = [segment for segment in program.segments if segment.device == name]
        again = {
            ins.segment for ins in program.instructions[name] if isinstance(ins, Forward) and ins.recompute
        }
        if again:
            less = kept.peak_bytes[name] - predicted.peak_bytes[name]
            devices.append(f"{len(again)} of {len(own)} parts on {name} ({nbytes(less)} less)")
    more = predicted.iteration_s / kept.iteration_s - 1 if kept.iteration_s else 0.0
    return f"recomputes {', '.join(devices) or 'nothing'}, for {100 * more:.1f} % more time"
