"""Replicas of a graph in which all is cut alike: part j of every operator on device j."""

from __future__ import annotations

from collections.abc import Mapping

from netsplit.cluster.cluster import Cluster
from netsplit.graph.ir import Graph
from netsplit.rewrite.records import Split

__all__ = ["side_by_side"]


def side_by_side(graph: Graph, cluster: Cluster, whole: Mapping[str, str] | None = None) -> dict[str, str]:
    """Node -> device: parts with all that must be beside them by their numbers, and what hands weights on to
    one device alone there.

    Args:
        whole: where all else is, and what moves tensors for it; the first device, where it does not say.
    """
    devices, there = cluster.devices, whole or {}
    device_of = {name: _home(name, there) or devices[0].name for name in graph.nodes}
    for each in graph.rewrites:
        for j in range(len(each.sizes) if isinstance(each, Split) else 0):
            if (name := f"{each.node}:{j}") in device_of:
                device_of[name] = devices[j % len(devices)].name
    for name in reversed(_of_weights(graph)):
        readers = {device_of[v] for v in graph.successors[name]}
        if len(readers) == 1:
            device_of[name] = readers.pop()
    for group in graph.colocated:
        leading = next((name for name in group if graph.nodes[name].initializers), group[0])
        device_of.update(dict.fromkeys(group, device_of[leading]))
    return device_of


def _home(name: str, whole: Mapping[str, str]) -> str | None:
    """Where a node is, or what it moves tensors for."""
    while name and name not in whole:
        name = name.rpartition(":")[0]
    return whole.get(name)


def _of_weights(graph: Graph) -> list[str]:
    """Nodes that read weights alone, themselves or through others, in topological order."""
    reading: dict[str, None] = {}
    for node in graph:
        producers = {graph.variables[k].producer for k in node.inputs}
        if (node.initializers or node.inputs) and producers <= reading.keys():
            reading[node.name] = None
    return list(reading)
