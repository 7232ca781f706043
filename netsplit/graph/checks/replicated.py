"""What replicas of a stage would do otherwise than one device: each sees its own micro-batches only."""

from __future__ import annotations

import logging
from collections.abc import Collection

from netsplit.errors import NetSplitError
from netsplit.graph.ir import CALL, Graph
from netsplit.graph.operators import written_initializers
from netsplit.graph.recording.whole import ModuleCall

__all__ = ["check_replicas", "unreplicable"]

log = logging.getLogger(__name__)


def check_replicas(graph: Graph, nodes: Collection[str]) -> None:
    """Say it of running statistics and of modules kept whole among the `nodes` that are replicated.

    Raises:
        NetSplitError: another buffer is written there, which the forward may read again.
    """
    refused = unreplicable(graph, nodes)
    if refused is not None:
        raise NetSplitError(
            f"the forward writes '{refused}', of which every replica of a stage would have its own, written "
            "in its own micro-batches alone: take a method without replicas, as auto and single are, or "
            "pipedream with straight=true."
        )
    told = [name for name, writers in written_initializers(graph).items() if writers.intersection(nodes)]
    if told:
        log.warning(
            "'%s'%s will be of the micro-batches of the first replica alone, as DistributedDataParallel has "
            "it: losses are those of one device, evaluation is not",
            told[0],
            f" and {len(told) - 1} more running statistics" if len(told) > 1 else "",
        )
    whole = [name for name in nodes if isinstance(graph.calls.get(graph.nodes[name].op), ModuleCall)]
    if whole:
        log.warning(
            "'%s' is kept whole, and every replica has a copy of it: what one notes in Python of its "
            "micro-batches the others do not see",
            graph.nodes[whole[0]].module or whole[0],
        )


def unreplicable(graph: Graph, nodes: Collection[str]) -> str | None:
    """A buffer that the `nodes` write and a forward may read again; None: replicas of them are as one."""
    for name, writers in written_initializers(graph).items():
        if not all(_is_statistic(graph, name, writer) for writer in writers.intersection(nodes)):
            return name
    return None


def _is_statistic(graph: Graph, name: str, writer: str) -> bool:
    """A normalisation's, which a training forward does not read, or a counter's."""
    node, own = graph.nodes[writer], graph.initializers[name]
    if node.op.startswith(CALL):
        return False
    return (
        "batch_norm" in node.op
        or "instance_norm" in node.op
        or (own.shape == () and own.dtype.startswith("int"))
    )
