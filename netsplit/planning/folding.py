"""Uniform plans of many devices, planned by one rank of each stage: those that do the same are one.

    graph ─one_rank─► graph of a rank ─► stages ─► placement on the first rank of each ─► program, timeline
          of `tensor`                    alike: `data` ranks that sum, gather and scatter with it

What the ranks of a stage move among themselves for products in parts are nodes, of as many seconds as the
collective takes; sums and slices of `data` ranks are collectives of the program as of any other plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from netsplit.cluster.cluster import Cluster
from netsplit.cluster.collectives import CollectiveName
from netsplit.cluster.folded import FoldedCluster, folded_cluster
from netsplit.errors import ConfigError
from netsplit.graph.ir import Graph, once_of
from netsplit.placement.parallelism import Parallelism, RecomputeName
from netsplit.placement.placement import Placement, SolverReport
from netsplit.placement.sharding import crossing_bytes
from netsplit.profile.costs import Costs, NodeSeconds
from netsplit.profile.roofline import operator_class
from netsplit.rewrite.megatron import tensor_parallel_tasks
from netsplit.rewrite.one_rank import MoveName, rank_move, one_rank

__all__ = ["FoldedPlan", "rank_graph", "recomputed_nodes"]

_COLLECTIVES: dict[MoveName, CollectiveName] = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "all_to_all": "all_gather",
}  # fmt: skip
_STEEP = 8  # exponent of stages' seconds: their longest counts most, and of equal ones the others


@once_of
def rank_graph(graph: Graph, tensor: int, sequence: bool) -> Graph:
    """The graph of one of `tensor` devices that compute together; raises as `tensor_parallel_tasks`."""
    if tensor == 1:
        return graph
    return one_rank(graph, tensor_parallel_tasks(graph, tensor, sequence))


@dataclass(frozen=True)
class FoldedPlan:
    """A uniform plan on the first devices of a cluster.

    Args:
        graph: of one rank, at the size of a micro-batch.
        costs: of its nodes on the cluster's kind of device; without what the ranks move.
    """

    graph: Graph
    costs: Costs
    cluster: Cluster
    given: Parallelism

    def __post_init__(self) -> None:
        if self.given.devices > len(self.cluster.devices):
            raise ConfigError(
                f"{self.given} takes {self.given.devices} devices, but cluster '{self.cluster.name}' has "
                f"{len(self.cluster.devices)}: give smaller degrees."
            )
        kinds = {device.kind for device in self.cluster.devices[: self.given.devices]}
        if len(kinds) > 1:
            raise ConfigError(f"a uniform plan needs devices of one kind, not {', '.join(sorted(kinds))}.")

    @cached_property
    def groups(self) -> list[tuple[str, ...]]:
        """Of each stage the first rank's device, and those that hold the same."""
        given, names = self.given, self.cluster.names
        size = given.data * given.tensor
        return [tuple(names[first : first + size : given.tensor]) for first in range(0, given.devices, size)]

    @cached_property
    def folded(self) -> FoldedCluster:
        """The first rank of each stage."""
        return folded_cluster(self.cluster, [group[0] for group in self.groups])

    @cached_property
    def priced(self) -> Costs:
        """With the seconds of what ranks move."""
        together = self.cluster.names[: self.given.tensor]
        nodes = {}
        for node in self.graph:
            move = rank_move(node)
            if move is not None:
                both = (self._moving_s(each, move.nbytes, together) for each in (move.forward, move.backward))
                nodes[node.name] = NodeSeconds(*both)
        kind = self.cluster.devices[0].kind
        return self.costs.with_device(kind, nodes=self.costs.of(kind).nodes | nodes)

    def _moving_s(self, name: MoveName, nbytes: int, devices: Sequence[str]) -> float:
        if name not in _COLLECTIVES:
            return 0.0
        whole = nbytes / len(devices) if name == "all_to_all" else nbytes
        return self.cluster.group_seconds(_COLLECTIVES[name], whole, devices, every=True)

    @cached_property
    def placement(self) -> Placement:
        """Contiguous stages of about equal seconds, in turn on the groups."""
        first = [group[0] for group in self.groups]
        order = list(self.graph.nodes)
        device_of = {}
        for s, stage in enumerate(self._stages()):
            device_of.update(dict.fromkeys(order[slice(*stage)], first[s % len(first)]))
        alike = {group[0]: group for group in self.groups if len(group) > 1}
        priority = {name: i for i, name in enumerate(order)}
        again = recomputed_nodes(self.graph, self.given.recompute)
        report = SolverReport("heuristic", 0.0)
        return Placement("mesh", device_of, priority, report, alike=alike, recomputed=again)

    def _stages(self) -> list[tuple[int, int]]:
        """Where each stage begins and ends in the graph's order: cut where least goes from one to the next,
        so that the longest takes as little as can be."""
        count = self.given.pipeline * self.given.chunks
        if count == 1:
            return [(0, len(self.graph))]
        nodes = self.priced.of(self.cluster.devices[0].kind).nodes
        until = np.cumsum([0.0, *(nodes[name].total_s for name in self.graph.nodes)])
        places = np.array(_narrow(self.graph, count))
        if len(places) < count + 1:
            raise ConfigError(
                f"the model has {len(places) - 1} pieces between which little is sent, too few for {count} "
                "stages: give a smaller pipeline."
            )
        took = (until[places][None, :] - until[places][:, None]).clip(0.0) / until[-1]
        costs = np.where(np.triu(np.ones_like(took), 1) > 0, (took * count) ** _STEEP, np.inf)
        best, came = costs[0], []
        for _ in range(count - 1):
            every = best[:, None] + costs
            came.append(every.argmin(axis=0))
            best = every.min(axis=0)
        ends = [len(places) - 1]
        for each in reversed(came):
            ends.append(int(each[ends[-1]]))
        cuts = [0, *(int(places[end]) for end in reversed(ends))]
        return list(pairwise(cuts))


@once_of
def recomputed_nodes(graph: Graph, recompute: RecomputeName) -> frozenset[str]:
    """What is computed again before its backward; selectively all but attention, what ranks move, and every
    other product (as torchtitan has it)."""
    if recompute != "selective":
        return frozenset(graph.nodes if recompute == "full" else ())
    again, products = [], 0
    for node in graph:
        kind = operator_class(graph, node)
        products += kind == "matmul"
        if rank_move(node) is None and kind != "attention" and (kind != "matmul" or products % 2 == 0):
            again.append(node.name)
    return frozenset(again)


@once_of
def _narrow(graph: Graph, count: int) -> tuple[int, ...]:
    """Numbers of nodes before which little goes from earlier ones to later ones: enough for that many cuts,
    with the beginning and the end."""
    crossing = np.array(crossing_bytes(graph, list(graph.nodes)))
    inside = range(1, len(crossing))
    few = sorted(crossing[at] for at in inside)[min(4 * count, len(crossing) - 1) - 1]
    together = {name: i for i, names in enumerate(graph.colocated) for name in names}
    last: dict[int, int] = {}
    for at, name in enumerate(graph.nodes):
        if name in together:
            last[together[name]] = at
    places, open_until = [0], 0
    for at, name in enumerate(graph.nodes):
        if at and crossing[at] <= few and at > open_until:
            places.append(at)
        if name in together:
            open_until = max(open_until, last[together[name]])
    return (*places, len(graph))
