"""The pipeline that a schedule orders, of the segments of a placed graph, and the seconds of its tasks."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from netsplit.cluster.cluster import Cluster
from netsplit.errors import NetSplitError
from netsplit.graph.ir import Graph
from netsplit.profile.costs import Costs
from netsplit.program.instructions import Segment, origin
from netsplit.program.schedules import Pipeline, Schedule, TaskTimes
from netsplit.program.schedules.base import Phase

__all__ = [
    "SegmentSeconds",
    "makers_of",
    "pipeline_of",
    "segment_seconds",
    "timed_pipeline",
    "trained_segments",
]


def makers_of(segments: Sequence[Segment]) -> dict[str, int]:
    """Variable -> the segment that makes it."""
    return {k: s.index for s in segments for k in s.outputs}


def trained_segments(graph: Graph, segments: Sequence[Segment]) -> frozenset[int]:
    """Those that have a backward."""
    return frozenset(s.index for s in segments if any(k in graph.requires_backward for k in s.outputs))


def pipeline_of(graph: Graph, segments: Sequence[Segment], training: bool) -> Pipeline:
    """What a schedule is told of segments: which feed which, where they are, and which are trained."""
    maker = makers_of(segments)
    feeders = (
        sorted({maker[k] for k in (origin(graph, k) for k in s.inputs) if k in maker}) for s in segments
    )
    return Pipeline(
        feeders=tuple(map(tuple, feeders)),
        devices=tuple(s.replicas or (s.device,) for s in segments),
        trained=trained_segments(graph, segments) if training else frozenset(),
        turns=tuple(s.turns or (s.device,) for s in segments),
    )


def timed_pipeline(
    pipeline: Pipeline,
    graph: Graph,
    segments: Sequence[Segment],
    cluster: Cluster,
    costs: Costs,
    schedule: Schedule,
    lasting: Collection[str],
) -> Pipeline:
    """With the seconds of its tasks, without waiting and without what goes with one micro-batch alone.

    Raises:
        NetSplitError: as `segment_seconds`.
    """
    maker = makers_of(segments)
    carried: dict[tuple[int, int], list[str]] = {}
    for segment in segments:
        for k in segment.inputs:
            source = origin(graph, k)
            if source != k and k not in lasting:
                carried.setdefault((maker[source], segment.index), []).append(source)
    kinds = {device.name: device.kind for device in cluster.devices}
    seconds = segment_seconds(graph, segments, costs, kinds)
    computing: dict[tuple[Phase, int, str], float] = {}
    for s, devices in enumerate(pipeline.devices):
        for name in devices:
            own, overhead_s = seconds[kinds[name]], costs.of(kinds[name]).instruction_s
            again_s = own.forward[s] if schedule.recompute is True else 0.0
            input_s = max(own.backward[s] - own.weight[s], 0.0)
            computing["forward", s, name] = own.forward[s] + overhead_s
            computing["backward", s, name] = own.backward[s] + again_s + overhead_s
            computing["input", s, name] = input_s + again_s + overhead_s
            computing["weight", s, name] = own.weight[s] + overhead_s
    moving: dict[tuple[int, int, str, str], float] = {}
    returning: dict[tuple[int, int, str, str], float] = {}
    for (u, v), names in carried.items():
        back = [k for k in names if k in graph.requires_backward]
        for p in pipeline.devices[u]:
            for q in pipeline.devices[v]:
                if (p, q) in cluster.links and (q, p) in cluster.links:
                    there, home = cluster.links[p, q], cluster.links[q, p]
                    moving[u, v, p, q] = _added(there.seconds(graph.variables[k].nbytes) for k in names)
                    returning[u, v, p, q] = _added(home.seconds(graph.variables[k].nbytes) for k in back)
    return replace(pipeline, times=TaskTimes(computing, moving, returning))


@dataclass(frozen=True)
class SegmentSeconds:
    """Of every segment on one kind of device: of the segments that such a device computes."""

    forward: dict[int, float] = field(default_factory=dict)
    backward: dict[int, float] = field(default_factory=dict)
    weight: dict[int, float] = field(default_factory=dict)


def segment_seconds(
    graph: Graph, segments: Iterable[Segment], costs: Costs, kinds: Mapping[str, str]
) -> dict[str, SegmentSeconds]:
    """Device kind -> seconds of every segment that a device of that kind computes.

    A node through which no gradient passes has no backward, whatever its costs say; nor has a transfer.

    Args:
        kinds: device name -> kind.

    Raises:
        NetSplitError: an operator without a measured cost.
    """
    requires_backward = graph.requires_backward
    trained = {node.name for node in graph if not requires_backward.isdisjoint(node.outputs)}
    seconds = {kind: SegmentSeconds() for kind in kinds.values()}
    for segment in segments:
        for kind in {kinds[device] for device in segment.replicas or (segment.device,)}:
            measured = costs.of(kind).nodes
            for name in segment.nodes:
                if name not in measured:
                    raise NetSplitError(
                        f"operator '{name}' has no measured seconds on device kind '{kind}': "
                        "profile this graph on a device of that kind first."
                    )
            backs = [measured[name] for name in segment.nodes if name in trained]
            seconds[kind].forward[segment.index] = _added(measured[name].forward_s for name in segment.nodes)
            seconds[kind].backward[segment.index] = _added(each.backward_s for each in backs)
            seconds[kind].weight[segment.index] = _added(each.weight_s for each in backs)
    return seconds


def _added(seconds: Iterable[float]) -> float:
    """One after another, as compiled loops add: `sum` compensates for rounding since Python 3.12."""
    return reduce(operator.add, seconds, 0.0)
