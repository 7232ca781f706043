"""A problem whose nodes are groups of another's: as many seconds and bytes, far fewer things to decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from netsplit.graph.ir import Graph, Node
from netsplit.partition.base import Placement, Problem, SolverReport
from netsplit.partition.common.instance import Instance, Ints
from netsplit.partition.common.priority import topological_priority
from netsplit.profile.costs import DeviceCosts, NodeSeconds

__all__ = ["CoarseProblem"]


@dataclass(frozen=True, eq=False)
class CoarseProblem:
    """`problem` is over groups; a placement of it is one of the whole, and the other way by most work."""

    whole: Instance
    problem: Problem
    group_of: Ints  # [n]

    @classmethod
    def of(cls, whole: Instance, groups: Sequence[Sequence[int]]) -> CoarseProblem:
        """Of [G] groups of nodes, in topological order, between which there is no circle."""
        group_of = np.zeros(whole.n, np.int64)
        for g, members in enumerate(groups):
            group_of[list(members)] = g
        problem = whole.problem
        costs = replace(
            problem.costs,
            devices={
                kind: _summed(each, whole.names, groups) for kind, each in problem.costs.devices.items()
            },
        )
        graph = _grouped(problem.graph, groups, group_of)
        return cls(whole, replace(problem, graph=graph, costs=costs, evaluate=None, known=None), group_of)

    def refined(self, where: Ints) -> Ints:
        """[n] devices, of [G]."""
        return where[self.group_of]

    def coarsened(self, where: Ints) -> Placement:
        """Of [n] devices: every atom of groups goes where most of its seconds are."""
        coarse = Instance.of(self.problem)
        whole, atom_of = self.whole, coarse.atom_of[self.group_of]
        seconds = (whole.forward_s + whole.backward_s)[np.arange(whole.n), where]
        there = np.zeros((len(coarse.atoms), len(whole.devices)))
        np.add.at(there, (atom_of, where), seconds + 1e-12)
        device_of = coarse.decode(there.argmax(axis=1)[coarse.atom_of])
        order = topological_priority(self.problem.graph, self.problem.graph.position)
        report, rewrites = SolverReport("heuristic", 0.0), self.problem.graph.rewrites
        return Placement("coarsened", device_of, order, report, rewrites=rewrites)


def _summed(costs: DeviceCosts, names: Sequence[str], groups: Sequence[Sequence[int]]) -> DeviceCosts:
    nodes = {}
    for g, members in enumerate(groups):
        own = [costs.nodes[names[v]] for v in members]
        nodes[_name(g)] = NodeSeconds(
            sum(each.forward_s for each in own),
            sum(each.backward_s for each in own),
            sum(each.weight_s for each in own),
        )
    return replace(costs, nodes=nodes, transients={})


def _grouped(graph: Graph, groups: Sequence[Sequence[int]], group_of: Ints) -> Graph:
    """What only a group itself reads stays, for its bytes, as a variable that nobody reads."""
    nodes = list(graph)
    name_of = {node.name: _name(int(group_of[v])) for v, node in enumerate(nodes)}
    variables = {}
    for k, each in graph.variables.items():
        home = None if each.producer is None else name_of[each.producer]
        readers = dict.fromkeys(name_of[v] for v in each.consumers)
        readers.pop(home, None)  # type: ignore[arg-type]
        ordered = sorted(readers, key=lambda name: int(name[1:]))
        variables[k] = replace(each, producer=home, consumers=tuple(ordered))
    merged = {}
    for g, members in enumerate(groups):
        own = [nodes[v] for v in members]
        made = tuple(k for node in own for k in node.outputs)
        inside = set(made)
        merged[_name(g)] = Node(
            _name(g),
            "netsplit.group",
            tuple(dict.fromkeys(k for node in own for k in node.inputs if k not in inside)),
            made,
            tuple(dict.fromkeys(k for node in own for k in node.initializers)),
            saved=tuple(dict.fromkeys(k for node in own for k in node.saved)),
            saved_bytes=sum(node.saved_bytes for node in own),
        )
    sets = (dict.fromkeys(name_of[name] for name in each) for each in graph.colocated)
    joined = tuple(tuple(each) for each in sets if len(each) > 1)
    return replace(graph, nodes=merged, variables=variables, units=(), colocated=_disjoint(joined))


def _disjoint(sets: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """Sets that share a member are one."""
    joined: list[set[str]] = []
    for each in sets:
        together = set(each)
        for other in [other for other in joined if other & together]:
            together |= other
            joined.remove(other)
        joined.append(together)
    return tuple(tuple(sorted(each, key=lambda name: int(name[1:]))) for each in joined)


def _name(g: int) -> str:
    return f"g{g}"
