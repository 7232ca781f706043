"""Chains of element-wise operators as one kernel each, as torch.compile and hand-written kernels fuse them.

    down ──► add ──► rms_norm ──► q          one kernel: reads x and y once, writes their sum and its norm
         x ──┘└───────────────► next add     a backward computes again what lies within

Nodes are fused where one reads what the other writes, views between them aside, and no other kind of kernel
lies on any way between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from netsplit.cluster.catalogue import Pass
from netsplit.graph.ir import Graph
from netsplit.profile.roofline import Work

__all__ = ["chains", "fused_pass"]

FUSED = ("elementwise", "transcendental", "copy", "random", "row normalisation", "softmax", "reduction")
"""Classes of `roofline.operator_class` that a compiler writes kernels for."""


def chains(graph: Graph, works: Mapping[str, tuple[str, Work]]) -> Iterator[list[str]]:
    """Names of the nodes of each chain of two or more."""
    level: dict[str, int] = {}  # other kernels on the longest way to a node
    first: dict[str, str] = {}  # a node of a chain -> another of it that stands for it

    def head(name: str) -> str:
        while first[name] != name:
            name = first[name]
        return name

    for node in graph:
        kind = works[node.name][0]
        before = [u for k in node.inputs if (u := graph.variables[k].producer) is not None]
        level[node.name] = max((level[u] for u in before), default=0) + (kind not in (*FUSED, "view"))
        if kind in (*FUSED, "view"):
            first[node.name] = node.name
            for u in before:
                if u in first and level[u] == level[node.name]:
                    first[head(u)] = head(node.name)
    members: dict[str, list[str]] = {}
    for name in first:
        members.setdefault(head(name), []).append(name)
    yield from (each for each in members.values() if len(each) > 1)


def fused_pass(graph: Graph, works: Mapping[str, tuple[str, Work]], names: list[str]) -> tuple[Pass, Pass]:
    """FLOPs and bytes of a chain's kernel, forward and backward."""
    inside, back = set(names), graph.requires_backward
    root = {
        k: _root(graph, k) for name in names for k in (*graph.nodes[name].inputs, *graph.nodes[name].outputs)
    }
    written = {root[k] for name in names for k in graph.nodes[name].outputs if k}
    read = {root[k] for name in names for k in graph.nodes[name].inputs}
    leaves = {
        root[k]
        for name in names
        for k in graph.nodes[name].outputs
        if k and not inside.issuperset(graph.variables[k].consumers)
    }
    leaves |= {k for k in written if k not in read}
    comes, weights = read - written, {k for name in names for k in graph.nodes[name].initializers}
    own = sum(graph.initializers[k].nbytes for k in weights)

    def nbytes(keys: set[str]) -> int:
        return sum(graph.variables[k].nbytes for k in keys)

    needed: set[str] = set()
    asked = [root.get(k, k) for name in names for k in graph.nodes[name].saved]
    seen: set[str] = set()
    while asked:
        k = asked.pop()
        if k in seen:
            continue
        seen.add(k)
        producer = graph.variables[k].producer
        if k in leaves or producer not in inside:
            needed.add(k)
        elif producer is not None:
            asked += [root[i] for i in graph.nodes[producer].inputs]
    forward = Pass(sum(works[name][1].forward.flops for name in names), nbytes(comes | leaves) + own)
    gradients = {k for k in comes | leaves if k in back}
    work = sum((works[name][1].input + works[name][1].sums for name in names), Pass())
    return forward, Pass(work.flops, nbytes(needed) + nbytes(gradients) + 2 * own)


def _root(graph: Graph, k: str) -> str:
    """The variable whose memory a view shows; of parts, the part itself."""
    variable = graph.variables[k]
    while (of := graph.variables.get(variable.alias_of or "")) and prod(of.shape) == prod(variable.shape):
        variable = of
    return variable.name
