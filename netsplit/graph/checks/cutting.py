"""Whether micro-batches together train what the whole batch they are cut of would train in plain PyTorch.

loss(batch) ──── equal? ──── mean of loss(micro-batch) by their samples: the first and last, then all
    │ no
    └─► one micro-batch, then it twice, then thrice: a loss that grows with that is a sum, and refused;
        else it is a mean over something else than samples, which is said
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

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
from netsplit.graph.ir import Graph, Node
from netsplit.graph.operators import over_the_batch, written_inputs
from netsplit.graph.random_draws import seed_generators
from netsplit.graph.recording.step import TrainingStep
from netsplit.graph.recording.whole import ModuleCall
from netsplit.graph.surroundings.keep import kept

__all__ = ["CutApart", "CuttingError", "check_cutting", "loss_apart"]

log = logging.getLogger(__name__)

_MOST_BYTES = 2**31  # of activations of a batch that is looked at whole
_APART, _APART_COARSE, _APART_FINE = 1e-3, 3e-2, 1e-7  # relative; of losses in few digits, and in many
_DRAWS = 4  # of the same samples: by how much a loss that draws varies
_BY_CHANCE = 0.15  # relative: what a loss that draws may vary by and still be told to be a sum
_NORMS = nn.modules.batchnorm._BatchNorm
_QUIET = (_NORMS, nn.modules.dropout._DropoutNd, nn.MultiheadAttention, nn.RNNBase)

Run = Callable[[Batch], float]


@dataclass(frozen=True)
class CutApart:
    """That the losses of micro-batches do not add up to that of the batch they are cut of."""

    kind: Literal["sum", "no number", "other", "kept", "unknown"]
    words: str = ""  # what is apart, as the beginning of a sentence
    cure: str = ""

    def __str__(self) -> str:
        return f"{self.words}{self.cure or '.'}"


class CuttingError(CaptureError):
    """A batch that is not to be cut into micro-batches of some size."""

    def __init__(self, apart: CutApart) -> None:
        super().__init__(str(apart))
        self.apart = apart


def check_cutting(
    model: nn.Module, loss: Loss | None, whole: Batch, graph: Graph, tail: Graph | None, alike: bool = False
) -> KindsSeen:
    """Compare the whole batch with its micro-batches, by their loss and by what they leave in Python.

    Args:
        graph, tail: of its micro-batches, and of the last one where that is smaller.
        alike: refuse whatever is apart, which is said otherwise where it is no sum.

    Raises:
        CuttingError: the loss is a sum over samples, or no number on a micro-batch; or the model keeps from
            one size what it computes with on another.
    """
    size = graph.batch_size
    if size < whole.samples:
        _refuse_shared_writes(graph, whole)
    history = KindsSeen(model, loss)
    example, rest = whole.rows(0, size), whole.rows(whole.samples - whole.samples % size, whole.samples)
    history.add(graph, example.own())
    try:
        if size < whole.samples and history.leaves:
            history.add(graph, whole.own(), captured=False)
        if tail is not None:
            history.add(tail, rest.own())
    except CaptureError as error:
        raise CuttingError(CutApart("kept", str(error).rstrip("."))) from error
    if size < whole.samples and has_values(model, loss, whole):
        apart = loss_apart(model, loss, whole, graph, size, every=True)
        if apart is not None and apart.kind != "unknown":
            if alike or apart.kind != "other":
                raise CuttingError(apart)
            log.warning("%s", apart)
        _tell_of_norms(graph, size)
    return history


def _refuse_shared_writes(graph: Graph, whole: Batch) -> None:
    """In a plain loop a micro-batch sees what those before it wrote into a tensor that each gets whole."""
    for j in written_inputs(graph):
        if whole.dims[j] is None:
            words = (
                f"the forward writes into a tensor of the batch, of shape {tuple(whole.tensors[j].shape)}, "
                "that every micro-batch gets whole, and each would get it as it was"
            )
            raise CuttingError(CutApart("kept", words, ": write into a clone() of it."))


def loss_apart(
    model: nn.Module, loss: Loss | None, whole: Batch, graph: Graph, size: int, every: bool = False
) -> CutApart | None:
    """How the loss of micro-batches at once is apart from the mean of theirs.

    Those at both ends of the batch are looked at, as data may be sorted. None: they are not apart;
    "unknown" where it cannot be computed so.

    Args:
        graph: of the model at any size, which says in what modes it runs.
        size: of micro-batches.
        every: look at all of them, too, where the batch's activations are not too large; what is chosen of a
            batch (the samples of largest loss, the first that an expert has room for) shows in no two.
    """
    each = sum(v.nbytes for v in graph.variables.values()) / max(graph.batch_size, 1)
    with threads_for(int(2 * size * each)), kept(model, loss):
        apart = _loss_apart(model, loss, graph, *_ends(whole, size))
        seen = apart is not None and apart.kind != "unknown"
        if seen or not every or whole.samples <= 2 * size or whole.samples * each > _MOST_BYTES:
            return apart
    with threads_for(int(whole.samples * each)), kept(model, loss):
        return _loss_apart(model, loss, graph, whole, _cut(whole, size))


def _cut(whole: Batch, size: int) -> dict[int, Batch]:
    """Micro-batches by their number, from 1."""
    starts = range(0, whole.samples, size)
    return {i: whole.rows(at, min(at + size, whole.samples)) for i, at in enumerate(starts, 1)}


def _ends(whole: Batch, size: int) -> tuple[Batch, dict[int, Batch]]:
    """Two micro-batches, the first samples and the last: at once, and by their number."""
    if whole.samples <= 2 * size:
        return whole, _cut(whole, size)
    first, last = whole.rows(0, size), whole.rows(whole.samples - size, whole.samples)
    return _joined([first, last]), {1: first, -(-whole.samples // size): last}


def _loss_apart(
    model: nn.Module, loss: Loss | None, graph: Graph, whole: Batch, cut: dict[int, Batch]
) -> CutApart | None:
    seeds, first = iter(range(10_000)), next(iter(cut.values()))

    def run(batch: Batch) -> float:
        return _loss_of(model, loss, graph, batch, next(seeds))

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
    allowed = _allowed(graph) * max(abs(at_once), *map(abs, losses))
    if abs(at_once - mean) <= allowed:
        return None
    digits = next((n for n in (4, 7) if f"{at_once:.{n}g}" != f"{mean:.{n}g}"), 10)
    one, other = f"{at_once:.{digits}g}", f"{mean:.{digits}g}"
    varies = max(abs(run(first) - losses[0]) for _ in range(_DRAWS))
    if _grows(run, first, varies, 0.1 * allowed):
        return CutApart(
            "sum",
            f"the loss of {name} is a sum over the samples, at least in part: {one} on "
            f"{whole.samples} samples at once, where the mean over micro-batches of {size} is {other}"
            f"{_times(at_once, mean)}",
            "; plain PyTorch would train by the first, micro-batches by the second: "
            "take the mean over the samples (reduction='mean', or divide by their number), or the schedule "
            f"'single_batch', which does not cut batches; {SWITCH}.",
        )
    if abs(at_once - mean) > 10 * varies:
        return CutApart(
            "other",
            f"the loss of {name} is {one} on {whole.samples} samples at once, and {other} as the mean over "
            f"micro-batches of {size}: it is no mean over samples alone (but over tokens that count, or by "
            "the weights of classes, or with others of the batch, or its statistics)",
            "; what is trained is what plain PyTorch trains where it adds up gradients of micro-batches; the "
            "schedule 'single_batch' trains on the whole batch at once",
        )
    return None


def _no_number(name: str, at_once: float, i: int, samples: int, value: float) -> CutApart:
    return CutApart(
        "no number",
        f"the loss of {name} is {value} on micro-batch {i}, of {samples} samples, where it is "
        f"{at_once:.4g} with others at once (a mean over none, where all its targets are ignored?)",
        ": divide by a count that is at least 1, or take the schedule 'single_batch', which does not cut "
        f"batches; {SWITCH}.",
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
    return _joined([batch] * times)


def _joined(batches: Sequence[Batch]) -> Batch:
    first = batches[0]
    tensors = [
        tensor if dim is None else torch.cat([each.tensors[j] for each in batches], dim)
        for j, (tensor, dim) in enumerate(zip(first.tensors, first.dims, strict=True))
    ]
    return replace(first, tensors=tuple(tensors), samples=sum(each.samples for each in batches))


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


def _allowed(graph: Graph) -> float:
    """By how much of the loss rounding may set it apart."""
    dtypes = {variable.dtype for variable in graph.variables.values()}
    if graph.autocast is not None or dtypes & {"float16", "bfloat16"}:
        return _APART_COARSE
    return _APART if "float32" in dtypes else _APART_FINE


def _times(at_once: float, mean: float) -> str:
    return f" ({at_once / mean:.3g} times as large)" if mean and at_once / mean > 0 else ""


def _tell_of_norms(graph: Graph, size: int) -> None:
    """Of the first that takes statistics of what it is given; one that is never called takes none."""
    names = [name for node in graph for name in _norms_at(graph, node)]
    if names:
        log.warning(
            "'%s' takes its statistics of micro-batches of %d samples, as plain PyTorch does where it adds "
            "up gradients of micro-batches; the schedule 'single_batch' takes those of whole batches",
            names[0], size,
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
