"""Whether a captured inference graph gives what the user's own model gives in evaluation mode.

    eval() ─► two batches ─► train() ─► other weights ─► eval() ─► the first batch once more
       captured graph ── outputs, written buffers ─┐  at each batch
       plain model ── the same ────────────────────┴─ equal? else refused

What eval() and train() themselves do to a model is in no graph: merged or folded weights, caches, counters.

A batch may be predicted in micro-batches where the outputs of a sample depend on no other:

samples ──at once─────────► rows of all ┐
   └────in micro-batches──► their rows ─┴─ equal? with other weights too
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Hashable, Mapping

import torch
from torch import Tensor, nn

from netsplit.errors import CaptureError
from netsplit.graph.batches.batch import Batch
from netsplit.graph.checks.plain import (
    SideBySide,
    TensorsAtOnce,
    attribute_values,
    changed_attribute,
    copies,
    difference,
    free_bytes,
    has_values,
    holding,
    own,
    room_for,
    stance,
)
from netsplit.graph.ir import Graph
from netsplit.graph.operators import autocast_of, node_draws, written_initializers
from netsplit.graph.recording.capturing import valid_other_values
from netsplit.graph.recording.stand_ins import named_tensors
from netsplit.graph.recording.step import Inference
from netsplit.graph.user_code import line_of
from netsplit.tables import nbytes

__all__ = ["OutputDims", "check_inference", "output_dims"]

log = logging.getLogger(__name__)

Values = Mapping[str, Tensor]
"""Present ones, by initializer."""

_COPIES = 4  # of parameters: the graph's, what is put back, and what is compared
_CURE = "load state_dict() into a plain model and predict with that"


def check_inference(model: nn.Module, graph: Graph, batch: Batch, values: Values) -> float | None:
    """Compare; the seconds it took. None: the model has no values here, or there is no memory for it.

    Args:
        model: as `graph` was captured from; left as it is.
        batch: as the graph was captured at.

    Raises:
        CaptureError: the graph predicts otherwise than the model; names the cause.
    """
    need = _COPIES * sum(t.nbytes for t in named_tensors(model).values())
    need += 2 * sum(v.nbytes for v in graph.variables.values())
    what = f"Predictions of {type(model).__name__} are"
    if not has_values(model, None, batch) or not room_for(need, what):
        return None
    start = time.perf_counter()
    with holding(model, values), torch.no_grad():
        _EvaluationCheck(model, graph, batch, values).run()
    return time.perf_counter() - start


class _EvaluationCheck:
    def __init__(self, model: nn.Module, graph: Graph, batch: Batch, values: Values) -> None:
        self.name = type(model).__name__
        self.model, self.graph, self.step = model, graph, Inference(model, batch.without_targets)
        self.ours = {k: own(values.get(k, tensor), False) for k, tensor in graph.constants.items()}
        self.written = written_initializers(graph)
        self.tensors = self.step.batch.tensors
        self.modes = [(module, module.training) for module in model.modules()]

    def run(self) -> None:
        before = TensorsAtOnce(self.model, self.model.parameters())
        self._begin()
        self._compare(0, self.tensors)
        attributes = attribute_values(self.model)
        self._compare(1, valid_other_values(self.step, self.tensors))
        changed = changed_attribute(attributes, attribute_values(self.model))
        if changed is not None:
            raise CaptureError(
                f"{self.name} keeps state in Python: {changed} changes at every forward in evaluation mode, "
                f"which a captured graph cannot follow: keep it in a buffer (register_buffer), or {_CURE}."
            )
        if self.modes[0][1]:
            self.model.train()
        for module, training in self.modes:
            module.training = training
        before.back()
        _move_weights(self.model, 0.01)  # what eval() has made of the weights must follow them
        self._begin()
        self._compare(2, self.tensors)

    def _begin(self) -> None:
        now, initializers = named_tensors(self.model), self.graph.initializers
        self.ours |= {k: own(now[k], init.requires_grad) for k, init in initializers.items() if k in now}
        runs = "run on this batch in evaluation mode under torch.no_grad"
        self.both = SideBySide(self.step, self.graph, self.ours, "predict", runs)
        self.model.eval()

    def _compare(self, call: int, tensors: tuple[Tensor, ...]) -> None:
        trained = {t._cdata: t for t in named_tensors(self.model).values() if t.requires_grad}
        plain = self.both.plain(call, tensors)
        ours = self.both.captured(call, tensors, trained.values())
        now = named_tensors(self.model)
        names = [f"output {i}" for i in range(len(plain))] if len(plain) > 1 else ["the output"]
        pairs = list(zip(names, plain, ours, strict=True))
        pairs += [(f"buffer '{k}'", now[k], self.ours[k]) for k in self.written if k in now]
        for what, a, b in pairs:
            apart = difference(a, b)
            if apart is not None:
                raise CaptureError(
                    f"{self.name} would not predict as in plain PyTorch: {what} differs ({apart}); "
                    f"{self._cause()}{_CURE}."
                )

    def _cause(self) -> str:
        kinds: list[type[nn.Module]] = [type(module) for module in self.model.modules()]
        for kind in kinds:
            if kind.train is not nn.Module.train or kind.eval is not nn.Module.eval:
                return f"{kind.__name__} overrides train() or eval(), which no captured graph calls; "
        return "the usual cause is state kept in Python between forwards; "


def _move_weights(model: nn.Module, part: float) -> None:
    """Move every trained parameter, zeros too, by noise of this part of its largest element."""
    generator = torch.Generator().manual_seed(5)
    trained = {t._cdata: t for t in named_tensors(model).values() if t.requires_grad}
    for tensor in trained.values():
        size = part * (float(tensor.detach().abs().max()) or 1.0) if tensor.numel() else 0.0
        noise = torch.randn(tensor.shape, generator=generator) * size
        tensor.data.add_(noise.to(tensor.dtype).to(tensor.device))


OutputDims = tuple[int, ...] | None
"""The dimension of every output along which each sample has its own rows; None: not all have one."""

_ROW_COPIES = 3  # of parameters: a model that had no values, those that are put back, and the present ones
_NOISE = 0.1  # of a parameter's largest element: a weight of what mixes samples may still be 0


class _Mixed(Exception):
    """Why a batch is predicted whole."""


def output_dims(
    model: nn.Module, graph: Graph, batch: Batch, size: int, values: Mapping[str, Tensor]
) -> OutputDims:
    """Compares two micro-batches in evaluation mode, at once and one by one; logs why where it returns None.

    Args:
        model: left as it is.
        graph: of the first `size` samples of `batch`, which has more.
        values: the present ones, by initializer.
    """
    try:
        if graph.calls:
            whole = ", ".join(sorted({call.__name__ for call in graph.calls.values()}))
            raise _Mixed(f"{whole} stays whole and may mix samples")
        if any(map(node_draws, graph)):
            raise _Mixed("the forward draws random numbers in evaluation mode")
        for k in written_initializers(graph):
            raise _Mixed(f"the forward writes '{k}' in evaluation mode")
        need = _ROW_COPIES * sum(i.nbytes for i in graph.initializers.values())
        need += 2 * sum(v.nbytes for v in graph.variables.values())
        if need > free_bytes():
            raise _Mixed(f"comparing them with micro-batches would need {nbytes(need)} here")
        held = model if has_values(model, None) else copy.deepcopy(model).to_empty(device="cpu")
        with holding(held, values), torch.no_grad(), stance(graph), autocast_of(graph, "cpu"):
            held.eval()
            example = batch.rows(0, 2 * size).own().without_targets
            dims = _dims(held, example, size)
            _move_weights(held, _NOISE)
            _dims(held, example, size)
            return dims
    except _Mixed as mixed:
        reason = str(mixed)
    except Exception as error:
        reason = f"comparing them with micro-batches failed ({line_of(error)})"
    name = type(model).__name__
    log.info("%s predicts batches of more than %d samples without micro-batches: %s", name, size, reason)
    return None


def _dims(model: nn.Module, batch: Batch, size: int) -> tuple[int, ...]:
    """The dimension of the samples in every output. Raises _Mixed: micro-batches give other outputs."""
    whole, kind = _run(model, batch)
    dims, start = list[int](), 0
    while start < batch.samples:
        part = batch.rows(start, start + size)
        tensors, own_kind = _run(model, part)
        if own_kind != kind or len(tensors) != len(whole):
            raise _Mixed("its output has another structure or other numbers on part of a batch")
        dims = dims or [_grown(a, b, size, batch.samples) for a, b in zip(tensors, whole, strict=True)]
        for ours, all_rows, dim in zip(tensors, whole, dims, strict=True):
            rows = all_rows.shape[dim] // batch.samples
            plain = all_rows.narrow(dim, rows * start, rows * part.samples)
            apart = difference(plain, ours)
            if apart is not None:
                raise _Mixed(f"a sample's output depends on the other samples ({apart})")
        start += size
    return tuple(dims)


def _grown(part: Tensor, whole: Tensor, size: int, samples: int) -> int:
    """The dimension that has `size` or `samples` times the same number of rows."""
    before, after = part.shape, whole.shape
    grown = [d for d, (m, n) in enumerate(zip(before, after, strict=False)) if m != n]
    if len(before) == len(after) and len(grown) == 1:
        rows, rest = divmod(before[grown[0]], size)
        if not rest and after[grown[0]] == rows * samples:
            return grown[0]
    raise _Mixed(f"an output of shape {tuple(after)} has no row for each sample")


def _run(model: nn.Module, batch: Batch) -> tuple[list[Tensor], Hashable]:
    """Outputs, and the structure around them."""
    step = Inference(model, batch)
    outputs = [tensor.clone() for tensor in step(*copies(batch.tensors))]
    assert step.structure.tree is not None
    return outputs, step.structure.tree.key
