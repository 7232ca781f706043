"""Devices that are joined by links much faster than those between them: those of a server, say."""

from __future__ import annotations

from itertools import pairwise

from netsplit.cluster.cluster import Cluster
from netsplit.graph.quotient import DisjointSets

__all__ = ["linked_groups"]

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
