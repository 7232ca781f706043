"""Replicas of a graph in which all is cut alike: part j of every operator on device j."""

from __future__ import annotations

from netsplit.cluster.cluster import Cluster
from netsplit.graph.ir import Graph
from netsplit.rewrite.records import Split

__all__ = ["side_by_side"]


def side_by_side(graph: Graph, cluster: Cluster) -> dict[str, str]:
    """Node -> device: parts with all that must be beside them by their numbers, what hands weights on to one
    device alone there, and all else on the first."""
    devices = cluster.devices
    device_of = dict.fromkeys(graph.nodes, devices[0].name)
    for each in graph.rewrites:
        for j in range(len(each.sizes) if isinstance(each, Split) else 0):
            if (name := f"{each.node}:{j}") in device_of:
                device_of[name] = devices[j % len(devices)].name
    for name in reversed(_of_weights(graph)):
        readers = {device_of[v] for v in graph.successors[name]}
        if len(readers) == 1:
            device_of[name] = readers.pop()
    for group in graph.colocated:
        there = next((name for name in group if graph.nodes[name].initializers), group[0])
        device_of.update(dict.fromkeys(group, device_of[there]))
    return device_of


def _of_weights(graph: Graph) -> list[str]:
    """Nodes that read weights alone, themselves or through others, in topological order."""
    reading: dict[str, None] = {}
    for node in graph:
        producers = {graph.variables[k].producer for k in node.inputs}
        if (node.initializers or node.inputs) and producers <= reading.keys():
            reading[node.name] = None
    return list(reading)
