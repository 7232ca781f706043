"""Which numbers of micro-batches train what the batch trains; others are left out before anything is decided.

the first rows of the batch ──loss, at once and cut──► add up? ── no ──► one micro-batch is left
                 graph ──what is taken over samples──► a mean? ── no ──┘     what was asked for is remarked on
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from netsplit.experiment.planner import Planner
from netsplit.experiment.whole.seen_in_graphs import (
    FEW,
    at_another_size,
    by_sizes,
    gradients_too,
    left_open,
    of_several,
    open_by_sizes,
    open_of_one,
    other_operators,
    suspected,
)
from netsplit.experiment.whole.sizes import same_operators
from netsplit.graph.batches.batch import Batch
from netsplit.graph.batches.calls import Loss
from netsplit.graph.checks.apart.cut_apart import CutApart
from netsplit.graph.checks.apart.elsewhere import elsewhere_apart
from netsplit.graph.checks.apart.losses import loss_apart
from netsplit.graph.checks.cutting import CuttingError
from netsplit.graph.checks.plain import has_values
from netsplit.graph.ir import Graph
from netsplit.graph.recording.stand_ins import named_tensors
from netsplit.planning.whole.whole_plan import WholePlan

__all__ = ["RightCuts"]

log = logging.getLogger(__name__)

DRAWN_BYTES = 2**29  # of a model without values, above which none are drawn for it


@dataclass
class RightCuts:
    """What is known of cutting one batch for one model, and what is to be said of it.

    Args:
        whole: one whole batch.
        named: the numbers of micro-batches are the user's own, and taken where that is no fault.
    """

    model: nn.Module
    loss: Loss | None
    whole: Batch
    named: bool
    remarks: list[str] = field(default_factory=list)
    accepted: bool = False  # that micro-batches are apart, as they were asked for
    _looked: bool = False
    _sized: bool = False  # that it has the same operators at two sizes
    _unread: str = ""

    def right(self, graph: Graph, counts: Sequence[int]) -> list[int]:
        """Of these numbers of micro-batches those to look at.

        Args:
            graph: of the model at any size, which says in what modes it runs.

        Raises:
            CuttingError: there is none.
        """
        if max(counts) > 1:
            log.info("computing the loss of a few samples, at once and cut: may batches be cut?")
            given, graph = graph, of_several(self.model, self.loss, self.whole, graph)
            if self.named:
                self._unread = open_of_one(self.model, given, graph)
        model, loss, batch = self._valued()
        drawn = batch is not self.whole
        left, seen, gradients = list(counts), set[int](), gradients_too(graph)
        for microbatches in sorted(counts, reverse=True):  # the smallest micro-batches first
            own = -(-self.whole.samples // microbatches)
            size = min(own, batch.samples // 2)
            for each in sorted({min(FEW, size), size} - {0} - seen) if microbatches > 1 else ():
                seen.add(each)
                alone = drawn and each == FEW  # half as much to compute, and all there is where it adds up
                apart = loss_apart(model, loss, batch, graph, 1 if alone else each, gradients=gradients)
                if alone and apart is not None:
                    apart = loss_apart(model, loss, batch, graph, each, gradients=gradients)
                if apart is None:
                    self._looked = True
                elif apart.kind in ("sum", "list", "other"):
                    self._looked = True
                    return self.without(left, microbatches, apart)
                elif apart.kind == "no number" and each == own:
                    left = self.without(left, microbatches, apart)
            if self._looked:
                break
        self._unread = self._unread or left_open(self.model, self.loss, graph, self.whole.samples)
        apart = suspected(self.model, graph, self.whole.samples) if max(left) > 1 else None
        if apart is None and max(left) > 1 and self._looked:
            apart = elsewhere_apart(model, loss, batch, graph, several=gradients)
        if apart is not None:
            return self.without(left, max(left), apart)
        other = at_another_size(model, loss, self.whole, graph) if len(left) == 1 < left[0] else None
        return left if other is None else self.at_sizes(graph, other, left)

    def at_sizes(self, graph: Graph, other: Graph, counts: Sequence[int]) -> list[int]:
        """Of these numbers of micro-batches those to look at, as the step is at two sizes of them.

        Raises:
            CuttingError: there is none.
        """
        if max(counts) == 1 or self.accepted:
            return list(counts)
        if not same_operators(graph, other):
            if self._sized and 1 in (
                graph.batch_size,
                other.batch_size,
            ):  # of a single sample code often goes another way
                return list(counts)
            self._unread = self._unread or other_operators(self.model, graph, other)
            return list(counts)
        self._sized = True
        apart = by_sizes(self.model, graph, other, self.whole.samples)
        self._unread = self._unread or open_by_sizes(self.model, self.loss, graph, other, self.whole.samples)
        return list(counts) if apart is None else self.without(counts, max(counts), apart)

    def without(self, counts: Sequence[int], microbatches: int, apart: CutApart) -> list[int]:
        """Those that are left when so many micro-batches have been seen to be apart.

        Raises:
            CuttingError: none is left.
        """
        if apart.kind == "other" and self.named:
            self.accepted = True
            self.remarks.append(
                f"{apart.words}; micro-batches train by their own, as in PyTorch that adds up gradients of "
                "smaller batches (schedule.microbatches=1 keeps the batch whole)"
            )
            return list(counts)
        alone = apart.kind == "no number"
        left = [m for m in counts if (m != microbatches if alone else m == 1)]
        if not left:
            raise CuttingError(apart)
        what = f"{microbatches} micro-batches are left out" if alone else "the batch is kept whole"
        more = " (schedule.microbatches takes others all the same)" if apart.kind == "other" else ""
        self.remarks.append(f"{what}{more}: {apart.words}")
        return left

    def decided(
        self,
        decide: Callable[[Sequence[int]], WholePlan],
        planner: Callable[[WholePlan, bool], Planner],
        counts: Sequence[int],
    ) -> Planner:
        """Decide; and anew where only micro-batches of the very size that is decided are seen to be apart.

        Args:
            decide: a plan with one of these numbers of micro-batches.
            planner: of a plan; refuses micro-batches that are apart, where that is asked for.

        Raises:
            CuttingError: no number of micro-batches is left.
        """
        plan = decide(counts)
        while True:
            microbatches = plan.schedule.microbatches
            try:
                return planner(plan, not self.accepted)
            except CuttingError as error:
                log.info("not with %d micro-batches: %s", microbatches, error.apart.words)
                counts = self.without(counts, microbatches, error.apart)
            if microbatches in counts:
                plan = replace(plan, notes=(*self.remarks, *plan.notes))
            else:
                plan = decide(counts)

    def told(self, microbatches: int) -> tuple[str, ...]:
        """What is to be said of a plan with so many."""
        if microbatches > 1 and not self._looked:
            return (*self.remarks, f"{_UNKNOWN} {type(self.model).__name__} was not looked at")
        unread = (self._unread,) if microbatches > 1 and self._unread and not self.accepted else ()
        return (*self.remarks, *unread)

    def _valued(self) -> tuple[nn.Module, Loss | None, Batch]:
        """Model, loss and batch; on the meta device a small one's values, and a few samples, are drawn."""
        model, loss, batch = self.model, self.loss, self.whole
        if has_values(model, loss, batch):
            return model, loss, batch
        generator = torch.Generator().manual_seed(4)
        if any(tensor.is_meta for tensor in batch.tensors):
            few = batch.rows(0, 2 * FEW)
            batch = replace(few, tensors=tuple(_sample(each, generator) for each in few.tensors))
        if sum(each.nbytes for each in named_tensors(model, loss).values()) <= DRAWN_BYTES:
            model, loss = copy.deepcopy((model, loss))
            for module in (model, loss):
                if isinstance(module, nn.Module):
                    _draw(module, generator)
        return model, loss, batch


_UNKNOWN = "whether the losses of micro-batches add up to that of their batch in"


def _sample(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Numbers like those of data; of whole ones those that any embedding, and any loss of classes, takes.

    The first sample has another class than the others, or fewer of its tokens are not 0: what weighs classes
    or tokens shows in the first and the last.
    """
    if tensor.is_floating_point() or tensor.is_complex():
        return torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
    whole = torch.randint(2, tensor.shape, generator=generator)
    if tensor.dim() and tensor.numel():
        rows = whole.view(len(whole), -1)
        rows[0, : rows.shape[1] // 2] = 0
        rows[:, -1] = 1
        if rows.shape[1] == 1:
            rows[0] = 0
    return whole.to(tensor.dtype)


def _draw(module: nn.Module, generator: torch.Generator) -> None:
    """Values by which outputs differ from sample to sample and stay finite."""
    module.to_empty(device="cpu")
    for tensor in named_tensors(module).values():
        if not tensor.is_floating_point():
            tensor.detach().fill_(1)  # a mask of none leaves nothing to attend to
        elif tensor.requires_grad and tensor.dim() > 1:
            spread = (tensor.shape[0] / max(tensor.numel(), 1)) ** 0.5
            tensor.detach().normal_(0.0, spread, generator=generator)
        else:
            tensor.detach().uniform_(0.5, 1.5, generator=generator)
