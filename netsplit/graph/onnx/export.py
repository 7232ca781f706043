"""A model with its loss as an ONNX file (thesis, section 4.1.1)."""

from __future__ import annotations

import io
import json
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from netsplit.errors import NetSplitError
from netsplit.files import write_atomically
from netsplit.graph.onnx.files import METADATA, onnx_package
from netsplit.graph.recording.step import as_tuple
from netsplit.graph.user_code import kept, line_of

__all__ = ["export_training", "exported_inference"]

_LIMIT = 2**31 - 2**20
"""Bytes that one protobuf file may have; more weights go to a file beside it."""


class _StepModule(nn.Module):
    """``(inputs, targets) -> (loss, outputs...)``; without a loss the outputs alone."""

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor] | None, n_inputs: int) -> None:
        super().__init__()
        self.model, self.loss, self.n_inputs = model, loss, n_inputs

    def forward(self, *batch: Tensor) -> tuple[Tensor, ...]:
        outputs = self.model(*batch[: self.n_inputs])
        leaves = tuple(each for each in tree_leaves(outputs) if isinstance(each, Tensor))
        if self.loss is None:
            return leaves
        # Of copies: what broadcasts a tensor to the shape it has would be taken for what made it.
        copies = tree_map(lambda each: each.clone() if isinstance(each, Tensor) else each, outputs)
        return (self.loss(copies, *batch[self.n_inputs :]), *leaves)


def export_training(
    model: nn.Module,
    loss: Callable[..., Tensor],
    batch: tuple[Tensor | Iterable[Tensor], Tensor | Iterable[Tensor]],
    path: str | Path,
    *,
    opset: int = 17,
    fixed_batch: bool = False,
) -> None:
    """Write the training step ``(inputs, targets) -> loss`` as an ONNX file in training mode.

    Weights keep the model's names. The file's outputs are the loss and the model's outputs, so that
    `netsplit.from_onnx` finds both.

    Args:
        model: left as it was.
        loss: called with the model's output and the targets.
        batch: example ``(inputs, targets)``, each a tensor or several, of at least two samples.
        path: of the file, written whole or not at all; weights of 2 GiB and more go to `path` + ".data".
        opset: version of ONNX's operators, 13 to 20.
        fixed_batch: every size is the example's; else the first dimension is free.

    Raises:
        NetSplitError: the model cannot be exported; says which of torch's operators stops it.
    """
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise NetSplitError("the batch to export with is not a pair: give (inputs, targets).")
    if not callable(loss):
        raise NetSplitError(f"the loss to export is {loss!r}: give a function.")
    inputs, targets = as_tuple(batch[0]), as_tuple(batch[1])
    step = _StepModule(model, loss, len(inputs))
    _write(_exported(step, inputs, targets, opset, fixed_batch), Path(path))


def exported_inference(model: nn.Module, inputs: Tensor | Iterable[Tensor]) -> Any:
    """The ModelProto of a model in evaluation mode, with constants and batch normalisations folded.

    Raises:
        NetSplitError: as `export_training`.
    """
    return _exported(_StepModule(model, None, 10**6), as_tuple(inputs), (), 17, False)


def _exported(
    step: _StepModule, inputs: tuple[Tensor, ...], targets: tuple[Tensor, ...], opset: int, fixed_batch: bool
) -> Any:
    """Exports in training mode with a loss, else in evaluation mode."""
    onnx = onnx_package()
    training = step.loss is not None
    names = _names("input", len(inputs)), _names("target", len(targets))
    mode = torch.onnx.TrainingMode.TRAINING if training else torch.onnx.TrainingMode.EVAL
    with tempfile.TemporaryDirectory() as folder, kept(step.model):
        file = str(Path(folder, "model.onnx"))
        try:
            with _silent():
                torch.onnx.export(
                    step,
                    (*inputs, *targets),
                    file,
                    dynamo=False,
                    training=mode,
                    do_constant_folding=not training,
                    opset_version=opset,
                    input_names=[*names[0], *names[1]],
                    output_names=["loss"] * training,
                    dynamic_axes={} if fixed_batch else {k: {0: "batch"} for k in (*names[0], *names[1])},
                )
        except Exception as error:  # of many kinds, torch's and the model's own
            raise NetSplitError(_why_not(step.model, error)) from error
        read = onnx.load(file)
    _finish(read, step, names, training)
    return read


def _finish(exported: Any, step: _StepModule, names: tuple[list[str], list[str]], training: bool) -> None:
    """The model's own names of weights, buffers as they were, and notes of what the file's values are."""
    _put_back(exported.graph, step)
    own = {f"model.{k}": k for k, _ in (*step.model.named_parameters(), *step.model.named_buffers())}
    _rename(exported.graph, own)
    trained = [k for k, p in step.model.named_parameters() if p.requires_grad]
    held = {each.name for each in exported.graph.initializer}
    outputs = [each.name for each in exported.graph.output]
    notes = {
        "inputs": [k for k in names[0] if k in {each.name for each in exported.graph.input}],
        "targets": names[1],
        "outputs": outputs[1:] if training else outputs,
        "parameters": [k for k in trained if k in held] if training else None,
    }
    for key, value in notes.items():
        if value is not None:
            each = exported.metadata_props.add()
            each.key, each.value = METADATA + key, json.dumps(value)


def _put_back(graph: Any, step: _StepModule) -> None:
    """Running statistics of before the exporter ran the model."""
    to_proto = onnx_package().numpy_helper.from_array
    before = dict(step.named_buffers())
    for each in graph.initializer:
        if each.name in before and before[each.name].is_floating_point():
            each.CopyFrom(to_proto(before[each.name].detach().cpu().numpy(), each.name))


def _rename(graph: Any, own: dict[str, str]) -> None:
    names = {name for node in graph.node for name in node.output} | {each.name for each in graph.input}
    held = {each.name for each in graph.initializer}
    new = {old: name for old, name in own.items() if old in held and name not in names}
    for each in graph.initializer:
        each.name = new.get(each.name, each.name)
    for node in graph.node:
        for i, name in enumerate(node.input):
            if name in new:
                node.input[i] = new[name]


def _write(exported: Any, path: Path) -> None:
    onnx = onnx_package()
    size = sum(len(each.raw_data) for each in exported.graph.initializer)
    if size >= _LIMIT:
        beside = path.with_name(path.name + ".data")
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            onnx.save(
                exported, str(Path(folder, path.name)), save_as_external_data=True, location=beside.name
            )
            Path(folder, beside.name).replace(beside)
            Path(folder, path.name).replace(path)
        return
    whole = exported.SerializeToString()
    write_atomically(path, lambda file: file.write_bytes(whole))


def _names(what: str, count: int) -> list[str]:
    return [what] if count == 1 else [f"{what}_{i}" for i in range(count)]


@contextmanager
def _silent() -> Iterator[None]:
    """Silences what the exporter prints of a failure, and of its own future."""
    nowhere = io.StringIO()
    with warnings.catch_warnings(), redirect_stdout(nowhere), redirect_stderr(nowhere):
        warnings.simplefilter("ignore")
        yield


def _why_not(model: nn.Module, error: Exception) -> str:
    reason = line_of(error).partition(" Please feel free")[0].partition("  [Caused by")[0].rstrip(".")
    return (
        f"{type(model).__name__} cannot be exported to ONNX: {reason}; use other operators, or give another "
        "opset."
    )
