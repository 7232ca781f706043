"""What micro-batches train otherwise than their batch, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from netsplit.graph.checks.replicated import unreplicable
from netsplit.graph.ir import Graph, Node
from netsplit.graph.operators import over_the_batch
from netsplit.graph.recording.whole import ModuleCall

__all__ = ["statistics_notes"]

_NORMS = nn.modules.batchnorm._BatchNorm


def statistics_notes(graph: Graph) -> Iterator[str]:
    """Of the first normalisation by statistics of micro-batches, and the first buffer that each writes."""
    norm = next((name for node in graph for name in _norms_at(graph, node)), None)
    if norm is not None:
        yield (
            f"BatchNorm '{norm}' uses per-micro-batch statistics ({graph.batch_size} samples), as in "
            "gradient accumulation (schedule.microbatches=1 uses whole batches)."
        )
    own = unreplicable(graph, graph.nodes)
    if own is not None:
        yield (
            f"The forward writes buffer '{own}' once per micro-batch, as in gradient accumulation "
            "(schedule.microbatches=1 writes it once per batch)."
        )


def _norms_at(graph: Graph, node: Node) -> Iterator[str]:
    """What takes statistics there: a norm's operator, or norms of a module that is kept whole."""
    call = graph.calls.get(node.op)
    if isinstance(call, ModuleCall):
        for name, module in call.module.named_modules():
            if isinstance(module, _NORMS) and module.training:
                yield f"{node.module}.{name}".strip(".")
    elif over_the_batch(node):
        yield node.module or node.name
