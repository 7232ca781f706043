"""Replicas of a graph in which all is cut alike: part j of every operator on device j, or on device j of its
stage's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod

from netsplit.cluster.cluster import Cluster
from netsplit.graph.ir import Graph, Node
from netsplit.graph.quotient import DisjointSets

__all__ = ["linked_groups", "side_by_side"]

MUCH = 4.0  # times as long as within is what a byte takes between groups, at least


def linked_groups(cluster: Cluster) -> tuple[tuple[str, ...], ...]:
    """The devices by groups, in the cluster's order; one group of all where no links are much slower."""
    names = [device.name for device in cluster.devices]
    pace = {
        (p, q): max(cluster.links[a, b].seconds_per_byte, cluster.links[b, a].seconds_per_byte)
        for q, b in enumerate(names)
        for p, a in enumerate(names[:q])
    }
    paces = sorted({each for each in pace.values() if each > 0})
    times, fast = max(((slow / fast, fast) for fast, slow in pairwise(paces)), default=(0.0, 0.0))
    if times < MUCH:
        return (tuple(names),)
    sets = DisjointSets(len(names))
    for (p, q), each in pace.items():
        if each <= fast:
            sets.merge(p, q)
    return tuple(tuple(names[p] for p in each) for each in sets.sets())


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
    known = {node.name: there.get(_operator(node)) for node in graph}
    shape = _mesh_shape(graph)
    for node in graph:
        if node.part is not None and node.part.place:
            devices = beside.get(node.part.operator, every)
            known[node.name] = devices[_number(node.part.place, shape, len(devices))]
    device_of = {name: home or every[0] for name, home in known.items()}
    weights = {*_of_weights(graph)}
    for name in reversed(list(graph.nodes)):
        readers = list(dict.fromkeys(device_of[v] for v in graph.successors[name]))
        role = graph.nodes[name].part
        moves = role is not None and role.moves
        alone = name in weights and moves and len(readers) == 1
        unknown = bool(beside) and moves and (not known[name] or bool(role and role.place))
        if readers and (alone or (unknown and device_of[name] not in readers)):
            device_of[name] = readers[0]
    for group in graph.colocated:
        leading = next((name for name in group if graph.nodes[name].initializers), group[0])
        device_of.update(dict.fromkeys(group, device_of[leading]))
    return device_of


def _operator(node: Node) -> str:
    """As it was captured."""
    return node.name if node.part is None else node.part.operator


def _mesh_shape(graph: Graph) -> tuple[int, ...]:
    """How many places there are along each axis, of nodes that have most axes."""
    places = {node.part.place for node in graph if node.part is not None}
    depth = max(map(len, places), default=0)
    return tuple(1 + max(place[i] for place in places if len(place) > i) for i in range(depth))


def _number(place: Sequence[int], shape: Sequence[int], devices: int) -> int:
    """In row-major order, where there is a device for each place of the mesh; else along the last axis."""
    if prod(shape) != devices:
        return place[-1] % devices
    return sum(i * prod(shape[axis + 1 :]) for axis, i in enumerate(place))


def _of_weights(graph: Graph) -> list[str]:
    """Nodes that read weights alone, themselves or through others, in topological order."""
    reading: dict[str, None] = {}
    for node in graph:
        producers = {graph.variables[k].producer for k in node.inputs}
        if (node.initializers or node.inputs) and producers <= reading.keys():
            reading[node.name] = None
    return list(reading)
