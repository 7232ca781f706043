"""Whether a captured inference graph gives what the user's own model gives in evaluation mode.

    eval() ─► two batches ─► train() ─► other weights ─► eval() ─► the first batch once more
       plain model ── outputs, written buffers ─┐  at each batch
       captured graph ── the same ──────────────┴─ equal? else refused

What eval() and train() themselves do to a model is in no graph: merged or folded weights, caches, counters.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import psutil
import torch
from torch import Tensor, nn

from netsplit.errors import CaptureError, NetSplitError
from netsplit.graph.autocast import autocast_of
from netsplit.graph.batches.batch import Batch
from netsplit.graph.checks.copies import copies, own, with_own_calls
from netsplit.graph.checks.difference import difference
from netsplit.graph.checks.holding import holding
from netsplit.graph.checks.plain import hidden, stance
from netsplit.graph.checks.python_state.mode_switch import ModeSwitch
from netsplit.graph.checks.python_state.other_draws import no_other_draws
from netsplit.graph.checks.python_state.state import StateSnapshot, bare, changed_state, state_of
from netsplit.graph.code_places import line_of, where_of
from netsplit.graph.ir import Graph
from netsplit.graph.module import rebuild
from netsplit.graph.operators import written_initializers
from netsplit.graph.plain_draws import draws
from netsplit.graph.random_draws import DrawKey, node_draws, run_microbatch
from netsplit.graph.recording.observe import valid_other_values
from netsplit.graph.recording.stand_ins import named_tensors
from netsplit.graph.recording.step import Inference

__all__ = ["check_inference", "mixes_samples"]

log = logging.getLogger(__name__)

Values = Mapping[str, Tensor]
"""Present ones, by initializer."""

_MOST_OF_MEMORY = 0.8
_COPIES = 4  # of parameters: the graph's, what is put back, and what is compared
_STATE = "{} is another after every forward in evaluation mode"
_CURE = "give state_dict() to a plain model and predict with that"


def check_inference(
    model: nn.Module, graph: Graph, batch: Batch, values: Values, earlier: Batch | None = None
) -> float | None:
    """Compare; the seconds it took. None: the model has no values here, or there is no memory for it.

    Args:
        model: as `graph` was captured from; left as it is.
        batch: as the graph was captured at.
        earlier: of another kind, for which another graph was checked before: one does not lean on the other.

    Raises:
        CaptureError: predictions would be others than the model's, or training would; names the cause.
    """
    tensors = named_tensors(model)
    if any(tensor.is_meta for tensor in (*tensors.values(), *batch.tensors)):
        return None
    activations = 2 * sum(v.nbytes for v in graph.variables.values())
    need = _COPIES * sum(t.nbytes for t in tensors.values()) + activations
    if need > _MOST_OF_MEMORY * psutil.virtual_memory().available:
        log.warning(
            "comparing predictions with those of %s itself needs %.1f GiB: they are not",
            type(model).__name__, need / 2**30,
        )  # fmt: skip
        return None
    start = time.perf_counter()
    check = _EvaluationCheck(model, graph, batch, values)
    if earlier is None:
        check.run()
    else:
        check.run_after(earlier)
    return time.perf_counter() - start


def mixes_samples(
    model: nn.Module, graph: Graph, batch: Batch, dims: tuple[int, ...], values: Values
) -> bool:
    """Whether outputs for some samples are others where one sample more is there.

    Args:
        graph: of all samples of `batch` but the last.
        dims: of every output, along which its rows are.
    """
    if written_initializers(graph) or any(node_draws(node) for node in graph):
        return False
    try:
        with holding(model, values), torch.no_grad(), autocast_of(graph, "cpu"):
            model.eval()
            more = replace(batch, tensors=valid_other_values(Inference(model, batch), batch.tensors))
            fewer = more.rows(0, batch.samples - 1)
            one, two = (Inference(model, each)(*copies(each.tensors)) for each in (fewer, more))
        return any(
            difference(a, b.narrow(dim, 0, a.shape[dim])) is not None
            for a, b, dim in zip(one, two, dims, strict=True)
        )
    except Exception:  # it does not run on one sample more
        return False


class _EvaluationCheck:
    def __init__(self, model: nn.Module, graph: Graph, batch: Batch, values: Values) -> None:
        self.name = type(model).__name__
        self.model, self.graph, self.batch, self.values = model, graph, batch, values
        self.step = Inference(model, batch.without_targets)
        self.written = set(written_initializers(graph))
        self.draws = any(node_draws(node) for node in graph)
        self.grad = False  # on, where the model runs only so
        self.switch = ModeSwitch(model)
        constants = graph.constants.items()
        self.ours = {k: own(values.get(k, tensor), False) for k, tensor in constants}
        self.states: list[StateSnapshot] = []

    def run(self) -> None:
        with holding(self.model, self.values):
            before = state_of(self.model, None)
            self._begin()
            self._same_in_both()
            written = {k: self.ours[k].clone() for k in self.written}
            self.switch.back()
            left = changed_state(before, state_of(self.model, None))
            left += self._changed_tensors()
            trained = self._trains() if left else None
            self._move_weights()
            self._begin()
            self._one(2, self.step.batch.tensors)
        if trained is not None:
            self._refuse_left_behind(left[0], trained, written)

    def run_after(self, earlier: Batch) -> None:
        """Of a further kind of batch: what came before it, and it before what comes again."""
        step = Inference(self.model, earlier.without_targets)
        alone = not self.written and not self.draws and step.batch.key != self.step.batch.key
        with holding(self.model, self.values):
            self._begin()
            before = self._plain(0, step.batch.tensors, step) if alone else []
            self._same_in_both()
            after = self._plain(0, step.batch.tensors, step) if alone else []
        for a, b in zip(before, after, strict=False):
            apart = difference(a, b)
            if apart is not None:
                raise CaptureError(
                    f"{self.name} gives another output for a batch after one of other shapes ({apart}): "
                    f"its forward keeps something of the shapes it has seen; {_CURE}."
                )

    def _begin(self) -> None:
        now, initializers = named_tensors(self.model), self.graph.initializers
        self.ours |= {k: own(now[k], init.requires_grad) for k, init in initializers.items() if k in now}
        self.switch.to_evaluation()

    def _same_in_both(self) -> None:
        tensors = self.step.batch.tensors
        for call, given in enumerate((tensors, valid_other_values(self.step, tensors))):
            self._one(call, given)
            self.states.append(state_of(self.model, None))
        changed = changed_state(*self.states[-2:])
        if changed:
            raise CaptureError(
                f"{self.name} keeps state in Python: {_STATE.format(changed[0])}, which no captured graph "
                f"follows: keep it in a buffer (register_buffer), or {_CURE}."
            )

    def _one(self, call: int, tensors: tuple[Tensor, ...]) -> None:
        with no_other_draws(self.name):
            plain = self._plain(call, tensors, self.step)
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
                    f"{self._cause(call)}{_CURE}."
                )

    def _cause(self, call: int) -> str:
        if self.grad:
            return (
                "its forward needs gradients, and predictions are made under torch.no_grad: put "
                "torch.enable_grad() around what does; "
            )
        switched = self.switch.what_it_does()
        if switched is not None:
            return f"{switched}, which no captured graph has; "
        if call and self.states:
            before, now = self.states[-1], state_of(self.model, None)
            changed = changed_state(before, now) + [
                bare(name)
                for name, held in now.tensors.items()
                if name in before.tensors and before.tensors[name].tensor is not held.tensor
            ]
            if changed:
                return f"{_STATE.format(changed[0])}, which no captured graph follows; "
        return ""

    def _plain(self, call: int, tensors: tuple[Tensor, ...], step: Inference) -> list[Tensor]:
        cast = autocast_of(self.graph, "cpu")
        drawing = draws(self.graph, iteration=call, phase="predict") if self.draws else nullcontext()
        try:
            with torch.set_grad_enabled(self.grad), stance(self.graph), drawing, cast:
                return [t.detach().clone() for t in step(*copies(tensors))]
        except NetSplitError as error:
            raise CaptureError(f"{self.name} draws otherwise than what was captured: {error}") from error
        except Exception as error:
            if not self.grad:
                self.grad = True
                return self._plain(call, tensors, step)
            raise CaptureError(
                f"{self.name} does not run on this batch in evaluation mode, in plain PyTorch"
                f"{where_of(error)}: {line_of(error)}; check model and batch."
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
                f"{line_of(error)}; {self._cause(call)}{_CURE}."
            ) from error
        return [result] if isinstance(result, Tensor) else list(result)

    def _model_elsewhere(self) -> AbstractContextManager[None]:
        """Code that stays whole must not find the model's own tensors: those that train are elsewhere."""
        trained = {t._cdata: t for t in named_tensors(self.model).values() if t.requires_grad}
        return hidden(trained.values() if self.graph.calls else ())

    def _changed_tensors(self) -> list[str]:
        """Parameters and buffers that are others after eval() and train(), but for what forwards wrote."""
        return [
            f"'{k}'"
            for k, tensor in named_tensors(self.model).items()
            if k in self.ours and k not in self.written and difference(tensor, self.ours[k]) is not None
        ]

    def _trains(self) -> list[Tensor] | None:
        """What a forward in the model's own mode gives; None: it takes more than the inputs."""
        try:
            with torch.no_grad():
                torch.manual_seed(0)
                return [t.clone() for t in self.step(*copies(self.step.batch.tensors))]
        except Exception:
            return None

    def _refuse_left_behind(self, what: str, after: list[Tensor], written: Values) -> None:
        with holding(self.model, {**self.values, **written}):
            fresh = self._trains() or []
        if any(difference(a, b) is not None for a, b in zip(fresh, after, strict=False)):
            where = self.switch.what_it_does() or f"a forward in evaluation mode changes {what}"
            raise CaptureError(
                f"{self.name} would train otherwise after a prediction in plain PyTorch: {where}, and the "
                f"forward in training reads it, which no captured step sees; {_CURE}."
            )

    def _move_weights(self) -> None:
        """As training does: what eval() has made of the weights must follow them; zeros, too."""
        generator = torch.Generator().manual_seed(5)
        trained = {t._cdata: t for t in named_tensors(self.model).values() if t.requires_grad}
        for tensor in trained.values():
            size = 0.01 * (float(tensor.detach().abs().max()) or 1.0) if tensor.numel() else 0.0
            noise = torch.randn(tensor.shape, generator=generator) * size
            tensor.data.add_(noise.to(tensor.dtype).to(tensor.device))
