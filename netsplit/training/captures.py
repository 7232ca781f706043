"""The graphs of a model: one for each kind of batch, captured when that is first seen and then kept."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from netsplit.errors import CaptureError, NetSplitError
from netsplit.graph.autocast import autocast_of
from netsplit.graph.batches.batch import Batch
from netsplit.graph.batches.calls import Loss, call_model
from netsplit.graph.checks.check import check_capture
from netsplit.graph.checks.evaluation import OutputDims, check_inference, output_dims
from netsplit.graph.checks.plain import stance
from netsplit.graph.ir import Graph
from netsplit.graph.recording.step import capture, capture_inference
from netsplit.graph.recording.whole import ModuleCall
from netsplit.graph.surroundings.keep import kept
from netsplit.interrupts import interrupts_held

__all__ = ["MAX_PROGRAMS", "Captures", "checked_capture"]

log = logging.getLogger(__name__)

MAX_PROGRAMS = 16
_FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
LONG_S = 10.0  # from which on a capture is said to have taken long


def checked_capture(
    model: nn.Module,
    loss: Loss | None,
    batch: Batch,
    check: bool = True,
    level: int = logging.DEBUG,
    **options: Any,
) -> Graph:
    """`capture`, compared with plain PyTorch unless told not to; raises what both do.

    An interrupt waits for the end: an exception may not leave what torch's own code calls here, and until
    then model and torch are not as the user knows them.

    Args:
        level: at which level of the log it is said what was captured.
    """
    with interrupts_held():
        graph = capture(model, loss, batch, **options)
        _refuse_hooks(graph)
        seconds = check_capture(model, loss, graph, batch) if check else None
    checked = (
        f": they train as plain PyTorch does (checked in {seconds:.1f} s)" if seconds is not None else ""
    )
    log.log(level, "Captured %d operators%s.", len(graph), checked)
    return graph


@contextmanager
def _encoders_as_captured(graph: Graph) -> Iterator[None]:
    """Within it plain PyTorch computes encoder layers in evaluation operator by operator under autocast, as a
    graph has them. It means to: it asks whether CUDA's autocast is on, and so overlooks a CPU's."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(before and graph.autocast is None)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _refuse_hooks(graph: Graph) -> None:
    """Refuses hooks on all modules: those that stay whole are on workers, in other processes."""
    whole = next((call for call in graph.calls.values() if isinstance(call, ModuleCall)), None)
    every = (f"_global_{name}_hooks" for name in ("forward_pre", "forward", "backward_pre", "backward"))
    if whole is not None and any(getattr(nn.modules.module, name) for name in every):
        raise CaptureError(
            "a hook on all modules of this process (torch.nn.modules.module.register_module_…_hook) is not "
            f"called in {whole.__name__}, which stays whole and runs on a worker: register it on the modules "
            "it is for."
        )


@dataclass
class Captures:
    """The graphs of one model and loss, by kind of batch.

    Args:
        limit: how many kinds of batches training may see, and how many prediction; one more is refused.
        check: graphs are compared with plain PyTorch.
        trained: the present values of parameters and buffers, by initializer; else they are the model's.
    """

    model: nn.Module
    loss: Loss | None
    autocast: str | None
    device_type: str
    limit: int = MAX_PROGRAMS
    check: bool = True
    trained: Callable[[], Mapping[str, Tensor]] = dict
    _evaluated: bool = False
    _training: dict[Hashable, Graph] = field(default_factory=dict)
    _inference: dict[Hashable, Graph] = field(default_factory=dict)
    _dims: dict[Hashable, OutputDims] = field(default_factory=dict)

    def training(self, batch: Batch, size: int, usual: bool = False) -> Graph:
        """The training step at exactly this batch's shapes, for micro-batches of `size` or the rest of one.

        Args:
            usual: the batch has the shapes that the model was first captured at, whose constants it shares.

        Raises:
            NetSplitError: it cannot be captured, or there are too many graphs already.
        """
        group = batch.key, size
        if (group, batch.samples) not in self._training:
            self.require_room(self._training, batch, "training")
            prefix = "" if usual else f"shapes{self._number(group)}."
            graph = self._capture(
                batch,
                lambda **options: checked_capture(self.model, self.loss, check=self.check, **options),
                prefix,
            )
            self._training[group, batch.samples] = graph
        return self._training[group, batch.samples]

    def inference(self, batch: Batch) -> Graph:
        """The model alone in evaluation mode, at exactly this batch's shapes; raises as `training`."""
        key = batch.key, batch.samples
        if key not in self._inference:
            self.require_room(self._inference, batch, "prediction")
            graph = self._capture(
                batch,
                lambda batch, **options: capture_inference(self.model, batch, **options),
                f"inference{len(self._inference)}.",
            )
            self._check_inference(graph, batch.own())
            self._inference[key] = graph
        return self._inference[key]

    def outputs(self, batch: Batch) -> Any:
        """What the model itself gives in evaluation mode, which its captured graph is compared with.

        Raises:
            NetSplitError: as `inference`.
        """
        graph, own = self.inference(batch), batch.own()
        with (
            interrupts_held(), kept(self.model), torch.no_grad(), stance(graph), autocast_of(graph, "cpu"),
            _encoders_as_captured(graph),
        ):  # fmt: skip
            self.model.eval()
            return call_model(self.model, own.given(own.tensors)[0])

    def _check_inference(self, graph: Graph, batch: Batch) -> None:
        if not self.check:
            return
        values = self.trained()
        on_cpus = graph.autocast is not None and self.device_type == "cpu"
        fused = on_cpus and any(isinstance(each, _FUSED) for each in self.model.modules())
        if fused and not self._evaluated:
            log.warning(
                "%s predicts with its attention layers as they train: under autocast on a CPU, torch's fused "
                "ones, which plain PyTorch takes in evaluation, round otherwise and answer %s.",
                type(self.model).__name__, graph.autocast,
            )  # fmt: skip
        with interrupts_held(), _encoders_as_captured(graph):
            seconds = check_inference(self.model, graph, batch, values)
        self._evaluated = True
        if seconds is not None:
            log.debug("It predicts as plain PyTorch does (checked in %.1f s).", seconds)

    def output_dims(self, batch: Batch, size: int) -> OutputDims:
        """Along which dimensions micro-batches of `size` samples are joined; None: it is predicted whole.

        `graph.checks.evaluation` finds out at the first batch of its kind; it has more than `size` samples.
        """
        if batch.key not in self._dims:
            graph, values = self.inference(batch.rows(0, size)), self.trained()
            with interrupts_held(), _encoders_as_captured(graph):
                self._dims[batch.key] = output_dims(self.model, graph, batch, size, values)
        return self._dims[batch.key]

    def known_dims(self, batch: Batch) -> OutputDims:
        """What `output_dims` found for such batches; None where it has not been asked."""
        return self._dims.get(batch.key)

    def is_full(self) -> bool:
        """Whether prediction can have no further graph."""
        return len(self._inference) >= self.limit

    def require_room(self, captures: Mapping[Hashable, Any], batch: Batch, what: str) -> None:
        """Raise if there are `limit` already."""
        if len(captures) >= self.limit:
            raise NetSplitError(
                f"a batch with tensors of {_shapes(batch)} is of another kind than the {self.limit} that "
                f"{what} has seen: pad batches to a few lengths, give numbers that vary as tensors, or raise "
                "max_programs."
            )

    def _number(self, group: Hashable) -> int:
        groups = list(dict.fromkeys(key[0] for key in self._training))  # type: ignore[index]
        return groups.index(group) if group in groups else len(groups)

    def _capture(self, batch: Batch, how: Callable[..., Graph], prefix: str) -> Graph:
        began = time.perf_counter()
        options = {"autocast": self.autocast, "device_type": self.device_type, "constants": prefix}
        with interrupts_held():
            graph = how(batch=batch.own(), **options)
        spent = time.perf_counter() - began
        level = logging.INFO if spent > LONG_S else logging.DEBUG
        log.log(level, "Captured %s for batches of %s in %.1f s (once).", *self._what(batch), spent)
        return graph

    def _what(self, batch: Batch) -> tuple[str, str]:
        return type(self.model).__name__, _shapes(batch)


def _shapes(batch: Batch) -> str:
    return ", ".join(str(tuple(t.shape)) for t in batch.tensors)
