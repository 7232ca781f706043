"""Writes into views: whose memory they change, found once for a graph."""

from __future__ import annotations

from netsplit.graph.ir import Graph, Node, once_of
from netsplit.graph.storage import storage_of
from netsplit.rewrite.layouts import made_as_views

__all__ = ["is_view", "written_bases"]


@once_of
def written_bases(graph: Graph) -> dict[str, str]:
    """Node -> the variable whose memory its write into a view of it changes: its gradient is copied where a
    part is changed (autograd's CopySlices)."""
    read = ((node.name, _overwritten(graph, node)) for node in graph)
    return {name: storage_of(graph, k) for name, k in read if k is not None and is_view(graph, k)}


@once_of
def is_view(graph: Graph, k: str) -> bool:
    """Whether autograd takes a variable for a view."""
    producer = graph.variables[k].producer
    if producer is None:
        return False
    node = graph.nodes[producer]
    if node.kind.endswith("_"):  # it answers what it wrote into
        return bool(node.inputs) and is_view(graph, node.inputs[0])
    return storage_of(graph, k) != k or k in made_as_views(graph, producer)


def _overwritten(graph: Graph, node: Node) -> str | None:
    """The variable that the node writes into and returns, where a gradient comes to it."""
    made, read = (next(filter(None, ks), None) for ks in (node.outputs, node.inputs))
    if made is None or read is None or not node.kind.endswith("_"):
        return None
    root = storage_of(graph, read)
    returned = root in graph.variables and storage_of(graph, made) == root
    return read if returned and graph.variables[made].requires_grad else None
