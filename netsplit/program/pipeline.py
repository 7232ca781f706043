"""The pipeline that a schedule orders, of the segments of a placed graph."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from netsplit.cluster.cluster import Cluster
from netsplit.graph.ir import Graph
from netsplit.profile.costs import Costs
from netsplit.program.instructions import Segment, origin
from netsplit.program.schedules import Pipeline, Schedule
from netsplit.program.segment_times import task_times

__all__ = ["makers_of", "pipeline_of", "timed_pipeline", "trained_segments"]


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
    """With the seconds of its tasks, as of a micro-batch with which nothing goes that goes once."""
    maker = makers_of(segments)
    carried: dict[tuple[int, int], list[str]] = {}
    for segment in segments:
        for k in segment.inputs:
            source = origin(graph, k)
            if source != k and k not in lasting:
                carried.setdefault((maker[source], segment.index), []).append(source)
    again = schedule.recompute is True
    return replace(pipeline, times=task_times(pipeline, graph, segments, carried, cluster, costs, again))
