"""The graphs of a model: one for each kind of batch, captured at its first batch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from netsplit.errors import CaptureError, ConfigError, NetSplitError
from netsplit.graph.batches.batch import Batch, Loss, call_model, lacking
from netsplit.graph.checks.check import check_capture
from netsplit.graph.checks.evaluation import OutputDims, check_inference, output_dims
from netsplit.graph.checks.plain import stance
from netsplit.graph.ir import Graph
from netsplit.graph.operators import autocast_of
from netsplit.graph.recording.step import capture, capture_inference
from netsplit.graph.recording.whole import ModuleCall
from netsplit.graph.user_code import kept
from netsplit.interrupts import interrupts_held
from netsplit.training.options import Training

__all__ = ["Captures", "checked_capture", "lack_explained"]

log = logging.getLogger(__name__)

_FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
LONG_S = 10.0  # a longer capture is logged at INFO


def checked_capture(
    model: nn.Module,
    loss: Loss | None,
    batch: Batch,
    check: bool = True,
    level: int = logging.DEBUG,
    **options: Any,
) -> Graph:
    """`capture`, checked against plain PyTorch unless disabled; interrupts wait until torch is restored."""
    with interrupts_held():
        graph = capture(model, loss, batch, **options)
        _refuse_hooks(graph)
        seconds = check_capture(model, loss, graph, batch) if check else None
    checked = "" if seconds is None else f": they train as plain PyTorch does (checked in {seconds:.1f} s)"
    log.log(level, "Captured %d operators%s.", len(graph), checked)
    return graph


@contextmanager
def _encoders_as_captured(graph: Graph) -> Iterator[None]:
    """Make plain PyTorch compute encoder layers operator by operator under autocast, as graphs do."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(before and graph.autocast is None)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _refuse_hooks(graph: Graph) -> None:
    """Refuse hooks on all modules, as uncaptured modules run in worker processes."""
    whole = next((call for call in graph.calls.values() if isinstance(call, ModuleCall)), None)
    every = (f"_global_{name}_hooks" for name in ("forward_pre", "forward", "backward_pre", "backward"))
    if whole is not None and any(getattr(nn.modules.module, name) for name in every):
        raise CaptureError(
            "a hook on all modules (torch.nn.modules.module.register_module_…_hook) is not called in "
            f"{whole.__name__}, which runs on a worker: register it on the modules it is for."
        )


@contextmanager
def lack_explained(model: nn.Module, loss: Any, inputs: Any) -> Iterator[None]:
    """Explain a failed prediction where a model with its own loss lacks targets."""
    try:
        yield
    except NetSplitError as error:
        if loss is None and (name := lacking(model, inputs)):
            raise ConfigError(
                f"{type(model).__name__}.forward also needs '{name}' from the targets, as the model "
                "computes its own loss: call predict((inputs, targets)) and evaluate([((inputs, targets), "
                "targets)])."
            ) from error
        raise


@dataclass
class Captures:
    """The graphs of one model and loss, by kind of batch; `trained` has current values by initializer."""

    model: nn.Module
    loss: Loss | None
    asked: Training = field(default_factory=Training)
    device_type: str = "cpu"
    trained: Callable[[], Mapping[str, Tensor]] = dict
    _training: dict[Hashable, Graph] = field(default_factory=dict)
    _inference: dict[Hashable, Graph] = field(default_factory=dict)
    _dims: dict[Hashable, OutputDims] = field(default_factory=dict)
    _groups: dict[Hashable, int] = field(default_factory=dict)  # key and size -> number of its constants

    def training(self, batch: Batch, size: int, usual: bool = False) -> Graph:
        """The training step at exactly this batch's shapes, for micro-batches of `size` or a smaller last
        one.

        `usual`: the batch has the shapes that the model was first captured at, whose constants it shares.
        """
        group = batch.key, size
        if (group, batch.samples) not in self._training:
            self.require_room(self._training, batch, "training")
            number = self._groups.setdefault(group, len(self._groups))
            how = partial(checked_capture, self.model, self.loss, check=self.asked.check)
            graph = self._capture(batch, how, "" if usual else f"shapes{number}.")
            self._training[group, batch.samples] = graph
        return self._training[group, batch.samples]

    def inference(self, batch: Batch) -> Graph:
        """The model alone in evaluation mode, at exactly this batch's shapes; raises as `training`."""
        key = batch.key, batch.samples
        if key not in self._inference:
            self.require_room(self._inference, batch, "prediction")
            how = partial(capture_inference, self.model)
            graph = self._capture(batch, how, f"inference{len(self._inference)}.")
            self._check_inference(graph, batch.own())
            self._inference[key] = graph
        return self._inference[key]

    def outputs(self, batch: Batch) -> Any:
        """The model's own output in evaluation mode, to compare with its graph."""
        graph, own = self.inference(batch), batch.own()
        with (
            interrupts_held(), kept(self.model), torch.no_grad(), stance(graph), autocast_of(graph, "cpu"),
            _encoders_as_captured(graph),
        ):  # fmt: skip
            self.model.eval()
            return call_model(self.model, own.given(own.tensors)[0])

    def _check_inference(self, graph: Graph, batch: Batch) -> None:
        if not self.asked.check:
            return
        values = self.trained()
        fused = any(isinstance(each, _FUSED) for each in self.model.modules())
        if fused and graph.autocast is not None and self.device_type == "cpu" and not self._inference:
            log.warning(
                "%s predicts with the attention layers it trains with: plain PyTorch's fused ones, which it "
                "uses to evaluate under autocast on a CPU, round differently and return %s.",
                type(self.model).__name__, graph.autocast,
            )  # fmt: skip
        with interrupts_held(), _encoders_as_captured(graph):
            seconds = check_inference(self.model, graph, batch, values)
        if seconds is not None:
            log.debug("Predictions equal plain PyTorch's (checked in %.1f s).", seconds)

    def output_dims(self, batch: Batch, size: int) -> OutputDims:
        """Dimensions along which micro-batches of `size` samples are joined; None: predict it whole."""
        if batch.key not in self._dims:
            graph, values = self.inference(batch.rows(0, size)), self.trained()
            with interrupts_held(), _encoders_as_captured(graph):
                self._dims[batch.key] = output_dims(self.model, graph, batch, size, values)
        return self._dims[batch.key]

    def known_dims(self, batch: Batch) -> OutputDims:
        """The result of an earlier `output_dims`; None if there is none."""
        return self._dims.get(batch.key)

    def is_full(self) -> bool:
        return len(self._inference) >= self.asked.max_programs

    def require_room(self, captures: Mapping[Hashable, Any], batch: Batch, what: str) -> None:
        """Raises NetSplitError if there are `max_programs` already."""
        if len(captures) >= self.asked.max_programs:
            raise NetSplitError(
                f"a batch with tensors of {_shapes(batch)} needs a new program, and {what} already has "
                f"{self.asked.max_programs}: pad batches to a few lengths, give varying numbers as "
                "tensors, or raise max_programs."
            )

    def _capture(self, batch: Batch, how: Callable[..., Graph], prefix: str) -> Graph:
        began = time.perf_counter()
        options = {"autocast": self.asked.autocast, "device_type": self.device_type, "constants": prefix}
        with interrupts_held():
            graph = how(batch.own(), **options)
        spent = time.perf_counter() - began
        level = logging.INFO if spent > LONG_S else logging.DEBUG
        log.log(
            level, "Captured %s for batches of %s in %.1f s (once).",
            type(self.model).__name__, _shapes(batch), spent,
        )  # fmt: skip
        return graph


def _shapes(batch: Batch) -> str:
    return ", ".join(str(tuple(t.shape)) for t in batch.tensors)
