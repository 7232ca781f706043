"""Which variables have memory of their own, by `Variable.alias_of` and the operators' schemas."""

from __future__ import annotations

from functools import cache
from typing import Any

from netsplit.graph.ir import Graph, Node

__all__ = ["storage_bytes", "storage_of"]


def storage_of(graph: Graph, k: str) -> str:
    """The variable whose memory `k` lives in: itself, or the one it is a view or an overwriting of."""
    return graph.variables[k].alias_of or k


def storage_bytes(graph: Graph) -> dict[str, int]:
    """Bytes of memory that every variable brings along: 0 for views, of a parameter too."""
    found = {k: 0 if variable.alias_of else variable.nbytes for k, variable in graph.variables.items()}
    for node in graph:
        if node.initializers:
            found |= dict.fromkeys(_of_initializers(graph, node), 0)
    return found


def _of_initializers(graph: Graph, node: Node) -> list[str]:
    """Outputs that are views of a parameter or buffer, or were written into it."""
    schema = _schema(node.op)
    if schema is None:
        return []
    given = dict(zip((a.name for a in schema.arguments), node.args, strict=False)) | node.kwargs
    lent: dict[str, str] = {}  # alias set of the schema -> dtype of the initializer given for it
    for argument in schema.arguments:
        template = given.get(argument.name)
        if argument.alias_info is not None and isinstance(template, dict) and "init" in template:
            dtype = graph.initializers[template["init"]].dtype
            lent |= dict.fromkeys(argument.alias_info.before_set, dtype)
    return [
        k
        for k, result in zip(node.outputs, schema.returns, strict=False)
        if k and result.alias_info is not None
        for name in result.alias_info.before_set
        if lent.get(name) == graph.variables[k].dtype
    ]


@cache
def _schema(op: str) -> Any:
    """None for an operator that torch does not know, as in graphs made by hand."""
    from netsplit.graph.operators import resolve

    try:
        return resolve(op)._schema
    except (AttributeError, ValueError):
        return None
