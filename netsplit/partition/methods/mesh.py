"""`mesh`: data x tensor x pipeline parallelism by hand, on devices in rows: tensor innermost, pipeline last.

    first layers   cpu:0 cpu:1 │ cpu:2 cpu:3     cpu:0 and cpu:1 compute each product together,
    last layers    cpu:4 cpu:5 │ cpu:6 cpu:7     cpu:2 and cpu:3 do the same for other micro-batches
                    replica 0  │  replica 1

Layers are runs of operators, cut where few bytes cross, so that the slowest run is as fast as it can be.
Sources: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters", SC 2021; Liang et
al., "TorchTitan", ICLR 2025.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from netsplit.errors import ConfigError, RewriteError
from netsplit.graph.analyse import strays
from netsplit.graph.arguments import gives_sparse_gradients
from netsplit.graph.ir import Graph
from netsplit.graph.operators import unchanging, written_references
from netsplit.graph.quotient import Sets, atoms_of, joined, successors, topological_order
from netsplit.partition.base import Problem
from netsplit.partition.common.instance import Floats
from netsplit.partition.methods.baselines import slowest_run
from netsplit.partition.partitioner import Choice, Partitioner
from netsplit.placement.placement import TOLD, Stage
from netsplit.placement.sharding import crossing_bytes
from netsplit.rewrite import applied
from netsplit.rewrite.emitter import weights_of
from netsplit.rewrite.megatron import tensor_parallel_tasks
from netsplit.rewrite.tasks import OperatorTasks

__all__ = ["Mesh3D", "layer_runs"]

_MUCH = 1.1  # times the seconds of the best run, at most, for cuts that fewer bytes cross


@dataclass(frozen=True)
class Mesh3D(Partitioner):
    """Runs of layers on groups of devices; each product in parts on `tensor` of them; replicas of each.

    Args:
        data, tensor, pipeline, sequence: as of `Parallelism`; the batch has at least `data` micro-batches.
        chunks: runs on each group of devices, in turn, for schedules as interleaved_1f1b.
        v: the second of two runs in the groups' opposite order, for zb_v and its like.

    Raises:
        ConfigError: a number is below 1, or `v` without two chunks.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    sequence: bool = False
    chunks: int = 1
    v: bool = False

    name = "mesh"
    optimises = "the slowest run of layers"
    respects_capacity = False

    def __post_init__(self) -> None:
        for parameter in ("data", "tensor", "pipeline", "chunks"):
            self.require(parameter, getattr(self, parameter) >= 1, "1 or more")
        self.require("v", not self.v or self.chunks == 2, "false, or two chunks")

    def choose(self, problem: Problem) -> Choice:
        graph, names = problem.graph, _by_host(problem)
        needed = self.data * self.tensor * self.pipeline
        if needed > len(names):
            raise ConfigError(
                f"mesh needs {needed} devices (data {self.data} x tensor {self.tensor} x pipeline "
                f"{self.pipeline}), but the cluster has {len(names)}: lower "
                "one of the three."
            )
        kind = problem.cluster.device(names[0]).kind
        seconds = {name: problem.costs.total_s(name, kind) for name in graph.nodes}
        run_of, slowest_s = layer_runs(graph, seconds, self.pipeline * self.chunks)
        tasks, rewritten = self._in_parts(graph, run_of)
        where = _places(rewritten, run_of)
        if problem.simulator is not None and problem.simulator.schedule.microbatches < self.data:
            raise ConfigError(
                f"mesh has {self.data} replicas (data), but the batch has only "
                f"{problem.simulator.schedule.microbatches} micro-batches: raise schedule.microbatches, or "
                "lower data."
            )
        row, device_of = self.tensor * self.data, dict[str, str]()
        members: dict[tuple[int, int], list[str]] = {}
        for name, (run, part) in where.items():
            group = run % self.pipeline
            if self.v and run >= self.pipeline:
                group = self.pipeline - 1 - group
            device_of[name] = names[group * row + part]
            members.setdefault((group, part), []).append(name)
        first: dict[int, str] = {}
        for name, (run, _) in where.items():
            first.setdefault(run, name)
        stages = tuple(
            Stage(tuple(nodes), tuple(names[group * row + part : (group + 1) * row : self.tensor]))
            for (group, part), nodes in sorted(members.items())
        )
        used = {name for stage in stages for name in stage.devices}
        idle = [name for name in names[:needed] if name not in used]
        told = f"mesh leaves {', '.join(idle)} without operators, as its layers cannot be cut: lower tensor."
        return Choice(
            device_of,
            key={name: run * len(rewritten) + at for at, (name, (run, _)) in enumerate(where.items())},
            objective_s=slowest_s,
            notes={TOLD: told} if idle else {},
            stages=stages,
            begins=tuple(first[run] for run in sorted(first)),
            rewrites=(*graph.rewrites, *tasks),
        )

    def _in_parts(self, graph: Graph, run_of: dict[str, int]) -> tuple[list[OperatorTasks], Graph]:
        """Tasks of all operators, and the graph of these; what cannot be lowered so is whole."""
        whole: set[str] = set()
        while True:
            parts = tensor_parallel_tasks(graph, self.tensor, self.sequence, whole=whole)
            tasks = _with_copies(graph, parts, run_of)
            try:
                return tasks, applied(graph, (*graph.rewrites, *tasks))
            except RewriteError as refusal:
                if refusal.operator is None or refusal.operator in whole:
                    raise
                whole.add(refusal.operator)


def _by_host(problem: Problem) -> list[str]:
    """The devices, those of a host one after another."""
    hosts = list(dict.fromkeys(device.host for device in problem.cluster.devices))
    return [each.name for each in sorted(problem.cluster.devices, key=lambda each: hosts.index(each.host))]


def layer_runs(graph: Graph, seconds: dict[str, float], count: int) -> tuple[dict[str, int], float]:
    """The run of each node, and the seconds of the slowest: so many runs, cut where the fewest bytes cross
    unless the slowest is much faster otherwise.

    Raises:
        ConfigError: the graph has fewer pieces than runs.
    """
    pieces = _pieces(graph)
    order = [name for piece in pieces for name in piece]
    same = unchanging(graph)
    crossing = crossing_bytes(graph, order, same)
    ends = [*accumulate(map(len, pieces))]
    spent = np.array([0.0, *accumulate(sum(seconds[name] for name in piece) for piece in pieces)])
    places = np.array([0, *(crossing[end] for end in ends[:-1])])  # bytes before each piece
    if len(pieces) < count:
        raise ConfigError(
            f"mesh cannot make {count} stages: the model has {len(pieces)} operators to cut between; lower "
            "pipeline or chunks."
        )
    best_s = _least(spent, count)
    for limit in np.unique(places):
        cuts = np.array([*np.flatnonzero(places <= limit), len(pieces)])
        if len(cuts) > count and (slowest_s := _least(spent[cuts], count)) <= _MUCH * best_s:
            break
    ends = _ends(spent[cuts], count, slowest_s)
    runs = np.repeat(np.arange(count), np.diff(cuts[ends]))
    return {name: int(run) for piece, run in zip(pieces, runs, strict=True) for name in piece}, slowest_s


def _least(spent: Floats, count: int) -> float:
    """Seconds of the slowest of so many runs; `spent`: [n + 1] before each piece, and after the last."""
    until = np.repeat(spent[:, None], count, axis=1)
    return slowest_run(until, np.zeros((count, len(spent)), np.int64))[0]


def _ends(spent: Floats, count: int, slowest_s: float) -> list[int]:
    """[count + 1] where runs begin and end, none of which is empty: the last ones are as full as can be, as
    the first keep the most activations."""
    ends = [len(spent) - 1]
    for left in reversed(range(count)):
        full = spent[ends[-1]] - slowest_s * (1 + 1e-9)
        ends.append(min(max(int(np.searchsorted(spent, full)), left), ends[-1] - 1) if left else 0)
    return ends[::-1]


def _pieces(graph: Graph) -> Sets:
    """What no cut divides, in an order in which it may run: units, views with what they are of, and readers
    of tensors of which there can be no copies."""
    groups: list[Sequence[str]] = [*graph.units, *strays(graph)]
    alone: dict[str, list[str]] = {}
    for node in graph:
        for k in filter(None, node.outputs):
            root = graph.variables[k].alias_of or ""
            if root in graph.variables and (maker := graph.variables[root].producer) is not None:
                groups.append((maker, node.name))
        written = {k for tag, k in written_references(graph, node) if tag == "init"}
        for k in node.initializers if gives_sparse_gradients(node) or node.checkpoint else written:
            alone.setdefault(k, [])
    for node in graph:
        for k in alone.keys() & {*node.initializers}:
            alone[k].append(node.name)
    pieces = joined(graph, [*groups, *alone.values()])
    number = {name: i for i, piece in enumerate(pieces) for name in piece}
    edges = ((number[u], number[v]) for v, feeders in graph.predecessors.items() for u in feeders)
    order = topological_order(successors(len(pieces), edges), lambda i: graph.position[pieces[i][0]])
    return tuple(pieces[i] for i in order) if len(order) == len(pieces) else atoms_of(graph)


def _with_copies(graph: Graph, tasks: Sequence[OperatorTasks], run_of: dict[str, int]) -> list[OperatorTasks]:
    """Tasks by which runs that read the same weights read copies of their own."""
    runs: dict[str, set[int]] = {}
    for node in graph:
        for k in weights_of(graph, node):
            runs.setdefault(k, set()).add(run_of[node.name])
    several = {k for k, own in runs.items() if len(own) > 1}
    known = {each.node: each for each in tasks}
    changed = []
    for node in graph:
        own = known.get(node.name)
        if not several.isdisjoint(weights_of(graph, node)):
            own = own or OperatorTasks(node.name)
            step = max(1, *own.copies, len(own.paths))
            weights = tuple(run_of[node.name] * step + number for number in own.weights if number != "home")
            own = replace(own, weights=weights)
        changed += [own] if own is not None else []
    return changed


def _places(graph: Graph, run_of: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Run and part of each node; what only moves tensors, from no place, is with the first of its readers."""
    where: dict[str, tuple[int, int]] = {}
    loose = set[str]()
    for node in reversed([*graph]):
        name = node.part.operator if node.part is not None else node.name
        place = node.part.place[0] if node.part is not None and node.part.place else 0
        readers = [where[v] for v in graph.successors[node.name]]
        if readers and node.part is not None and node.part.moves and not node.part.place:
            loose.add(node.name)
            where[node.name] = min(readers)
        else:
            where[node.name] = run_of[name], place
    for group in graph.colocated:
        where |= dict.fromkeys(group, where[next((v for v in group if v not in loose), group[0])])
    return {name: where[name] for name in graph.nodes}
