"""Capture a model and its loss as one `Graph`, through ``torch.export``.

nn.Module + loss ──► TrainingStep ──► torch.export ──► read ──► analyse ──► Graph
               flat tensors -> loss    ATen operators   nodes    shapes, aliases, saved tensors
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from netsplit.errors import CaptureError, NetSplitError
from netsplit.graph.analyse import analyse
from netsplit.graph.autocast import autocast_context
from netsplit.graph.batch import Batch
from netsplit.graph.calls import Loss, call_loss, call_model, metric_tensors, output_tensors, read_loss
from netsplit.graph.ir import Graph
from netsplit.graph.read import read
from netsplit.graph.tree import Tree

__all__ = ["TrainingStep", "as_tuple", "capture", "capture_inference"]

_TORCH = Path(torch.__file__).parent
_HERE = Path(__file__).parent


class _Found:
    """What a call leaves beside its tensors; no attribute of the module, whose assignments export drops."""

    tree: Tree | None = None  # the structure of the metrics, or of the output


class TrainingStep(nn.Module):
    """``(*tensors of a batch) -> (loss, *metrics)`` as one module: the loss too becomes nodes with a device.

    Args:
        loss: None where the model's output has it.
        batch: an example, whose structure is that of all.
    """

    def __init__(self, model: nn.Module, loss: Loss | None, batch: Batch) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.batch = batch
        self.found = _Found()

    def forward(self, *batch: Tensor) -> tuple[Tensor, ...]:
        inputs, targets = self.batch.given(batch)
        with _assignments_kept(self.model):
            outputs = call_model(self.model, inputs, targets if self.loss is None else None)
        result = outputs if self.loss is None else call_loss(self.loss, outputs, targets)
        value, metrics = read_loss(result, inside=self.loss is None)
        scalars, self.found.tree = metric_tensors(metrics)
        return (value, *scalars)


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
    """``(*tensors of the inputs) -> (*tensors of the output)``, each tensor once."""

    def __init__(self, model: nn.Module, batch: Batch) -> None:
        super().__init__()
        self.model = model
        self.batch = batch
        self.found = _Found()

    def forward(self, *batch: Tensor) -> tuple[Tensor, ...]:
        outputs = call_model(self.model, self.batch.inputs.build(batch))
        found, self.found.tree = output_tensors(self.model, batch, outputs)
        return tuple(found)


def capture(
    model: nn.Module,
    loss: Loss | None,
    batch: tuple[Any, Any] | Batch,
    *,
    autocast: str | None = None,
    device_type: str = "cpu",
    constants: str = "",
) -> Graph:
    """Graph of one training step in training mode: its first output is the loss, the others are metrics.

    Args:
        model: any module that ``torch.export`` accepts; left as it was.
        loss: called with the model's output and the targets; returns a scalar, or (scalar, metrics), or a
            mapping with "loss". None: the model's output is or has the loss.
        batch: example ``(inputs, targets)`` as docs/batches.md has it; its shapes become the graph's.
        autocast: "bfloat16" or "float16" where the step is to run under `torch.autocast`.
        device_type: whose autocast; each kind of device has lists of its own of what to cast.
        constants: precedes the names of tensors that are no parameter or buffer.

    Raises:
        CaptureError: the model cannot be captured; names the line of the model that stops it.
        ConfigError: an unknown `autocast`, or one for a kind of device that this process cannot use.
    """
    example = batch if isinstance(batch, Batch) else Batch.of(*batch)
    step = TrainingStep(model, loss, example)
    was_training = model.training
    model.train()
    try:
        graph = _captured(step, model, example.tensors, autocast, device_type, constants)
    finally:
        model.train(was_training)
    output = graph.variables.get(graph.output_variables[0]) if graph.output_variables else None
    if output is None or output.shape != () or not output.requires_grad:
        raise CaptureError(
            "the loss must return one scalar that depends on a trainable parameter; "
            f"it returned {None if output is None else output.shape}, and no gradient flows to it."
        )
    return _described(graph, step, example)


def capture_inference(
    model: nn.Module,
    inputs: Any,
    *,
    autocast: str | None = None,
    device_type: str = "cpu",
    constants: str = "inference.",
) -> Graph:
    """Graph of the model alone in evaluation mode; arguments and errors as `capture` has them."""
    example = inputs.without_targets if isinstance(inputs, Batch) else Batch.of(inputs)
    step = _Inference(model, example)
    was_training = model.training
    model.eval()
    try:
        graph = _captured(step, model, example.tensors, autocast, device_type, constants)
    finally:
        model.train(was_training)
    return _described(graph, step, example)


def _described(graph: Graph, step: TrainingStep | _Inference, example: Batch) -> Graph:
    """With what flat tensors do not say: the samples, and the structure that the outputs make up."""
    return replace(graph, output_spec=step.found.tree, batch_size=example.samples, input_dims=example.dims)


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
    except NetSplitError:
        raise
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
