"""What replicas and micro-batches would compute otherwise than one device and the whole batch."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator

from torch import nn

from netsplit.errors import NetSplitError
from netsplit.graph.arguments import gives_sparse_gradients
from netsplit.graph.ir import CALL, INITIALIZER, Graph, Node, once_of
from netsplit.graph.operators import (
    over_the_batch,
    running_statistics,
    storage_root,
    touching_initializers,
    written_initializers,
)
from netsplit.graph.recording.whole import ModuleCall

__all__ = [
    "check_replicas", "replicated_statistics", "require_replicable", "statistics_notes",
    "unreplicable_nodes", "why_unreplicable",
]  # fmt: skip

log = logging.getLogger(__name__)

COUNT = "num_batches_tracked"  # torch's name for it
_NORMS = nn.modules.batchnorm._BatchNorm


def require_replicable(graph: Graph, nodes: Collection[str]) -> None:
    """Refuse replicas of these nodes where they would train something else than one device.

    Raises:
        NetSplitError: a buffer is written there that is no running statistic, or statistics that the forward
            reads; or a gradient is sparse.
    """
    refused = why_unreplicable(graph, nodes)
    if refused is not None:
        raise NetSplitError(
            f"{refused}: use a method without replicas, such as auto or single, or pipedream with "
            "straight=true."
        )


def why_unreplicable(graph: Graph, nodes: Collection[str]) -> str | None:
    """Why these nodes can have no replicas, as the beginning of a sentence; None: they can."""
    own = _own_buffers(graph)
    buffer = next((own[name] for name in nodes if name in own), None)
    if buffer is not None:
        return (
            f"the forward writes '{buffer}', which would differ between replicas of a stage (only running "
            "statistics that training never reads may)"
        )
    sparse = (graph.nodes[name] for name in nodes if gives_sparse_gradients(graph.nodes[name]))
    for node in sparse:
        weight = node.initializers[0]
        return f"the gradient of '{weight}' is sparse, and replicas sum only dense gradients"
    return None


def check_replicas(graph: Graph, nodes: Collection[str], statistics: bool = True) -> None:
    """Warn of running statistics and of whole modules among the `nodes` that are replicated.

    Args:
        statistics: warn of these, too; False: a plan's notes do.

    Raises:
        NetSplitError: as `require_replicable`.
    """
    require_replicable(graph, nodes)
    running = replicated_statistics(graph, nodes) if statistics else []
    if running:
        log.warning(
            "'%s'%s will come from the first replica's micro-batches only, as in DistributedDataParallel: "
            "training losses equal those of one device, evaluation may differ.",
            running[0],
            f" and {len(running) - 1} more running statistics" if len(running) > 1 else "",
        )
    whole = [name for name in nodes if isinstance(graph.calls.get(graph.nodes[name].op), ModuleCall)]
    if whole:
        log.warning(
            "'%s' is kept whole, and each replica has its own copy: copies do not share state kept in "
            "Python.",
            graph.nodes[whole[0]].module or whole[0],
        )


def replicated_statistics(graph: Graph, nodes: Collection[str]) -> list[str]:
    """Running statistics, and their counts, that the `nodes` write."""
    return [name for name, writers in written_initializers(graph).items() if writers.intersection(nodes)]


@once_of
def unreplicable_nodes(graph: Graph) -> frozenset[str]:
    """Nodes that are on one device in every plan: no stage with one of them may have replicas."""
    sparse = {node.name for node in graph if gives_sparse_gradients(node)}
    return frozenset(sparse | _own_buffers(graph).keys())


@once_of
def _own_buffers(graph: Graph) -> dict[str, str]:
    """Node -> a buffer, more than a statistic, that would differ between its replicas."""
    written = written_initializers(graph)
    learnt = {k for k, writers in written.items() if all(_learns(graph, name, k) for name in writers)}
    touching_of = touching_initializers(graph)
    own: dict[str, str] = {}
    for k, writers in written.items():
        touching = touching_of[k]
        unread = touching <= writers and (k in learnt or _is_count(graph, k, writers))
        if not unread:
            own |= dict.fromkeys(writers | touching, k)
    return own


def _learns(graph: Graph, name: str, k: str) -> bool:
    """Whether a node is a normalisation in training mode that takes `k` as its running statistics alone."""
    node = graph.nodes[name]
    if node.op.startswith(CALL):
        return False
    running, others = running_statistics(node)
    computed_with = [storage_root(graph, reference) for reference in others]
    return bool(running) and INITIALIZER + k not in computed_with


def _is_count(graph: Graph, k: str, writers: Collection[str]) -> bool:
    """Whether it counts the batches of a normalisation, beside its statistics."""
    named = graph.initializers[k].name.rpartition(".")[2] == COUNT
    return named and all(graph.nodes[name].op == "aten.add_.Tensor" for name in writers)


def statistics_notes(graph: Graph) -> Iterator[str]:
    """Notes on the first normalisation by micro-batch statistics, and the first buffer that each writes."""
    norm = next((name for node in graph for name in _norms_at(graph, node)), None)
    if norm is not None:
        yield (
            f"BatchNorm '{norm}' uses per-micro-batch statistics ({graph.batch_size} samples), as in "
            "gradient accumulation (schedule.microbatches=1 uses whole batches)."
        )
    own_of = _own_buffers(graph)
    own = next((own_of[name] for name in graph.nodes if name in own_of), None)
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
