"""The answer to a problem: what was asked, what was chosen, and what it will take.

`decide` makes it, verified; `experiment.session` deploys it, `runners.partition` prints and writes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from netsplit.graph.onnx.write import NodeNotes, write_node_data, write_onnx
from netsplit.partition.base import Placement, Problem, Status
from netsplit.partition.common.instance import Instance
from netsplit.planning.explanation.explain import explain
from netsplit.planning.explanation.explanation import Explanation
from netsplit.planning.needed_bytes import needed_bytes
from netsplit.planning.plan_diff import PlanDiff, plan_diff
from netsplit.planning.simulated import Simulated, simulated_by
from netsplit.program.instructions import Program
from netsplit.simulate.timeline import Timeline

__all__ = ["DeviceLoad", "Plan", "infeasible_record"]

PROVED = 1e-4  # relative gap up to which an answer is optimal, as solvers of integer programmes have it


@dataclass(frozen=True)
class DeviceLoad:
    """What one device does and holds. Seconds of one step, or of one period under `max_load`."""

    nodes: int
    compute_s: float
    transfer_s: float  # max_load: as `Objective.loads` has it; else the sends it makes
    seconds: float  # max_load: its load; else that it is busy
    nbytes: int  # `needed_bytes`
    capacity_bytes: int

    @property
    def filled(self) -> float:
        return self.nbytes / self.capacity_bytes if self.capacity_bytes else 0.0


@dataclass(frozen=True)
class Plan:
    """A verified placement with its score; compiled and simulated too, where its objective asks for that.

    `verified` makes it.
    """

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
        """With respect to the asked objective, which is not always the method's own."""
        if self.gap is not None and self.gap <= PROVED:
            return "optimal"
        own = self.placement.report.status
        return "feasible" if own == "optimal" else own

    @cached_property
    def loads(self) -> dict[str, DeviceLoad]:
        """Device name to what it does, in rank order."""
        return _loads(self.problem, self.placement, self.timeline)

    @property
    def compiler(self) -> Simulated:
        """What made the program; of an objective that is simulated."""
        return simulated_by(self.problem)

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
    def nodes(self) -> dict[str, int]:
        """Device -> operators that it computes, where any; each replica computes all of its stage."""
        return {name: load.nodes for name, load in self.loads.items() if load.nodes}

    @property
    def static_bytes(self) -> dict[str, int]:
        """Device -> bytes under (5-18), where it has operators."""
        instance = Instance.of(replace(self.problem, memory="static"))
        held = instance.totals(self.placement.all_stages).nbytes
        return {name: int(held[p]) for p, name in enumerate(instance.devices) if self.loads[name].nodes}

    def explain(self) -> Explanation:
        """What binds it, what its cut edges cost, and its critical path; raises as `explain`."""
        return explain(self.problem, self.placement, self.timeline, self.program)

    def moved_from(self, before: Plan) -> PlanDiff:
        """What moved from another plan of the same problem, with the objectives that the plans have."""
        diff = plan_diff(self.problem, before.placement, self.placement, before.timeline, self.timeline)
        return diff.without_rounding()

    def summary(self) -> str:
        """The decision in words: per device operators, seconds and bytes; what is predicted."""
        if self.program is None:
            return self._summary_of_loads()
        program, predicted = self.simulated
        schedule, size = self.compiler.schedule.name, self.problem.graph.batch_size
        lines = [
            f"{self.placement.method}: {self.placement.report.summary()}",
            f"{schedule} with {program.microbatches} micro-batches of {size} samples",
            f"predicted: {1e3 * predicted.iteration_s:.1f} ms an iteration, {program.transfers} transfers",
        ]
        if self.problem.costs.predicted:
            lines.append("operators' seconds are predicted, not measured")
        static = self.static_bytes
        for name, load in self.loads.items():
            peak = predicted.peak_bytes.get(name, 0)
            lines.append(
                f"  {name}: {load.nodes} operators, {1e3 * predicted.busy_s(name):.1f} ms busy, peak "
                f"{peak / 2**20:.1f} MiB (static {static.get(name, 0) / 2**20:.1f}) of "
                f"{load.capacity_bytes / 2**20:.1f}"
            )
        return "\n".join(lines)

    def _summary_of_loads(self) -> str:
        objective = self.problem.objective
        lines = [
            f"{self.placement.method}: {self.placement.report.summary()}",
            f"{objective.name}: {objective.says} {1e3 * self.objective_s:.1f} ms",
        ]
        for name, load in self.loads.items():
            lines.append(
                f"  {name}: {load.nodes} operators, {objective.column} {1e3 * load.seconds:.1f} ms, "
                f"{load.nbytes / 2**20:.1f} MiB of {load.capacity_bytes / 2**20:.1f}"
            )
        return "\n".join(lines)

    def write_onnx(self, path: str | Path, node_data: str | Path | None = None) -> None:
        """Write the placed graph as an ONNX file for Netron, and devices as node data for Model Explorer.

        Metadata of a node: its device (of a replicated stage the first), seconds there, and bytes. Errors as
        of `netsplit.graph.onnx.write_onnx`.
        """
        cluster, costs = self.problem.cluster, self.problem.costs.devices
        device = self.placement.device_of
        known = {name: costs[cluster.device(place).kind].nodes[name] for name, place in device.items()}
        notes = NodeNotes(
            device,
            {name: each.forward_s for name, each in known.items()},
            {name: each.backward_s for name, each in known.items()},
        )
        write_onnx(self.problem.graph, path, notes)
        if node_data is not None:
            write_node_data(self.problem.graph, node_data, notes)

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
                }
                for stage in self.placement.stages
            ],
            "priority": sorted(self.placement.priority, key=self.placement.priority.__getitem__),
            "notes": _plain(report.notes),
        }


def infeasible_record(problem: Problem, method: str, reason: str, unit: str = "s") -> dict[str, Any]:
    """What stands in place of `Plan.to_dict` where a method found no plan, for the `reason` given."""
    return {
        "method": method,
        "status": "infeasible",
        "objective_name": problem.objective.name,
        "objective": None,
        "bound": None,
        "gap": None,
        "unit": unit,
        "seconds": None,
        "seed": problem.seed,
        "cluster": problem.cluster.name,
        "device_of": {},
        "per_device": {
            device.name: {"seconds": None, "bytes": None, "capacity": device.capacity_bytes}
            for device in problem.cluster.devices
        },
        "message": " ".join(reason.split()),
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
    return {
        name: DeviceLoad(
            int(totals.nodes[p]), float(compute[p]), float(transfer[p]), float(seconds[p]), int(used[p]),
            int(instance.capacity[p]),
        )
        for p, name in enumerate(instance.devices)
    }  # fmt: skip


def _plain(value: Any) -> Any:
    """Numbers of NumPy, tuples and sets as JSON has them."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
