"""How micro-batches are apart from the batch that they are cut of: by their losses, and by their gradients.

loss(batch) ──── equal? ──── mean of loss(micro-batch) by their samples: the first and last, then all
    │ no                       └── yes ──► their gradients, of two samples each at both ends, where a term
    │                                      may be small, or 0, and have one all the same
    └─► one micro-batch, then it twice, then thrice: a loss that grows with that is a sum
        else it is a mean over something else than samples
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn

from netsplit.graph.batches.batch import Batch
from netsplit.graph.batches.calls import Loss
from netsplit.graph.checks.apart.cut_apart import OTHERWISE, CutApart
from netsplit.graph.checks.apart.gradients import gradients_apart, hooked
from netsplit.graph.checks.apart.runs import (
    allowed_apart,
    cut_up,
    ends,
    loss_of,
    samples_again,
    samples_joined,
)
from netsplit.graph.checks.plain import threads_for
from netsplit.graph.ir import Graph
from netsplit.graph.surroundings.keep import kept

__all__ = ["FEW", "loss_apart", "losses_apart"]

_MOST_BYTES = 2**31  # of activations of a batch that is looked at whole
_DRAWS = 4  # of the same samples: by how much a loss that draws varies
_BY_ROUNDING = 0.05  # relative: what a sum may grow by more or less when samples are given once more
_BY_CHANCE = 0.15  # relative: what a loss that draws may vary by and still be told to be a sum
FEW = 2  # samples of micro-batches whose gradients are compared

Run = Callable[[Batch], float]


def loss_apart(
    model: nn.Module,
    loss: Loss | None,
    whole: Batch,
    graph: Graph,
    size: int,
    every: bool = False,
    gradients: bool = True,
) -> CutApart | None:
    """How the loss of micro-batches at once is apart from the mean of theirs, or its gradients.

    Those at both ends of the batch are looked at, as data may be sorted. None: they are not apart;
    "unknown" where it cannot be computed so.

    Args:
        graph: of the model at any size, which says in what modes it runs.
        size: of micro-batches.
        every: look at all of them, too, where the batch's activations are not too large; what is chosen of a
            batch (the samples of largest loss, the first that an expert has room for) shows in no two.
        gradients: look at them too, where losses are alike; they are looked at in any case where a hook may
            change them.
    """
    apart = losses_apart(model, loss, whole, graph, size, every)
    if apart is None and (gradients or hooked(model)):
        apart = gradients_apart(model, loss, whole, graph, min(size, FEW))
    if apart is None or apart.kind != "other":
        return apart
    words, rows = apart.words.partition(":")[0], whole.whole_targets
    if rows is not None:
        return CutApart(
            "list",
            f"{words}: the inputs have {whole.samples} samples along their first dimension, and targets of "
            f"shape {tuple(rows.shape)} go whole to every micro-batch",
            ": say where the samples are by netsplit.per_sample(x, dim=1), or that all belongs to every "
            "sample by netsplit.shared(x), or take the schedule 'single_batch', which does not cut batches",
        )
    if not whole.has_whole_list:
        return apart
    return CutApart(
        "list",
        f"{words}: the batch has a list of {whole.samples} entries, as many as "
        "samples, which every micro-batch is given whole",
        ": give what belongs to samples as a tensor with a row for each, or take the schedule "
        "'single_batch', which does not cut batches",
    )


def losses_apart(
    model: nn.Module, loss: Loss | None, whole: Batch, graph: Graph, size: int, every: bool
) -> CutApart | None:
    each = sum(v.nbytes for v in graph.variables.values()) / max(graph.batch_size, 1)
    with threads_for(int(2 * size * each)), kept(model, loss):
        apart = _loss_apart(model, loss, graph, *ends(whole, size))
        seen = apart is not None and apart.kind != "unknown"
        if seen or not every or whole.samples <= 2 * size or whole.samples * each > _MOST_BYTES:
            return apart
    with threads_for(int(whole.samples * each)), kept(model, loss):
        return _loss_apart(model, loss, graph, whole, cut_up(whole, size))


def _loss_apart(
    model: nn.Module, loss: Loss | None, graph: Graph, whole: Batch, cut: dict[int, Batch]
) -> CutApart | None:
    seeds, first = iter(range(10_000)), next(iter(cut.values()))

    def run(batch: Batch) -> float:
        return loss_of(model, loss, graph, batch, next(seeds))

    try:
        at_once, losses = run(whole), [run(part) for part in cut.values()]
    except Exception:  # of the user's code on other sizes; on its own the micro-batch has been checked
        return CutApart("unknown")
    if not math.isfinite(at_once):
        return CutApart("unknown")
    name, size = type(model).__name__, first.samples
    for (i, part), value in zip(cut.items(), losses, strict=True):
        if not math.isfinite(value):
            return _no_number(name, at_once, i, part.samples, value)
    mean = sum(part.samples * value for part, value in zip(cut.values(), losses, strict=True)) / whole.samples
    allowed = allowed_apart(graph) * max(abs(at_once), *map(abs, losses))
    if abs(at_once - mean) <= allowed:
        return None
    digits = next((n for n in (4, 7) if f"{at_once:.{n}g}" != f"{mean:.{n}g}"), 10)
    one, other = f"{at_once:.{digits}g}", f"{mean:.{digits}g}"
    varies = max(abs(run(first) - losses[0]) for _ in range(_DRAWS))
    moved = at_once if varies > 0 else _last_first(run, whole)  # in reverse other samples get each draw
    if moved is not None and abs(moved - at_once) > allowed:
        return CutApart(
            "other",
            f"the loss of {name} depends on the order along the dimension that is cut: it is {one} for "
            f"{whole.samples} entries at once, {moved:.{digits}g} for the same in reverse, and {other} as "
            f"the mean over micro-batches of {size}",
            "; if the samples lie along another dimension, say which: netsplit.per_sample(x, dim=1), or "
            "batch_first=True for a recurrent layer; if a sample's result depends on its place, "
            "schedule='single_batch' trains on the whole batch at once",
        )
    if _grows(run, first, varies, 0.1 * allowed):
        return CutApart(
            "sum",
            f"the loss of {name} is a sum over the samples, at least in part: {one} on "
            f"{whole.samples} samples at once, where the mean over micro-batches of {size} is {other}"
            f"{_times(at_once, mean)}",
            "; plain PyTorch would train by the first, micro-batches by the second: "
            "take the mean over the samples (reduction='mean', or divide by their number), or the schedule "
            "'single_batch', which does not cut batches",
        )
    scattered = max(abs(run(whole) - at_once) for _ in range(_DRAWS)) if varies > 0 else 0.0
    if abs(at_once - mean) > 10 * max(varies, scattered):  # samples may scatter more than the first do
        return CutApart(
            "other",
            f"the loss of {name} is {one} on {whole.samples} samples at once, and {other} as the mean over "
            f"micro-batches of {size}: it is no mean over samples alone",
            OTHERWISE,
        )
    return None


def _last_first(run: Run, whole: Batch) -> float | None:
    """The loss of the same samples in reverse order; None where that cannot be computed."""
    try:
        return run(samples_joined([whole.rows(i, i + 1) for i in reversed(range(whole.samples))]))
    except Exception:  # of the user's code
        return None


def _no_number(name: str, at_once: float, i: int, samples: int, value: float) -> CutApart:
    return CutApart(
        "no number",
        f"the loss of {name} is {value} on micro-batch {i}, of {samples} samples, where it is "
        f"{at_once:.4g} with others at once (a mean over none, where all its targets are ignored?)",
        ": divide by a count that is at least 1, or take the schedule 'single_batch', which does not cut "
        "batches",
    )


def _grows(run: Run, part: Batch, varies: float, least: float) -> bool:
    """Whether the same samples again make the loss as much larger as they did at first."""
    times = 1 if varies <= least else 2 * _DRAWS
    try:
        once, twice, thrice = (
            math.fsum(run(each) for _ in range(times)) / times
            for each in (part, samples_again(part, 2), samples_again(part, 3))
        )
    except Exception:
        return False
    if varies <= least:
        first, second = twice - once, thrice - twice
        return abs(first) > least and abs(second / first - 1) < _BY_ROUNDING
    return bool(once) and all(abs(a / (n * once) - 1) < _BY_CHANCE for n, a in ((2, twice), (3, thrice)))


def _times(at_once: float, mean: float) -> str:
    return f" ({at_once / mean:.3g} times as large)" if mean and at_once / mean > 0 else ""
