"""A mapping as a placement: tasks of every operator, and where the nodes are that come of them.

A node with a place is on the device of that place. What moves tensors and has none is where it is read.
"""

from __future__ import annotations

from collections.abc import Mapping

from netsplit.graph.ir import CALL, Graph
from netsplit.partition.common.homes import devices_of_nodes
from netsplit.partition.methods.unity.choices import Machines, TaskChoice
from netsplit.rewrite import OperatorTasks

__all__ = ["devices_of", "tasks_of_mapping"]


def tasks_of_mapping(
    graph: Graph, choices: Mapping[str, TaskChoice], machines: Machines
) -> tuple[OperatorTasks, ...]:
    """In the graph's order; of operators on one device only those that read or make pieces."""
    places = machines.places
    cut = {name for name, choice in choices.items() if choice.axes}
    in_units = {name for unit in graph.units for name in unit}
    made = []
    for node in graph:
        choice = choices[node.name]
        near = {*graph.predecessors[node.name], *graph.successors[node.name]}
        fixed = node.op.startswith(CALL) or node.checkpoint or node.name in in_units
        if choice.axes:
            made.append(choice.tasks(node.name, places))
        elif near & cut and not fixed and not node.initializers:
            made.append(OperatorTasks(node.name, places=(places[choice.view.devices[0]],)))
    return tuple(made)


def devices_of(graph: Graph, choices: Mapping[str, TaskChoice], machines: Machines) -> dict[str, str]:
    """Of a lowered graph: node -> device."""
    names = machines.cluster.names
    home = {name: names[choice.view.devices[0]] for name, choice in choices.items()}
    return devices_of_nodes(graph, names, home, machines.places)
