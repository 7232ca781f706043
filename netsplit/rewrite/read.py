"""Weights as variables: an operator reads its parameters as aliases of them, and may be on another device.

    w ─► [linear]      becomes      w ─► [alias], on w's home ─► w:read ─► [linear], anywhere

Names, optimiser state and checkpoint keys are those of w, which stays whole on one device. A program sends
the alias as any variable, once for every micro-batch, and its gradient back.
"""

from __future__ import annotations

from dataclasses import replace

from netsplit.errors import RewriteError
from netsplit.graph.arguments import renamed
from netsplit.graph.ir import CALL, Graph
from netsplit.rewrite.draft import Draft
from netsplit.rewrite.moving.moves import READ
from netsplit.rewrite.parts import parameters_in_parts

__all__ = ["read_in", "read_weights"]


def read_weights(graph: Graph, node: str) -> Graph:
    """The graph in which `node` reads all of its parameters and buffers as variables.

    Raises:
        RewriteError: there is no such node, or none with parameters; or it reads what is written in every
            step, runs within an autocast or a checkpoint, or is a piece of Python.
    """
    draft = Draft(graph)
    read_in(draft, node)
    return parameters_in_parts(draft.finish())


def read_in(draft: Draft, name: str) -> None:
    """The same of a node of the draft."""
    node = draft.node(name)
    if node.op == READ:
        raise RewriteError(f"'{name}' hands on parameters for reading elsewhere already: give what reads it.")
    weights = [k for k in node.inputs if draft.is_weight(k)]
    if not node.initializers and not weights:
        raise RewriteError(f"'{name}' ({node.kind}) has no parameters that it could read elsewhere.")
    if node.op.startswith(CALL) or node.checkpoint or node.autocast or draft.graph.autocast:
        raise RewriteError(
            f"'{name}' ({node.kind}) cannot read its parameters elsewhere: it is a piece of Python, or runs "
            "under autocast or within an activation checkpoint, which know a parameter from other tensors."
        )
    read = {("init", k): ("var", draft.read(k, node)) for k in node.initializers}
    read |= {("var", k): ("var", draft.read_view(k, node)) for k in weights}
    anchor = f"{name} (before)"
    draft.rename(name, anchor)
    draft.emit(replace(node, **renamed(node, read)), before=anchor)
    draft.remove(anchor)
