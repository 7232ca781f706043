"""Replicas of a graph in which all is cut alike: part j of every operator on device j, or on device j of its
stage's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from netsplit.cluster.cluster import Cluster
from netsplit.graph.ir import Graph
from netsplit.rewrite.records import Split

__all__ = ["side_by_side"]


def side_by_side(
    graph: Graph,
    cluster: Cluster,
    whole: Mapping[str, str] | None = None,
    beside: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, str]:
    """Node -> device: parts with all that must be beside them by their numbers, and what hands weights on to
    one device alone there.

    Args:
        whole: where all else is, and what moves tensors for it; the first device, where it does not say.
        beside: the devices that an operator's parts are on, and on the first of them the rest of it; all in
            their order, where it does not say.
    """
    every, beside = [device.name for device in cluster.devices], beside or {}
    there = whole or {name: devices[0] for name, devices in beside.items()}
    known = {name: _home(name, there) for name in graph.nodes}
    device_of = {name: home or every[0] for name, home in known.items()}
    for each in graph.rewrites:
        devices = beside.get(each.node, every)
        for j in range(len(each.sizes) if isinstance(each, Split) else 0):
            if (name := f"{each.node}:{j}") in device_of:
                device_of[name] = known[name] = devices[j % len(devices)]
    weights = {*_of_weights(graph)}
    for name in reversed(list(graph.nodes)):
        readers = list(dict.fromkeys(device_of[v] for v in graph.successors[name]))
        alone = name in weights and len(readers) == 1
        unknown = bool(beside) and not known[name] and device_of[name] not in readers
        if readers and (alone or unknown):
            device_of[name] = readers[0]
    for group in graph.colocated:
        leading = next((name for name in group if graph.nodes[name].initializers), group[0])
        device_of.update(dict.fromkeys(group, device_of[leading]))
    return device_of


def _home(name: str, whole: Mapping[str, str]) -> str | None:
    """Where a node is, or what it moves tensors for: one of its outputs, perhaps."""
    while name and name not in whole:
        name, _, rest = name.rpartition(":")
        if not rest.isdigit() and (made := name.rpartition("."))[2].isdigit() and made[0] in whole:
            name = made[0]
    return whole.get(name)


def _of_weights(graph: Graph) -> list[str]:
    """Nodes that read weights alone, themselves or through others, in topological order."""
    reading: dict[str, None] = {}
    for node in graph:
        producers = {graph.variables[k].producer for k in node.inputs}
        if (node.initializers or node.inputs) and producers <= reading.keys():
            reading[node.name] = None
    return list(reading)
