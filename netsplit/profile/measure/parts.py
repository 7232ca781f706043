"""Measured costs of single operators of a graph, among one another: of those that a rewrite has made.

    values of the step ──► what the chosen operators read ──► a graph of these alone ──► walks over it

The step is computed once, without gradients and without a clock, so that they are measured on what they
would read. What hands on pieces for them is measured with them, since pieces have strides of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from netsplit.graph.ir import INITIALIZER, Graph, Variable
from netsplit.profile.costs import NodeBytes, PartCosts
from netsplit.profile.measure.bench import LiveValues
from netsplit.profile.measure.compute import Profiler, settle
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
    read = _values_read(graph, batch, values, own.input_variables, device)
    profiler = Profiler(own, read, values, device, repeats=REPEATS, in_flight=in_flight)
    for _ in range(ROUNDS):
        profiler.round()
    settle(profiler)
    seconds, transients = profiler.seconds(), transient_bytes(own, read, values, device)
    return {name: PartCosts(seconds[name], transients.get(name, NodeBytes())) for name in names}


def graph_of_nodes(graph: Graph, names: Iterable[str], moving: Collection[str]) -> Graph:
    """The graph of some nodes alone, of what makes pieces for them, and of what runs in one piece with them.

    Its inputs are what they read of others, its outputs what others read of them.
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
    return replace(
        graph,
        nodes=nodes,
        variables=variables,
        input_variables=tuple(k for k, variable in variables.items() if variable.producer is None),
        output_variables=tuple(
            k
            for k, variable in variables.items()
            if variable.producer is not None
            and (k in graph.output_variables or not chosen.issuperset(graph.variables[k].consumers))
        ),
        initializers=initializers,
        units=tuple(unit for unit in graph.units if chosen.issuperset(unit)),
        colocated=(),
        input_dims=(),
        output_spec=None,
        rewrites=(),
    )


def _values_read(
    graph: Graph,
    batch: tuple[Tensor, ...],
    values: Mapping[str, Tensor],
    names: tuple[str, ...],
    device: torch.device,
) -> tuple[Tensor, ...]:
    """The values of variables in one computation of the step."""
    live, left = LiveValues(graph, batch, values, device), set(names)
    read: dict[str, Tensor] = {}
    for k in names:
        if graph.variables[k].producer is None:
            read[k] = live["var", k].clone()
    for node in graph:
        if len(read) == len(names):
            break
        wanted = left.intersection(node.outputs)
        live.adopt(node, None)
        read.update((k, live["var", k].clone()) for k in wanted)
    return tuple(read[k] for k in names)
