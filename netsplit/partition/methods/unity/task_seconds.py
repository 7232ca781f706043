"""What a part of an operator takes and holds: once for all parts that are alike.

operator, sizes of a part ──► a node of its own in a catalogue, a graph of such alone ──► rewritten_costs
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from netsplit.graph.arguments import Reference
from netsplit.graph.ir import Graph, Initializer, Node, NodeRole, Variable
from netsplit.layout.regions import Region, length_of, now
from netsplit.partition.methods.unity.choices import TaskAxis
from netsplit.profile.costs import Costs
from netsplit.rewrite import OperatorTasks, TaskCut, rewritten_costs
from netsplit.rewrite.layouts import layouts_of
from netsplit.rewrite.leaves import Leaf, LeafPlanner, laid_out, with_tensors
from netsplit.rewrite.ways import Place

__all__ = ["PartCost", "TaskSeconds"]

Sizes = tuple[tuple[TaskAxis, int], ...]
"""Along which axes an operator is cut, and how large a part is."""


@dataclass(frozen=True)
class PartCost:
    """What a part of an operator takes and holds."""

    seconds: Mapping[str, float]  # forward and backward, by kind of device
    kept_bytes: int  # that wait for the backward, or for readers
    weights: tuple[int, ...]  # bytes of what it reads of each of the operator's initializers, in their order


@dataclass(eq=False)
class TaskSeconds:
    """Costs of parts of a captured graph's operators; parts of alike ones (by `keys`) are looked at once."""

    graph: Graph
    costs: Costs
    keys: Mapping[str, str]
    known: dict[Any, PartCost] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.planner = LeafPlanner(self.graph, layouts_of(self.graph))

    def whole(self, name: str) -> PartCost:
        node, graph = self.graph.nodes[name], self.graph
        return PartCost(
            {kind: each.nodes[name].total_s for kind, each in self.costs.devices.items()},
            sum(graph.variables[k].nbytes for k in node.outputs if k and not graph.variables[k].alias_of),
            tuple(graph.initializers[k].nbytes for k in node.initializers),
        )

    def of(self, name: str, sizes: Sequence[Sizes]) -> list[PartCost]:
        """Costs of parts of one operator, each of which is cut so. Raises `RewriteError`: it cannot be."""
        own = self.keys[name]
        keys = [(own, *((a.axis, a.blocks, n) for a, n in each)) for each in sizes]
        new = {key: each for key, each in zip(keys, sizes, strict=True) if key not in self.known and each}
        if new:
            self._learn(name, new)
        return [self.known[key] if each else self.whole(name) for key, each in zip(keys, sizes, strict=True)]

    def _learn(self, name: str, new: Mapping[Any, Sizes]) -> None:
        node = self.graph.nodes[name]
        leaves = {key: self._leaf(name, each) for key, each in new.items()}
        catalogue = _catalogue(self.graph, node, list(leaves.values()))
        costs = rewritten_costs(self.costs, self.graph, catalogue)
        for (key, leaf), made in zip(leaves.items(), catalogue, strict=True):
            weights: dict[str, int] = {}
            for (tag, k), region in leaf.reads.values():
                if tag == "init":
                    init = self.graph.initializers[k]
                    weights[k] = init.nbytes * prod(_shape(region)) // max(prod(init.shape), 1)
            outputs = [catalogue.variables[k] for k in made.outputs if k]
            kept = sum(each.nbytes for each in outputs if not each.alias_of)
            seconds = {kind: each.nodes[made.name].total_s for kind, each in costs.devices.items()}
            own = tuple(weights.get(k, 0) for k in node.initializers)
            self.known[key] = PartCost(seconds, kept, own)

    def _leaf(self, name: str, sizes: Sizes) -> Leaf:
        """The first part of a cut into this one and the rest, axis by axis."""
        cuts: list[TaskCut] = []
        for depth, (axis, size) in enumerate(sizes):
            rest = axis.way.size // axis.blocks - size
            cuts.append(TaskCut(axis.axis, (size, rest), axis.blocks, (0,) * depth if depth else None))
        return self.planner.leaves(OperatorTasks(name, tuple(cuts)))[0]


def _catalogue(graph: Graph, node: Node, leaves: Sequence[Leaf]) -> Graph:
    """The parts as nodes that are given what they read."""
    variables: dict[str, Variable] = {}
    initializers: dict[str, Initializer] = {}
    nodes = {}
    inputs: list[str] = []
    for i, leaf in enumerate(leaves):
        name = f"{node.name}#{i}"
        names: dict[Reference, str] = {}
        given: dict[Place, Any] = {}
        for place, (reference, region) in leaf.reads.items():
            tag, k = reference
            own = names.setdefault(reference, f"{name}<{k}")
            given[place] = {tag: own}
            if tag == "init":
                initializers[own] = replace(graph.initializers[k], name=own, shape=_shape(region))
                continue
            flows = k in graph.requires_backward
            variables[own] = Variable(
                own, graph.variables[k].dtype, _shape(region), None, (name,), requires_grad=flows
            )
            inputs.append(own)
        read = tuple(own for (tag, _), own in names.items() if tag == "var")
        outputs = tuple(f"{name}>{k}" if k else "" for k in node.outputs)
        for k, own, made in zip(node.outputs, outputs, leaf.makes, strict=True):
            if k:
                whole, flows = graph.variables[k], k in graph.requires_backward
                view = read[0] if whole.alias_of and read else None
                variables[own] = Variable(own, whole.dtype, _shape(made.region), name, (), flows, view)
        args, kwargs = laid_out(leaf.op, with_tensors(leaf.arguments, given))
        local = {k: own for (tag, k), own in names.items() if tag == "var"}
        local |= dict(zip(node.outputs, outputs, strict=True))
        held = tuple(own for (tag, _), own in names.items() if tag == "init")
        saved = tuple(local[k] for k in node.saved if k in local)
        part = replace(node, name=name, op=leaf.op, args=args, kwargs=kwargs, saved=saved)
        nodes[name] = replace(part, inputs=read, outputs=outputs, initializers=held, part=NodeRole(node.name))
    answers = tuple(own for each in nodes.values() for own in each.outputs if own)
    ends = replace(graph, input_variables=tuple(inputs), output_variables=answers, units=(), colocated=())
    return replace(ends, nodes=nodes, variables=variables, initializers=initializers)


def _shape(region: Region) -> tuple[int, ...]:
    return tuple(now(length_of(runs)) for runs in region)
