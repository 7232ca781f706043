"""A model's graph as an exporter for inference writes it, in so far as it matters for what the graph holds.

Exporters to ONNX fold a batch normalisation into the convolution before it, drop what does nothing in
evaluation, and compute once what several equal operators compute of the same values. Printed tables of memory
may count such a graph: every value twice, every parameter `alpha` times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from netsplit.graph.ir import Graph, Node, Variable
from netsplit.profile.roofline_classes import is_in_place

__all__ = ["ExportSize", "exported_size"]

_NOTHING = {"dropout", "dropout_", "feature_dropout", "feature_dropout_", "alpha_dropout", "detach", "alias"}
"""Operators whose result is their input, in evaluation."""


@dataclass(frozen=True)
class ExportSize:
    """What is left of a graph."""

    nodes: int
    variable_bytes: int  # of the inputs and of every node's outputs
    parameter_bytes: int  # of parameters and buffers

    def need_bytes(self, alpha: int) -> int:
        """Every variable with its gradient, every parameter with its training state."""
        return 2 * self.variable_bytes + alpha * self.parameter_bytes


def exported_size(graph: Graph) -> ExportSize:
    """Sizes of an inference graph with its batch normalisations folded and equal operators merged.

    Args:
        graph: as `capture_inference` makes it.
    """
    folded = [node for node in graph if _folds(graph, node)]
    gone = {node.name for node in folded} | {node.name for node in graph if node.kind in _NOTHING}
    kept = _distinct(graph, gone)
    variables = {*graph.input_variables, *(k for node in kept for k in node.outputs if k)}
    used = {k for node in kept for k in node.initializers}
    return ExportSize(
        len(kept),
        sum(graph.variables[k].nbytes for k in variables),
        sum(graph.initializers[k].nbytes for k in used) + sum(_new_bias(graph, node) for node in folded),
    )


def _distinct(graph: Graph, gone: set[str]) -> list[Node]:
    """The nodes that are left, of those that compute the same from the same values the first."""
    same: dict[str, str] = {}  # variable -> the equal one that is kept
    first: dict[str, Node] = {}
    kept = []
    for node in graph:
        if node.name in gone:
            source = node.inputs[0]
            same |= {k: same.get(source, source) for k in node.outputs if k}
            continue
        call = repr((node.op, _renamed(node.args, same), _renamed(node.kwargs, same)))
        known = node if is_in_place(node) else first.setdefault(call, node)
        if known is node:
            kept.append(node)
        else:
            same |= dict(zip(node.outputs, known.outputs, strict=True))
    return kept


def _renamed(value: Any, same: Mapping[str, str]) -> Any:
    """Arguments as they read when equal variables have one name."""
    if isinstance(value, Mapping):
        return {k: same.get(v, v) if k == "var" else _renamed(v, same) for k, v in value.items()}
    return [_renamed(each, same) for each in value] if isinstance(value, list | tuple) else value


def _folds(graph: Graph, norm: Node) -> bool:
    """Whether a node is a batch normalisation of what a convolution makes for it alone."""
    if "batch_norm" not in norm.kind:
        return False
    before = _before(graph, norm)
    return before is not None and before.kind.startswith("conv") and len(_input(graph, norm).consumers) == 1


def _new_bias(graph: Graph, norm: Node) -> int:
    """Bytes of the bias that the convolution before a folded `norm` has only now."""
    before, variable = _before(graph, norm), _input(graph, norm)
    if before is None or len(before.initializers) > 1:
        return 0
    return variable.shape[1] * (variable.nbytes // max(prod(variable.shape), 1))


def _before(graph: Graph, node: Node) -> Node | None:
    return graph.nodes.get(_input(graph, node).producer or "")


def _input(graph: Graph, node: Node) -> Variable:
    return graph.variables[node.inputs[0]]
