"""What a problem may minimise, beside `Latency`: the simulated iteration and the period of a pipeline.

`StageTime` is PipeDream's time of a pipeline's slowest stage, of any placement, and `Layers` the graph as
PipeDream sees it. Source: PipeDream (Narayanan et al., SOSP 2019, section 3.1) and its released optimiser
(`optimizer_graph_hierarchical.py`). The paper, for m replicas of layers i..j at network level k with
bandwidth B: ``max(compute, 2 (m - 1) W / B) / m``, and ``2 a / B`` between two stages. The released code:

- ``(compute + 4 (m - 1) W / (B m)) / m``, a sum; W / (units of the level below) for a pipeline's first stage;
- ``2 a / (B m)`` for what a stage reads, by its own replicas, and likewise for what it sends; not counted
  for what the first stage of a pipeline sends, whose successor counts it.

`a` is the sum over the augmented antichain (`Layers.boundary_bytes`). Both know one speed, of the slowest
kind of device, and one bandwidth per level; of links only the slowest bandwidth is used.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from netsplit.errors import ConfigError
from netsplit.graph.ir import Node
from netsplit.graph.quotient import atoms_of, strong_components, successors, topological_order
from netsplit.partition.base import Latency, Loads, Objective, Problem
from netsplit.partition.common.instance import Floats, Instance, Ints
from netsplit.placement.placement import Placement, Stage
from netsplit.profile.memory import node_state_bytes
from netsplit.settings import ObjectiveName

__all__ = [
    "Bools",
    "Cost",
    "Formula",
    "Layers",
    "MaxLoad",
    "Period",
    "SimulatedIteration",
    "StageTime",
    "levels_of",
    "objective_named",
]


@dataclass(frozen=True)
class SimulatedIteration(Objective):
    """The simulated iteration of the chosen schedule with its micro-batches."""

    name = "simulated"
    scheduled = True


@dataclass(frozen=True)
class Period(Objective):
    """The period of a saturated pipeline: what its slowest device takes for a micro-batch."""

    contiguous: bool = False

    says = "the largest load is"
    column = "load"

    @property
    def name(self) -> str:
        return "max_load_contiguous" if self.contiguous else "max_load"

    @abstractmethod
    def loads(self, problem: Problem, placement: Placement) -> Loads: ...

    def scorer(self, problem: Problem) -> Callable[[Placement], float] | None:
        return lambda placement: self.loads(problem, placement).period_s

    def relaxed(self) -> Period:
        return replace(self, contiguous=False)


@dataclass(frozen=True)
class MaxLoad(Period):
    """The largest load of a device with its transfers (Tarnawski et al., NeurIPS 2020)."""

    bound_key = "max_load"
    both_ends_pay = True

    def scorer(self, problem: Problem) -> Callable[[Placement], float] | None:
        instance = Instance.of(problem)
        return lambda placement: float(instance.loads(instance.encode(placement.device_of)).max(initial=0.0))

    def loads(self, problem: Problem, placement: Placement) -> Loads:
        instance = Instance.of(problem)
        where = instance.encode(placement.device_of)
        rows, devices = np.arange(instance.n), len(instance.devices)
        sent, received = instance.crossings(where)

        def at_home(seconds: Floats) -> Floats:
            return np.asarray(np.bincount(where, weights=seconds[rows, where], minlength=devices), float)

        return Loads(
            seconds=instance.loads(where),
            forward_s=at_home(instance.forward_s),
            backward_s=at_home(instance.backward_s),
            send_s=np.asarray((instance.hop_s * sent).sum(axis=0)),
            receive_s=np.asarray((instance.hop_s * received).sum(axis=0)),
        )


def objective_named(name: ObjectiveName, period: Period) -> Objective:
    """The objective that the command line calls so, where `period` is what has loads or stages."""
    named: dict[ObjectiveName, Objective] = {
        "latency": Latency(),
        "simulated": SimulatedIteration(),
        "max_load": period,
        "max_load_contiguous": replace(period, contiguous=True),
    }
    return named[name]


Bools = NDArray[np.bool_]
Cost = Literal["released", "paper"]


@dataclass(frozen=True)
class Formula:
    """Costs at each level of the network, innermost first. Arrays broadcast; seconds and bytes."""

    levels: tuple[tuple[int, float], ...]  # (units, bytes per second) of each level
    cost: Cost = "released"
    deadline: float = math.inf  # on ``time.perf_counter``, after which `stage` raises TimeoutError

    @property
    def devices(self) -> int:
        return math.prod(units for units, _ in self.levels)

    def stage(self, level: int, inner: Floats, weights: Floats, m: int, first: bool) -> Floats:
        """A stage on m units, of which one needs `inner` seconds."""
        if time.perf_counter() > self.deadline:
            raise TimeoutError
        bandwidth = self.levels[level][1]
        if self.cost == "paper":
            return np.maximum(inner, 2 * (m - 1) * weights / bandwidth) / m
        below = self.levels[level - 1][0] if first and level else 1
        return (inner + 4 * (m - 1) * weights / (bandwidth * m) / below) / m

    def transfer(self, level: int, read: Floats, sent: float, m: int) -> Floats:
        """What a stage on m units reads and sends, whichever takes longer."""
        bandwidth = self.levels[level][1]
        if self.cost == "paper":
            return 2 * read / bandwidth
        return 2 * np.maximum(read, sent) / (bandwidth * m)


def levels_of(problem: Problem) -> tuple[tuple[int, float], ...]:
    """The network as (units, bandwidth) per level: the cluster's own levels, else one over its links."""
    cluster = problem.cluster
    if cluster.levels and math.prod(units for units, _ in cluster.levels) == len(cluster.devices):
        return cluster.levels
    ports = [device.port for device in cluster.devices if device.port is not None]
    links = [*cluster.links.values(), *ports]
    return ((len(cluster.devices), min((link.bandwidth for link in links), default=math.inf)),)


@dataclass(frozen=True)
class StageTime(Period):
    """PipeDream's period: stages with replicas, synchronisation of weights, transfers beside compute."""

    bound_key = "stage_time"

    def loads(self, problem: Problem, placement: Placement) -> Loads:
        busy, receive, send = _by_device(problem, placement)
        totals = Instance.of(problem).totals(placement.all_stages)
        slowest = np.maximum(busy, np.maximum(receive, send))
        return Loads(slowest, totals.forward_s, totals.backward_s, send, receive, True, placement.stages)


def _by_device(problem: Problem, placement: Placement) -> Floats:
    """[3, D] seconds that a device computes and synchronises, receives, and sends, all at once.

    With `stages`, which must be in pipeline order, this is what the planner's programme says of them: at
    each level of the network, stages on the same units are one stage of that level. Without, each device
    runs alone what it holds, and for every two devices ``2 a / B`` competes, where `a` is the bytes of the
    variables made on the one and read on the other, and B the bandwidth of the level that joins them.

    Raises:
        ConfigError: replicas take uneven turns, which the formula does not have.
    """
    formula = Formula(levels_of(problem))
    layers = Layers.of(problem)
    for s, stage in enumerate(placement.stages):
        if len(set(stage.parts.values())) > 1:
            raise ConfigError(
                f"the replicas of stage {s} take unequal numbers of micro-batches, which PipeDream's stage "
                "time does not cover: use objective=simulated."
            )
    if placement.stages:
        return _Score(problem, formula, layers, placement.stages).by_device()
    return _without_stages(problem, placement, formula, layers)


class _Score:
    """The planner's value of given stages."""

    def __init__(self, problem: Problem, formula: Formula, layers: Layers, stages: Sequence[Stage]) -> None:
        self._formula = formula
        index = {name: v for v, name in enumerate(layers.names)}
        own = np.zeros((len(stages), layers.n), bool)
        for s, stage in enumerate(stages):
            own[s, [index[name] for name in stage.nodes if name in index]] = True
        self._seconds, self._weights = own @ layers.seconds, own @ layers.weight_bytes
        self._boundary = layers.boundary_bytes(np.logical_or.accumulate(own, axis=0))
        rank = {device.name: p for p, device in enumerate(problem.cluster.devices)}
        shape = [units for units, _ in reversed(formula.levels)]
        # [levels, replicas] of each stage: the unit at each level, outermost first
        self._ranks = [[rank[p] for p in stage.devices] for stage in stages]
        self._units = [np.array(np.unravel_index(ranks, shape)) for ranks in self._ranks]

    def by_device(self) -> Floats:
        """[3, D] seconds that a device computes and synchronises, receives, and sends."""
        by_stage = self._level(len(self._formula.levels) - 1, list(range(len(self._units))))
        seconds = np.zeros((3, self._formula.devices))
        for s, ranks in enumerate(self._ranks):
            seconds[:, ranks] = np.maximum(seconds[:, ranks], by_stage[:, [s]])
        return seconds

    def _level(self, level: int, stages: Sequence[int]) -> Floats:
        """[3, stages]. The formulas grow with what is within: the slowest's is the slowest of them."""
        if level < 0:
            spent = float(sum(self._seconds[s] for s in stages))
            return np.array([[spent], [0.0], [0.0]]).repeat(len(stages), axis=1)
        axis = len(self._formula.levels) - 1 - level
        groups: list[tuple[frozenset[int], list[int]]] = []
        for s in stages:
            units = frozenset(int(p) for p in self._units[s][axis])
            if not groups or groups[-1][0] != units:
                groups.append((units, []))
            groups[-1][1].append(s)
        parts: list[Floats] = []
        for g, (units, own) in enumerate(groups):
            inner = self._level(level - 1, own)
            weights: Floats = np.array(self._weights[own].sum())
            seconds = self._formula.stage(level, inner, weights, len(units), not g)
            seconds[1:] *= inner[1:] > 0
            if g:
                read = np.array(self._boundary[own[0] - 1])
                sent = float(self._boundary[own[-1]]) if own[-1] + 1 < len(self._units) else 0.0
                none: Floats = np.zeros(())
                crossing = (
                    self._formula.transfer(level, read, 0.0, len(units)),
                    self._formula.transfer(level, none, sent, len(units)),
                )
                seconds[1:] = np.maximum(seconds[1:], np.array(crossing)[:, None])
            parts.append(seconds)
        return np.concatenate(parts, axis=1)


def _without_stages(problem: Problem, placement: Placement, formula: Formula, layers: Layers) -> Floats:
    """[3, D] seconds that a device computes, receives, and sends: of its transfers the longest."""
    instance = Instance.of(problem)
    devices, where, planned = len(instance.devices), instance.encode(placement.device_of), set(layers.names)
    index = [v for v, name in enumerate(instance.names) if name in planned]
    seconds, crossing = np.zeros((3, devices)), np.zeros((devices, devices))
    np.add.at(seconds[0], where[index], layers.seconds)
    for u, source in enumerate(instance.producer):
        if instance.names[source] in planned:
            readers = [w for w in instance.consumers[u] if instance.names[w] in planned]
            for q in {int(where[w]) for w in readers} - {int(where[source])}:
                crossing[where[source], q] += instance.nbytes[u]
    for p, q in zip(*np.nonzero(crossing), strict=True):
        spent = 2 * float(crossing[p, q]) / _bandwidth(formula, int(p), int(q))
        seconds[1, q], seconds[2, p] = max(seconds[1, q], spent), max(seconds[2, p], spent)
    return seconds


def _bandwidth(formula: Formula, p: int, q: int) -> float:
    """Bytes per second of the innermost level whose unit above holds both devices."""
    for units, bandwidth in formula.levels:
        p, q = p // units, q // units
        if p == q:
            return bandwidth
    return formula.levels[-1][1]


@dataclass(frozen=True, eq=False)
class Layers:
    """The nodes that a planner sees: forward nodes without inputs and unused `__getitem__` sinks."""

    names: tuple[str, ...]  # [n]
    seconds: Floats  # [n] forward and backward, on the slowest kind of device
    weight_bytes: Floats  # [n]
    output_bytes: Floats  # [n]
    consumers: tuple[tuple[int, ...], ...]  # [n] -> nodes
    followers: tuple[tuple[str, ...], ...]  # [n] -> nodes left out of the plan that share v's stage
    block_of: Ints  # [n] blocks ascend topologically
    block_feeders: tuple[tuple[int, ...], ...]  # [B] -> blocks it reads from
    leading: frozenset[str] = field(default_factory=frozenset)  # left out, in the first stage

    @classmethod
    def of(cls, problem: Problem) -> Layers:
        graph = problem.graph
        kinds = {device.kind for device in problem.cluster.devices}
        seconds = {v: max(problem.costs.total_s(v, kind) for kind in kinds) for v in graph.nodes}
        weights = node_state_bytes(graph, alpha=1)
        planned = [node for node in graph if node.name not in problem.backward_nodes]
        inputs = {node.name for node in planned if _is_input(problem, node, seconds, weights)}
        unused = {node.name for node in planned if "getitem" in node.op and not _readers(problem, node)}
        names = tuple(node.name for node in planned if node.name not in inputs | unused)
        index = {name: i for i, name in enumerate(names)}
        own = [graph.nodes[name] for name in names]
        consumers = tuple(tuple(sorted(index[w] for w in _readers(problem, v) if w in index)) for v in own)
        host = _hosts(problem, index)
        followers: list[list[str]] = [[] for _ in names]
        for name, i in host.items():
            followers[i].append(name)
        total = np.array([seconds[name] for name in names], float)
        held = np.array([weights[name] for name in names], float)
        for i, rest in enumerate(followers):
            total[i] += sum(seconds[name] for name in rest if name not in inputs)
            held[i] += sum(weights[name] for name in rest)
        block_of, feeders = _blocks(problem, index, host, consumers)
        return cls(
            names=names,
            seconds=total,
            weight_bytes=held,
            output_bytes=np.array([_output_bytes(problem, v) for v in own], float),
            consumers=consumers,
            followers=tuple(map(tuple, followers)),
            block_of=block_of,
            block_feeders=feeders,
            leading=frozenset(graph.nodes) - set(names) - set(host),
        )

    @property
    def n(self) -> int:
        return len(self.names)

    @property
    def blocks(self) -> int:
        return len(self.block_feeders)

    @cached_property
    def reach(self) -> Bools:
        """[n, n] whether row v is at or before column w."""
        below = np.eye(self.n, dtype=bool)
        for v in reversed(range(self.n)):
            for w in self.consumers[v]:
                below[v] |= below[w]
        return below

    @cached_property
    def open_below(self) -> Bools:
        """[n, n] nodes w before v that also feed a node which is neither v nor before it."""
        all_in = np.ones((self.n, self.n), bool)
        for w, readers in enumerate(self.consumers):
            for reader in readers:
                all_in[w] &= self.reach[reader]
        before = self.reach & ~np.eye(self.n, dtype=bool)
        return np.asarray((before & ~all_in).T)

    def boundary_bytes(self, members: Bools) -> Floats:
        """[S] bytes of the augmented antichain of each node set of `members` [S, n].

        Its last nodes, and what `open_below` says of each of them. The released planner takes that for
        the bytes that cross; it is never less than what nodes outside of the set read.
        """
        inner = np.zeros_like(members)
        for v, readers in enumerate(self.consumers):
            if readers:
                inner[:, v] = members[:, list(readers)].any(axis=1)
        last = members & ~inner
        opened = last.astype(np.float32) @ self.open_below.astype(np.float32) > 0
        return np.asarray((last | opened) @ self.output_bytes)


def _is_input(problem: Problem, node: Node, seconds: dict[str, float], weights: dict[str, int]) -> bool:
    """A source that costs nothing, or that a file calls input: data loading, pinned to the first stage."""
    if any(problem.graph.variables[k].producer is not None for k in node.inputs):
        return False
    return node.op.rpartition(".")[2].startswith("Input") or (
        seconds[node.name] == 0 and not weights[node.name]
    )


def _readers(problem: Problem, node: Node) -> list[str]:
    readers = {w for k in node.outputs if k for w in problem.graph.variables[k].consumers}
    return sorted(readers - problem.backward_nodes)


def _output_bytes(problem: Problem, node: Node) -> int:
    """Bytes of the outputs that are read; of all outputs of a node that nobody reads."""
    outputs = [problem.graph.variables[k] for k in node.outputs if k]
    return sum(v.nbytes for v in [v for v in outputs if v.consumers] or outputs)


def _hosts(problem: Problem, index: dict[str, int]) -> dict[str, int]:
    """Planned node whose stage each other node shares: of its colocated set, else of its neighbours. Backward
    nodes of a task graph so follow their colour class. What has no planned neighbour at all, as inputs have
    none before them, is left out and goes to the first stage."""
    graph = problem.graph
    host: dict[str, int] = {}
    for atom in atoms_of(graph):
        own = [index[name] for name in atom if name in index]
        host.update({name: min(own) for name in atom if own and name not in index})
    readers = {
        node.name: [w for k in node.outputs if k for w in graph.variables[k].consumers] for node in graph
    }
    for node in graph:  # what follows its producer
        if node.name in index or node.name in host:
            continue
        producers = [graph.variables[k].producer or "" for k in node.inputs]
        near = [index.get(v, host.get(v)) for v in producers]
        options = [v for v in near if v is not None]
        if options:
            host[node.name] = max(options)
    for name in reversed(list(graph.nodes)):  # backward nodes that begin: with what reads them
        if name in problem.backward_nodes and name not in host:
            options = [host[w] for w in readers[name] if w in host]
            if options:
                host[name] = max(options)
    for atom in atoms_of(graph):
        hosts = [host[name] for name in atom if name in host]
        others = set(atom) - set(index) - set(host) - problem.backward_nodes
        if others and not any(name in index for name in atom):  # with an input, in the first stage
            for name in atom:
                host.pop(name, None)
        elif hosts:
            host.update({name: min(hosts) for name in atom if name not in index})
    return host


def _blocks(
    problem: Problem, index: dict[str, int], host: dict[str, int], consumers: Sequence[Sequence[int]]
) -> tuple[Ints, tuple[tuple[int, ...], ...]]:
    """Colocated sets and all that lies between their nodes, in one; other nodes alone."""
    n = len(index)
    arcs = [(v, w) for v in range(n) for w in consumers[v]]
    tied = [sorted({index.get(v, host.get(v, -1)) for v in atom} - {-1}) for atom in atoms_of(problem.graph)]
    both_ways = [pair for own in tied for v in own[1:] for pair in ((own[0], v), (v, own[0]))]
    label = strong_components(n, [*arcs, *both_ways])
    count = max(label, default=-1) + 1
    order = topological_order(successors(count, ((label[v], label[w]) for v, w in arcs)), int)
    rank = {b: i for i, b in enumerate(order)}
    block = [rank[b] for b in label]
    feeders = successors(count, ((block[w], block[v]) for v, w in arcs))
    return np.array(block, np.int64), tuple(map(tuple, feeders))
