"""A mapping as a placement: tasks of every operator, and where the nodes are that come of them.

A node with a place is on the device of that place. What moves tensors and has none is where it is read.
"""

from __future__ import annotations

from collections.abc import Mapping

from netsplit.graph.ir import CALL, Graph
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
    names = [device.name for device in machines.cluster.devices]
    at = dict(zip(machines.places, names, strict=True))
    device_of: dict[str, str] = {}
    for name in reversed(list(graph.nodes)):
        role = graph.nodes[name].part
        operator = name if role is None else role.operator
        home = names[choices[operator].view.devices[0]] if operator in choices else ""  # of what a batch is
        if role is not None and role.place:
            device_of[name] = at[role.place]
            continue
        readers = list(dict.fromkeys(device_of[v] for v in graph.successors[name]))
        moves = role is not None and role.moves
        device_of[name] = readers[0] if moves and readers and home not in readers else home or names[0]
    device_of = {name: device_of[name] for name in graph.nodes}
    for group in graph.colocated:
        leading = next((name for name in group if graph.nodes[name].initializers), group[0])
        device_of.update(dict.fromkeys(group, device_of[leading]))
    return device_of
