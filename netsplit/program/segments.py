"""Cutting a placed graph into segments, and the pipeline of these that a schedule orders.

Nodes are taken in the placement's priority order. A device's run of nodes goes on until one of its
results is needed on another device, or until the next node needs something which another device
made after the run began. Every run thus starts after all it reads was finished and ends before
anything it feeds elsewhere starts: taken as one piece each, runs never wait in a circle.

Fine cuts also end a run after every node with a reader elsewhere, and before every node that reads
from elsewhere: no tensor is sent later, and no node waits for more, than the order of nodes demands.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from netsplit.cluster.cluster import Cluster
from netsplit.errors import NetSplitError
from netsplit.graph.ir import TRANSFER, Graph
from netsplit.graph.quotient import units_in_order
from netsplit.profile.costs import Costs
from netsplit.program.instructions import Segment, origin
from netsplit.program.schedules import Pipeline, Schedule, TaskTimes
from netsplit.program.schedules.base import Phase

__all__ = [
    "SegmentSeconds",
    "cut_segments",
    "first_of_stages",
    "in_stages",
    "makers_of",
    "pipeline_of",
    "pooled_in",
    "segment_of",
    "segment_seconds",
    "segments_together",
    "timed_pipeline",
    "trained_segments",
]


def cut_segments(
    graph: Graph,
    device_of: Mapping[str, str],
    priority: Mapping[str, int],
    fine: bool = False,
    cuts: Collection[str] = (),
) -> tuple[Segment, ...]:
    """Segments of a graph with transfer nodes, in an order in which they may run.

    Args:
        graph: as `insert_transfers` made it; transfer nodes belong to no segment.
        device_of: of every node.
        priority: of every node but the transfers; least first among the nodes that could be next.
        fine: cut at every transfer. Pays where a device works on one micro-batch: with several, the
            device works on another meanwhile, and fewer segments make a shorter pipeline.
        cuts: nodes before which their device's run ends in any case.
    """
    runs = _Runs(fine)
    run_of: dict[str, _OpenSegment] = {}
    for unit in _units_in_order(graph, priority):
        device = device_of[unit[0]]
        if not set(cuts).isdisjoint(unit):
            runs.end_of(device)
        remote = [run_of[u] for name in unit for u in _remote_producers(graph, name)]
        run = runs.run_for(device, remote)
        run.nodes += unit
        run_of.update(dict.fromkeys(unit, run))
        if fine and any(graph.nodes[v].op == TRANSFER for name in unit for v in graph.successors[name]):
            runs.close(run)
    return tuple(segment_of(graph, index, run.device, run.nodes) for index, run in enumerate(runs.closed()))


def first_of_stages(
    device_of: Mapping[str, str], priority: Mapping[str, int], begins: Sequence[str]
) -> list[str]:
    """The first node of every stage on each of its devices."""
    starts = sorted(priority[name] for name in begins)
    first: dict[tuple[int, str], str] = {}
    for name in sorted(device_of, key=priority.__getitem__) if begins else ():
        first.setdefault((bisect_right(starts, priority[name]), device_of[name]), name)
    return [*first.values()]


def segments_together(
    segments: Sequence[Segment], priority: Mapping[str, int], begins: Sequence[str]
) -> tuple[tuple[int, ...], ...]:
    """The segments that a schedule orders as one, none of which is of two stages (`Placement.begins`)."""
    starts = sorted(priority[name] for name in begins)
    stages: dict[int, list[int]] = {}
    for segment in segments:
        stage = bisect_right(starts, priority[segment.nodes[0]])
        stages.setdefault(stage if begins else segment.index, []).append(segment.index)
    return tuple(tuple(stages[stage]) for stage in sorted(stages))


def in_stages(pipeline: Pipeline, stages: Sequence[Sequence[int]]) -> Pipeline:
    """The pipeline of stages, each on the replicas of its first device, taking as long as one of them all."""
    if all(len(stage) == 1 for stage in stages):
        return pipeline
    stage_of = {s: number for number, stage in enumerate(stages) for s in stage}
    rank = {devices: place for place, devices in enumerate(sorted({*pipeline.devices}))}
    first = [min(stage, key=lambda s: rank[pipeline.devices[s]]) for stage in stages]
    times = None
    if (fine := pipeline.times) is not None:
        columns = [len({pipeline.devices[s] for s in stage}) for stage in stages]

        def home(s: int, name: str) -> tuple[int, str]:
            number = stage_of[s]
            return number, pipeline.devices[first[number]][pipeline.devices[s].index(name)]

        computing: defaultdict[tuple[Phase, int, str], float] = defaultdict(float)
        for (phase, s, name), seconds in fine.computing.items():
            computing[(phase, *home(s, name))] += seconds / columns[stage_of[s]]
        ways = [defaultdict[tuple[int, int, str, str], float](float) for _ in range(2)]
        for way, own in zip(ways, (fine.moving, fine.returning), strict=True):
            for (u, v, p, q), seconds in own.items():
                (a, x), (b, y) = home(u, p), home(v, q)
                if a != b:
                    way[a, b, x, y] += seconds / columns[a]
        times = TaskTimes(computing, *ways)
    return Pipeline(
        feeders=tuple(
            tuple(sorted({stage_of[u] for s in stage for u in pipeline.feeders[s]} - {number}))
            for number, stage in enumerate(stages)
        ),
        devices=tuple(pipeline.devices[s] for s in first),
        trained=frozenset(stage_of[s] for s in pipeline.trained),
        turns=tuple(pipeline.turns[s] for s in first),
        times=times,
    )


def pooled_in(graph: Graph, segments: Sequence[Segment], unchanging: Collection[str]) -> frozenset[str]:
    """Of variables that are the same for all micro-batches those that are parts of parameters and that a
    segment reads for others of its device (`Program.pooled`)."""
    made = {k for segment in segments for k in segment.outputs}.intersection(unchanging)
    return frozenset(k for segment in segments for k in segment.inputs if k in made and _is_part(graph, k))


def _is_part(graph: Graph, k: str) -> bool:
    producer = graph.variables[k].producer
    initializers = () if producer is None else graph.nodes[producer].initializers
    own = [graph.initializers[each] for each in initializers]
    return any(each.region is not None and each.region.shape != each.shape for each in own)


@dataclass
class _OpenSegment:
    device: str
    opened: int
    closed: int | None = None
    nodes: list[str] = field(default_factory=list)


class _Runs:
    """The open run of each device, and a clock that orders openings and closings."""

    def __init__(self, fine: bool) -> None:
        self.fine = fine
        self.all: list[_OpenSegment] = []
        self.open: dict[str, _OpenSegment] = {}
        self.clock = 0

    def run_for(self, device: str, remote: list[_OpenSegment]) -> _OpenSegment:
        for feeder in remote:
            self.close(feeder)
        run = self.open.get(device)
        if run is not None and any(
            self.fine or (feeder.closed is not None and feeder.closed > run.opened) for feeder in remote
        ):
            self.close(run)
            run = None
        if run is None:
            run = self.open[device] = _OpenSegment(device, self._tick())
            self.all.append(run)
        return run

    def end_of(self, device: str) -> None:
        """Close the device's run, if one is open."""
        if device in self.open:
            self.close(self.open[device])

    def closed(self) -> list[_OpenSegment]:
        for run in list(self.open.values()):
            self.close(run)
        return sorted(self.all, key=lambda run: run.closed or 0)

    def close(self, run: _OpenSegment) -> None:
        if run.closed is None:
            run.closed = self._tick()
            del self.open[run.device]

    def _tick(self) -> int:
        self.clock += 1
        return self.clock


def _remote_producers(graph: Graph, name: str) -> list[str]:
    """Producers, on other devices, of what a node reads through transfer nodes."""
    producers = []
    for u in graph.predecessors[name]:
        if graph.nodes[u].op == TRANSFER:
            made_by = graph.variables[origin(graph, u)].producer
            assert made_by is not None
            producers.append(made_by)
    return producers


def _units_in_order(graph: Graph, priority: Mapping[str, int]) -> list[tuple[str, ...]]:
    """All nodes but transfers, units in one piece, by priority among those whose feeders are done."""

    def rank(unit: Sequence[str]) -> int:
        return -1 if graph.nodes[unit[0]].op == TRANSFER else min(priority[name] for name in unit)

    order = [unit for unit in units_in_order(graph, rank) if graph.nodes[unit[0]].op != TRANSFER]
    assert sum(map(len, order)) == sum(node.op != TRANSFER for node in graph), "units make a cycle"
    return order


def segment_of(graph: Graph, index: int, device: str, names: Iterable[str]) -> Segment:
    """The segment of these nodes: what it reads from others, and what others read of it."""
    inside = set(names)
    nodes = sorted(inside, key=graph.position.__getitem__)
    inputs: dict[str, None] = {}
    outputs: dict[str, None] = {}
    for name in nodes:
        node = graph.nodes[name]
        inputs.update(dict.fromkeys(k for k in node.inputs if graph.variables[k].producer not in inside))
        for k in node.outputs:
            if k and (
                k in graph.output_variables or any(v not in inside for v in graph.variables[k].consumers)
            ):
                outputs[k] = None
    return Segment(index, device, tuple(nodes), tuple(inputs), tuple(outputs))


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
    kept: Collection[str] = (),
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
    seconds = segment_seconds(graph, segments, costs, kinds, kept)
    computing: dict[tuple[Phase, int, str], float] = {}
    for s, devices in enumerate(pipeline.devices):
        for name in devices:
            own, overhead_s = seconds[kinds[name]], costs.of(kinds[name]).instruction_s
            again_s = own.again[s] if schedule.recompute in (True, "full", "selective") else 0.0
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
    again: dict[int, float] = field(default_factory=dict)  # of a forward that is computed again
    backward: dict[int, float] = field(default_factory=dict)
    weight: dict[int, float] = field(default_factory=dict)


def segment_seconds(
    graph: Graph,
    segments: Iterable[Segment],
    costs: Costs,
    kinds: Mapping[str, str],
    kept: Collection[str] = (),
) -> dict[str, SegmentSeconds]:
    """Device kind -> seconds of every segment that a device of that kind computes.

    A node through which no gradient passes has no backward, whatever its costs say; nor has a transfer.

    Args:
        kinds: device name -> kind.
        kept: nodes that are not computed again (`Program.kept_results`).

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
            anew = [measured[name].forward_s for name in segment.nodes if name not in kept]
            seconds[kind].again[segment.index] = _added(anew)
            seconds[kind].backward[segment.index] = _added(each.backward_s for each in backs)
            seconds[kind].weight[segment.index] = _added(each.weight_s for each in backs)
    return seconds


def _added(seconds: Iterable[float]) -> float:
    """One after another, as compiled loops add: `sum` compensates for rounding since Python 3.12."""
    return reduce(operator.add, seconds, 0.0)
