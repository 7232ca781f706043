"""Which views are copies where an operator reads what another device sent, which lies in the plain order.

at home    projection ─► permuted view ─► attention ─► laid out alike ─► transposed, flattened: a view
elsewhere  received, in plain order ─────► attention ─► in plain order ─► transposed, flattened: a copy
"""

from __future__ import annotations

import torch
from torch import Tensor

from netsplit.graph.arguments import read_by
from netsplit.graph.autocast import autocast_of
from netsplit.graph.ir import CALL, Graph, Initializer, Node, Variable, once_of
from netsplit.graph.operators import in_its_mode, operator_of
from netsplit.graph.recording.stand_in_mode import StandInMode
from netsplit.graph.template import decoded

__all__ = ["copied_views"]

_MAY_COPY = frozenset({"contiguous", "flatten", "reshape"})


@once_of
def copied_views(graph: Graph, name: str) -> frozenset[str]:
    """Views of what a node makes, by the graph, that are copies where all that it reads lies in plain order.

    Found by running it, and what makes the views, on tensors without data; none where that cannot be done, or
    one of the views is written in place.
    """
    if any(name in unit for unit in graph.units):
        return frozenset()
    views = _views_of(graph, graph.nodes[name])
    if not any(node.kind in _MAY_COPY for node in views):
        return frozenset()
    try:
        return _copied(graph, graph.nodes[name], views)
    except Exception:  # torch's own of any kind, where sizes depend on values
        return frozenset()


def _views_of(graph: Graph, node: Node) -> list[Node]:
    """What makes views of its results, in order."""
    own = {k for k in node.outputs if k and graph.variables[k].alias_of is None}
    readers = {v for k in own for v in graph.variables[k].consumers}
    views: dict[str, None] = {}
    for reader in sorted(readers, key=graph.position.__getitem__):
        waiting = [reader]
        while waiting:
            each = graph.nodes[waiting.pop()]
            made = [k for k in each.outputs if k]
            if each.name not in views and made and all(graph.variables[k].alias_of in own for k in made):
                views[each.name] = None
                waiting += [v for k in made for v in graph.variables[k].consumers]
    return [graph.nodes[v] for v in sorted(views, key=graph.position.__getitem__)]


def _copied(graph: Graph, node: Node, views: list[Node]) -> frozenset[str]:
    copied: set[str] = set()
    with StandInMode(), torch.enable_grad(), autocast_of(graph, "cpu"):
        tensors: dict[tuple[str, str], Tensor] = {}
        for each in (node, *views):
            for tag, k in read_by(each):
                if (tag, k) not in tensors:
                    known = graph.variables[k] if tag == "var" else graph.initializers[k]
                    tensors[tag, k] = _plain(known)
            if each.op.startswith(CALL):
                return frozenset()
            args, kwargs = decoded(each, lambda *reference: tensors[reference], torch.device("cpu"))
            result = in_its_mode(each, operator_of(graph, each), "cpu")(*args, **kwargs)
            made = (result,) if isinstance(result, Tensor) else tuple(result)
            read = {_storage(tensors[reference]) for reference in read_by(each)}
            for k, tensor in zip(each.outputs, made, strict=False):
                if k:
                    tensors["var", k] = tensor
                    if each is not node and _storage(tensor) not in read:
                        copied.add(k)
    return frozenset(copied)


def _plain(like: Variable | Initializer) -> Tensor:
    tensor = torch.empty(like.shape, dtype=getattr(torch, like.dtype))
    return tensor.requires_grad_() if like.requires_grad else tensor


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
