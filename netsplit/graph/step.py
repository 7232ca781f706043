"""Capture a model and its loss as one `Graph`.

nn.Module + loss ──► TrainingStep ──► record ──► build ──► analyse ──► Graph
                     (x, t) -> loss    operators  nodes     aliases, units
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from netsplit.errors import CaptureError
from netsplit.graph.capturing import graph_of_step
from netsplit.graph.ir import Graph
from netsplit.graph.keep import kept

__all__ = ["TrainingStep", "as_tuple", "capture", "capture_inference"]


class TrainingStep(nn.Module):
    """``(inputs, targets) -> loss`` as one module, so that the loss too becomes nodes with a device."""

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor], n_inputs: int) -> None:
        super().__init__()
        self.model = model
        self.loss = loss if isinstance(loss, nn.Module) else LossFunction(loss)
        self.n_inputs = n_inputs

    def forward(self, *batch: Tensor) -> Tensor:
        outputs = self.model(*batch[: self.n_inputs])
        return self.loss(outputs, *batch[self.n_inputs :])


class LossFunction(nn.Module):
    """A loss that is no module, as one."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class _Inference(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> Any:
        return self.model(*inputs)


def capture(
    model: nn.Module,
    loss: Callable[..., Tensor],
    batch: tuple[Tensor | Iterable[Tensor], Tensor | Iterable[Tensor]],
    *,
    autocast: str | None = None,
    device_type: str = "cpu",
) -> Graph:
    """Graph of one training step, every module in the mode that it is in (a frozen BatchNorm stays so).

    Args:
        model: any module; left as it was.
        loss: called with the model's output and the targets; returns a scalar.
        batch: example ``(inputs, targets)``, each a tensor or several; their shapes become the graph's.
        autocast: "bfloat16" or "float16" where the step is to run under `torch.autocast`.
        device_type: whose autocast; each kind of device has lists of its own of what to cast.

    Raises:
        CaptureError: the model cannot be exported; names the line of the model that stops it.
        ConfigError: an unknown `autocast`, or one for a kind of device that this process cannot use.
    """
    inputs, targets = as_tuple(batch[0]), as_tuple(batch[1])
    step = TrainingStep(model, loss, len(inputs))
    graph = _captured(step, model, inputs + targets, autocast, device_type)
    (output,) = graph.output_variables if len(graph.output_variables) == 1 else (None,)
    if output is None or graph.variables[output].shape != () or not graph.variables[output].requires_grad:
        raise CaptureError(
            "the loss must return one scalar that depends on a trainable parameter; "
            f"it returned {[graph.variables[k].shape for k in graph.output_variables]}."
        )
    return graph


def capture_inference(
    model: nn.Module,
    inputs: Tensor | Iterable[Tensor],
    *,
    autocast: str | None = None,
    device_type: str = "cpu",
) -> Graph:
    """Graph of the model alone in evaluation mode; arguments and errors as `capture` has them."""
    with kept(model):
        model.eval()
        return _captured(_Inference(model), model, as_tuple(inputs), autocast, device_type)


def as_tuple(value: Tensor | Iterable[Tensor]) -> tuple[Tensor, ...]:
    """One tensor or several, as a tuple."""
    return (value,) if isinstance(value, Tensor) else tuple(value)


def _captured(
    step: nn.Module, model: nn.Module, batch: tuple[Tensor, ...], autocast: str | None, device_type: str
) -> Graph:
    return graph_of_step(step, model, getattr(step, "loss", None), batch, autocast, device_type)
