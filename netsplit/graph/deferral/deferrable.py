"""Which nodes' weight gradients can be put off; needs no torch."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from netsplit.graph.arguments import argument
from netsplit.graph.ir import Graph, Node

__all__ = ["deferrable_nodes", "weight_operand"]

_CONVOLUTIONS = frozenset(["aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default"])
_PRODUCTS = {"aten.mm.default": 1, "aten.matmul.default": 1, "aten.addmm.default": 2}
"""Operator -> where its right factor stands among the arguments."""

_VIEWS = frozenset(
    {
        "aten.t.default", "aten.transpose.int", "aten.permute.default", "aten.view.default",
        "aten.select.int", "aten.slice.Tensor", "aten.unsqueeze.default", "aten.squeeze.dim",
        "aten.alias.default", "aten.mT.default", "aten.numpy_T.default",
    }
)  # fmt: skip
_REAL = ("float32", "float64", "float16", "bfloat16")


def deferrable_nodes(graph: Graph, nodes: Iterable[str] | None = None) -> frozenset[str]:
    """Names of the nodes whose weight gradient can be computed after the gradients of their inputs.

    They are convolutions, linear layers and products with a matrix from the right, by a trainable initializer
    or a view of one that is made among `nodes` (the graph's by default). A view from another segment gets its
    gradient at once.
    """
    chosen = set(graph.nodes if nodes is None else nodes)
    requires_backward = graph.requires_backward
    return frozenset(
        node.name
        for node in graph
        if node.name in chosen
        and not (node.no_grad or node.autocast or node.checkpoint)
        and any(k in requires_backward for k in node.outputs)
        and weight_operand(graph, node, chosen) is not None
    )


def weight_operand(graph: Graph, node: Node, nodes: Container[str] | None = None) -> int | None:
    """Position among a node's arguments of a weight whose gradient can be put off; None: it has none.

    `nodes`: those that a view of the weight may come from; all by default.
    """
    inside = graph.nodes if nodes is None else nodes
    if node.op in _CONVOLUTIONS and not _own(graph, argument(node, 2, "bias"), inside):
        return None  # its gradient is put off with the weight's
    if node.op in _CONVOLUTIONS or node.op == "aten.linear.default":
        place = 1
    else:
        place = _PRODUCTS.get(node.op, 0)
        if not place or node.kwargs or len(_shape(graph, node.args[place])) != 2:
            return None
    x = _shape(graph, argument(node, max(place - 1, 0)))
    return place if len(x) > 1 and _trainable(graph, argument(node, place, "weight"), inside) else None


def _shape(graph: Graph, template: Any) -> tuple[int, ...]:
    if isinstance(template, dict) and "init" in template:
        return graph.initializers[template["init"]].shape
    if isinstance(template, dict) and "var" in template:
        return graph.variables[template["var"]].shape
    return ()


def _own(graph: Graph, template: Any, nodes: Container[str]) -> bool:
    """Whether nobody outside `nodes` waits for the gradient of an argument, a bias."""
    if not isinstance(template, dict) or "var" not in template:
        return True
    return not graph.variables[template["var"]].requires_grad or _trainable(graph, template, nodes)


def _trainable(graph: Graph, template: Any, nodes: Container[str]) -> bool:
    """Whether an argument is a trainable initializer, or a view of one made within `nodes`."""
    while isinstance(template, dict) and "var" in template:
        producer = graph.variables[template["var"]].producer
        if producer is None or producer not in nodes or graph.nodes[producer].op not in _VIEWS:
            return False
        template = graph.nodes[producer].args[0]
    if not isinstance(template, dict) or "init" not in template:
        return False
    initializer = graph.initializers[template["init"]]
    return initializer.requires_grad and initializer.dtype in _REAL
