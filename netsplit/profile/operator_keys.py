"""Operators of a rewritten graph: which are new, and which are alike."""

from __future__ import annotations

import json
from typing import Any

from netsplit.graph.ir import INITIALIZER, Graph, Node, Variable

__all__ = ["new_nodes", "operator_key"]


def new_nodes(before: Graph, after: Graph) -> dict[str, Node | None]:
    """The new nodes of a rewritten graph -> the earlier node that each is a part of; None: it moves
    tensors."""
    new = {}
    for node in after:
        origin = _origin(before, node)
        if origin is None or not (origin is node or (origin.name, origin.op) == (node.name, node.op)):
            new[node.name] = origin
    return new


def operator_key(graph: Graph, node: Node) -> str:
    """What a node's costs depend on: operator, arguments, shapes, dtypes, views and gradients that it
    computes. Two nodes with the same key do the same work."""
    requires_backward = graph.requires_backward

    def said(template: Any) -> Any:
        if isinstance(template, list | tuple):
            return [said(each) for each in template]
        if not isinstance(template, dict):
            return template
        if len(template) == 1 and "var" in template:
            own = graph.variables[template["var"]]
            return {"var": [own.dtype, own.shape, own.requires_grad, _viewed(graph, own)]}
        if len(template) == 1 and "init" in template:
            init = graph.initializers[template["init"]]
            return {"init": [init.dtype, init.shape, init.requires_grad]}
        return {key: said(each) for key, each in template.items()}

    mode = [graph.autocast, node.autocast, node.no_grad]
    back = [k in requires_backward for k in node.outputs]
    return json.dumps([node.op, said(node.args), said(dict(node.kwargs)), mode, back], default=str)


def _viewed(graph: Graph, variable: Variable) -> tuple[int, ...] | None:
    """The shape of the tensor whose memory a variable is in; None: its own."""
    root = variable.alias_of
    if root is None:
        return None
    known = graph.initializers if root.startswith(INITIALIZER) else graph.variables
    return known[root.removeprefix(INITIALIZER)].shape


def _origin(before: Graph, node: Node) -> Node | None:
    """The node of the graph before that this one is, or is a part of; None: it moves tensors."""
    own = before.nodes.get(node.name)
    if own is not None and (own.op == node.op or "reshape" in node.op):
        return own
    if node.part is None or node.part.moves or own is not None:
        return None
    return before.nodes.get(node.part.operator)
