"""Where a pipeline may be cut: states of the antichain DAG, as downsets of the graph's forward nodes.

Source: PipeDream (Narayanan et al., SOSP 2019) and its released optimiser, `graph.antichain_dag`. A state is
an antichain; what it stands for is the downset D of everything at or before it. From D, a step adds a node
that reads something of D, with all that it needs: these are the released code's "next antichains". So k
precedes j in the antichain DAG exactly if D_k is a proper subset of D_j; a range of states is a difference.

Index letters: `v` forward node (topological order), `b` block (nodes that no cut may part), `j, k` state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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

__all__ = [
    "Bools",
    "Layers",
    "States",
    "antichain_states",
    "downset_states",
    "joined_states",
    "prefix_states",
]

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


@dataclass(frozen=True, eq=False)
class States:
    """Downsets in an order that extends inclusion; the last is everything."""

    layers: Layers
    members: Bools  # [S, n]
    reduction: str  # "none", or how blocks were merged because there were too many states

    def __len__(self) -> int:
        return len(self.members)

    @cached_property
    def before(self) -> Bools:
        """[S, S] whether downset k (row) is a proper subset of downset j (column)."""
        as_float = self.members.astype(np.float32)
        sizes = as_float.sum(axis=1)
        inside = as_float @ as_float.T >= sizes[:, None]
        return np.asarray(inside & (sizes[:, None] < sizes[None, :]))

    @cached_property
    def boundary(self) -> Floats:
        """[S] bytes that cross the cut after each state."""
        return self.layers.boundary_bytes(self.members)

    def total(self, values: Floats) -> Floats:
        """[S] sum over each downset of a value per node."""
        return np.asarray(self.members @ values)


def antichain_states(layers: Layers, limit: int) -> States:
    """The released planner's states; where there are more than `limit`, of a graph with merged blocks.

    Two mergers are tried, as PipeDream's `compress_graph_branches` is run by hand where its optimiser
    does not end: chains inside of parallel branches become one block; then all that lies between two
    nodes that are comparable to every other. The last resort are the prefixes of the topological order.
    """
    count = layers.blocks
    mergers = (("none", None), ("branches", _branch_chains), ("regions", _parallel_regions))
    for reduction, merger in mergers:
        group_of = list(range(count)) if merger is None else merger(layers)
        masks = _walk(layers, group_of, limit, first=_deepest_source(layers))
        if masks is not None:
            return _states_of(layers, masks, reduction)
    return prefix_states(layers, range(count), limit)


def downset_states(layers: Layers, limit: int) -> States | None:
    """Every downset of blocks, the whole space of contiguous stages; None if more than `limit`."""
    masks = _walk(layers, list(range(layers.blocks)), limit, first=None)
    return None if masks is None else _states_of(layers, masks, "none")


def prefix_states(layers: Layers, order: Iterable[int], limit: int) -> States:
    """Prefixes of a topological order of the blocks, thinned evenly to `limit` of them."""
    masks, mask = [], 0
    for b in order:
        mask |= 1 << b
        masks.append(mask)
    step = -(-len(masks) // limit)
    return _states_of(layers, [*masks[step - 1 : -1 : step], masks[-1]], "order")


def joined_states(families: Sequence[States], limit: int) -> States:
    """All states of several families, each once; the later families thinned where there are too many."""
    first, *others = families
    spare = np.unique(np.concatenate([family.members for family in others]), axis=0)
    room = max(limit - len(first), 1)
    members = np.unique(np.concatenate([first.members, spare[:: -(-len(spare) // room)]]), axis=0)
    return States(first.layers, members[np.argsort(members.sum(axis=1), kind="stable")], "orders")


def _states_of(layers: Layers, masks: Iterable[int], reduction: str) -> States:
    """States of sets of blocks, given as bits."""
    ordered = sorted(set(masks), key=lambda mask: (mask.bit_count(), mask))
    width = -(-layers.blocks // 8)
    packed = np.frombuffer(b"".join(m.to_bytes(width, "little") for m in ordered), np.uint8)
    bits = np.unpackbits(packed.reshape(len(ordered), width), axis=1, bitorder="little")
    return States(layers, bits[:, layers.block_of].astype(bool), reduction)


def _walk(layers: Layers, group_of: Sequence[int], limit: int, first: int | None) -> list[int] | None:
    """Sets of blocks reached by adding groups of blocks; None where there are more than `limit`.

    Args:
        group_of: [B] group of each block; groups are joined to acyclic ones here.
        first: the block to begin with, after which only groups that read something are added with all
            they need; None: begin with nothing, and add any group whose feeders are there.
    """
    count = max(group_of, default=-1) + 1
    own, feeders = [0] * count, [0] * count
    for b, g in enumerate(group_of):
        own[g] |= 1 << b
        for a in layers.block_feeders[b]:
            if group_of[a] != g:
                feeders[g] |= 1 << group_of[a]
    closure = [0] * count  # bits of groups
    for g in range(count):
        closure[g] = 1 << g
        for a in _bits(feeders[g]):
            closure[g] |= closure[a]
    fed = [0] * count
    for g in range(count):
        for a in _bits(feeders[g]):
            fed[a] |= 1 << g
    everything = (1 << count) - 1
    start = 0 if first is None else closure[group_of[first]]
    reached, queue = {start}, [(start, _union(fed[a] for a in _bits(start)))]
    while queue:
        done, readers = queue.pop()  # readers of what is done, which may be done themselves
        open_steps = (everything if first is None else readers) & ~done
        for g in _bits(open_steps):
            grown = done | closure[g]
            if grown in reached or (first is None and feeders[g] & ~done):
                continue
            reached.add(grown)
            queue.append((grown, readers | _union(fed[a] for a in _bits(grown & ~done))))
        if len(reached) > limit:
            return None
    reached.discard(0)
    if everything not in reached:  # parts that no path of reads joins to the first
        reached.add(everything)
    return [_union(own[g] for g in _bits(mask)) for mask in reached]


def _bits(mask: int) -> Iterable[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _union(masks: Iterable[int]) -> int:
    whole = 0
    for mask in masks:
        whole |= mask
    return whole


def _deepest_source(layers: Layers) -> int:
    """The block without feeders that begins the longest path; the first of such."""
    depth = [1] * layers.blocks
    for b in reversed(range(layers.blocks)):
        for a in layers.block_feeders[b]:
            depth[a] = max(depth[a], depth[b] + 1)
    sources = [b for b in range(layers.blocks) if not layers.block_feeders[b]]
    return max(sources, key=lambda b: (depth[b], -b))


def _comparable_to_all(layers: Layers) -> list[bool]:
    """[B] whether each block is before or after every other."""
    before, after = [0] * layers.blocks, [0] * layers.blocks
    for b, own in enumerate(layers.block_feeders):
        for a in own:
            before[b] |= before[a] | 1 << a
    for b in reversed(range(layers.blocks)):
        for a in layers.block_feeders[b]:
            after[a] |= after[b] | 1 << b
    return [(x | y).bit_count() == layers.blocks - 1 for x, y in zip(before, after, strict=True)]


def _branch_chains(layers: Layers) -> list[int]:
    """Group of each block: chains beside which another branch runs, in one; numbers ascend topologically."""
    feeders = layers.block_feeders
    fed = [0] * layers.blocks
    for own in feeders:
        for a in own:
            fed[a] += 1
    spine = _comparable_to_all(layers)
    head = list(range(layers.blocks))
    for b, own in enumerate(feeders):
        if len(own) == 1 and fed[own[0]] == 1 and not spine[b] and not spine[own[0]]:
            head[b] = head[own[0]]
    # A group takes the place of its first block: all that the others read is in the group.
    number = {h: g for g, h in enumerate(sorted(set(head)))}
    return [number[h] for h in head]


def _parallel_regions(layers: Layers) -> list[int]:
    """Group of each block: all blocks between two that are comparable to every other, in one."""
    spine = _comparable_to_all(layers)
    group_of: list[int] = []
    group, in_region = -1, False
    for alone in spine:
        group += alone or not in_region
        in_region = not alone
        group_of.append(group)
    return group_of


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
    """Planned node whose stage each other node shares: of its colocated set, else of its neighbours.

    Backward nodes of a task graph so follow their colour class. What has no planned neighbour at all,
    as inputs have none before them, is left out and goes to the first stage.
    """
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
        made = [graph.variables[k].producer or "" for k in node.inputs]
        near = [index.get(v, host.get(v)) for v in made]
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
