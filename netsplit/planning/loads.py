"""What each device does and holds under a placement."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from netsplit.partition.base import Problem
from netsplit.partition.common.instance import Instance
from netsplit.partition.partitioner import needed_bytes
from netsplit.placement.placement import Placement
from netsplit.program.instructions import Forward, Program
from netsplit.rewrite.rewriting import node_parts
from netsplit.simulate.simulator import Simulator
from netsplit.simulate.timeline import Timeline
from netsplit.tables import nbytes

__all__ = ["DeviceLoad", "loads_of", "recomputation_line"]


@dataclass(frozen=True)
class DeviceLoad:
    """What one device does and holds. Seconds of one step, or of one period under `max_load`."""

    nodes: int
    operators: int  # computed here, whole or in part; moves of tensors do not count
    compute_s: float
    transfer_s: float  # max_load: as in `Objective.loads`; else its sends
    seconds: float  # max_load: its load; else busy time
    nbytes: int  # `needed_bytes`
    capacity_bytes: int

    @property
    def filled(self) -> float:
        return self.nbytes / self.capacity_bytes if self.capacity_bytes else 0.0


def loads_of(problem: Problem, placement: Placement, timeline: Timeline | None) -> dict[str, DeviceLoad]:
    """Device name to what it does, in rank order."""
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


def recomputation_line(
    compiler: Simulator, placement: Placement, program: Program, predicted: Timeline
) -> str:
    """ "recomputes 5 of 12 parts on cpu:1 (310 MiB less), for 4.0 % more time".

    Compared with keeping everything. Replicas are named by the first.
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
