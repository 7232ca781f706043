"""A model's graph as an exporter for inference writes it, in so far as it matters for what the graph holds.

Exporters to ONNX fold a batch normalisation into the convolution before it, and drop what does nothing in
evaluation. Printed tables of memory may count such a graph: every value twice, every parameter `alpha` times.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from netsplit.graph.ir import Graph, Node, Variable

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
    """Sizes of an inference graph with its batch normalisations folded.

    Args:
        graph: as `capture_inference` makes it.
    """
    folded = [node for node in graph if _folds(graph, node)]
    gone = {node.name for node in folded} | {node.name for node in graph if node.kind in _NOTHING}
    kept = [node for node in graph if node.name not in gone]
    variables = {*graph.input_variables, *(k for node in kept for k in node.outputs if k)}
    used = {k for node in kept for k in node.initializers}
    return ExportSize(
        len(kept),
        sum(graph.variables[k].nbytes for k in variables),
        sum(graph.initializers[k].nbytes for k in used) + sum(_new_bias(graph, node) for node in folded),
    )


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
