"""Which variables have memory of their own."""

from __future__ import annotations

from netsplit.graph.ir import INITIALIZER, Graph

__all__ = ["storage_bytes", "storage_of"]


def storage_of(graph: Graph, k: str) -> str:
    """What memory `k` lives in: itself, or what it is a view of or written over (see `Variable.alias_of`)."""
    return graph.variables[k].alias_of or k


def storage_bytes(graph: Graph) -> dict[str, int]:
    """Bytes of memory that every storage brings along: 0 for views, and for what lives in an initializer."""
    nbytes = {k: 0 if variable.alias_of else variable.nbytes for k, variable in graph.variables.items()}
    return nbytes | {INITIALIZER + name: 0 for name in graph.initializers}
