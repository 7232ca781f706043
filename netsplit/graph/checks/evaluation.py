"""Whether a captured inference graph gives what the user's own model gives in evaluation mode.

    eval() ─► two batches ─► train() ─► other weights ─► eval() ─► the first batch once more
       plain model ── outputs, written buffers ─┐  at each batch
       captured graph ── the same ──────────────┴─ equal? else refused

What eval() and train() themselves do to a model is in no graph: merged or folded weights, caches, counters.
A forward in training, before all that and after it, gives the same with the same buffers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import psutil
import torch
from torch import Tensor, nn

from netsplit.errors import CaptureError, NetSplitError
from netsplit.graph.autocast import autocast_of
from netsplit.graph.batches.batch import Batch
from netsplit.graph.checks.attributes import attribute_values, changed_attribute
from netsplit.graph.checks.difference import difference
from netsplit.graph.checks.holding import holding
from netsplit.graph.checks.plain import (
    TensorsAtOnce,
    copies,
    hidden,
    no_other_draws,
    own,
    stance,
    with_own_calls,
)
from netsplit.graph.code_places import is_users, line_of, where_of
from netsplit.graph.ir import Graph
from netsplit.graph.module import rebuild
from netsplit.graph.operators import written_initializers
from netsplit.graph.plain_draws import draws
from netsplit.graph.random_draws import DrawKey, node_draws, run_microbatch
from netsplit.graph.recording.observe import valid_other_values
from netsplit.graph.recording.stand_ins import named_tensors
from netsplit.graph.recording.step import Inference
from netsplit.tables import nbytes

__all__ = ["MOST_OF_MEMORY", "check_inference", "move_weights"]

log = logging.getLogger(__name__)

Values = Mapping[str, Tensor]
"""Present ones, by initializer."""

MOST_OF_MEMORY = 0.8
_COPIES = 4  # of parameters: the graph's, what is put back, and what is compared
_CURE = "give state_dict() to a plain model and predict with that"


def check_inference(model: nn.Module, graph: Graph, batch: Batch, values: Values) -> float | None:
    """Compare; the seconds it took. None: the model has no values here, or there is no memory for it.

    Args:
        model: as `graph` was captured from; left as it is.
        batch: as the graph was captured at.

    Raises:
        CaptureError: predictions would be others than the model's, or training would; names the cause.
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
    _EvaluationCheck(model, graph, batch, values).run()
    return time.perf_counter() - start


class _EvaluationCheck:
    def __init__(self, model: nn.Module, graph: Graph, batch: Batch, values: Values) -> None:
        self.name = type(model).__name__
        self.model, self.graph, self.batch, self.values = model, graph, batch, values
        self.step = Inference(model, batch.without_targets)
        self.written = set(written_initializers(graph))
        self.draws = any(node_draws(node) for node in graph)
        self.modes = [(module, module.training) for module in model.modules()]
        constants = graph.constants.items()
        self.ours = {k: own(values.get(k, tensor), False) for k, tensor in constants}

    def run(self) -> None:
        with holding(self.model, self.values):
            before, buffers = TensorsAtOnce(self.model, self.model.parameters()), TensorsAtOnce(self.model)
            trained = self._trains()
            before.back()
            self._begin()
            self._same_in_both()
            self._back()
            buffers.back()
            self._same_training(trained, self._trains())
            before.back()
            move_weights(self.model, 0.01)  # what eval() has made of the weights must follow them
            self._begin()
            self._one(2, self.step.batch.tensors)

    def _begin(self) -> None:
        now, initializers = named_tensors(self.model), self.graph.initializers
        self.ours |= {k: own(now[k], init.requires_grad) for k, init in initializers.items() if k in now}
        self.model.eval()

    def _back(self) -> None:
        """Into the modes that its modules were in."""
        if self.modes[0][1]:
            self.model.train()
        for module, training in self.modes:
            module.training = training

    def _same_in_both(self) -> None:
        tensors = self.step.batch.tensors
        self._one(0, tensors)
        before = attribute_values(self.model)
        self._one(1, valid_other_values(self.step, tensors))
        changed = changed_attribute(before, attribute_values(self.model))
        if changed is not None:
            raise CaptureError(
                f"{self.name} keeps state in Python: {changed} is another after every forward in evaluation "
                f"mode, which no captured graph follows: keep it in a buffer (register_buffer), or {_CURE}."
            )

    def _one(self, call: int, tensors: tuple[Tensor, ...]) -> None:
        with no_other_draws(self.name):
            plain = self._plain(call, tensors)
        ours = self._captured(call, tensors)
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
        own = next((m for m in self.model.modules() for name in ("train", "eval") if _is_own(m, name)), None)
        if own is not None:
            return f"{type(own).__name__} has a train() or eval() of its own, which no captured graph has; "
        return "usually by what it keeps in Python from one forward to the next; "

    def _plain(self, call: int, tensors: tuple[Tensor, ...]) -> list[Tensor]:
        cast = autocast_of(self.graph, "cpu")
        drawing = draws(self.graph, iteration=call, phase="predict") if self.draws else nullcontext()
        try:
            with torch.no_grad(), stance(self.graph), drawing, cast:
                return [t.detach().clone() for t in self.step(*copies(tensors))]
        except NetSplitError as error:
            raise CaptureError(f"{self.name} draws otherwise than what was captured: {error}") from error
        except Exception as error:
            raise CaptureError(
                f"{self.name} does not run on this batch in evaluation mode under torch.no_grad, in plain "
                f"PyTorch{where_of(error)}: {line_of(error)}; check model and batch."
            ) from error

    def _captured(self, call: int, tensors: tuple[Tensor, ...]) -> list[Tensor]:
        key = DrawKey(iteration=call, phase="predict")
        try:
            with torch.no_grad(), self._model_elsewhere():
                graph = with_own_calls(self.graph)
                result = run_microbatch(rebuild(graph, self.ours), graph, copies(tensors), key)
        except Exception as error:
            raise CaptureError(
                f"the captured graph of {self.name} does not run as the model does{where_of(error)}: "
                f"{line_of(error)}; {self._cause()}{_CURE}."
            ) from error
        return [result] if isinstance(result, Tensor) else list(result)

    def _model_elsewhere(self) -> AbstractContextManager[None]:
        """Code that stays whole must not find the model's own tensors: those that train are elsewhere."""
        trained = {t._cdata: t for t in named_tensors(self.model).values() if t.requires_grad}
        return hidden(trained.values() if self.graph.calls else ())

    def _trains(self) -> list[Tensor] | None:
        """What a forward in the model's own mode gives; None: it takes more than the inputs."""
        try:
            with torch.no_grad():
                torch.manual_seed(0)
                return [t.clone() for t in self.step(*copies(self.step.batch.tensors))]
        except Exception:
            return None

    def _same_training(self, before: list[Tensor] | None, after: list[Tensor] | None) -> None:
        if any(difference(a, b) is not None for a, b in zip(before or (), after or (), strict=False)):
            raise CaptureError(
                f"{self.name} would train otherwise after a prediction in plain PyTorch: its forward in "
                "training reads what eval(), train() or a forward in evaluation mode leaves, which no "
                f"captured step sees; {_CURE}."
            )


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
