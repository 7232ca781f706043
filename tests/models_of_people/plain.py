"""The reference: an ordinary loop on the whole model, in micro-batches; it shares no code with `netsplit`.

A micro-batch is a cut of every tensor that is as long as the batch; what is longer or shorter, and what is
no tensor, goes to every micro-batch as it is. Each micro-batch's loss counts by its samples.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.models_of_people.cases import Case, Loaded
from tests.nets import SGD

__all__ = [
    "STEPS",
    "Trained",
    "batch_size",
    "called",
    "double",
    "loss_of",
    "pieces_of",
    "seeded",
    "tensors_of",
    "train_plainly",
]

STEPS = 2
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Trained:
    losses: list[float]
    state: Tensors  # every name of every parameter and buffer


@contextmanager
def double() -> Iterator[None]:
    """Code without a dtype of its own then runs in double precision, as it is; torch's own modes are kept."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def seeded(case: Case) -> Loaded:
    """A new life of the case, with all generators at their beginning."""
    torch.manual_seed(7)
    np.random.seed(7)
    random.seed(7)
    return case.load()


def train_plainly(
    case: Case, drawing: Callable[[int, int], AbstractContextManager[Any]] = lambda *_: nullcontext()
) -> tuple[Trained, Tensors]:
    """The trained model's losses and tensors, and its tensors as they were before.

    Args:
        drawing: (iteration, micro-batch) -> a context in which random operators draw as a split model's do.
    """
    loaded = seeded(case)
    model, loss = loaded.model, loaded.loss
    step = SGD(trainable(model, loss))
    before = tensors_of(model, loss)
    losses = []
    for iteration in range(STEPS):
        batch = loaded.batch(iteration)
        parts = []
        for i, (fraction, piece) in enumerate(pieces_of(batch, case.microbatches)):
            with drawing(iteration, i):
                value = loss_of(called(model, piece[0]), loss, piece[1])
            (fraction * value).backward()
            parts.append(fraction * value.item())
        step.step()
        step.zero_grad()
        losses.append(sum(parts))
    return Trained(losses, tensors_of(model, loss)), before


def trainable(model: nn.Module, loss: Any) -> list[Tensor]:
    parameters = [*model.parameters(), *(loss.parameters() if isinstance(loss, nn.Module) else ())]
    return [p for p in dict.fromkeys(parameters) if p.requires_grad]


def tensors_of(model: nn.Module, loss: Any = None) -> Tensors:
    """Copies of all parameters and buffers, tied ones under each of their names; the loss's as `loss.*`.

    Those of lazy modules that were never called are left out.
    """
    tensors: Tensors = {}
    for prefix, module in (("", model), ("loss.", loss)):
        if isinstance(module, nn.Module):
            tensors |= {prefix + k: t for k, t in module.named_parameters(remove_duplicate=False)}
            tensors |= {prefix + k: t for k, t in module.named_buffers(remove_duplicate=False)}
    made = {k: t.detach() for k, t in tensors.items() if not nn.parameter.is_lazy(t)}
    return {k: t.to_dense() if t.is_sparse else t.clone() for k, t in made.items()}


def called(model: nn.Module, inputs: Any) -> Any:
    """A bare tuple is positional arguments, a dict keyword arguments, anything else the one argument."""
    if type(inputs) is tuple:
        return model(*inputs)
    return model(**inputs) if type(inputs) is dict else model(inputs)


def loss_of(outputs: Any, loss: Callable[..., Any] | None, targets: Any) -> Tensor:
    """The scalar to minimise: what the loss gives, or the model itself; the first of several."""
    if loss is not None:
        given = targets if type(targets) is tuple else () if targets is None else (targets,)
        outputs = loss(outputs, *given)
    if isinstance(outputs, dict):
        outputs = outputs["loss"]
    elif hasattr(outputs, "loss"):
        outputs = outputs.loss
    return outputs[0] if isinstance(outputs, tuple) else outputs


def batch_size(batch: Any) -> int:
    """The length of the first tensor."""
    return next(len(t) for t in _leaves(batch) if isinstance(t, Tensor) and t.dim())


def pieces_of(batch: tuple[Any, Any], microbatches: int) -> Iterator[tuple[float, tuple[Any, Any]]]:
    """Each micro-batch's share of the samples, and its (inputs, targets)."""
    samples = batch_size(batch)
    size = -(-samples // microbatches)
    for start in range(0, samples, size):
        rows = range(start, min(start + size, samples))
        yield len(rows) / samples, _cut(batch, samples, rows)


def _cut(value: Any, samples: int, rows: range) -> Any:
    if isinstance(value, Tensor):
        return value[rows.start : rows.stop] if value.dim() and len(value) == samples else value
    return _rebuilt(value, lambda part: _cut(part, samples, rows))


def _leaves(value: Any) -> Iterator[Any]:
    parts: list[Any] = []
    _rebuilt(value, lambda part: parts.append(part) or part)
    if not parts:
        yield value
    for part in parts:
        yield from _leaves(part)


def _rebuilt(value: Any, of: Callable[[Any], Any]) -> Any:
    """The container with each of its parts replaced; any other value as it is."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(of, value))
    if isinstance(value, tuple | list):
        return type(value)(map(of, value))
    if isinstance(value, dict):
        return type(value)((k, of(part)) for k, part in value.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {each.name: of(getattr(value, each.name)) for each in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    return value
