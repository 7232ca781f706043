"""Whether a captured graph trains what the user's own model trains: both run on the same values.

    steps 1, 2   captured graph ── loss, gradients, buffers ─┐  on other weights than at first;
                 plain model ── the same ────────────────────┴─ equal? else refused, with what differs first
    steps 3 to 6 plain model as in step 2: the same loss?  weights, buffers, draws are put back, so what
                                                           differs is kept where no tensor of the model is

What the model keeps in Python shows between steps: counters, caches, values baked in.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from netsplit.errors import CaptureError
from netsplit.graph.batches.batch import Batch, Loss
from netsplit.graph.checks.plain import (
    SideBySide,
    TensorsAtOnce,
    attribute_values,
    changed_attribute,
    copies,
    difference,
    has_values,
    largest,
    own,
    room_for,
    threads_for,
    with_own_calls,
)
from netsplit.graph.ir import Graph
from netsplit.graph.module import initial_values, rebuild
from netsplit.graph.operators import touching_initializers, written_initializers
from netsplit.graph.random_draws import DrawKey, run_microbatch
from netsplit.graph.recording.capturing import valid_other_values
from netsplit.graph.recording.stand_ins import named_tensors
from netsplit.graph.recording.step import TrainingStep
from netsplit.graph.user_code import kept, line_of, where_of

__all__ = ["check_capture"]

log = logging.getLogger(__name__)

_PLACES = " (an attribute, a global, a variable around a function)"
_STEPS = 6  # compared
_COPIES = 5  # of parameters: the captured step's, their gradients, the model's gradients, what is put back


def check_capture(model: nn.Module, loss: Loss | None, graph: Graph, batch: Batch) -> float | None:
    """Compare; the seconds it took. None: the model has no values here, or there is no memory for it (said).

    Args:
        model, loss: as `graph` was captured from; left as they are.
        batch: as the graph was captured at.

    Raises:
        CaptureError: the graph computes something else, or the model has state that no tensor holds; names
            what differs first, and what usually causes it.
    """
    values = initial_values(model, graph, loss if isinstance(loss, nn.Module) else None)
    activations = 2 * sum(v.nbytes for v in graph.variables.values())
    need = _COPIES * sum(t.nbytes for t in values.values()) + activations
    if not has_values(model, loss, batch) or not room_for(need, f"Training of {type(model).__name__} is"):
        return None
    start = time.perf_counter()
    with threads_for(activations), kept(model, loss), torch.enable_grad():
        _CaptureCheck(model, loss, graph, batch, values).run()
    return time.perf_counter() - start


class _CaptureCheck:
    def __init__(
        self, model: nn.Module, loss: Loss | None, graph: Graph, batch: Batch, values: Mapping[str, Tensor]
    ) -> None:
        self.model, self.loss, self.graph, self.batch = model, loss, graph, batch
        self.real = values
        self.written = written_initializers(graph)
        self.ours = {k: own(t, graph.initializers[k].requires_grad) for k, t in values.items()}
        self.step = TrainingStep(model, loss, batch)
        self.both = SideBySide(self.step, graph, self.ours, "train", "train on this batch")
        self.name = self.both.name
        self.changed: str | None = None  # an attribute, from one step to the next

    def run(self) -> None:
        batches = [self.batch.tensors, valid_other_values(self.step, self.batch.tensors)]
        self._compare(0, batches[0])
        before = attribute_values(self.model, self.loss)
        written = [self.real[k] for k in self.written if k in self.real]
        written += self.step.parameters() if self.graph.calls else []
        self._move_weights(1)
        tensors = TensorsAtOnce(self.step, written)
        plain = self._compare(1, batches[1], before)
        self._repeat(batches[1], plain, tensors)
        if self._order_may_matter():
            self._check_order(batches)

    def _compare(
        self, call: int, tensors: tuple[Tensor, ...], attributes: Mapping[str, object] | None = None
    ) -> list[Tensor]:
        """A step of both; returns the plain one's outputs."""
        if call == 0:
            self._move_weights(0)
        # Once where all is operators; what stays whole may have numbers of its own in its backward.
        backward = call == 0 or bool(self.graph.calls)
        constants, initializers = self.graph.constants, self.graph.initializers
        moving = [
            t
            for k, t in self.real.items()
            if (initializers[k].requires_grad or k in self.written) and k not in constants
        ]
        try:
            ours = self.both.captured(call, tensors, moving, backward)
        except CaptureError:
            self._plain(call, tensors, backward)  # where that fails too, it says why
            raise
        plain = self._plain(call, tensors, backward)
        if attributes is not None:
            self.changed = changed_attribute(attributes, attribute_values(self.model, self.loss))
        when = "at the first step" if call == 0 else "at a second step with other values"
        for what, a, b in self._pairs(plain, ours):
            apart = difference(a, b)
            if apart is not None and what.startswith("the gradient"):
                apart = difference(a, b, largest(p.grad for p in self.model.parameters()))
            if apart is not None:
                raise CaptureError(
                    f"{self.name} would not train as in plain PyTorch: {what} differs {when} "
                    f"({apart}){self._cause(call, what)}."
                )
        return plain

    def _repeat(self, tensors: tuple[Tensor, ...], plain: list[Tensor], before: TensorsAtOnce) -> None:
        """Steps 3 to 6, of the plain model alone, each from the same values of all its tensors."""
        attributes = attribute_values(self.model, self.loss)
        for _ in range(_STEPS - 2):
            before.back()
            for i, (a, b) in enumerate(zip(plain, self.both.plain(1, tensors), strict=True)):
                if (apart := difference(a, b)) is not None:
                    what = f"metric {i - 1}" if i else "the loss"
                    raise CaptureError(
                        f"{self.name} would not train as in plain PyTorch: {what} of the same batch differs "
                        f"from step to step ({apart}){self._cause(1, what)}."
                    )
        changed = changed_attribute(attributes, attribute_values(self.model, self.loss))
        if changed is not None:
            raise CaptureError(f"{self.name} keeps state in Python: {_state_in_python(changed)}.")

    def _plain(self, call: int, tensors: tuple[Tensor, ...], backward: bool) -> list[Tensor]:
        """The model's own step. What it assigns to buffers is written into them, which are compared."""
        before = named_tensors(self.step)
        outputs = self.both.plain(call, tensors, backward)
        after = named_tensors(self.step)
        for name in after.keys() - before.keys():
            raise CaptureError(
                f"{self.name} creates the buffer '{name.removeprefix('model.')}' in its forward: call the "
                "model once on a batch first."
            )
        new = {k: t.detach().clone() for k, t in after.items() if t._cdata != before[k]._cdata}
        for name, value in new.items():
            if isinstance(before[name], nn.Parameter):
                raise CaptureError(
                    f"the forward replaces the parameter '{name.removeprefix('model.')}', which a captured "
                    "step cannot follow: tie or replace parameters where the model is built."
                )
            path, _, key = name.rpartition(".")
            before[name].data = value
            self.step.get_submodule(path)._buffers[key] = before[name]
        return outputs

    def _pairs(
        self, plain: list[Tensor], ours: list[Tensor]
    ) -> Iterator[tuple[str, Tensor | None, Tensor | None]]:
        yield "the loss", plain[0], ours[0]
        for i, (a, b) in enumerate(zip(plain[1:], ours[1:], strict=True)):
            yield f"metric {i}", a, b
        assigned = named_tensors(self.model, self.loss)  # a buffer may be another tensor after a forward
        for k, tensor in self.real.items():
            if tensor.requires_grad or self.graph.initializers[k].requires_grad:
                yield f"the gradient of '{k}'", tensor.grad, self.ours[k].grad
            elif k not in self.graph.constants:
                yield f"buffer '{k}'", assigned[k], self.ours[k]
        known = {k for init in self.graph.initializers.values() for k in (init.name, *init.aliases)}
        for k, p in self.model.named_parameters():
            if k not in known:
                yield f"the gradient of '{k}', which the captured step does not use", p.grad, None

    def _move_weights(self, call: int) -> None:
        """Move weights as an optimiser would, alike in both; at first copies may still equal the weights."""
        for k, tensor in self.real.items():
            if self.graph.initializers[k].requires_grad and tensor.is_floating_point():
                flat = self.ours[k].detach().reshape(-1)
                tensor.data.add_(flat.roll(call + 1).view(tensor.shape), alpha=0.01)
                self.ours[k].data.copy_(tensor.data)

    def _cause(self, call: int, what: str) -> str:
        if call and self.changed is not None:
            return f"; {_state_in_python(self.changed)}"
        if self.graph.calls:
            return self.both.whole
        if call == 0 and what == "the loss":
            return (
                "; the usual cause is a value that changes at every call (the time, an iterator, a counter)"
            )
        return f"; the usual cause is state kept in Python, not in a buffer{_PLACES}" if call else ""

    def _order_may_matter(self) -> bool:
        """Whether something that all micro-batches see is written, and read by others than its writers: not a
        BatchNorm's statistics, which only forwards see, in order."""
        touching = touching_initializers(self.graph)
        return bool(self.graph.calls) or any(touching[k] - writers for k, writers in self.written.items())

    def _check_order(self, batches: Sequence[tuple[Tensor, ...]]) -> None:
        """Refuse what forwards of later micro-batches before backwards of earlier ones would change."""
        both = (self._in_flight(batches, together) for together in (False, True))
        names = [each for k in self.real for each in (f"'{k}'", f"the gradient of '{k}'")]
        for what, (a, b) in zip(names, zip(*both, strict=True), strict=True):
            apart = difference(a, b)
            if apart is not None:
                raise CaptureError(
                    f"{self.name} depends on the order of micro-batches' forwards and backwards, which a "
                    f"pipeline changes: {what} differs ({apart}); usually the forward overwrites a buffer "
                    "whose old value its backward needs."
                )

    def _in_flight(self, batches: Sequence[tuple[Tensor, ...]], together: bool) -> list[Tensor | None]:
        """Values and gradients after micro-batches one by one, or all forwards before all backwards."""
        values = {k: own(t, self.graph.initializers[k].requires_grad) for k, t in self.real.items()}
        graph = with_own_calls(self.graph)
        module, waiting = rebuild(graph, values), list[Tensor]()
        try:
            for i, tensors in enumerate(batches):
                result = run_microbatch(module, graph, copies(tensors), DrawKey(microbatch=i))
                waiting.append(result if isinstance(result, Tensor) else result[0])
                if not together:
                    waiting.pop().backward()
            for loss in waiting:
                loss.backward()
        except Exception as error:
            raise CaptureError(
                f"{self.name} cannot run with two micro-batches in flight, as in a "
                f"pipeline{where_of(error)}: {line_of(error)}; usually the forward overwrites a tensor that "
                "a backward needs: compute with its .clone()."
            ) from error
        return [each for tensor in values.values() for each in (tensor.detach(), tensor.grad)]


def _state_in_python(changed: str) -> str:
    if "momentum" in changed:
        return f"{changed} changes at every step: a BatchNorm's momentum must stay constant"
    return (
        f"{changed} changes at every step, which a captured step cannot follow: keep it in a buffer "
        "(register_buffer) and compute with that tensor, or take it out of the forward"
    )
