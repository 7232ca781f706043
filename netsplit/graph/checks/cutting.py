"""Whether micro-batches together train what the whole batch they are cut of would train in plain PyTorch.

model, loss, batch ──loss_apart──► a sum, or no number? refused; another mean? said
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from torch import nn

from netsplit.errors import CaptureError
from netsplit.graph.batches.batch import Batch
from netsplit.graph.batches.calls import Loss
from netsplit.graph.checks.apart.cut_apart import CutApart
from netsplit.graph.checks.apart.elsewhere import elsewhere_apart
from netsplit.graph.checks.apart.losses import loss_apart
from netsplit.graph.checks.plain import has_values
from netsplit.graph.checks.replicated import unreplicable
from netsplit.graph.ir import Graph, Node
from netsplit.graph.operators import over_the_batch, written_inputs
from netsplit.graph.recording.whole import ModuleCall

__all__ = ["CuttingError", "check_cutting"]

log = logging.getLogger(__name__)

_NORMS = nn.modules.batchnorm._BatchNorm


class CuttingError(CaptureError):
    """A batch that is not to be cut into micro-batches of some size."""

    def __init__(self, apart: CutApart) -> None:
        super().__init__(f"{apart}.")
        self.apart = apart


def check_cutting(
    model: nn.Module,
    loss: Loss | None,
    whole: Batch,
    graph: Graph,
    alike: bool = False,
    suspected: CutApart | None = None,
    gradients: bool = True,
    open_: str = "",
) -> None:
    """Compare the loss of the whole batch with that of its micro-batches.

    Args:
        graph: of its micro-batches.
        alike: refuse whatever is apart, which is said otherwise where it is no sum.
        suspected: what is apart for all that is known, where nothing is on this batch.
        gradients: compare them too, as `loss_apart` does, and the losses of larger outputs.
        open_: what is said where nothing is apart.

    Raises:
        CuttingError: the loss is a sum over samples, or no number on a micro-batch, or goes by a list with
            an entry for every sample.
    """
    size = graph.batch_size
    if size < whole.samples:
        _refuse_shared_writes(graph, whole)
    if size < whole.samples and has_values(model, loss, whole):
        apart = loss_apart(model, loss, whole, graph, size, every=True, gradients=gradients)
        if apart is None or apart.kind == "unknown":
            apart = suspected or elsewhere_apart(model, loss, whole, graph, several=gradients)
        if apart is not None:
            if alike or apart.kind != "other":
                raise CuttingError(apart)
            log.warning("%s", apart)
        elif open_:
            log.warning("%s", open_)
        if not alike:  # else the notes of the plan say it
            _tell_of_norms(graph)
            _tell_of_buffers(graph)


def _refuse_shared_writes(graph: Graph, whole: Batch) -> None:
    """In a plain loop a micro-batch sees what those before it wrote into a tensor that each gets whole."""
    for j in written_inputs(graph):
        if whole.dims[j] is None:
            words = (
                f"the forward writes into a tensor of the batch, of shape {tuple(whole.tensors[j].shape)}, "
                "that every micro-batch gets whole, and each would get it as it was"
            )
            raise CuttingError(CutApart("kept", words, ": write into a clone() of it"))


def _tell_of_norms(graph: Graph) -> None:
    """Of the first that takes statistics of what it is given; one that is never called takes none."""
    names = [name for node in graph for name in _norms_at(graph, node)]
    if names:
        log.warning(
            "BatchNorm '%s' uses per-micro-batch statistics, as in gradient accumulation "
            "(schedule=single_batch uses whole batches).",
            names[0],
        )  # fmt: skip


def _tell_of_buffers(graph: Graph) -> None:
    own = unreplicable(graph, graph.nodes)
    if own is not None:
        log.warning(
            "The forward writes buffer '%s' once per micro-batch, as in gradient accumulation "
            "(schedule=single_batch writes it once per batch).", own,
        )  # fmt: skip


def _norms_at(graph: Graph, node: Node) -> Iterator[str]:
    """What takes statistics there: a norm's operator, or norms of a module that is kept whole."""
    call = graph.calls.get(node.op)
    if isinstance(call, ModuleCall):
        for name, module in call.module.named_modules():
            if isinstance(module, _NORMS) and module.training:
                yield f"{node.module}.{name}".strip(".")
    elif over_the_batch(node):
        yield node.module or node.name
