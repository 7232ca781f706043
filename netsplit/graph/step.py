"""Capture a model and its loss as one `Graph`, through ``torch.export``.

nn.Module + loss ──► TrainingStep ──► torch.export ──► read ──► analyse ──► Graph
                     (x, t) -> loss    ATen operators   nodes    shapes, aliases, saved tensors
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from netsplit.errors import CaptureError
from netsplit.graph.analyse import analyse
from netsplit.graph.autocast import autocast_context
from netsplit.graph.ir import Graph
from netsplit.graph.read import read

__all__ = ["TrainingStep", "as_tuple", "capture", "capture_inference"]

_TORCH = Path(torch.__file__).parent
_HERE = Path(__file__).parent


class TrainingStep(nn.Module):
    """``(inputs, targets) -> loss`` as one module, so that the loss too becomes nodes with a device."""

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor], n_inputs: int) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.n_inputs = n_inputs

    def forward(self, *batch: Tensor) -> Tensor:
        with _assignments_kept(self.model):
            outputs = self.model(*batch[: self.n_inputs])
        return self.loss(outputs, *batch[self.n_inputs :])


@contextmanager
def _assignments_kept(model: nn.Module) -> Iterator[None]:
    """Make ``self.buffer = value`` a write into the buffer, which export records; it drops an assignment."""
    before = [(module, dict(module._buffers)) for module in model.modules()]
    yield
    for module, buffers in before:
        for name, old in buffers.items():
            new = module._buffers.get(name)
            if old is not None and new is not None and new is not old:
                module._buffers[name] = old
                old.copy_(new.detach())


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
    """Graph of one training step in training mode.

    Args:
        model: any module that ``torch.export`` accepts; left as it was.
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
    was_training = model.training
    model.train()
    try:
        graph = _captured(step, model, inputs + targets, autocast, device_type)
    finally:
        model.train(was_training)
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
    was_training = model.training
    model.eval()
    try:
        return _captured(_Inference(model), model, as_tuple(inputs), autocast, device_type, "inference.")
    finally:
        model.train(was_training)


def as_tuple(value: Tensor | Iterable[Tensor]) -> tuple[Tensor, ...]:
    """One tensor or several, as a tuple."""
    return (value,) if isinstance(value, Tensor) else tuple(value)


def _captured(
    step: nn.Module,
    model: nn.Module,
    batch: tuple[Tensor, ...],
    autocast: str | None,
    device_type: str,
    constants: str = "",
) -> Graph:
    """Exported under autocast: export records no cast, but the dtypes that the model's code asks for."""
    context = autocast_context(autocast, batch[0].device if batch else "cpu")
    try:
        with _quiet(), context:
            program = torch.export.export(step, batch, strict=False)
    except Exception as error:
        raise CaptureError(_why_not_exported(model, error)) from error
    graph = replace(read(program, step, constants), autocast=autocast)
    return analyse(graph, batch, device_type if autocast is not None else "cpu")


def _why_not_exported(model: nn.Module, error: Exception) -> str:
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not any(Path(frame.filename).is_relative_to(root) for root in (_TORCH, _HERE))
        and not frame.filename.startswith("<")
    ]
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    reason = re.sub(r"\s*\((unhinted|Size-like).*", "", reason).rstrip(".")
    where = ""
    if frames:
        last = frames[-1]
        where = f" at {last.filename}:{last.lineno} ('{(last.line or '').strip()}')"
    cure = "check that the model runs on this batch"
    if "data-dependent" in reason:
        cure = "rewrite that line without Python control flow or sizes taken from tensor values"
    return f"{type(model).__name__} cannot be captured{where}: {reason}; {cure}."


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the graphs and warnings that torch prints about a failure: the error names the line."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stderr(StringIO()):
            yield
    finally:
        logging.disable(before)
