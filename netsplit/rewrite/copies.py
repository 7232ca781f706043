"""Weights in copies: an operator reads copies of its own of its parameters, and may be on another device.

                ┌─► [linear:0]                  w ───► [linear:0]
    w ─► w:read ┤                 becomes
                └─► [linear:1]                  w~1 ─► [linear:1]

A copy is an initializer of its own, with the gradient of its own readers. The gradients of all copies of one
region are summed before each is stepped on, so that they stay alike; names, checkpoints and optimisers know
of one.
"""

from __future__ import annotations

from dataclasses import replace

from netsplit.errors import RewriteError
from netsplit.graph.arguments import Reference, read_by, renamed
from netsplit.graph.ir import CALL, Graph, Node, Region
from netsplit.graph.storage import gives_sparse_gradients
from netsplit.rewrite.draft import Draft
from netsplit.rewrite.moving.moves import MOVES, in_no_mode, named_move
from netsplit.rewrite.parts import parameters_in_parts
from netsplit.rewrite.records import checked_field

__all__ = ["copied_in", "copy_weights", "reads_weights"]


def copy_weights(graph: Graph, node: str, copy: int) -> Graph:
    """The graph in which `node` reads the copies of this number of its parameters; 0: the first ones.

    Operators that are given the same number read the same copies, of which there is one on a device in any
    case. What a split operator reads are copies of its part.

    Raises:
        RewriteError: there is no such node, or none with parameters; or it reads what is written in every
            step, has a sparse gradient, runs within an activation checkpoint, or is a piece of Python.
    """
    draft = Draft(graph)
    copied_in(draft, node, copy)
    return parameters_in_parts(draft.finish())


def copied_in(draft: Draft, name: str, copy: int) -> None:
    """The same of a node of the draft."""
    node = draft.node(name)
    copy = checked_field("copy", copy)
    if node.op.startswith(CALL) or node.checkpoint:
        raise RewriteError(
            f"'{name}' ({node.kind}) cannot read copies of its parameters: it is a piece of Python, or runs "
            "within an activation checkpoint, which know them by themselves."
        )
    if gives_sparse_gradients(node):
        raise RewriteError(
            f"'{name}' ({node.kind}) cannot read copies of its parameters: their gradient is sparse, and "
            "those of copies are summed as dense ones."
        )
    now: dict[Reference, Reference] = {}
    for tag, k in read_by(node):
        own = _copy_of(draft, k, copy) if tag == "init" else _copied_view(draft, k, copy)
        if own is not None:
            now[tag, k] = tag, own
    if not now:
        raise RewriteError(f"'{name}' ({node.kind}) has no parameters of which it could read copies.")
    anchor, before = f"{name} (before)", {k: draft.layouts[k].dtype for k in node.outputs if k}
    draft.rename(name, anchor)
    draft.emit(replace(node, **renamed(node, now)), before=anchor)
    draft.remove(anchor)
    if any(draft.layouts[k].dtype != dtype for k, dtype in before.items()):
        raise RewriteError(
            f"'{name}' ({node.kind}) cannot read copies of its parameters: autocast casts otherwise on the "
            "devices that it was captured for than here."
        )


def reads_weights(draft: Draft, name: str) -> bool:
    """Whether a node of the draft reads what there can be copies of."""
    node = draft.node(name)
    return not gives_sparse_gradients(node) and any(
        _is_weight(draft, k) if tag == "init" else _is_piece(draft, k) for tag, k in read_by(node)
    )


def _is_weight(draft: Draft, name: str) -> bool:
    return name not in draft.graph.constants


def _is_piece(draft: Draft, k: str) -> bool:
    """Whether a variable is a weight, or put together of pieces of some."""
    node = _movement(draft, k)
    return node is not None and all(
        _is_weight(draft, source) if tag == "init" else _is_piece(draft, source)
        for tag, source in read_by(node)
    )


def _movement(draft: Draft, k: str) -> Node | None:
    """What makes a variable, if that only moves tensors."""
    node = draft.nodes.get(draft.maker.get(k, ""))
    return node if node is not None and node.op in MOVES and in_no_mode(node) else None


def _copied_view(draft: Draft, k: str, copy: int) -> str | None:
    """The variable that is of copies what `k` is of weights; None: it is of none."""
    node = _movement(draft, k)
    if node is None or not _is_piece(draft, k):
        return None
    now: dict[Reference, Reference] = {}
    for tag, source in read_by(node):
        own = _copy_of(draft, source, copy) if tag == "init" else _copied_view(draft, source, copy)
        assert own is not None, f"{source} is a weight, or a piece of one"
        now[tag, source] = tag, own
    makers = [draft.maker[own] for tag, own in now.values() if tag == "var"]
    made = replace(node, **renamed(node, now))
    after = max(makers, key=draft.order.place, default="")
    return draft.once(named_move(made, f"{node.name}~{copy}"), after)[node.outputs.index(k)]


def _copy_of(draft: Draft, name: str, copy: int) -> str | None:
    """The initializer that is this copy of it; None of a constant.

    Raises:
        RewriteError: it is written, or another tensor has the name.
    """
    if not _is_weight(draft, name):
        return None
    if draft.is_written(("init", name)):
        raise RewriteError(
            f"'{name}' is written in every step, and copies of it would each be written otherwise: leave "
            "what uses it on one device."
        )
    whole = draft.graph.initializers[name].whole
    made = whole
    if copy:
        region = Region(whole.name, whole.shape, (0,) * len(whole.shape), copy)
        made = replace(whole, name=region.named(whole.shape), region=region)
    known = draft.graph.initializers.get(made.name)
    if known is None:
        draft.add_initializer(made)
    elif known != made:
        raise RewriteError(f"a copy of '{name}' would be called '{made.name}', as another tensor is.")
    return made.name
