"""One problem, one method, one checked answer: what `runners.partition` prints and writes.

    Problem + Partitioner ──decide──► Plan ──► .to_dict(unit_s)   result.json

The score of a plan does not depend on the method that made it: it is the asked objective of the placement,
and a method's own bound counts only where the method proved it for that objective.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from netsplit.errors import InfeasibleError, NetSplitError
from netsplit.partition.base import Placement, Problem, Stage, Status
from netsplit.partition.common.capacity import read_bytes
from netsplit.partition.common.instance import Instance
from netsplit.partition.partitioner import Partitioner

if TYPE_CHECKING:
    from netsplit.simulate.timeline import Timeline

__all__ = ["CheckedPlan", "DeviceShare", "decide"]

PROVED = 1e-4  # relative gap up to which an answer is optimal, as solvers of integer programmes have it
SAME = 1e-9  # relative: one sum of floats in two orders differs by less
TOLERANCE = 1e-6  # relative, of a claimed bound: solvers of linear programmes keep their rows no better


@dataclass(frozen=True)
class DeviceShare:
    """What one device does and holds. Seconds of one step, or of one period under `max_load`."""

    nodes: int
    compute_s: float
    transfer_s: float  # max_load: its share of transfers, which its load includes; else the sends it makes
    seconds: float  # max_load: its load; else the same as compute_s
    nbytes: int
    capacity_bytes: int

    @property
    def filled(self) -> float:
        return self.nbytes / self.capacity_bytes if self.capacity_bytes else 0.0


@dataclass(frozen=True)
class CheckedPlan:
    """A placement that was verified, with its score."""

    problem: Problem
    placement: Placement
    seconds: float  # that the decision took
    objective_s: float
    bound_s: float | None
    timeline: Timeline | None  # None where the objective is not simulated

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
    def shares(self) -> dict[str, DeviceShare]:
        """Device name to what it does, in rank order."""
        return _shares(self.problem, self.placement, self.timeline)

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
                    "nodes": share.nodes,
                    "seconds": share.seconds / unit_s,
                    "compute": share.compute_s / unit_s,
                    "transfer": share.transfer_s / unit_s,
                    "bytes": share.nbytes,
                    "capacity": share.capacity_bytes,
                }
                for name, share in self.shares.items()
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


def decide(problem: Problem, partitioner: Partitioner) -> CheckedPlan:
    """Let a method decide, check its answer, and score it.

    Raises:
        InfeasibleError: no placement within the capacities; or the method heeds none, and its does not fit.
        NetSplitError: the answer breaks a rule, which is a fault of the method.
    """
    started = time.perf_counter()
    placement = partitioner.partition(problem)
    return check(problem, placement, time.perf_counter() - started)


def check(problem: Problem, placement: Placement, seconds: float, room: bool = True) -> CheckedPlan:
    """Verify and score a placement; raises as `decide`. Without `room`, it may be over the capacities."""
    from netsplit.planning.verify import verify

    free = replace(problem, objective=problem.objective.relaxed())
    verify(free, placement, capacity=False).require()
    _require_contiguous(problem, placement)
    if room:
        _require_room(problem, placement)
        verify(problem, placement).require()
    timeline = _verified_timeline(problem, placement) if problem.objective.simulated else None
    if timeline is not None:
        objective_s = timeline.iteration_s
    else:
        objective_s = problem.objective.score_s(problem, placement)
    _require_same_load(problem, placement, objective_s)
    bound_s = problem.objective.bound_s(placement.report)
    if bound_s is not None and bound_s > objective_s * (1 + TOLERANCE) + 1e-12:
        raise NetSplitError(
            f"{placement.method} claims that nothing is below {bound_s:.9g} s, but its own plan takes "
            f"{objective_s:.9g} s: its bound does not hold."
        )
    return CheckedPlan(problem, placement, seconds, objective_s, bound_s, timeline)


def _verified_timeline(problem: Problem, placement: Placement) -> Timeline:
    """The predicted timeline, checked by code that is not the simulator's where its program is known."""
    from netsplit.planning.verify_timeline import verify_timeline
    from netsplit.planning.workload import Simulated

    assert problem.evaluate is not None
    timeline = cast("Timeline", problem.evaluate(placement))
    if isinstance(problem.evaluate, Simulated):
        verify_timeline(problem, placement, problem.evaluate.program(placement), timeline).require()
    return timeline


def _shares(problem: Problem, placement: Placement, timeline: Timeline | None) -> dict[str, DeviceShare]:
    instance = Instance.of(problem)
    where = instance.encode(placement.device_of)
    nodes = np.bincount(where, minlength=len(instance.devices))
    total = instance.forward_s + instance.backward_s
    compute = np.bincount(where, weights=total[np.arange(instance.n), where], minlength=len(nodes))
    used = instance.used_bytes(where)
    if placement.stages:
        nodes, compute, used = _replicated(instance, placement.stages, nodes, compute, used)
    if not problem.objective.simulated:
        transfer = np.maximum(instance.loads(where) - compute, 0.0) if not placement.stages else 0 * compute
        seconds = compute + transfer
    else:
        sent: Counter[str] = Counter()
        for event in timeline.events if timeline is not None else ():
            if event.kind == "send":
                sent[event.device] += event.seconds  # type: ignore[assignment]
        transfer = np.array([float(sent[name]) for name in instance.devices])
        seconds = compute
        if timeline is not None:
            seconds = np.array([timeline.busy_s(name) for name in instance.devices])
    return {
        name: DeviceShare(
            int(nodes[p]), float(compute[p]), float(transfer[p]), float(seconds[p]), int(used[p]),
            int(instance.capacity[p]),
        )
        for p, name in enumerate(instance.devices)
    }  # fmt: skip


def _replicated(
    instance: Instance, stages: tuple[Stage, ...], nodes: Any, compute: Any, used: Any
) -> tuple[Any, Any, Any]:
    """Every replica of a stage holds what the stage's first device holds, and does its share of the work."""
    rank = {name: p for p, name in enumerate(instance.devices)}
    first = {stage.devices[0] for stage in stages}
    nodes, compute, used = nodes.copy(), compute.copy(), used.copy()
    for stage in stages:
        home, share = rank[stage.devices[0]], 1.0 / len(stage.devices)
        compute[home] = compute[home] * share
        for name in stage.devices[1:]:
            if name not in first:
                p = rank[name]
                nodes[p], compute[p], used[p] = nodes[home], compute[home], used[home]
    return nodes, compute, used


def _require_contiguous(problem: Problem, placement: Placement) -> None:
    """For methods that do not heed it."""
    from netsplit.planning.verify import verify

    found = verify(problem, placement, capacity=False).violations  # holds but for this
    if found:
        raise NetSplitError(
            f"{placement.method} did not heed contiguity, which {problem.objective.name} asks for: "
            f"{found[0]} Take auto or netsplit_exact, which do."
        )


def _require_same_load(problem: Problem, placement: Placement, objective_s: float) -> None:
    """The largest load, by code that is not the methods'."""
    from netsplit.planning.verify import recompute_max_load

    if not problem.objective.largest_load:
        return
    again_s = recompute_max_load(problem, placement.device_of)
    if not math.isclose(again_s, objective_s, rel_tol=SAME, abs_tol=1e-15):
        raise NetSplitError(
            f"the largest load of {placement.method} is {objective_s:.12g} s, but {again_s:.12g} s by the "
            "definition: a fault of NetSplit, please report it."
        )


def _require_room(problem: Problem, placement: Placement) -> None:
    """For methods that heed no capacities; says what is missing where it is most."""
    instance = Instance.of(problem)
    used = instance.used_bytes(instance.encode(placement.device_of))
    if placement.stages:
        *_, used = _replicated(instance, placement.stages, used, used, used)
    over = used - instance.capacity
    p = int(np.argmax(over))
    if over[p] > 0:
        raise InfeasibleError(
            f"{placement.method} puts {read_bytes(int(used[p]))} on '{instance.devices[p]}' of "
            f"{read_bytes(int(instance.capacity[p]))}: {read_bytes(int(over[p]))} are missing there; "
            "give the devices more capacity, or take a method that heeds it."
        )


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
