"""Whether a batch may be cut: its loss and gradients beside the mean over its micro-batches.

    a few samples in double precision: loss, gradients ─┬─ at once = mean over micro-batches? else what
    the batch at the size of its micro-batches: loss ───┘  differs

Batch normalisations take their running statistics meanwhile, and random operators give one number everywhere:
in these, gradient accumulation differs from whole batches, too.
"""

from __future__ import annotations

import itertools
import logging
import math
import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from netsplit.errors import CaptureError
from netsplit.graph.batches.batch import Batch, Loss
from netsplit.graph.checks.plain import TensorsAtOnce, copies, free_bytes, has_values, stance, threads_for
from netsplit.graph.ir import Graph
from netsplit.graph.operators import autocast_of, node_draws, written_inputs
from netsplit.graph.random_draws import seed_generators
from netsplit.graph.recording.stand_ins import attribute_tensors, named_tensors
from netsplit.graph.recording.step import TrainingStep
from netsplit.graph.user_code import kept, line_of

__all__ = ["NotCompared", "batch_differs", "few_differ", "refuse_shared_writes", "why_not_compared"]

log = logging.getLogger(__name__)

_EXACT, _PLAIN, _COARSE = (1e-7, 1e-5), (1e-3, 1e-2), (3e-2, 0.2)
"""How much of a loss, and of a gradient, may be rounding: in float64, in float32, with fewer digits."""
_OTHERWISE_IN_TRAINING = (nn.modules.batchnorm._BatchNorm, nn.RReLU)
_FEWER_DIGITS = (torch.float32, torch.float16, torch.bfloat16)


class NotCompared(Exception):
    """Few samples cannot be computed alone."""


def few_differ(model: nn.Module, loss: Loss | None, whole: Batch, graph: Graph, size: int) -> str | None:
    """How a few samples at once differ from the mean over micro-batches of one or two of them.

    In double precision, where the model runs in it.

    Args:
        model, loss: with values; left as they are.
        graph: of the model at any size, which says how it runs.
        size: of the micro-batches that training is to have.

    Returns:
        In words; None where they do not differ.

    Raises:
        NotCompared: few samples cannot be computed alone; its text is why.
    """
    failed = ""
    n, sizes = whole.samples, [1, 2] if size > 1 and whole.samples > 3 else [1]
    # Ends, as data may be sorted; of two samples the second has other targets than the first, if one has.
    ends = [(_rows(whole, [*range(m), *range(n - m, n)] if m > 1 else [0, _other(whole)]), m) for m in sizes]
    with kept(model, loss), threads_for(_activations(graph, 2 * sizes[-1])):
        for double, (few, m) in itertools.product((True, False), ends):
            try:
                comparison = _AtOnce(model, loss, graph, double)
                with _doubled(model, loss) if double else nullcontext():
                    return comparison.differ(few, m, finite=True)
            except Exception as error:  # of the user's code, on few samples or in double precision
                failed = line_of(error)
                log.debug("Could not compare %d samples%s: %s", 2 * m, " in double" * double, failed)
    raise NotCompared(failed)


def batch_differs(
    model: nn.Module, loss: Loss | None, whole: Batch, graph: Graph, size: int, gradients: bool
) -> str | None:
    """How the batch at once differs from the mean over its micro-batches, or why that cannot be computed.

    In the precision of training; where memory is short, of the first and last samples, or of losses alone.

    Args:
        gradients: compare these, too: no few samples were.
    """
    comparison = _AtOnce(model, loss, graph, double=False, gradients=gradients)
    most = int(comparison.room / max(2 * _activations(graph, 1), 1))
    batch, half = whole, size
    if most < whole.samples:
        half = max(min(size, most // 2), 1)
        batch = _rows(whole, [*range(half), *range(whole.samples - half, whole.samples)])
    with kept(model, loss), threads_for(_activations(graph, batch.samples)):
        try:
            return comparison.differ(batch, half)
        except Exception as error:  # of the user's code
            return f"{type(model).__name__} cannot run its whole batch at once ({line_of(error)})"


def why_not_compared(model: nn.Module, loss: Loss | None, whole: Batch) -> str | None:
    """What forbids any comparison, if anything does."""
    if not has_values(model, loss, whole):
        return "the model has no values here (device meta)"
    if _room(model, loss, copies=1) <= 0:
        return "there is too little memory for a copy of it"
    return None


def refuse_shared_writes(graph: Graph, whole: Batch) -> None:
    """Refuse writes into a tensor that every micro-batch gets whole.

    Raises:
        CaptureError: the forward writes into such a tensor.
    """
    for j in written_inputs(graph):
        if whole.dims[j] is None:
            raise CaptureError(
                f"the forward writes into a batch tensor of shape {tuple(whole.tensors[j].shape)} that every "
                "micro-batch gets whole, so none would see the others' writes: write into its clone()."
            )


class _AtOnce:
    """A batch at once beside its micro-batches, always from the same parameters, buffers and seeds."""

    def __init__(
        self, model: nn.Module, loss: Loss | None, graph: Graph, double: bool, gradients: bool = True
    ) -> None:
        self.model, self.loss, self.graph, self.double = model, loss, graph, double
        self.name = type(model).__name__
        few = 7 if double else 3  # copies: what is kept, in double, two gradients
        self.gradients = gradients and (double or _room(model, loss, few) > 0)  # else losses alone
        self.room = _room(model, loss, few if self.gradients else 1)
        dtypes = {variable.dtype for variable in graph.variables.values()}
        few_digits = graph.autocast is not None or dtypes & {"float16", "bfloat16"}
        own = _COARSE if few_digits else _PLAIN if "float32" in dtypes else _EXACT
        self.allowed_loss, self.allowed_gradient = _EXACT if double else own

    def differ(self, batch: Batch, size: int, finite: bool = False) -> str | None:
        """How they differ, in words; None: they do not.

        Args:
            finite: raise where a micro-batch has no loss.
        """
        if self.room <= 0:
            raise MemoryError("not enough memory")
        at_once, left = self._run(batch)
        if not math.isfinite(at_once):
            raise ValueError(f"its loss is {at_once}")
        mean, largest, norms = 0.0, abs(at_once), dict.fromkeys(left, 0.0)
        for i, start in enumerate(range(0, batch.samples, size), 1):
            part = batch.rows(start, start + size)
            value, gradients = self._run(part)
            if not math.isfinite(value) and not finite:
                return (
                    f"the loss of {self.name} is {at_once:.4g} on {batch.samples} samples at once but "
                    f"{value} on the {part.samples} samples of micro-batch {i} (a mean over no elements?)"
                )
            if not math.isfinite(value):
                raise ValueError(f"its loss is {value}")
            weight = part.samples / batch.samples
            mean, largest = mean + weight * value, max(largest, abs(value))
            for k, gradient in gradients.items():
                norms[k] = norms.get(k, 0.0) + weight * float(gradient.norm())
                left[k] = left[k].sub_(gradient, alpha=weight) if k in left else -weight * gradient
        beside = f"the mean over micro-batches of {size}"
        if abs(at_once - mean) > self.allowed_loss * largest:
            digits = next((n for n in (4, 7) if f"{at_once:.{n}g}" != f"{mean:.{n}g}"), 10)
            return (
                f"the loss of {self.name} is {at_once:.{digits}g} on {batch.samples} samples at once but "
                f"{mean:.{digits}g} as {beside}{_uncut(batch)}"
            )
        least = 0.1 * self.allowed_gradient * math.hypot(*norms.values())  # what cancels leaves rounding
        apart = {k: float(gradient.norm()) for k, gradient in left.items()}
        wrong = [k for k, norm in apart.items() if norm > max(self.allowed_gradient * norms[k], least)]
        if wrong:
            return (
                f"the gradient of '{max(wrong, key=lambda k: apart[k])}' in {self.name} on {batch.samples} "
                f"samples at once differs from {beside}, though losses agree{_uncut(batch)}"
            )
        return None

    def _run(self, batch: Batch) -> tuple[float, dict[str, Tensor]]:
        """Loss, and gradients that there are."""
        tensors = copies(batch.tensors)
        if self.double:
            tensors = tuple(t.double() if t.is_floating_point() else t for t in tensors)
        step = TrainingStep(self.model, self.loss, batch)
        for module in step.modules():
            if isinstance(module, _OTHERWISE_IN_TRAINING):
                module.training = False
        before = TensorsAtOnce(step)
        seed_generators(0)
        random.seed(0)
        np.random.seed(0)
        steady = self.double or any(map(node_draws, self.graph))
        with (
            torch.enable_grad(),
            stance(self.graph),
            autocast_of(self.graph, "cpu"),
            _Steady(self.double) if steady else nullcontext(),
        ):
            value = step(*tensors)[0]
            if self.gradients:
                value.backward()
        before.back()
        gradients = dict[str, Tensor]()
        for k, parameter in step.named_parameters():
            if parameter.grad is not None:
                gradients[k.removeprefix("model.")] = _dense(parameter.grad)
                parameter.grad = None
        return float(value.detach()), gradients


class _Steady(TorchDispatchMode):
    """A mode in which random operators give one number everywhere, and dropout drops nothing. In double
    precision nothing is cast to fewer digits."""

    def __init__(self, double: bool) -> None:
        super().__init__()
        self.double = double

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if self.double and kwargs.get("dtype") in _FEWER_DIGITS:
            kwargs["dtype"] = torch.float64
        name = str(getattr(func, "_schema", func)).partition("(")[0].removeprefix("aten::").partition(".")[0]
        if torch.Tag.nondeterministic_seeded not in getattr(func, "tags", ()) and "attention" not in name:
            return func(*args, **kwargs)
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
        rates = given.keys() & ({"p", "dropout_p"} if "dropout" in name else {"dropout_p"})
        if rates:
            return func(**given | dict.fromkeys(rates, 0.0))
        drawn = func(*args, **kwargs)
        if name.startswith("bernoulli"):
            chances = given.get("p", 0.5 if name.endswith("_") else given["self"])
            return drawn.copy_(torch.as_tensor(chances))
        if name == "randperm":
            return drawn.copy_(torch.arange(len(drawn)))
        if name.startswith("randint"):
            return drawn.fill_((given.get("low", 0) + given["high"]) // 2)
        return drawn.fill_(0.5) if isinstance(drawn, Tensor) and drawn.is_floating_point() else drawn


@contextmanager
def _doubled(model: nn.Module, loss: Loss | None) -> Iterator[None]:
    """Tensors of the model and the loss in double precision; new ones, too."""
    modules = [each for each in (model, loss) if isinstance(each, nn.Module)]
    own = [*named_tensors(model, loss).values(), *(t for m in modules for *_, t in attribute_tensors(m))]
    before = {t._cdata: (t, t.data) for t in own if t.is_floating_point()}
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        for tensor, data in before.values():
            tensor.data = data.double()
        yield
    finally:
        torch.set_default_dtype(default)
        for tensor, data in before.values():
            tensor.data = data


def _other(whole: Batch) -> int:
    """The last sample whose targets (the last tensor) are not the first sample's; else the last."""
    cut = [(t, dim) for t, dim in zip(whole.tensors, whole.dims, strict=True) if dim is not None]
    tensor, dim = cut[-1]
    rows = tensor.movedim(dim, 0).reshape(whole.samples, -1)
    return max((rows != rows[0]).any(1).nonzero().flatten().tolist(), default=whole.samples - 1)


def _rows(whole: Batch, places: list[int]) -> Batch:
    """The samples at these places."""
    chosen = torch.tensor(places)
    cut = zip(whole.tensors, whole.dims, strict=True)
    tensors = tuple(t if dim is None else t.index_select(dim, chosen.to(t.device)) for t, dim in cut)
    return replace(whole, tensors=tensors, samples=len(places))


def _activations(graph: Graph, samples: int) -> int:
    return samples * sum(v.nbytes for v in graph.variables.values()) // max(graph.batch_size, 1)


def _room(model: nn.Module, loss: Loss | None, copies: int) -> float:
    """Bytes that are left beside copies of all tensors."""
    tensors = {t._cdata: t.nbytes for t in named_tensors(model, loss).values()}
    return free_bytes() - copies * sum(tensors.values())


def _dense(gradient: Tensor) -> Tensor:
    own = gradient.detach().to_dense() if gradient.is_sparse else gradient.detach()
    own = torch.view_as_real(own) if own.is_complex() else own
    return own if own.dtype in (torch.float32, torch.float64) else own.float()


def _uncut(batch: Batch) -> str:
    """A hint, where the batch has rows that go whole to every micro-batch."""
    shapes = [tuple(t.shape) for t, dim in zip(batch.tensors, batch.dims, strict=True) if dim is None]
    rows = next((shape for shape in shapes if shape and shape[0] > 1), None)
    if rows is None:
        return ""
    return f" (its tensor of shape {rows} goes whole to every micro-batch; see netsplit.per_sample)"
