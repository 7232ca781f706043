"""The most bytes that a forward of some nodes takes, from node to node."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from netsplit.graph.ir import Graph, Node
from netsplit.graph.storage import storage_of
from netsplit.profile.costs import NodeBytes

__all__ = ["forward_peak"]

_NONE = NodeBytes()


def forward_peak(
    graph: Graph,
    nodes: Sequence[Node],
    produced: Collection[str],
    staying: Collection[str],
    own: Mapping[str, int],
    extra: Mapping[str, int],
    transients: Mapping[str, NodeBytes],
    held: Mapping[str, Collection[str]] = MappingProxyType({}),
    leaving: bool = False,
) -> int:
    """Of storages that the nodes make, beside all that is there before.

    Args:
        nodes: in order.
        produced: the storages that count.
        staying: those among them that do not go after the last node that reads them.
        own: bytes of storages.
        extra: of nodes, bytes of what else they save.
        transients: what they allocate for themselves, with that.
        held: node -> storages that are read until it is over, too.
        leaving: what else a node saves goes with it.
    """
    last = {
        root: node.name
        for node in nodes
        for root in (
            *(storage_of(graph, k) for k in (*node.inputs, *filter(None, node.outputs))),
            *held.get(node.name, ()),
        )
    }
    dying: dict[str, list[str]] = {}
    for root in set(produced).difference(staying):
        dying.setdefault(last[root], []).append(root)
    seen: set[str] = set()
    now = peak = 0
    for node in nodes:
        made = {storage_of(graph, k) for k in node.outputs if k}.intersection(produced) - seen
        seen |= made
        saved = extra.get(node.name, 0)
        now += sum(own[root] for root in made) + saved
        peak = max(peak, now, now - saved + transients.get(node.name, _NONE).forward)
        now -= sum(own[root] for root in dying.get(node.name, ()))
        now -= saved if leaving else 0
    return peak
