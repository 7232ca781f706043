"""A model's graph as an exporter for inference leaves it, in so far as printed tables of memory count it.

The exporter to ONNX folds a batch normalisation into the convolution before it, drops what does nothing in
evaluation, and computes once what equal operators compute of the same values. Printed tables may count it:
every value twice, every parameter `alpha` times.
"""

from __future__ import annotations

from dataclasses import dataclass

from netsplit.graph.ir import Graph

__all__ = ["ExportSize", "exported_size"]

_CONSTANTS = frozenset({"Constant", "Identity"})
"""Nodes that compute nothing: a value written as a node, and a weight under a second name."""


@dataclass(frozen=True)
class ExportSize:
    """What there is in an exported graph."""

    nodes: int
    operators: int  # nodes without constants
    variable_bytes: int  # of the inputs and of every node's outputs
    parameter_bytes: int  # of parameters and buffers

    def need_bytes(self, alpha: int) -> int:
        """Every variable with its gradient, every parameter with its training state."""
        return 2 * self.variable_bytes + alpha * self.parameter_bytes


def exported_size(graph: Graph) -> ExportSize:
    """Sizes of a graph as `netsplit.graph.onnx` reads it from an export for inference."""
    return ExportSize(
        len(graph),
        sum(node.kind not in _CONSTANTS for node in graph),
        sum(variable.nbytes for variable in graph.variables.values()),
        sum(init.nbytes for init in graph.initializers.values()),
    )
