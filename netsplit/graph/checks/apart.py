"""How micro-batches are apart from the batch that they are cut of: by their losses, and by their gradients.

loss(batch) ──── equal? ──── mean of loss(micro-batch) by their samples: the first and last, then all
    │ no                       └── yes ──► their gradients, of two samples each at both ends, where a term
    │                                      may be small, or 0, and have one all the same
    └─► one micro-batch, then it twice, then thrice: a loss that grows with that is a sum
        else it is a mean over something else than samples

loss(1000 x outputs), loss(1000 x inputs) likewise: what has a threshold may be 0 for these, not for others
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from netsplit.graph.autocast import autocast_of
from netsplit.graph.batches.batch import Batch
from netsplit.graph.batches.calls import Loss
from netsplit.graph.checks.copies import copies
from netsplit.graph.checks.plain import stance, tensors_kept, threads_for
from netsplit.graph.ir import Graph
from netsplit.graph.random_draws import seed_generators
from netsplit.graph.recording.step import TrainingStep
from netsplit.graph.surroundings.keep import kept

__all__ = ["OTHERWISE", "CutApart", "hooked", "larger_apart", "loss_apart"]

_MOST_BYTES = 2**31  # of activations of a batch that is looked at whole
_APART, _APART_COARSE, _APART_FINE = 1e-3, 3e-2, 1e-7  # relative; of losses in few digits, and in many
_DRAWS = 4  # of the same samples: by how much a loss that draws varies
_BY_CHANCE = 0.15  # relative: what a loss that draws may vary by and still be told to be a sum
_FEW = 2  # samples of micro-batches whose gradients are compared
_LARGER = (
    1e3,
    30.0,
)  # times the outputs of the model, or its inputs; the second where the first give no number
_GRADIENT_BYTES = 2**26  # of parameters whose gradients are
_QUIET = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd, nn.MultiheadAttention, nn.RNNBase)

OTHERWISE = (
    "; what is trained is what plain PyTorch trains where it adds up gradients of micro-batches; the "
    "schedule 'single_batch' trains on the whole batch at once"
)
"""Of a batch that is cut all the same."""

Run = Callable[[Batch], float]


@dataclass(frozen=True)
class CutApart:
    """That the losses of micro-batches do not add up to that of the batch they are cut of."""

    kind: Literal["sum", "no number", "list", "other", "kept", "unknown"]
    words: str = ""  # what is apart, as the beginning of a sentence
    cure: str = ""

    def __str__(self) -> str:
        return f"{self.words}{self.cure}"


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
    apart = _apart(model, loss, whole, graph, size, every)
    if apart is None and (gradients or hooked(model)):
        apart = _gradients_apart(model, loss, whole, graph, min(size, _FEW))
    if apart is None or apart.kind != "other" or not whole.has_whole_list:
        return apart
    return CutApart(
        "list",
        f"{apart.words.partition(':')[0]}: the batch has a list of {whole.samples} entries, as many as "
        "samples, which every micro-batch is given whole",
        ": give what belongs to samples as a tensor with a row for each, or take the schedule "
        "'single_batch', which does not cut batches",
    )


def larger_apart(model: nn.Module, loss: Loss | None, whole: Batch, graph: Graph) -> CutApart | None:
    """How the loss of a few samples at once is apart from that of each, were the model's outputs much larger,
    or what it is given.

    None: it is not, or cannot be computed so; arguments as of `loss_apart`.
    """
    size = min(graph.batch_size, _FEW)
    for what in ("outputs", "inputs") if loss is not None else ("inputs",):  # else outputs are the loss
        for sign in (1.0, -1.0):
            for factor in _LARGER:
                scale = sign * factor
                batch = whole if what == "outputs" else _times_larger(whole, scale)
                with _outputs_times(model, scale if what == "outputs" else 1.0):
                    apart = _apart(model, loss, batch, graph, size, every=False)
                if apart is None:
                    break
                if apart.kind not in ("unknown", "no number"):
                    times = f"{factor:,.0f} times as large{' and of the other sign' * (sign < 0)}"
                    return CutApart("other", f"with {what} {times}, {apart.words}", OTHERWISE)
    return None


def _times_larger(whole: Batch, factor: float) -> Batch:
    tensors = (each * factor if each.is_floating_point() else each for each in whole.tensors)
    return replace(whole, tensors=tuple(tensors))


def _apart(
    model: nn.Module, loss: Loss | None, whole: Batch, graph: Graph, size: int, every: bool
) -> CutApart | None:
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
    """Two micro-batches, the first samples and the last: at once, and by their number.

    The first two of a batch with gaps in memory, which samples that were joined would not have.
    """
    if whole.samples <= 2 * size:
        return whole, _cut(whole, size)
    if not all(tensor.is_contiguous() for tensor in whole.tensors):
        first = whole.rows(0, 2 * size)
        return first, _cut(first, size)
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
            "'single_batch', which does not cut batches",
        )
    scattered = max(abs(run(whole) - at_once) for _ in range(_DRAWS)) if varies > 0 else 0.0
    if abs(at_once - mean) > 10 * max(varies, scattered):  # samples may scatter more than the first do
        return CutApart(
            "other",
            f"the loss of {name} is {one} on {whole.samples} samples at once, and {other} as the mean over "
            f"micro-batches of {size}: it is no mean over samples alone (but over tokens that count, or by "
            "the weights of classes, or with others of the batch, or its statistics)",
            OTHERWISE,
        )
    return None


@contextmanager
def _outputs_times(model: nn.Module, factor: float) -> Iterator[None]:
    if factor == 1.0:
        yield
        return

    def stretched(value: Any) -> Any:
        floats = isinstance(value, Tensor) and value.is_floating_point()
        return value * factor if floats else value

    hook = model.register_forward_hook(lambda _, __, outputs: tree_map(stretched, outputs))
    try:
        yield
    finally:
        hook.remove()


def hooked(model: nn.Module) -> bool:
    """Whether a hook may change the gradient of a parameter."""
    return any(parameter._backward_hooks for parameter in model.parameters())


def _gradients_apart(
    model: nn.Module, loss: Loss | None, whole: Batch, graph: Graph, size: int
) -> CutApart | None:
    """Where losses are equal: a term may be small, or 0, and have a gradient all the same."""
    at_once, cut = _ends(whole, size)
    each = sum(v.nbytes for v in graph.variables.values()) / max(graph.batch_size, 1)
    seeds = iter(range(10_000))

    def run(batch: Batch) -> dict[str, Tensor]:
        return _gradients_of(model, loss, graph, batch, next(seeds))

    with threads_for(int(at_once.samples * each)), kept(model, loss):
        try:
            total, parts = (
                run(at_once),
                [(part.samples / at_once.samples, run(part)) for part in cut.values()],
            )
            name = _apart_at(total, parts, _gradients_allowed(graph))
            if not name:
                return None
            first, other = next(iter(parts))[1], run(next(iter(cut.values())))
        except Exception:  # of the user's code, which need not be differentiable here
            return None
    if _apart_at(first, [(1.0, other)], _gradients_allowed(graph)):  # what draws differs anyway
        return None
    return CutApart(
        "other",
        f"the gradient of '{name}' in {type(model).__name__} on {at_once.samples} samples at once is apart "
        f"from the mean over micro-batches of {size}, though their losses are alike: the loss, or what a "
        "hook makes of a gradient, is no mean over samples alone",
        OTHERWISE,
    )


def _apart_at(
    total: dict[str, Tensor], parts: Sequence[tuple[float, dict[str, Tensor]]], allowed: float
) -> str:
    """The parameter whose gradient is furthest apart; "" where what is apart may be rounding.

    Each by the norms that its parts have, so that what cancels among them does not count; and by those of all
    parameters, as a gradient that cancels within a part is rounding alone.
    """
    sizes = {k: math.fsum(weight * float(own[k].norm()) for weight, own in parts) for k in total}
    least = 0.1 * allowed * math.hypot(*sizes.values())
    worst, where = 0.0, ""
    for k, gradient in total.items():
        mean = torch.stack([weight * own[k] for weight, own in parts]).sum(0)
        apart = float((gradient - mean).norm())
        if apart > max(allowed * sizes[k], least) and apart > worst:
            worst, where = apart, k
    return where


def _gradients_of(
    model: nn.Module, loss: Loss | None, graph: Graph, batch: Batch, seed: int
) -> dict[str, Tensor]:
    """Of the parameters with the fewest elements, with zeros where there is none."""
    step = _quiet(TrainingStep(model, loss, batch))
    named = sorted(
        ((k, p) for k, p in step.named_parameters() if p.requires_grad), key=lambda each: each[1].numel()
    )
    room, chosen = _GRADIENT_BYTES, dict[str, nn.Parameter]()
    for k, parameter in named:
        room -= parameter.nbytes
        if room >= 0:
            chosen[k.removeprefix("model.")] = parameter
    if not chosen:
        return {}
    seed_generators(seed)
    with torch.enable_grad(), tensors_kept(step), stance(graph), autocast_of(graph, "cpu"):
        value = step(*copies(batch.tensors))[0]
        gradients = torch.autograd.grad(value, list(chosen.values()), allow_unused=True)
    given = zip(chosen.items(), gradients, strict=True)
    dense = {k: torch.zeros_like(p) if g is None else g.to_dense() for (k, p), g in given}
    return {k: (torch.view_as_real(g) if g.is_complex() else g).detach().double() for k, g in dense.items()}


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
    step = _quiet(TrainingStep(model, loss, batch))
    try:
        with torch.no_grad():
            return _run(step, graph, batch, seed)
    except Exception:  # code that differentiates
        return _run(step, graph, batch, seed)


def _quiet(step: TrainingStep) -> TrainingStep:
    for module in step.modules():
        if isinstance(module, _QUIET):
            module.training = False
    return step


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


def _gradients_allowed(graph: Graph) -> float:
    """By how much of a gradient rounding may set it apart."""
    return {_APART: 1e-2, _APART_COARSE: 0.2, _APART_FINE: 1e-5}[_allowed(graph)]


def _times(at_once: float, mean: float) -> str:
    return f" ({at_once / mean:.3g} times as large)" if mean and at_once / mean > 0 else ""
