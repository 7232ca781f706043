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

from netsplit.errors import NetSplitError
from netsplit.experiment.planner import Planner
from netsplit.experiment.whole.sizes import same_operators
from netsplit.graph.batches.batch import Batch
from netsplit.graph.batches.calls import Loss
from netsplit.graph.checks.apart.cut_apart import OTHERWISE, CutApart
from netsplit.graph.checks.apart.elsewhere import elsewhere_apart
from netsplit.graph.checks.apart.gradients import hooked
from netsplit.graph.checks.apart.losses import loss_apart
from netsplit.graph.checks.cutting import CuttingError
from netsplit.graph.checks.plain import has_values
from netsplit.graph.ir import HOOK, Graph
from netsplit.graph.recording.stand_ins import named_tensors
from netsplit.graph.recording.step import capture
from netsplit.planning.whole.whole_plan import WholePlan
from netsplit.rewrite.samples.by_size import fixed_numbers, number_by_size
from netsplit.rewrite.samples.mixing import sample_totals

__all__ = ["RightCuts", "gradients_too", "of_several", "suspected"]

log = logging.getLogger(__name__)

FEW = 2  # samples of the micro-batches that are looked at first; of drawn ones a single sample may do
SEVERAL = 3  # samples that are told from one another in a graph
DRAWN_BYTES = 2**29  # of a model without values, above which none are drawn for it


@dataclass
class RightCuts:
    """What is known of cutting one batch for one model, and what is to be said of it.

    Args:
        whole: one whole batch.
        named: the numbers of micro-batches are the user's own, and taken where that is no fault.
        switch: whether a refusal says how to leave the check out, which a plan without training cannot.
    """

    model: nn.Module
    loss: Loss | None
    whole: Batch
    named: bool
    switch: bool = True
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
            graph = of_several(self.model, self.loss, self.whole, graph)
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
        self._unread = self._not_read(graph)
        apart = suspected(self.model, graph, self.whole.samples) if max(left) > 1 else None
        if apart is None and max(left) > 1 and self._looked:
            apart = elsewhere_apart(model, loss, batch, graph, several=gradients)
        return left if apart is None else self.without(left, max(left), apart)

    def _not_read(self, graph: Graph) -> str:
        """What the operators of a loss leave open, in a sentence; "" for nothing."""
        totals = sample_totals(graph)
        if totals.unread is not None:
            name = totals.unread.module or totals.unread.name
            open_ = f"'{name}' stays Python, which is not read"
            if self.loss is None:
                open_ += "; as its loss is inside it, larger outputs could not be tried"
        elif any(node.op.startswith(HOOK) for node in graph) or hooked(self.model):
            open_ = "gradients go through hooks, which are not read"
        elif totals.ignoring is not None:
            open_ = f"'{totals.ignoring.name}' is a mean over the targets that it does not ignore"
        elif graph.batch_size == 1 < self.whole.samples:
            open_ = "its step could be captured of one sample alone, which tells nothing of others"
        elif totals.unproven is not None:
            name, source = totals.unproven.name, totals.unproven.source
            open_ = f"whether '{name}'{f' ({source})' * bool(source)} goes sample by sample is not known"
        else:
            return ""
        return f"{_UNREAD} {type(self.model).__name__}: {open_}"

    def at_sizes(self, graph: Graph, other: Graph, counts: Sequence[int]) -> list[int]:
        """Of these numbers of micro-batches those to look at, as the step is at two sizes of them.

        Raises:
            CuttingError: there is none.
        """
        if max(counts) == 1 or self.accepted:
            return list(counts)
        name, sizes = type(self.model).__name__, (graph.batch_size, other.batch_size)
        if not same_operators(graph, other):
            if self._sized and 1 in sizes:  # of a single sample code often goes another way
                return list(counts)
            self._unread = self._unread or (
                f"{_UNREAD} {name}: it has other operators for {sizes[0]} samples than for {sizes[1]} (a "
                "loop over them, or an if)"
            )
            return list(counts)
        self._sized = True
        by_size = number_by_size(graph, other)
        if by_size is None:
            apart = suspected(self.model, graph, self.whole.samples, fixed_numbers(graph, other))
            return list(counts) if apart is None else self.without(counts, max(counts), apart)
        node, *numbers = by_size
        at = f" ({node.source})" if node.source else ""
        words = (
            f"{name} computes with a number that depends on how many samples there are, at '{node.name}'{at}"
            f": {numbers[0]:.6g} of {sizes[0]}, and {numbers[1]:.6g} of {sizes[1]}"
        )
        return self.without(counts, max(counts), CutApart("other", words, OTHERWISE))

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
            raise CuttingError(apart, self.switch)
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


def of_several(model: nn.Module, loss: Loss | None, whole: Batch, graph: Graph) -> Graph:
    """The graph of a training step in which samples are told from one another.

    A single one lies in every dimension of size 1: then another graph of a few, if the batch has more and it
    can be captured.
    """
    if graph.batch_size > 1 or whole.samples == 1:
        return graph
    try:
        return capture(model, loss, whole.rows(0, SEVERAL).own(), autocast=graph.autocast)
    except NetSplitError:
        return graph


def gradients_too(graph: Graph) -> bool:
    """Whether a loss could be alike and its gradient not: of one total of samples it could not, but for what
    samples have by their places."""
    totals = sample_totals(graph)
    return totals.terms != 1 or bool(graph.calls) or totals.placed is not None


def suspected(
    model: nn.Module, graph: Graph, samples: int, fixed: frozenset[str] = frozenset()
) -> CutApart | None:
    """What a loss has that is no mean over samples, though its value may be one on some of them.

    Args:
        graph: of the model's training step at any size.
        samples: of the whole batch.
        fixed: operators whose numbers are known to be the same of any number of samples.
    """
    totals = sample_totals(graph, fixed)
    node, name = totals.mixed, type(model).__name__
    if node is None and totals.first_few is not None and totals.first_few[1] < samples:
        node = totals.first_few[0]
    if node is None:
        return None
    at = f" ({node.source})" if node.source else ""
    words = (
        f"the loss of {name} computes with '{totals.carried}', into which the forward writes what it makes "
        f"of its samples, at '{node.name}'{at}: a micro-batch sees what those before it have left there"
        if totals.carried
        else f"the loss of {name} compares samples, takes some of them, goes on with what is taken over all "
        "samples of a batch, is a mean by weights of their classes, or adds a sum over them to a mean, at "
        f"'{node.name}'{at}: where it is the mean of its micro-batches' on some samples, it need not be on "
        "others"
    )
    return CutApart("other", words, OTHERWISE)


_UNREAD = "on a few samples alone it was seen that losses of micro-batches add up to that of their batch in"
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
