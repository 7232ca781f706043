"""How a model and its loss are called with a batch, and whether what they return is a loss to train by.

model(inputs) ──► outputs ──loss(outputs, targets)──► loss, metrics          docs/batches.md has the rules
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from netsplit.errors import CaptureError, ConfigError
from netsplit.graph.batches.batch import Arguments
from netsplit.graph.batches.tree import Tree, flatten, is_named_tuple

__all__ = ["Loss", "call_loss", "call_model", "lacking", "metric_tensors", "output_tensors", "read_loss"]

Loss = Callable[..., Any]
"""Called with the model's output and the targets."""

_Call = tuple[tuple[Any, ...], dict[str, Any]]


def call_model(model: nn.Module, inputs: Any, targets: Any = None) -> Any:
    """The model's output for inputs; and targets, where the loss is inside it.

    Raises:
        ConfigError: a mapping that fits the model's arguments in part.
    """
    args, kwargs = _call(inputs, model.forward, ())
    if isinstance(inputs, Mapping) and not kwargs and targets is None:
        _check_names(model, inputs)
    more, named = _call(targets, None, ())
    return model(*args, *more, **kwargs, **named)


def lacking(model: nn.Module, inputs: Any) -> str:
    """The argument that a model with the loss inside needs beside its inputs; "" where it needs none."""
    args, kwargs = _call(inputs, model.forward, ())
    try:
        parameters = inspect.signature(model.forward).parameters.values()
        bound = inspect.signature(model.forward).bind_partial(*args, **kwargs).arguments
    except (TypeError, ValueError):  # others than too few are the model's own to tell
        return ""
    missing = [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name not in bound
    ]
    return missing[0] if missing else ""


def call_loss(loss: Loss, outputs: Any, targets: Any) -> Any:
    """What the loss makes of the model's output and the targets."""
    args, kwargs = _call(targets, loss.forward if isinstance(loss, nn.Module) else loss, (outputs,))
    return loss(outputs, *args, **kwargs)


def _call(value: Any, function: Callable[..., Any] | None, before: tuple[Any, ...]) -> _Call:
    """The arguments that a value stands for, after those `before`; of a function None any are taken."""

    def fits(*args: Any, **kwargs: Any) -> bool:
        return function is None or _fits(function, *before, *args, **kwargs)

    if value is None:
        return (), {}
    if isinstance(value, Arguments):
        return value.args, dict(value.kwargs)
    if isinstance(value, tuple | list) and (not is_named_tuple(value) or fits(*value)):
        return tuple(value), {}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value) and fits(**value):
        return (), dict(value)
    return (value,), {}


def _fits(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> bool:
    """Whether a function can be called so; of one without a signature that is believed."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def _check_names(model: nn.Module, inputs: Mapping[str, Any]) -> None:
    """A mapping which is not meant to be one argument, but names some of the model's."""
    parameters = inspect.signature(model.forward).parameters.values()
    names = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    if names & set(inputs):
        surplus = sorted(set(inputs) - names)
        what = f"has {surplus}, which it does not take: leave them out" if surplus else "lacks some it needs"
        raise ConfigError(
            f"the batch's keys are arguments of {type(model).__name__}.forward, but the batch {what}."
        )


def read_loss(answer: Any, inside: bool) -> tuple[Tensor, Any]:
    """The scalar to be minimised, and the metrics beside it: any structure of scalars.

    Args:
        answer: what the loss returned; with `inside` it is the model's own output.

    Raises:
        CaptureError: there is no one scalar, or a metric is none.
    """
    loss, metrics = _inside(answer) if inside else _outside(answer)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        what = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        cure = "take its mean" if isinstance(loss, Tensor) else "give a tensor"
        if inside:
            cure = "give a scalar output, .loss or ['loss'], or a loss function"
        raise CaptureError(
            "the loss must return one scalar that depends on a trainable parameter; "
            f"it returned {what}: {cure}."
        )
    for metric in flatten(metrics)[0]:
        if metric.numel() != 1 or metric.is_complex():
            raise CaptureError(
                f"the loss also returned a metric of shape {tuple(metric.shape)} and {metric.dtype}: "
                "metrics must be real scalars, which are averaged over the samples."
            )
    if loss.is_leaf and loss.requires_grad:  # a parameter itself: an operator has to make it
        loss = loss.clone()
    return loss.reshape(()) if loss.ndim else loss, metrics


def _outside(answer: Any) -> tuple[Any, Any]:
    if isinstance(answer, Mapping) and "loss" in answer:
        return answer["loss"], {key: value for key, value in answer.items() if key != "loss"} or None
    if isinstance(answer, tuple | list) and answer:
        rest = answer[1:]
        return answer[0], (rest[0] if len(rest) == 1 else tuple(rest) or None)
    return answer, None


def _inside(output: Any) -> tuple[Any, Any]:
    if isinstance(output, Tensor):
        return output, None
    if isinstance(output, Mapping) and "loss" in output:
        scalars = {key: value for key, value in output.items() if key != "loss" and _is_scalar(value)}
        return output["loss"], scalars or None
    if isinstance(getattr(output, "loss", None), Tensor):
        return output.loss, None
    if isinstance(output, tuple | list):
        numbers = [each for each in output if _is_scalar(each)]
        if numbers and (len(numbers) == 1 or _is_scalar(output[0])):
            return numbers[0], None
    return output, None


def _is_scalar(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.ndim and not value.is_complex()


def metric_tensors(metrics: Any) -> tuple[list[Tensor], Tree]:
    """Metrics as scalars through which nothing is trained, and their structure."""
    tensors, tree, _ = flatten(metrics)
    return [t.detach().reshape(()) if t.ndim else t.detach() for t in tensors], tree


def output_tensors(model: nn.Module, inputs: Sequence[Tensor], outputs: Any) -> tuple[list[Tensor], Tree]:
    """Tensors of an output, each once, and its structure.

    What is an input or a parameter itself is copied, so that an operator makes it.

    Raises:
        CaptureError: the model returned no tensor.
    """
    tensors, tree, _ = flatten(outputs, merge=True)
    if not tensors:
        raise CaptureError(
            f"{type(model).__name__} returned a {type(outputs).__name__} without tensors: return a tensor."
        )
    given = {id(t) for t in (*inputs, *model.parameters(), *model.buffers())}
    return [t.clone() if id(t) in given else t for t in tensors], tree
