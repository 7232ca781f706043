"""The answer to a problem: what was asked, what was chosen from what, and its predicted cost.

`decide` makes it, verified; `session` deploys it, commands print and write it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from html import escape
from math import prod
from pathlib import Path
from typing import Any

from netsplit.errors import ConfigError
from netsplit.files import plain
from netsplit.graph.ir import Graph
from netsplit.graph.onnx.write import NodeNotes, write_onnx
from netsplit.partition.base import Problem
from netsplit.pictures.drawing import ShownFigure
from netsplit.pictures.graph_figure import graph_figure
from netsplit.pictures.timeline_figure import memory_figure, timeline_figure
from netsplit.placement.placement import Placement, Status
from netsplit.placement.sharding import shard_line
from netsplit.planning.explanation import Explanation, explain
from netsplit.planning.loads import DeviceLoad, loads_of, recomputation_line
from netsplit.planning.parts import (
    PlacedSplit,
    algebra_lines,
    parallel_graph,
    parts_summary,
    placed_splits,
)
from netsplit.planning.whole.frontier import PlanChoice
from netsplit.program.instructions import Program
from netsplit.program.schedules import Schedule
from netsplit.rewrite.pcg import ParallelGraph
from netsplit.rewrite.rewriting import node_parts
from netsplit.simulate.simulate import costed_profiles
from netsplit.simulate.simulator import Simulator, exchange_line
from netsplit.simulate.timeline import Timeline, memory_course
from netsplit.simulate.trace import EventParts, parts_of_events
from netsplit.tables import Column, Table, counted, listed, nbytes

__all__ = ["Plan", "PlanSummary", "microbatches_listed"]

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
class PlanSummary:
    """A plan in lines and a table; `str` is plain text."""

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

    `verified` makes it. `asked` is the problem before the placement's rewrites, `problem` the one after.
    """

    asked: Problem
    problem: Problem
    placement: Placement
    seconds: float  # that the decision took
    objective_s: float
    bound_s: float | None
    program: Program | None = None  # None where the objective is not simulated
    timeline: Timeline | None = None  # predicted of the program
    choice: PlanChoice = field(default_factory=PlanChoice)

    def __str__(self) -> str:
        devices, shown = self.summary().devices.lines(), self.choice
        rows = ["", shown.table.title, *shown.table.lines(), *shown.absent] if shown.frontier else []
        return "\n".join([*self.lines, "", *devices, *rows])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        tables = self.summary().devices.html() + (self.choice.table.html() if self.choice.frontier else "")
        lines, absent = ("<br>".join(map(escape, each)) for each in (self.lines, self.choice.absent))
        return f"<p>{lines}</p>{tables}<p>{absent}</p>"

    @property
    def gap(self) -> float | None:
        """(objective - bound) / objective."""
        if self.bound_s is None:
            return None
        return max(0.0, 1.0 - self.bound_s / self.objective_s) if self.objective_s > 0 else 0.0

    @property
    def status(self) -> Status:
        """The status for the asked objective, which is not always the method's own.

        A plan with operators in parts is never optimal, as its bound covers only these parts.
        """
        if self.gap is not None and self.gap <= PROVED and not self.placement.rewrites:
            return "optimal"
        own = self.placement.report.status
        return "feasible" if own == "optimal" else own

    @cached_property
    def loads(self) -> dict[str, DeviceLoad]:
        """Device name to what it does, in rank order."""
        return loads_of(self.problem, self.placement, self.timeline)

    @property
    def compiler(self) -> Simulator:
        """The simulator that made the program."""
        return self.problem.the_simulator

    @property
    def simulated(self) -> tuple[Program, Timeline]:
        """The program and its predicted timeline.

        Raises:
            TypeError: the objective is not simulated.
        """
        if self.program is None or self.timeline is None:
            name = self.problem.objective.name
            raise TypeError(f"a plan for {name} has no program: its objective is not simulated")
        return self.program, self.timeline

    @property
    def iteration_s(self) -> float:
        """Predicted seconds of an iteration, the controller's work included.

        Raises:
            TypeError: the objective is not simulated.
        """
        return self.simulated[1].iteration_s + self.problem.costs.controller_s

    @property
    def schedule(self) -> Schedule:
        """The schedule, with the micro-batches of the whole batch."""
        own, uniform = self.compiler.schedule, self.choice.parallelism
        return own if uniform is None else own.with_microbatches(uniform.data * own.microbatches)

    @property
    def alike(self) -> int:
        """Devices that each of its own stands for, as they do the same; 1 unless the plan is uniform."""
        uniform = self.choice.parallelism
        return 1 if uniform is None else uniform.data * uniform.tensor

    @property
    def samples_per_s(self) -> float:
        """Predicted throughput."""
        return self.batch_size / self.iteration_s

    @property
    def tokens_per_s(self) -> float | None:
        """Predicted throughput where inputs and targets are texts [samples, tokens]; else None."""
        read = map(self.problem.graph.variables.__getitem__, self.problem.graph.input_variables)
        texts = [each.shape for each in read if each.dtype == "int64"]
        alike = len(texts) > 1 and len({*texts}) == 1 and len(texts[0]) == 2
        return texts[0][1] * self.samples_per_s if alike else None

    @property
    def batch_size(self) -> int:
        """Samples of an iteration."""
        return self.choice.batch_size or self.compiler.batch_size

    @property
    def peak_bytes(self) -> dict[str, int]:
        """Device -> predicted most bytes alive at once."""
        return dict(self.simulated[1].peak_bytes)

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """What was decided, in a few lines."""
        choice = self.choice
        if not choice.frontier:
            return self.summary().lines
        chosen, given, size = choice.frontier[0], self.problem.cluster.size, self.batch_size
        used = f"{chosen.devices} of {given} devices" if chosen.devices < given else f"all {given} devices"
        used = {1: "the device", 2: used.replace("all 2", "both")}.get(given, used)
        placed = ", ".join(filter(None, (chosen.placement, chosen.in_parts)))
        cut = counted(self.schedule.microbatches, "micro-batch", "es")
        again = ", some activations recomputed" * bool(self.placement.recomputed)
        ms, rate = f"{1e3 * self.iteration_s:,.1f} ms", f"{self.samples_per_s:,.1f} samples/s"
        if self.tokens_per_s is not None:
            rate += f", {self.tokens_per_s:,.0f} tokens/s"
        lines = [
            f"{chosen.kind} on {used}: {placed}, {self.schedule.name} with {cut}{again}",
            f"predicted: {ms} per iteration of {size} samples, {rate}",
        ]
        if choice.bound_s > 0:
            faster = max(self.iteration_s / (choice.bound_s + self.problem.costs.controller_s) - 1.0, 0.0)
            much = f"{100 * faster:.1f} % faster" if faster < 1.0 else f"{1.0 + faster:.1f} times as fast"
            plan = "plan of whole operators" if choice.splits else "plan"
            among = f" with {microbatches_listed(choice.counts, 'or')}" if choice.counts else ""
            lines.append(f"proven: no {plan}{among} is more than {much}")
        took = f"{counted(choice.tried, 'plan')} simulated in {self.seconds:.1f} s"
        if choice.measuring_s:
            took += f", {choice.measuring_s:.1f} s of it measuring operators in parts"
        parts = self.lines_on_parts
        if choice.parallelism is not None:
            peak, limit = max(self.peak_bytes.values()), self.problem.cluster.devices[0].capacity_bytes
            parts = [f"at most {peak / 2**30:.3g} of {limit / 2**30:.3g} GiB on a device{self._stands}"]
        return (*lines, *parts, took, *choice.remarks)

    @property
    def _stands(self) -> str:
        return f"; each device below stands for {self.alike} that do the same" if self.alike > 1 else ""

    @property
    def nodes(self) -> dict[str, int]:
        """Device -> number of nodes that it computes, if any; each replica computes its whole stage."""
        return {name: load.nodes for name, load in self.loads.items() if load.nodes}

    @cached_property
    def splits(self) -> tuple[PlacedSplit, ...]:
        """The operators that are in parts."""
        sampled = node_parts(self.problem.graph).sampled
        splits = placed_splits(self.placement, self.problem.graph)
        return tuple(replace(each, samples=each.operator in sampled) for each in splits)

    @cached_property
    def parallel_graph(self) -> tuple[Graph, ParallelGraph] | None:
        """The operators after algebra with moves between their parts; None without rewrites on a mesh."""
        return parallel_graph(self.placement, self.problem.graph)

    @property
    def lines_on_parts(self) -> list[str]:
        """What algebra replaced, and which operators are in parts."""
        if not self.problem.graph.rewrites:
            return []
        algebra = [f"algebra: {line}" for line in algebra_lines(self.placement)]
        return [*algebra, *filter(None, [parts_summary(self.splits)])]

    def explain(self) -> Explanation:
        """What binds it, what its cut edges cost, and its critical path."""
        own = explain(self.problem, self.placement, None if self.program is None else self.simulated)
        if self.choice.parallelism is None:
            return own
        return replace(own, method=f"{own.method} of {self.choice.parallelism}{self._stands}")

    @cached_property
    def event_parts(self) -> Mapping[str, EventParts]:
        """Parts of operators by what an event of its timelines is about (`Event.about`)."""
        return {} if self.program is None else parts_of_events(self.program, self.problem.graph)

    def summary(self) -> PlanSummary:
        """The decision in lines, with a table of the devices."""
        method = f"{self.placement.method}: {self.placement.report.summary()}"
        if self.program is None:
            return self._summary_of_loads(method)
        lines = self._lines_of_method(method) if self.choice.parallelism is None else self.lines
        program, predicted = self.simulated
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

    def _lines_of_method(self, method: str) -> list[str]:
        program, predicted = self.simulated
        schedule, size = self.schedule.name, self.problem.graph.batch_size
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
            lines.append(recomputation_line(self.compiler, self.placement, program, predicted))
        if self.problem.costs.predicted:
            lines.append("operator times are predicted, not measured")
        if self.placement.exchanges:
            lines.append(exchange_line(self.placement))
        if predicted.host_bytes:
            sizes = (f"{nbytes(size)} of {name}" for name, size in predicted.host_bytes.items())
            lines.append(f"offload {self.problem.costs.offload.name}: the host holds {', '.join(sizes)}")
        return lines

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
            ConfigError: an unknown kind, `measured` is no timeline, or the objective is not simulated.
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
        simulated = (
            {}
            if self.program is None
            else {
                "schedule": self.schedule.name,
                "microbatches": self.schedule.microbatches,
                "batch_size": self.batch_size,
                "iteration_s": self.iteration_s,
                "samples_per_s": self.samples_per_s,
                "tokens_per_s": self.tokens_per_s,
                "devices_alike": self.alike,
                "peak_bytes": self.peak_bytes,
            }
        )
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
            "stages": [asdict(stage) | {"replicas": len(stage.devices)} for stage in self.placement.stages],
            "cuts": list(self.placement.cuts),
            "exchanges": [each.to_dict() for each in self.placement.exchanges],
            "shards": [asdict(each) for each in self.placement.shards],
            "begins": list(self.placement.begins),
            "rewrites": [each.to_dict() for each in self.placement.rewrites],
            "priority": sorted(self.placement.priority, key=self.placement.priority.__getitem__),
            "recomputed": sorted(self.placement.recomputed, key=self.placement.priority.__getitem__),
            "notes": plain(report.notes),
            **(asdict(self.choice) if self.choice.frontier else {}),
            **simulated,
        }


def microbatches_listed(counts: Sequence[int], joined: str = "and") -> str:
    """``1, 2 and 4 micro-batches``."""
    return f"{listed([str(m) for m in counts], joined)} micro-batch{'' if list(counts) == [1] else 'es'}"
