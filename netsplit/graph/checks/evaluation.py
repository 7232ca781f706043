"""Whether a captured inference graph gives what the user's own model gives in evaluation mode.

    eval() ─► two batches ─► train() ─► other weights ─► eval() ─► the first batch once more
       captured graph ── outputs, written buffers ─┐  at each batch
       plain model ── the same ────────────────────┴─ equal? else refused

What eval() and train() themselves do to a model is in no graph: merged or folded weights, caches, counters.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

import psutil
import torch
from torch import Tensor, nn

from netsplit.errors import CaptureError
from netsplit.graph.batches.batch import Batch
from netsplit.graph.checks.difference import attribute_values, changed_attribute, difference
from netsplit.graph.checks.plain import MOST_OF_MEMORY, SideBySide, TensorsAtOnce, holding, own
from netsplit.graph.code_places import is_users
from netsplit.graph.ir import Graph
from netsplit.graph.operators import written_initializers
from netsplit.graph.recording.observe import valid_other_values
from netsplit.graph.recording.stand_ins import named_tensors
from netsplit.graph.recording.step import Inference
from netsplit.tables import nbytes

__all__ = ["check_inference", "move_weights"]

log = logging.getLogger(__name__)

Values = Mapping[str, Tensor]
"""Present ones, by initializer."""

_COPIES = 4  # of parameters: the graph's, what is put back, and what is compared
_CURE = "give state_dict() to a plain model and predict with that"


def check_inference(model: nn.Module, graph: Graph, batch: Batch, values: Values) -> float | None:
    """Compare; the seconds it took. None: the model has no values here, or there is no memory for it.

    Args:
        model: as `graph` was captured from; left as it is.
        batch: as the graph was captured at.

    Raises:
        CaptureError: predictions would be others than the model's; names the cause.
    """
    tensors = named_tensors(model)
    if any(tensor.is_meta for tensor in (*tensors.values(), *batch.tensors)):
        return None
    activations = 2 * sum(v.nbytes for v in graph.variables.values())
    need = _COPIES * sum(t.nbytes for t in tensors.values()) + activations
    if need > MOST_OF_MEMORY * psutil.virtual_memory().available:
        log.warning(
            "Predictions of %s are not compared with plain PyTorch's: that needs %s.",
            type(model).__name__, nbytes(need),
        )  # fmt: skip
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
                f"{self.name} keeps state in Python: {changed} is another after every forward in evaluation "
                f"mode, which no captured graph follows: keep it in a buffer (register_buffer), or {_CURE}."
            )
        if self.modes[0][1]:
            self.model.train()
        for module, training in self.modes:
            module.training = training
        before.back()
        move_weights(self.model, 0.01)  # what eval() has made of the weights must follow them
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
        for module in self.model.modules():
            if any(_is_own(module, name) for name in ("train", "eval")):
                own = type(module).__name__
                return f"{own} has a train() or eval() of its own, which no captured graph has; "
        return "usually by what it keeps in Python from one forward to the next; "


def _is_own(module: nn.Module, name: str) -> bool:
    """Whether a method is not torch's."""
    own = getattr(type(module), name, None)
    return is_users(getattr(getattr(own, "__code__", None), "co_filename", __file__))


def move_weights(model: nn.Module, part: float) -> None:
    """Move every trained parameter, zeros too, by noise of this part of its largest element."""
    generator = torch.Generator().manual_seed(5)
    trained = {t._cdata: t for t in named_tensors(model).values() if t.requires_grad}
    for tensor in trained.values():
        size = part * (float(tensor.detach().abs().max()) or 1.0) if tensor.numel() else 0.0
        noise = torch.randn(tensor.shape, generator=generator) * size
        tensor.data.add_(noise.to(tensor.dtype).to(tensor.device))
