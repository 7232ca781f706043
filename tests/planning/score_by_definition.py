"""The score of a placement by its definition, slowly, in code that neither objectives nor methods use.

PipeDream's period is of the nodes that its planner
sees; which those are, and which others share the stage of each, is taken from `Layers`, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from netsplit.graph.ir import Node
from netsplit.partition.base import Problem
from netsplit.partition.objectives import Layers, MaxLoad, StageTime
from netsplit.placement.placement import Placement

__all__ = ["recomputed_max_load_s", "recomputed_s", "recomputed_stage_time_s"]


def recomputed_s(problem: Problem, placement: Placement) -> float | None:
    """Seconds of what the problem minimises; None where that is simulated."""
    if isinstance(problem.objective, MaxLoad):
        return recomputed_max_load_s(problem, placement)
    return recomputed_stage_time_s(problem, placement) if isinstance(problem.objective, StageTime) else None


def recomputed_max_load_s(problem: Problem, placement: Placement) -> float:
    """Seconds of the busiest device in one period of a saturated pipeline.

    A device spends its nodes' forward and backward seconds; then, for every variable with a producer
    and a reader, one crossing if it is made here and read on any other device, and one if it is made
    elsewhere and read here. A crossing takes the time of the device's port, or, without one, of the
    slowest of its links; twice where the variable's gradient comes back.
    """
    where = placement.device_of
    graph, costs = problem.graph, problem.costs
    requires_backward = graph.requires_backward
    largest = 0.0
    for device in problem.cluster.devices:
        load = 0.0
        for name, node in graph.nodes.items():
            if where[name] == device.name:
                load += costs.forward_s(name, device.kind)
                if any(k in requires_backward for k in node.outputs):
                    load += costs.backward_s(name, device.kind)
        links = [device.port] if device.port is not None else []
        if not links:
            links = [link for ends, link in problem.cluster.links.items() if device.name in ends]
        for k, variable in graph.variables.items():
            if variable.producer is None or not variable.consumers:
                continue
            home = where[variable.producer]
            readers = {where[name] for name in variable.consumers}
            out = home == device.name and readers != {home}
            into = home != device.name and device.name in readers
            if out or into:
                crossing = max((x.latency_s + variable.nbytes * x.seconds_per_byte for x in links), default=0)
                load += max(crossing, 0.0) * (2 if k in requires_backward else 1)
        largest = max(largest, load)
    return largest


def recomputed_stage_time_s(problem: Problem, placement: Placement) -> float:
    """Seconds of the slowest stage or transfer by PipeDream's released formula (see `StageTime`)."""
    view = _PlannersView.of(problem)
    return _of_stages(view, placement) if placement.stages else _of_devices(view, placement)


@dataclass(frozen=True)
class _PlannersView:
    """The problem as PipeDream's planner sees it."""

    problem: Problem
    levels: tuple[tuple[int, float], ...]  # (units, bytes per second), innermost first
    seconds: dict[str, float]  # forward and backward on the slowest kind, with those that share the stage
    weight_bytes: dict[str, int]  # with those that share the stage
    readers: dict[str, set[str]]
    before: dict[str, set[str]]  # all that the node waits for

    @classmethod
    def of(cls, problem: Problem) -> _PlannersView:
        graph, cluster = problem.graph, problem.cluster
        layers = Layers.of(problem)
        names = set(layers.names)
        kinds = {device.kind for device in cluster.devices}
        held = dict.fromkeys(graph.nodes, 0)
        users = {k: node.name for node in reversed(list(graph)) for k in node.initializers}  # the first
        for k, name in users.items():
            held[name] += graph.initializers[k].nbytes
        seconds, weight_bytes = {}, {}
        for name, followers in zip(layers.names, layers.followers, strict=True):
            computed = [name, *(u for u in followers if not _is_fed(problem, graph.nodes[u]))]
            seconds[name] = sum(max(problem.costs.total_s(u, kind) for kind in kinds) for u in computed)
            weight_bytes[name] = sum(held[u] for u in (name, *followers))
        readers = {
            name: {w for k in graph.nodes[name].outputs if k for w in graph.variables[k].consumers} & names
            for name in layers.names
        }
        before: dict[str, set[str]] = {name: set() for name in layers.names}
        for node in graph:  # in topological order
            for w in readers.get(node.name, ()):
                before[w] |= before[node.name] | {node.name}
        levels = cluster.levels
        if math.prod(units for units, _ in levels) != len(cluster.devices) or not levels:
            ports = [device.port for device in cluster.devices if device.port is not None]
            rates = [link.bandwidth for link in (*cluster.links.values(), *ports)]
            levels = ((len(cluster.devices), min(rates, default=math.inf)),)
        return cls(problem, levels, seconds, weight_bytes, readers, before)

    def rate(self, p: int, q: int) -> float:
        """Bytes per second of the innermost level that joins two devices."""
        for units, rate in self.levels:
            p, q = p // units, q // units
            if p == q:
                return rate
        return self.levels[-1][1]

    def crossing_bytes(self, nodes: set[str]) -> int:
        """What PipeDream takes for the bytes that leave a set which holds all that its nodes wait for. What
        is made by nodes that none of the set reads, and by those before one of them, v, that feed something
        which is neither v nor before it."""
        last = {v for v in nodes if not self.readers[v] & nodes}
        opened = {w for v in last for w in self.before[v] if self.readers[w] - self.before[v] - {v}}
        total = 0
        for name in last | opened:
            outputs = [self.problem.graph.variables[k] for k in self.problem.graph.nodes[name].outputs if k]
            total += sum(k.nbytes for k in ([k for k in outputs if k.consumers] or outputs))
        return total


def _is_fed(problem: Problem, node: Node) -> bool:
    """Whether it is an input in a file's words: its seconds are of loading data."""
    computed = any(problem.graph.variables[k].producer is not None for k in node.inputs)
    return not computed and node.op.rpartition(".")[2].startswith("Input")


def _of_stages(view: _PlannersView, placement: Placement) -> float:
    """Stages that are on the same units of a level are one stage of that level, with replicas on these."""
    rank = {device.name: p for p, device in enumerate(view.problem.cluster.devices)}
    stages = [[name for name in stage.nodes if name in view.seconds] for stage in placement.stages]
    passed: set[str] = set()
    crossing = []
    for own in stages:
        passed |= set(own)
        crossing.append(view.crossing_bytes(passed))

    def slowest(level: int, among: Sequence[int]) -> float:
        if level < 0:
            return sum(view.seconds[name] for s in among for name in stages[s])
        units, rate = view.levels[level]
        size = math.prod(count for count, _ in view.levels[:level])
        worst = 0.0
        groups = groupby(among, lambda s: {rank[p] // size % units for p in placement.stages[s].devices})
        for g, (members, each) in enumerate(groups):
            own, m = list(each), len(members)
            weights = sum(view.weight_bytes[name] for s in own for name in stages[s])
            shared = view.levels[level - 1][0] if level and not g else 1
            worst = max(worst, (slowest(level - 1, own) + 4 * (m - 1) * weights / (rate * m) / shared) / m)
            if g:
                read, sent = crossing[own[0] - 1], crossing[own[-1]] if own[-1] + 1 < len(stages) else 0
                worst = max(worst, 2 * max(read, sent) / (rate * m))
        return worst

    return slowest(len(view.levels) - 1, range(len(stages)))


def _of_devices(view: _PlannersView, placement: Placement) -> float:
    """Every device alone; between two, what is made on the one and read on the other goes at once."""
    where, graph = placement.device_of, view.problem.graph
    devices = [device.name for device in view.problem.cluster.devices]
    worst = 0.0
    for p, source in enumerate(devices):
        own = [name for name in view.seconds if where[name] == source]
        worst = max(worst, sum(view.seconds[name] for name in own))
        for q, target in enumerate(devices):
            moved = 0
            for k in (k for name in own for k in graph.nodes[name].outputs if k and p != q):
                readers = [w for w in graph.variables[k].consumers if w in view.seconds]
                moved += graph.variables[k].nbytes if any(where[w] == target for w in readers) else 0
            worst = max(worst, 2 * moved / view.rate(p, q))
    return worst
