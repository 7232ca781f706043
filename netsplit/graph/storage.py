"""Which variables have memory of their own."""

from __future__ import annotations

from netsplit.graph.ir import Graph

__all__ = ["storage_bytes", "storage_of"]


def storage_of(graph: Graph, k: str) -> str:
    """The variable or initializer whose memory `k` lives in: itself, unless it is a view or written over."""
    return graph.variables[k].alias_of or k


def storage_bytes(graph: Graph) -> dict[str, int]:
    """Bytes of memory that every storage brings along: 0 for views, and for what lives in an initializer."""
    found = {k: 0 if variable.alias_of else variable.nbytes for k, variable in graph.variables.items()}
    return found | dict.fromkeys(graph.initializers, 0)
