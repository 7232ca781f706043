"""Whether micro-batches together train what the whole batch they are cut of would train in plain PyTorch.

loss(batch) ──── equal? ──── mean of loss(micro-batch) by their samples
    │ no
    └─► one micro-batch, then it twice, then thrice: a loss that grows with that is a sum, and refused;
        else it is a mean over something else than samples, which is said
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from netsplit.errors import CaptureError
from netsplit.graph.autocast import autocast_of
from netsplit.graph.batches.batch import Batch
from netsplit.graph.batches.calls import Loss
from netsplit.graph.checks.copies import copies
from netsplit.graph.checks.plain import has_values, stance, tensors_kept, threads_for
from netsplit.graph.checks.python_state.kinds_seen import KindsSeen
from netsplit.graph.code_places import SWITCH
from netsplit.graph.ir import Graph
from netsplit.graph.random_draws import seed_generators
from netsplit.graph.recording.step import TrainingStep
from netsplit.graph.surroundings.keep import kept

__all__ = ["check_cutting"]

log = logging.getLogger(__name__)

_MOST = 2  # micro-batches that are looked at
_APART, _APART_COARSE = 1e-3, 3e-2  # relative; of losses in few digits
_DRAWS = 4  # of the same samples: by how much a loss that draws varies
_BY_CHANCE = 0.15  # relative: what a loss that draws may vary by and still be told to be a sum
_NORMS = nn.modules.batchnorm._BatchNorm
_QUIET = (_NORMS, nn.modules.dropout._DropoutNd, nn.MultiheadAttention, nn.RNNBase)

Run = Callable[[Batch], float]


def check_cutting(
    model: nn.Module, loss: Loss | None, whole: Batch, graph: Graph, tail: Graph | None
) -> KindsSeen:
    """Compare the whole batch with its micro-batches, by their loss and by what they leave in Python.

    Args:
        graph, tail: of its micro-batches, and of the last one where that is smaller.

    Raises:
        CaptureError: the loss is a sum over samples, or no number on a micro-batch; or the model keeps from
            one size what it computes with on another.
    """
    size = graph.batch_size
    history = KindsSeen(model, loss)
    example, rest = whole.rows(0, size), whole.rows(whole.samples - whole.samples % size, whole.samples)
    history.add(graph, example.own())
    if size < whole.samples and history.leaves:
        history.add(graph, whole.own(), captured=False)
    if tail is not None:
        history.add(tail, rest.own())
    if size < whole.samples and has_values(model, loss, whole):
        with threads_for(2 * sum(v.nbytes for v in graph.variables.values())), kept(model, loss):
            _check_loss(model, loss, graph, whole.rows(0, _MOST * size), size)
        _tell_of_norms(model, size)
    return history


def _check_loss(model: nn.Module, loss: Loss | None, graph: Graph, whole: Batch, size: int) -> None:
    seeds = iter(range(99))

    def run(batch: Batch) -> float:
        return _loss_of(model, loss, graph, batch, next(seeds))

    cut = [whole.rows(start, start + size) for start in range(0, whole.samples, size)]
    try:
        at_once, losses = run(whole), [run(part) for part in cut]
    except Exception:  # of the user's code on other sizes; on its own the micro-batch has been checked
        return
    if not math.isfinite(at_once):
        return
    name = type(model).__name__
    _refuse_no_number(name, at_once, [(part.samples, value) for part, value in zip(cut, losses, strict=True)])
    mean = sum(part.samples * value for part, value in zip(cut, losses, strict=True)) / whole.samples
    allowed = (_APART_COARSE if _is_coarse(graph) else _APART) * max(abs(at_once), *map(abs, losses))
    if abs(at_once - mean) <= allowed:
        return
    varies = max(abs(run(cut[0]) - losses[0]) for _ in range(_DRAWS))
    if _grows(run, cut[0], varies, 0.1 * allowed):
        raise CaptureError(
            f"the loss of {name} is a sum over the samples, at least in part: {at_once:.4g} on "
            f"{whole.samples} samples at once, where the mean over micro-batches of {size} is {mean:.4g}"
            f"{_times(at_once, mean)}; plain PyTorch would train by the first, micro-batches by the second: "
            "take the mean over the samples (reduction='mean', or divide by their number), or the schedule "
            f"'single_batch', which does not cut batches; {SWITCH}."
        )
    if abs(at_once - mean) > 10 * varies:
        log.warning(
            "the loss of %s is %.4g on %d samples at once, and %.4g as the mean over micro-batches of %d: it "
            "is no mean over samples alone (but over tokens that count, or with others of the batch, or its "
            "statistics); what is trained is what plain PyTorch trains where it adds up gradients of "
            "micro-batches; the schedule 'single_batch' trains on the whole batch at once",
            name, at_once, whole.samples, mean, size,
        )  # fmt: skip


def _refuse_no_number(name: str, at_once: float, losses: list[tuple[int, float]]) -> None:
    for i, (samples, value) in enumerate(losses):
        if not math.isfinite(value):
            raise CaptureError(
                f"the loss of {name} is {value} on micro-batch {i + 1}, of {samples} samples, where it is "
                f"{at_once:.4g} with others at once (a mean over none, where all its targets are ignored?): "
                "divide by a count that is at least 1, or take the schedule 'single_batch', which does not "
                f"cut batches; {SWITCH}."
            )


def _grows(run: Run, part: Batch, varies: float, least: float) -> bool:
    """Whether the same samples again make the loss as much larger as they did at first."""
    times = 1 if varies <= least else 2 * _DRAWS
    try:
        once, twice, thrice = (
            math.fsum(run(each) for _ in range(times)) / times
            for each in (part, _repeated(part, 2), _repeated(part, 3))
        )
    except Exception:
        return False
    if varies <= least:
        first, second = twice - once, thrice - twice
        return abs(first) > least and second / first > 0.95
    return bool(once) and all(abs(a / (n * once) - 1) < _BY_CHANCE for n, a in ((2, twice), (3, thrice)))


def _repeated(batch: Batch, times: int) -> Batch:
    tensors = [
        tensor if dim is None else torch.cat([tensor] * times, dim)
        for tensor, dim in zip(batch.tensors, batch.dims, strict=True)
    ]
    return replace(batch, tensors=tuple(tensors), samples=times * batch.samples)


def _loss_of(model: nn.Module, loss: Loss | None, graph: Graph, batch: Batch, seed: int) -> float:
    """Where modules that draw, or take statistics of the batch, do not."""
    step = TrainingStep(model, loss, batch)
    for module in step.modules():
        if isinstance(module, _QUIET):
            module.training = False
    try:
        with torch.no_grad():
            return _run(step, graph, batch, seed)
    except Exception:  # code that differentiates
        return _run(step, graph, batch, seed)


def _run(step: TrainingStep, graph: Graph, batch: Batch, seed: int) -> float:
    seed_generators(seed)
    with tensors_kept(step), stance(graph), autocast_of(graph, "cpu"):
        return float(step(*copies(batch.tensors))[0])


def _is_coarse(graph: Graph) -> bool:
    dtypes = {variable.dtype for variable in graph.variables.values()}
    return graph.autocast is not None or bool(dtypes & {"float16", "bfloat16"})


def _times(at_once: float, mean: float) -> str:
    return f" ({at_once / mean:.3g} times as large)" if mean and at_once / mean > 0 else ""


def _tell_of_norms(model: nn.Module, size: int) -> None:
    names = [name for name, module in model.named_modules() if isinstance(module, _NORMS) and module.training]
    if names:
        log.warning(
            "'%s' takes its statistics of micro-batches of %d samples, as plain PyTorch does where it adds "
            "up gradients of micro-batches; the schedule 'single_batch' takes those of whole batches",
            names[0], size,
        )  # fmt: skip
