"""Costs of operators on each worker, learnt from its iterations.

    costs of a kind of device ─► of each worker ─► simulated: seconds of every segment ┐
                                     ▲                                                 ├─ ratio of the two
                                     └───── measured: the window's median of them ─────┘

Source: FastT (Yi et al., Middleware 2020, section 4, "Cost Models"): costs are keyed by
operator and device, missing ones are 0, so that such placements are explored, and measurements replace them.
Here segments are timed and compared with the simulator.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from netsplit.cluster.cluster import Cluster
from netsplit.graph.ir import Graph
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.program.instructions import Program
from netsplit.simulate.simulate import simulate
from netsplit.simulate.timeline import EventKind, Timeline

__all__ = ["SegmentTime", "WorkerCosts", "segment_medians"]

SegmentTime = tuple[str, EventKind, str]  # device, what it did, the segment or the step
_ZERO = NodeSeconds(0.0, 0.0)
_COMPUTED: tuple[EventKind, ...] = ("forward", "backward", "weight")
_IDLE = 30  # idle windows before a worker's measurements are dropped
_LEARNT: frozenset[EventKind] = frozenset({*_COMPUTED, "step"})


def segment_medians(timelines: Iterable[Timeline]) -> dict[SegmentTime, float]:
    """Median seconds of each segment on each device, over micro-batches and iterations."""
    seconds: dict[SegmentTime, list[float]] = {}
    for timeline in timelines:
        for event in timeline.events:
            if event.kind in _LEARNT:
                seconds.setdefault((event.device, event.kind, event.name), []).append(event.seconds)
    return {key: statistics.median(each) for key, each in seconds.items()}


@dataclass
class WorkerCosts:
    """Costs by worker; each worker is its own kind of device.

    Args:
        costs: by worker, as they are known now; `first`: before anything was measured.
        measured: worker -> the operators that were timed there.
    """

    graph: Graph
    cluster: Cluster
    costs: Costs
    first: Costs
    measured: dict[str, set[str]]
    _idle: dict[str, int] = field(default_factory=dict)  # worker -> windows without work

    @classmethod
    def from_kinds(cls, graph: Graph, cluster: Cluster, costs: Costs) -> WorkerCosts:
        """Costs by device from costs by kind; operators without costs cost 0."""
        devices = {}
        for device in cluster.devices:
            known = costs.of(device.kind)
            nodes = {name: known.nodes.get(name, _ZERO) for name in graph.nodes}
            devices[device.name] = replace(known, nodes=nodes)
        own = replace(cluster, devices=tuple(replace(each, kind=each.name) for each in cluster.devices))
        each = replace(costs, devices=devices)
        return cls(graph, own, each, each, {name: set() for name in devices})

    def observe(self, program: Program, timelines: Sequence[Timeline]) -> None:
        """Replace costs with measured ones; idle workers go back to their first costs."""
        measured = segment_medians(timelines)
        predicted = segment_medians([simulate(program, self.cluster, self.costs, peaks=False)])
        nodes = {f"segment {each.index}": each.nodes for each in program.segments}
        working = {name for name, kind, _ in measured if kind in _COMPUTED}
        devices = {name: self._learnt(name, nodes, measured, predicted) for name in self.costs.devices}
        for name in devices:
            self._idle[name] = 0 if name in working else self._idle.get(name, 0) + 1
            if self._idle[name] >= _IDLE:
                devices[name] = replace(devices[name], nodes=self.first.devices[name].nodes)
                self.measured[name], self._idle[name] = set(), 0
        self.costs = replace(self.costs, devices=devices)

    def slowness(self, name: str) -> float:
        """How many times slower a worker runs its timed operators than at first."""
        first, now = self.first.devices[name].nodes, self.costs.devices[name].nodes
        before = sum(first[node].total_s for node in self.measured[name])
        return sum(now[node].total_s for node in self.measured[name]) / before if before > 0 else 1.0

    def _learnt(
        self,
        name: str,
        segments: Mapping[str, Sequence[str]],
        measured: Mapping[SegmentTime, float],
        predicted: Mapping[SegmentTime, float],
    ) -> DeviceCosts:
        known = self.costs.devices[name]
        nodes, timed = dict(known.nodes), set[str]()
        for segment, own in segments.items():
            inside = [node for node in own if node in nodes]  # a transfer has no seconds
            times = {
                kind: measured[key] / predicted[key] if predicted.get(key, 0.0) > 0 else 1.0
                for kind in _COMPUTED
                if (key := (name, kind, segment)) in measured
            }
            if times and inside:
                timed.update(inside)
                nodes |= {node: _corrected(nodes[node], times) for node in inside}
        learnt = replace(known, nodes=nodes)
        step: SegmentTime = (name, "step", "optimiser step")
        if measured.get(step, 0.0) > 0 and predicted.get(step, 0.0) > 0:
            ratio = measured[step] / predicted[step]
            learnt = replace(learnt, step_s_per_byte=known.step_s_per_byte * ratio)
        return self._extended(name, learnt, timed)

    def _extended(self, name: str, learnt: DeviceCosts, timed: set[str]) -> DeviceCosts:
        """Scale operators outside this window as those that were timed."""
        known, first = self.costs.devices[name].nodes, self.first.devices[name].nodes
        earlier, measured = self.measured[name] - timed, self.measured[name] | timed
        speed = _speed(known, learnt.nodes, self.measured[name] & timed or timed)
        nodes = {**learnt.nodes, **{node: known[node].scaled(speed) for node in earlier}}
        speed = _speed(first, nodes, measured)
        nodes |= {node: each.scaled(speed) for node, each in first.items() if node not in measured}
        self.measured[name] = measured
        return replace(learnt, nodes=nodes)


def _speed(before: Mapping[str, NodeSeconds], now: Mapping[str, NodeSeconds], nodes: Iterable[str]) -> float:
    """Speed relative to before on these operators; 1 if nothing is known."""
    then_s, now_s = (sum(each[node].total_s for node in nodes) for each in (before, now))
    return then_s / now_s if then_s > 0 and now_s > 0 else 1.0


def _corrected(each: NodeSeconds, times: Mapping[EventKind, float]) -> NodeSeconds:
    """Scale an operator so that its segment is predicted at `times` its former prediction."""
    apart = "weight" in times  # the backward's two parts were timed one by one
    backward = times.get("backward", 1.0)
    weight_s = each.weight_s * times.get("weight", backward)
    backward_s = backward * (each.backward_s - apart * each.weight_s) + apart * weight_s
    return NodeSeconds(times.get("forward", 1.0) * each.forward_s, backward_s, weight_s)
