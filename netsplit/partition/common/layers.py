"""A graph as PipeDream sees it: its forward nodes as layers, what they weigh, and which no cut may part.

Source: PipeDream (Narayanan et al., SOSP 2019) and its released optimiser. Index letters: `v` forward node
(topological order), `b` block (nodes that no cut may part).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from netsplit.graph.ir import Node
from netsplit.graph.order import topological_order
from netsplit.graph.quotient import atoms_of, strong_components, successors
from netsplit.partition.base import Problem
from netsplit.partition.common.instance import Floats, Ints
from netsplit.profile.memory import node_weight_bytes

__all__ = ["Bools", "Layers"]

Bools = NDArray[np.bool_]


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
        weights = node_weight_bytes(graph)
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
