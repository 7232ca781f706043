"""Capture a model and its loss as one `Graph`.

nn.Module + loss ──► TrainingStep ──► record ──► build ──► analyse ──► Graph
                flat tensors -> loss  operators   nodes     aliases, units
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from netsplit.errors import CaptureError
from netsplit.graph.batches.batch import Batch, Loss, call_loss, call_model, output_tensors, read_loss
from netsplit.graph.batches.tree import Tree, flatten
from netsplit.graph.ir import Graph
from netsplit.graph.operators import written_inputs
from netsplit.graph.recording.capturing import RecordedStep, graph_of_step
from netsplit.graph.user_code import kept

__all__ = ["Inference", "LossFunction", "TrainingStep", "as_tuple", "capture", "capture_inference"]


class _Structure:
    """What a call leaves beside its tensors."""

    tree: Tree | None = None  # the structure of the metrics, or of the output


class LossFunction(nn.Module):
    """A loss that is no module, as one: it may have to stay whole (see `capturing`)."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = function


class TrainingStep(RecordedStep):
    """``(*tensors of a batch) -> (loss, *metrics)`` as one module: the loss too becomes nodes with a device.

    Args:
        loss: None where the model's output has it.
        batch: an example, whose structure is that of all.
    """

    def __init__(self, model: nn.Module, loss: Loss | None, batch: Batch) -> None:
        super().__init__()
        self.model = model
        self.loss = loss if loss is None or isinstance(loss, nn.Module) else LossFunction(loss)
        self.batch = batch
        self.structure = _Structure()

    def forward(self, *batch: Tensor) -> tuple[Tensor, ...]:
        inputs, targets = self.batch.given(batch)
        outputs = call_model(self.model, inputs, targets if self.loss is None else None)
        result = outputs if self.loss is None else call_loss(self.loss, outputs, targets)
        value, metrics = read_loss(result, inside=self.loss is None)
        scalars, self.structure.tree, _ = flatten(metrics)
        return (value, *(t.detach().reshape(()) if t.ndim else t.detach() for t in scalars))

    def to_check(self) -> str:
        if self.loss is not None:
            return super().to_check()
        return (
            "without a loss, the model is called with inputs and targets and must return its loss: give a "
            "loss, or such a model"
        )


class Inference(RecordedStep):
    """``(*tensors of the inputs) -> (*tensors of the output)``, each tensor once."""

    def __init__(self, model: nn.Module, batch: Batch) -> None:
        super().__init__()
        self.model, self.loss = model, None
        self.batch = batch
        self.structure = _Structure()

    def forward(self, *batch: Tensor) -> tuple[Tensor, ...]:
        outputs = call_model(self.model, self.batch.given(batch)[0])
        tensors, self.structure.tree = output_tensors(self.model, batch, outputs)
        return tuple(tensors)


def capture(
    model: nn.Module,
    loss: Loss | None,
    batch: Batch | tuple[Any, Any],
    *,
    autocast: str | None = None,
    device_type: str = "cpu",
    constants: str = "",
) -> Graph:
    """Graph of one training step: its first output is the loss, the others are metrics.

    Every module is in the mode that it is in: a BatchNorm put into ``eval()`` stays frozen.

    Args:
        model: any module; left as it was.
        loss: called with the model's output and the targets; returns a scalar, or (scalar, metrics), or a
            mapping with "loss". None: the model's output is or has the loss.
        batch: example ``(inputs, targets)`` as docs/batches.md has it; its shapes become the graph's.
        autocast: "bfloat16" or "float16" where the step is to run under `torch.autocast`.
        device_type: whose autocast; each kind of device has lists of its own of what to cast.
        constants: precedes the names of literals.

    Raises:
        CaptureError: the model cannot be captured; names the line of the model that stops it.
        ConfigError: an unknown `autocast`, or one for a kind of device that this process cannot use.
    """
    if not isinstance(model, nn.Module):
        what = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise CaptureError(f"the model is {what}: give an object that is a torch.nn.Module.")
    example = batch if isinstance(batch, Batch) else Batch.of(*batch)
    step = TrainingStep(model, loss, example)
    graph = graph_of_step(step, autocast, device_type, constants)
    output = graph.variables.get(graph.output_variables[0]) if graph.output_variables else None
    if output is None or output.shape != () or not output.requires_grad:
        trained = any(
            p.requires_grad
            for each in (model, loss)
            if isinstance(each, nn.Module)
            for p in each.parameters()
        )
        why = (
            "what it returned has no gradient (is it detached, or an integer?)"
            if trained
            else f"no parameter of {type(model).__name__} requires a gradient, so there is nothing to train"
        )
        raise CaptureError(f"the loss must return one scalar that depends on a trainable parameter; {why}.")
    return _described(graph, step, example)


def capture_inference(
    model: nn.Module,
    inputs: Any,
    *,
    autocast: str | None = None,
    device_type: str = "cpu",
    constants: str = "",
) -> Graph:
    """Graph of the model alone in evaluation mode, without autograd; arguments and errors as of `capture`."""
    example = inputs.without_targets if isinstance(inputs, Batch) else Batch.of(inputs)
    step = Inference(model, example)
    with kept(model):
        model.eval()
        graph = graph_of_step(step, autocast, device_type, constants, grad=False)
    return _described(graph, step, example)


def _described(graph: Graph, step: TrainingStep | Inference, example: Batch) -> Graph:
    """The graph with what flat tensors do not say: the samples, and the structure of the outputs."""
    tree = step.structure.tree
    _refuse_shared_writes(graph, example)
    return replace(graph, output_spec=tree, batch_size=example.samples, input_dims=example.dims)


def _refuse_shared_writes(graph: Graph, batch: Batch) -> None:
    """Each tensor of a batch is sent alone: writes into it are not seen in another of the same memory."""
    for j in written_inputs(graph):
        others = zip(batch.memory, batch.same, strict=True)
        if any(memory == batch.memory[j] and same != batch.same[j] for memory, same in others):
            raise CaptureError(
                f"the forward writes into a tensor of the batch, of shape {tuple(batch.tensors[j].shape)}, "
                "which shares memory with another one that would not see the write: clone() one of them."
            )


def as_tuple(value: Tensor | Iterable[Tensor]) -> tuple[Tensor, ...]:
    """One tensor or several, as a tuple."""
    return (value,) if isinstance(value, Tensor) else tuple(value)
