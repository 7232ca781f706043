"""Measured costs of single operators of a graph, among one another: of those that a rewrite has made.

    chosen operators ──► a graph of these alone ──► walks over it, on the batch and on random numbers

What hands on pieces for them is measured with them, since pieces have strides of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from netsplit.graph.ir import INITIALIZER, Graph, Variable
from netsplit.profile.costs import NodeBytes, PartCosts
from netsplit.profile.measure.compute import Profiler, borders, walks_to_settle
from netsplit.profile.measure.predicted_bytes import transient_bytes

__all__ = ["graph_of_nodes", "profile_parts"]

REPEATS, ROUNDS = 4, 2


def profile_parts(
    graph: Graph,
    batch: tuple[Tensor, ...],
    values: Mapping[str, Tensor],
    names: Iterable[str],
    moving: Collection[str],
    torch_device: torch.device | str,
    in_flight: int,
) -> dict[str, PartCosts]:
    """Costs of these nodes; other arguments as of `Profiler`.

    Args:
        moving: operators that hand on pieces of tensors, or put them together.
    """
    device, own = torch.device(torch_device), graph_of_nodes(graph, names, moving)
    known = dict(zip(graph.input_variables, batch, strict=True))
    read = tuple(known[k] if k in known else _filled(graph.variables[k]) for k in own.input_variables)
    profiler = Profiler(own, read, values, device, repeats=REPEATS, in_flight=in_flight)
    for _ in range(ROUNDS):
        profiler.round()
    for _ in walks_to_settle(profiler):
        pass
    seconds, transients = profiler.seconds(), transient_bytes(own, read, values, device)
    return {name: PartCosts(seconds[name], transients.get(name, NodeBytes())) for name in names}


def graph_of_nodes(graph: Graph, names: Iterable[str], moving: Collection[str]) -> Graph:
    """The graph of some nodes alone, with what makes pieces for them and what shares a unit with them.

    Its inputs are what they read from others, its outputs what others read from them.
    """
    chosen, left = set(names), list(names)
    units = {name: unit for unit in graph.units for name in unit}
    while left:
        name = left.pop()
        more = {u for u in graph.predecessors[name] if graph.nodes[u].op in moving} | {*units.get(name, ())}
        left += more - chosen
        chosen |= more
    nodes = {node.name: node for node in graph if node.name in chosen}
    used = {k for node in nodes.values() for k in (*node.inputs, *node.outputs) if k}
    initializers = {k: graph.initializers[k] for node in nodes.values() for k in node.initializers}
    roots = used | {INITIALIZER + k for k in initializers}

    def within(variable: Variable) -> Variable:
        return replace(
            variable,
            producer=variable.producer if variable.producer in chosen else None,
            consumers=tuple(v for v in variable.consumers if v in chosen),
            alias_of=variable.alias_of if variable.alias_of in roots else None,
        )

    variables = {k: within(variable) for k, variable in graph.variables.items() if k in used}
    inputs, outputs = borders(graph, list(nodes))
    return replace(
        graph,
        nodes=nodes,
        variables=variables,
        input_variables=tuple(inputs),
        output_variables=tuple(outputs),
        initializers=initializers,
        units=tuple(unit for unit in graph.units if chosen.issuperset(unit)),
        colocated=(),
        input_dims=(),
        output_spec=None,
        rewrites=(),
    )


def _filled(variable: Variable) -> Tensor:
    """Random numbers in the variable's layout; zeros for dtypes without fractions."""
    dtype: torch.dtype = getattr(torch, variable.dtype)
    tensor = torch.empty_strided(variable.shape, variable.strides, dtype=dtype)
    return tensor.uniform_(-1.0, 1.0) if dtype.is_floating_point else tensor.zero_()
