"""Uniform plans of many devices, planned by one rank of each stage: those that do the same are one.

    graph ─one_rank─► graph of a rank ─► stages ─► placement on the first rank of each ─► program, timeline
          of `tensor`                    alike: `data` ranks that sum, gather and scatter with it

What the ranks of a stage move among themselves for products in parts are nodes, of as many seconds as the
collective takes; sums and slices of `data` ranks are collectives of the program as of any other plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from netsplit.cluster.cluster import Cluster
from netsplit.cluster.collectives import CollectiveName
from netsplit.cluster.folded import FoldedCluster, folded_cluster
from netsplit.errors import ConfigError, RewriteError
from netsplit.graph.ir import Graph, once_of
from netsplit.placement.parallelism import Parallelism
from netsplit.placement.placement import Placement, SolverReport
from netsplit.profile.costs import Costs, NodeSeconds
from netsplit.profile.roofline import operator_class
from netsplit.program.schedules import Schedule
from netsplit.rewrite.megatron import tensor_parallel_tasks
from netsplit.rewrite.one_rank import MoveName, one_rank, rank_move
from netsplit.tables import counted

__all__ = ["FoldedPlan", "rank_graph", "uneven_products"]

_COLLECTIVES: dict[MoveName, CollectiveName] = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "all_to_all": "all_gather",
}  # fmt: skip
_EVEN = 1.01  # times the mean, at most, of what a device computes of a product


@once_of
def rank_graph(graph: Graph, tensor: int, sequence: bool) -> Graph:
    """The graph of one of `tensor` devices that compute together; raises as `tensor_parallel_tasks`."""
    whole: set[str] = set()  # what cannot be in parts, as the method `mesh` has it
    while tensor > 1:
        try:
            return one_rank(graph, tensor_parallel_tasks(graph, tensor, sequence, whole=whole))
        except RewriteError as refusal:
            if refusal.operator is None or refusal.operator in whole:
                raise
            whole.add(refusal.operator)
    return graph


def uneven_products(graph: Graph, own: Graph, tensor: int) -> Iterator[str]:
    """Sentences on products that the first of `tensor` devices computes more of than its part.

    Args:
        graph: as it was captured.
        own: its `rank_graph`.
    """
    whole, uneven = list[str](), dict[str, float]()
    for node in graph:
        part = own.nodes[node.name]
        for k, own_k in zip(node.initializers, part.initializers, strict=True):
            shape, own_shape = graph.initializers[k].shape, own.initializers[own_k].shape
            if len(shape) < 2 or operator_class(graph, node) != "matmul":
                continue
            if shape == own_shape:  # on pieces of the sequence, if anything is cut
                whole += [node.name] if part.part is not None and not part.part.cuts else []
            elif tensor * prod(own_shape) > _EVEN * prod(shape):
                uneven[node.name] = prod(own_shape) / prod(shape)
    if whole:
        yield (
            f"{counted(len(whole), 'product')}, such as '{whole[0]}', cannot be cut into {tensor} parts: "
            "each device computes all of it (lower tensor)."
        )
    if uneven:
        name = max(uneven, key=lambda each: uneven[each])
        yield (
            f"tensor {tensor} does not divide {counted(len(uneven), 'product')} evenly: of '{name}' one "
            f"device computes {100 * uneven[name]:.0f} % rather than {100 / tensor:.0f} %; the others wait."
        )


@dataclass(frozen=True)
class FoldedPlan:
    """A uniform plan on the first devices of a cluster.

    Args:
        layers: operator -> number of its stage, of all groups of layers.
        graph: of one rank, at the size of a micro-batch.
        costs: of its nodes on the cluster's kind of device; without what the ranks move.
    """

    layers: Mapping[str, int]
    graph: Graph
    costs: Costs
    cluster: Cluster
    given: Parallelism

    def __post_init__(self) -> None:
        kinds = {device.kind for device in self.cluster.devices[: self.given.devices]}
        if len(kinds) > 1:
            raise ConfigError(f"a uniform plan needs devices of one kind, not {', '.join(sorted(kinds))}.")

    @cached_property
    def groups(self) -> list[tuple[str, ...]]:
        """Each stage's devices that hold the same as its first rank, which comes first."""
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

    def of_rank(self, schedule: Schedule) -> Schedule:
        """The schedule with the micro-batches of one rank, its slices and what it computes again."""
        again = self.given.recompute
        own = schedule if again == "none" else schedule.recomputing(again)
        return replace(own.with_microbatches(own.microbatches // self.given.data), shard=self.given.shard)

    @cached_property
    def placement(self) -> Placement:
        """Contiguous stages, in turn on the groups; what ranks move is with what makes its sum, else with the
        first that reads it."""
        first, run_of = [group[0] for group in self.groups], dict[str, int]()
        for node in reversed(list(self.graph)):
            move = rank_move(node)
            readers = self.graph.successors[node.name]
            if move is None:
                run_of[node.name] = self.layers[node.part.operator if node.part else node.name]
            elif move.forward in ("all_reduce", "reduce_scatter") or not readers:
                run_of[node.name] = self.layers[node.part.operator if node.part else ""]
            else:
                run_of[node.name] = min(run_of[v] for v in readers)
        order = sorted(self.graph.nodes, key=lambda name: (run_of[name], self.graph.position[name]))
        begins = {run_of[name]: name for name in reversed(order)}
        return Placement(
            "mesh",
            {name: first[run_of[name] % len(first)] for name in self.graph.nodes},
            {name: i for i, name in enumerate(order)},
            SolverReport("heuristic", 0.0),
            alike={group[0]: group for group in self.groups if len(group) > 1},
            begins=tuple(begins[run] for run in sorted(begins)),
        )
