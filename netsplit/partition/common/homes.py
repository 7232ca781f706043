"""Which devices are near one another, and on which of them the nodes of a lowered graph are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from netsplit.cluster.cluster import Cluster
from netsplit.graph.ir import Graph

__all__ = ["devices_of_nodes", "linked_groups"]

MUCH = 4.0  # times as long as within is what a byte takes between groups, at least

MeshPlace = tuple[int, ...]


def linked_groups(cluster: Cluster) -> tuple[tuple[str, ...], ...]:
    """The devices by groups, in the cluster's order; one group of all where no links are much slower."""
    names, pace = cluster.names, cluster.link_costs[1]
    pace = np.maximum(pace, pace.T)
    paces = np.unique(pace[pace > 0])
    times = paces[1:] / paces[:-1]
    if times.max(initial=0.0) < MUCH:
        return (tuple(names),)
    near = pace <= paces[times.argmax()]
    for _ in range(len(names).bit_length()):  # what is near to what is near
        near = near @ near
    return tuple(dict.fromkeys(tuple(names[q] for q in np.flatnonzero(row)) for row in near))


def devices_of_nodes(
    graph: Graph,
    devices: Sequence[str],
    home: Mapping[str, str] | None = None,
    places: Sequence[MeshPlace] = (),
) -> dict[str, str]:
    """Node -> device. A node with a place is on its device, what moves tensors where it is read, and all else
    where its operator is at home.

    Args:
        home: operator -> device; the first one, where it does not say.
        places: of the devices; without them they are a mesh, row-major, that all places of the graph are on.
    """
    there, home = _placed(graph, devices, places), home or {}
    device_of: dict[str, str] = {}
    for name in reversed(list(graph.nodes)):
        role = graph.nodes[name].part
        own = home.get(name if role is None else role.operator, devices[0])
        if role is not None and role.place:
            own = there[role.place]
        elif role is not None and role.moves:
            readers = list(dict.fromkeys(device_of[v] for v in graph.successors[name]))
            own = own if own in readers or not readers else readers[0]
        device_of[name] = own
    device_of = {name: device_of[name] for name in graph.nodes}
    for group in graph.colocated:
        leading = next((name for name in group if graph.nodes[name].initializers), group[0])
        device_of.update(dict.fromkeys(group, device_of[leading]))
    return device_of


def _placed(graph: Graph, devices: Sequence[str], places: Sequence[MeshPlace]) -> dict[MeshPlace, str]:
    """The device of every place of a graph."""
    if places:
        return dict(zip(places, devices, strict=True))
    used = {node.part.place for node in graph if node.part is not None and node.part.place}
    shape = [
        1 + max(each[i] for each in used if len(each) > i) for i in range(max(map(len, used), default=0))
    ]
    if prod(shape) != len(devices):  # along the last axis
        return {each: devices[each[-1] % len(devices)] for each in used}
    return {each: devices[sum(n * prod(shape[i + 1 :]) for i, n in enumerate(each))] for each in used}
