"""A model's graph as an exporter for inference leaves it, in so far as printed tables of memory count it.

The exporter to ONNX folds a batch normalisation into the convolution before it, and drops what does nothing
in evaluation. Since autumn 2022 PyTorch's merges equal operators on the same values too (pytorch pull request
85665); before, as in 1.8, every operator stayed. Printed tables may count the rest: every value twice, every
parameter `alpha` times.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from netsplit.graph.arguments import Reference, renamed
from netsplit.graph.ir import Graph, Node

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


def exported_size(graph: Graph, merge: bool) -> ExportSize:
    """Sizes of a graph as `reproduce.onnx_graphs` reads it from an export for inference.

    Args:
        graph: of an export in which equal operators are as many as the model has.
        merge: count operators that compute the same of the same values once, constants as often as they are.
    """
    nodes = tuple(_merged(graph) if merge else graph)
    values = [*graph.input_variables, *(name for node in nodes for name in node.outputs if name)]
    return ExportSize(
        len(nodes),
        sum(node.kind not in _CONSTANTS for node in nodes),
        sum(graph.variables[name].nbytes for name in values),
        sum(init.nbytes for init in graph.initializers.values()),
    )


def _merged(graph: Graph) -> Iterator[Node]:
    """The nodes of which no earlier one computes the same of the same values.

    Shapes, and what depends on no input, stay: exporters merge before they write these as nodes.
    """
    earliest: dict[str, Node] = {}
    same: dict[Reference, Reference] = {}  # a value -> the one that is left of it
    live = set(graph.input_variables)
    for node in graph:
        read = json.dumps([node.op, renamed(node, same)], sort_keys=True)
        first = earliest.setdefault(read, node)
        same.update({("var", k): ("var", kept) for k, kept in zip(node.outputs, first.outputs, strict=False)})
        computed = {name for name in node.outputs if name and "float" in graph.variables[name].dtype}
        if live.isdisjoint(node.inputs) or not computed or first is node:
            yield node
        if not live.isdisjoint(node.inputs):
            live |= computed
