"""Code that stays whole may go another way on another batch, through which less is trained, but not more."""

from __future__ import annotations

from collections.abc import Container, Iterable

from netsplit.errors import NetSplitError
from netsplit.graph.ir import CALL, Graph, once_of
from netsplit.runtime.faults.failure import words_of_node

__all__ = ["may_be_unlike", "require_as_captured"]


def require_as_captured(graph: Graph, results: Iterable[str], differentiable: Container[str]) -> None:
    """Check that a segment's results require gradients as in the example.

    Args:
        results: its outputs, or those that `may_be_unlike`.
        differentiable: those that require a gradient here.

    Raises:
        NetSplitError: the example required none, so that nobody sends one; or a loss requires none.
    """
    loss = graph.output_variables[0]
    for k in results:
        if k in differentiable and k in _untrained_by_code(graph):
            node = next(node.name for node in graph if k in node.outputs)
            raise NetSplitError(
                f"trains on this batch through {words_of_node(graph, node)}, and did not on the example that "
                "was captured: give parallelize an example batch on which it does"
            )
        if k == loss and k not in differentiable:
            raise NetSplitError("made a loss of this batch that depends on nothing trained")


def may_be_unlike(graph: Graph, outputs: Iterable[str]) -> tuple[str, ...]:
    """Those of a segment's outputs that `require_as_captured` can refuse."""
    loss = graph.output_variables[0]
    return tuple(k for k in outputs if k == loss or k in _untrained_by_code(graph))


@once_of
def _untrained_by_code(graph: Graph) -> frozenset[str]:
    """What had no gradient since code that stays whole gave none, itself or to what it is made of. What is
    made without gradients, or by an operator that has none, is so on every batch."""
    untrained: set[str] = set()
    for node in graph:
        reads_trained = any(graph.variables[k].requires_grad for k in node.inputs) or any(
            graph.initializers[k].requires_grad for k in node.initializers
        )
        if node.op.startswith(CALL) or (not reads_trained and not untrained.isdisjoint(node.inputs)):
            untrained.update(k for k in node.outputs if k and not graph.variables[k].requires_grad)
    return frozenset(untrained)
