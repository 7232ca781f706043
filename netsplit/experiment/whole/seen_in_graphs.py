"""What the graphs of a loss say of cutting its batch, whatever its numbers are on the samples at hand.

graph ──what is taken over samples──► no mean of them? ── yes ──► apart, though it may not show
  └─── and of another size ──numbers that go by it──► ──┘   └─ not known ──► a remark, that names the operator
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from netsplit.errors import NetSplitError
from netsplit.experiment.whole.sizes import same_operators
from netsplit.graph.batches.batch import Batch
from netsplit.graph.batches.calls import Loss
from netsplit.graph.checks.apart.cut_apart import OTHERWISE, CutApart
from netsplit.graph.checks.apart.gradients import hooked
from netsplit.graph.ir import HOOK, Graph, Node
from netsplit.graph.recording.step import capture
from netsplit.rewrite.samples.mixing import sample_totals
from netsplit.rewrite.samples.sizes.by_size import fixed_numbers, number_by_size
from netsplit.rewrite.samples.sizes.same_at_sizes import shaped_by_size, told_by_size

__all__ = [
    "FEW",
    "SEEN_ON_FEW",
    "SeenInGraphs",
    "at_another_size",
    "by_sizes",
    "gradients_too",
    "left_open",
    "of_several",
    "open_by_sizes",
    "open_of_one",
    "other_operators",
    "suspected",
]

FEW = 2  # samples of the micro-batches that are looked at first; of drawn ones a single sample may do
MOST_SAMPLES = 256  # of the whole batch that are captured, to be compared with a micro-batch
SEVERAL = 3  # samples that are told from one another in a graph
SEEN_ON_FEW = "checked on a few samples only that micro-batch losses average to the batch loss, in"


@dataclass(frozen=True)
class SeenInGraphs:
    """What is known of micro-batches of one size.

    Args:
        apart: what is no mean over samples, whatever its value; None: nothing.
        gradients: whether losses could be alike and gradients not.
        open_: what is left open, in a sentence; "" for nothing.
    """

    apart: CutApart | None
    gradients: bool
    open_: str

    @classmethod
    def of(
        cls, model: nn.Module, loss: Loss | None, whole: Batch, graph: Graph, sizes: bool = True
    ) -> SeenInGraphs:
        """Nothing where the batch is not cut.

        Args:
            graph: of the training step of a micro-batch.
            sizes: look at the step of few samples, too.
        """
        if graph.batch_size == whole.samples:
            return cls(None, False, "")
        own, graph = graph, of_several(model, loss, whole, graph)
        apart, open_ = suspected(model, graph, whole.samples), left_open(model, loss, graph, whole.samples)
        open_ = open_ or open_of_one(model, own, graph)
        other = at_another_size(model, loss, whole, graph) if sizes and apart is None else None
        if other is not None and same_operators(graph, other):
            apart = by_sizes(model, graph, other, whole.samples)
            open_ = open_ or open_by_sizes(model, loss, graph, other, whole.samples)
        elif other is not None:
            open_ = open_ or other_operators(model, graph, other)
        return cls(apart, gradients_too(graph), open_)


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
    words = (
        f"the loss of {name} computes with '{totals.carried}', into which the forward writes what it makes "
        f"of its samples, at {_place_of(node)}: a micro-batch sees what those before it have left there"
        if totals.carried
        else f"the loss of {name} mixes samples other than by their mean at {_place_of(node)}: where it is "
        "the mean of its micro-batches' on some samples, it need not be on others"
    )
    return CutApart("other", words, OTHERWISE)


def at_another_size(model: nn.Module, loss: Loss | None, whole: Batch, graph: Graph) -> Graph | None:
    """The step of the whole batch, or of its first samples; None: the graph is, or it cannot be captured."""
    samples = min(whole.samples, max(MOST_SAMPLES, 2 * graph.batch_size))
    if samples == graph.batch_size:
        return None
    try:
        return capture(model, loss, whole.rows(0, samples).own(), autocast=graph.autocast)
    except NetSplitError:
        return None


def by_sizes(model: nn.Module, graph: Graph, other: Graph, samples: int) -> CutApart | None:
    """What a step of the same operators at two sizes computes with that goes by the size, or turns out to be
    a sum beside a mean.

    Args:
        samples: of the whole batch.
    """
    by_size = number_by_size(graph, other)
    if by_size is None:
        fixed = fixed_numbers(graph, other)
        several = [each for each in (graph, other) if each.batch_size > 1]
        return next(filter(None, (suspected(model, each, samples, fixed) for each in several)), None)
    node, *numbers = by_size
    words = (
        f"{type(model).__name__} computes with a number that depends on how many samples there are, at "
        f"{_place_of(node)}: {numbers[0]:.6g} of {graph.batch_size}, and {numbers[1]:.6g} of "
        f"{other.batch_size}"
    )
    return CutApart("other", words, OTHERWISE)


def left_open(
    model: nn.Module,
    loss: Loss | None,
    graph: Graph,
    samples: int,
    fixed: frozenset[str] = frozenset(),
) -> str:
    """What the operators of a loss leave open, in a sentence; "" for nothing.

    Args:
        samples: of the whole batch.
        fixed: operators whose numbers are known to be the same of any number of samples.
    """
    totals = sample_totals(graph, fixed)
    if totals.unread is not None:
        open_ = f"'{totals.unread.module or totals.unread.name}' stays Python, which is not read"
        if loss is None:
            open_ += "; as its loss is inside it, larger outputs could not be tried"
    elif any(node.op.startswith(HOOK) for node in graph) or hooked(model):
        open_ = "gradients go through hooks, which are not read"
    elif totals.ignoring is not None:
        open_ = f"'{totals.ignoring.name}' is a mean over the targets that it does not ignore"
    elif graph.batch_size == 1 < samples:
        open_ = "its step could be captured of one sample alone, which tells nothing of others"
    elif totals.unproven is not None:
        open_ = f"whether {_place_of(totals.unproven)} goes sample by sample is not known"
    else:
        return ""
    return f"{SEEN_ON_FEW} {type(model).__name__}: {open_}"


def open_of_one(model: nn.Module, own: Graph, several: Graph) -> str:
    """What is left open by the step of one sample beside that of several; "" for nothing, or of several."""
    if own.batch_size > 1 or several is own:
        return ""
    if not same_operators(own, several):
        return other_operators(model, own, several)
    node = told_by_size(several, own)
    return "" if node is None else _by_how_many(model, node)


def open_by_sizes(model: nn.Module, loss: Loss | None, graph: Graph, other: Graph, samples: int) -> str:
    """What is left open by a step of the same operators at two sizes; "" for nothing."""
    if 1 in (graph.batch_size, other.batch_size):
        several, one = (other, graph) if graph.batch_size == 1 else (graph, other)
        node = told_by_size(several, one)
        return "" if node is None else _by_how_many(model, node)
    fixed = fixed_numbers(graph, other)
    open_ = left_open(model, loss, graph, samples, fixed) or left_open(model, loss, other, samples, fixed)
    node = None if open_ else shaped_by_size(graph, other)
    if node is None:
        return open_
    return _by_how_many(model, node)


def _by_how_many(model: nn.Module, node: Node) -> str:
    name, place = type(model).__name__, _place_of(node)
    return f"{SEEN_ON_FEW} {name}: what {place} makes of a sample may go by how many there are"


def other_operators(model: nn.Module, graph: Graph, other: Graph) -> str:
    """What is left open where a step of other samples has other operators."""
    one, another = graph.batch_size, other.batch_size
    return (
        f"{SEEN_ON_FEW} {type(model).__name__}: it has other operators for {one} samples than for {another} "
        "(a loop over them, or an if)"
    )


def _place_of(node: Node) -> str:
    return f"'{node.name}'{f' ({node.source})' * bool(node.source)}"
