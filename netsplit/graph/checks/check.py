"""Whether a captured graph trains what the user's own model trains: both run on the same values.

    steps 1, 2   plain model ── loss, gradients, buffers ─┐  on other weights than at first;
                 captured graph ── the same ──────────────┴─ equal? else refused, with what differs first
    steps 3 to 6 plain model as in step 2: the same loss?  weights, buffers, draws are put back, so what
                                                           differs is kept where no tensor of the model is

What the model keeps in Python shows between steps: counters, caches, values baked in.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import psutil
import torch
from torch import Tensor, fx, nn

from netsplit.errors import CaptureError, NetSplitError
from netsplit.graph.batches.batch import Batch
from netsplit.graph.batches.calls import Loss
from netsplit.graph.checks.attributes import attribute_values, changed_attribute
from netsplit.graph.checks.difference import difference, has_nan, largest
from netsplit.graph.checks.plain import (
    TensorsAtOnce,
    copies,
    forward,
    forward_again,
    hidden,
    no_other_draws,
    own,
    stance,
    threads_for,
    with_own_calls,
)
from netsplit.graph.code_places import is_users, line_of, where_of
from netsplit.graph.ir import Graph
from netsplit.graph.module import initial_values, rebuild
from netsplit.graph.operators import touching_initializers, written_initializers, written_references
from netsplit.graph.random_draws import DrawKey, node_draws, run_microbatch
from netsplit.graph.recording.observe import other_values
from netsplit.graph.recording.stand_ins import named_tensors
from netsplit.graph.recording.step import TrainingStep
from netsplit.graph.recording.whole import ModuleCall
from netsplit.graph.surroundings.keep import kept
from netsplit.graph.surroundings.reach import names_in
from netsplit.tables import nbytes

__all__ = ["check_capture"]

log = logging.getLogger(__name__)

_MOST_OF_MEMORY = 0.8
_PLACES = " (an attribute, a global, a variable around a function)"
_STEPS = 6  # compared
_COPIES = 5  # of parameters: the captured step's, their gradients, the model's gradients, what is put back


class _DoesNotRun(CaptureError):
    """Plain PyTorch cannot compute it either."""


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
    if any(tensor.is_meta for tensor in (*values.values(), *batch.tensors)):
        return None
    activations = 2 * sum(v.nbytes for v in graph.variables.values())
    need = _COPIES * sum(t.nbytes for t in values.values()) + activations
    if need > _MOST_OF_MEMORY * psutil.virtual_memory().available:
        log.warning(
            "Training of %s is not compared with plain PyTorch: that needs %s.",
            type(model).__name__, nbytes(need),
        )  # fmt: skip
        return None
    start = time.perf_counter()
    _refuse_hashes(type(model).__name__, graph)
    with threads_for(activations):
        _checked(model, loss, graph, batch, values)
    return time.perf_counter() - start


def _checked(
    model: nn.Module, loss: Loss | None, graph: Graph, batch: Batch, values: Mapping[str, Tensor]
) -> None:
    with kept(model, loss):
        _CaptureCheck(model, loss, graph, batch, values).run()


class _CaptureCheck:
    def __init__(
        self, model: nn.Module, loss: Loss | None, graph: Graph, batch: Batch, values: Mapping[str, Tensor]
    ) -> None:
        self.name = type(model).__name__
        self.model, self.loss = model, loss
        self.step = TrainingStep(model, loss, batch)
        self.graph = graph
        self.batch = batch
        self.real = values
        self.ours = {k: own(t, graph.initializers[k].requires_grad) for k, t in values.items()}
        self.rebuilt: tuple[fx.GraphModule, Graph] | None = None
        self.changed: str | None = None  # an attribute, from one step to the next

    def run(self) -> None:
        batches = [self.batch.tensors]
        self._move_weights(0)
        early = self._before_the_model(batches[0])
        self._compare(0, self._plain(0, batches[0]), early or self._captured(0, batches[0]))
        self._move_weights(1)
        written = [self.real[k] for k in written_initializers(self.graph) if k in self.real]
        written += self.step.parameters() if self.graph.calls else []
        before, attributes = TensorsAtOnce(self.step, written), attribute_values(self.model, self.loss)
        plain, other = self._on_other_values(before)
        batches.append(other)
        self.changed = changed_attribute(attributes, attribute_values(self.model, self.loss))
        self._compare(1, plain, self._captured(1, other))
        self._repeat(other, plain, before)
        if _order_may_matter(self.graph):
            _check_order(self.name, self.graph, self.real, batches)

    def _on_other_values(self, before: TensorsAtOnce) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        """A plain step on the first such values that the model takes, and these."""
        *candidates, same = (*other_values(self.batch.tensors), copies(self.batch.tensors))
        for candidate in candidates:
            try:
                return self._plain(1, candidate), candidate
            except _DoesNotRun:
                before.back()
        return self._plain(1, same), same

    def _repeat(self, tensors: tuple[Tensor, ...], plain: list[Tensor], before: TensorsAtOnce) -> None:
        """Steps 3 to 6, of the plain model alone, each from the same values of all its tensors."""
        attributes = attribute_values(self.model, self.loss)
        for _ in range(_STEPS - 2):
            self._expect(self._again(tensors, before), plain)
        self._refuse_changes(attributes, attribute_values(self.model, self.loss))

    def _refuse_changes(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        changed = changed_attribute(before, after)
        if changed is not None:
            raise CaptureError(f"{self.name} keeps state in Python: {_state_in_python(changed)}.")

    def _again(self, tensors: tuple[Tensor, ...], before: TensorsAtOnce) -> list[Tensor]:
        before.back()
        try:
            with no_other_draws(self.name):
                drawn, given = any(map(node_draws, self.graph)), (self.step, self.graph, tensors)
                return [t.detach() for t in (forward(*given, 1) if drawn else forward_again(*given))]
        except CaptureError:
            raise
        except Exception as error:
            raise _DoesNotRun(
                f"{self.name} does not run a second time{where_of(error)}: {line_of(error)}."
            ) from error

    def _expect(self, now: list[Tensor], plain: list[Tensor]) -> None:
        for i, (a, b) in enumerate(zip(plain, now, strict=True)):
            if (apart := difference(a, b)) is not None:
                what = f"metric {i - 1}" if i else "the loss"
                raise CaptureError(
                    f"{self.name} would not train as in plain PyTorch: {what} of the same batch differs from "
                    f"step to step ({apart}){self._cause(1, what)}."
                )

    def _before_the_model(self, tensors: tuple[Tensor, ...]) -> list[Tensor] | None:
        """The captured step where nothing has run yet, as on a worker: what stays whole may not lean on that.

        None: it failed, which may be the batch's fault; the model shows.
        """
        try:
            return self._captured(0, tensors)
        except CaptureError:
            for tensor in self.ours.values():
                tensor.grad = None
            return None

    def _plain(self, call: int, tensors: tuple[Tensor, ...]) -> list[Tensor]:
        buffers = self._buffers()
        try:
            with torch.enable_grad(), stance(self.graph), no_other_draws(self.name):
                outputs = forward(self.step, self.graph, tensors, call)
                self._backward(call, outputs[0])
        except CaptureError:
            raise
        except NetSplitError as error:
            raise CaptureError(f"{self.name} draws otherwise than what was captured: {error}") from error
        except Exception as error:
            raise _DoesNotRun(
                f"{self.name} does not train on this batch in plain PyTorch and in micro-batches of "
                f"{self.batch.samples}{where_of(error)}: {line_of(error)}; check model, batch and the "
                "number of micro-batches."
            ) from error
        self._write_back(buffers)
        return [t.detach() for t in outputs]

    def _backward(self, call: int, loss: Tensor) -> None:
        """Once where all is operators; what stays whole may have numbers of its own in its backward."""
        if call == 0 or self.graph.calls:
            loss.backward()

    def _buffers(self) -> dict[str, tuple[nn.Module, str, Tensor]]:
        return {
            f"{path}.{key}".removeprefix("model.").lstrip("."): (module, key, tensor)
            for path, module in self.step.named_modules()
            if isinstance(module._buffers, dict)
            for key, tensor in module._buffers.items()
            if tensor is not None
        }

    def _write_back(self, before: Mapping[str, tuple[nn.Module, str, Tensor]]) -> None:
        """Tensors that the model gave its buffers' names to, into the buffers: those are compared."""
        after = self._buffers()
        added = [name for name in after if name not in before]
        if added:
            raise CaptureError(
                f"{self.name} makes the buffer '{added[0]}' in its forward: call the model once on a batch "
                "before, so that it has it."
            )
        given = {
            name: new.detach().clone() for name, (*_, new) in after.items() if new is not before[name][2]
        }
        for name, value in given.items():
            module, key, old = before[name]
            old.data = value
            module._buffers[key] = old

    def _captured(self, call: int, tensors: tuple[Tensor, ...]) -> list[Tensor]:
        try:
            with torch.enable_grad(), self._model_elsewhere():
                # Code that stays whole begins anew: what it carries over is state that no tensor holds.
                if self.graph.calls or self.rebuilt is None:
                    calls = with_own_calls(self.graph)
                    self.rebuilt = rebuild(calls, self.ours), calls
                result = run_microbatch(*self.rebuilt, copies(tensors), DrawKey(iteration=call))
                outputs = [result] if isinstance(result, Tensor) else list(result)
                self._backward(call, outputs[0])
        except Exception as error:
            if "modified by an inplace operation" in str(error):
                raise CaptureError(
                    f"{self.name} writes into a tensor, or gives a buffer a new value, whose old value its "
                    f"backward needs{where_of(error)}: compute with a copy (.clone()) of it."
                ) from error
            raise CaptureError(
                f"the captured step of {self.name} does not run as the model does{where_of(error)}: "
                f"{line_of(error)}."
            ) from error
        return [t.detach() for t in outputs]

    def _model_elsewhere(self) -> AbstractContextManager[None]:
        """Code that stays whole must not find the model's own tensors: while it trains, they do not."""
        initializers = self.graph.initializers
        touched = (each for node in self.graph for each in written_references(self.graph, node))
        written = {k for tag, k in touched if tag == "init"}
        moving = [
            tensor
            for k, tensor in self.real.items()
            if (initializers[k].requires_grad or k in written) and k not in self.graph.constants
        ]
        return hidden(t for t in moving if self.graph.calls and (t.is_floating_point() or t.is_complex()))

    def _compare(self, call: int, plain: list[Tensor], ours: list[Tensor]) -> None:
        when = "at the first step" if call == 0 else "at a second step, of other values"
        for what, a, b in self._pairs(plain, ours):
            apart = difference(a, b)
            if apart is not None and what.startswith("the gradient"):
                apart = difference(a, b, largest(p.grad for p in self.model.parameters()))
            if apart is None:
                continue
            if self.graph.calls and has_nan(b) and not has_nan(a):
                raise CaptureError(
                    f"{self.name} has code that stays whole ({self._whole()}) and reads parameters or "
                    "buffers it is not given (from a closure, an object, a class), which train elsewhere: "
                    "give them as arguments, or compute with them in the forward."
                )
            raise CaptureError(
                f"{self.name} would not train as in plain PyTorch: {what} differs {when} "
                f"({apart}){self._cause(call, what)}."
            )

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

    def _whole(self) -> str:
        return ", ".join(sorted({call.__name__ for call in self.graph.calls.values()}))

    def _cause(self, call: int, what: str) -> str:
        if call and self.changed is not None:
            return f"; {_state_in_python(self.changed)}"
        if self.graph.calls:
            return f"; it has code that stays whole ({self._whole()})"
        if call == 0 and what == "the loss":
            return "; usually by what is another at every call (the time, an iterator, a counter)"
        return f"; usually by state that it keeps in Python, not in a buffer{_PLACES}" if call else ""


def _state_in_python(changed: str) -> str:
    if "momentum" in changed:
        return f"{changed} is another after every step: a BatchNorm's momentum must stay the same number"
    return (
        f"{changed} is another after every step, which a captured step cannot follow: keep it in a buffer "
        "(register_buffer) and compute with that tensor, or take it out of the forward"
    )


def _refuse_hashes(name: str, graph: Graph) -> None:
    """Refuses code that stays whole and hashes: every Python process has other hashes of texts."""
    for call in graph.calls.values():
        for module in call.module.modules() if isinstance(call, ModuleCall) else ():
            code = getattr(type(module).forward, "__code__", None)
            if code is not None and is_users(code.co_filename) and "hash" in names_in(code):
                raise CaptureError(
                    f"{name} has code that stays whole and calls hash() ({code.co_filename}:"
                    f"{code.co_firstlineno}), for texts another number in every process: take zlib.crc32 of "
                    "the text."
                )


def _order_may_matter(graph: Graph) -> bool:
    """Whether something that all micro-batches see is written, and read by others than its writers.

    Statistics and counters of a BatchNorm are not: they see forwards alone, which keep their order.
    """
    written = written_initializers(graph)
    touching = touching_initializers(graph)
    return bool(graph.calls) or any(touching[k] - own for k, own in written.items())


def _check_order(
    name: str, graph: Graph, values: Mapping[str, Tensor], batches: Sequence[tuple[Tensor, ...]]
) -> None:
    """Refuse what forwards of later micro-batches before backwards of earlier ones would change."""
    one_by_one = _two_in_flight(name, graph, values, batches, together=False)
    together = _two_in_flight(name, graph, values, batches, together=True)
    for k, (a, b) in enumerate(zip(one_by_one, together, strict=True)):
        initializer = list(values)[k // 2]
        what = f"the gradient of '{initializer}'" if k % 2 else f"'{initializer}'"
        apart = difference(a, b)
        if apart is not None:
            raise CaptureError(
                f"{name} depends on the order of micro-batches' forwards and backwards, which a "
                f"pipeline changes: {what} differs ({apart}); usually a buffer is written whose "
                f"old value its backward needs."
            )


def _two_in_flight(
    name: str,
    graph: Graph,
    values: Mapping[str, Tensor],
    batches: Sequence[tuple[Tensor, ...]],
    together: bool,
) -> list[Tensor | None]:
    ours = {k: own(t, graph.initializers[k].requires_grad) for k, t in values.items()}
    graph = with_own_calls(graph)
    module = rebuild(graph, ours)
    waiting = []
    try:
        with torch.enable_grad():
            for i, tensors in enumerate(batches):
                result = run_microbatch(module, graph, copies(tensors), DrawKey(microbatch=i))
                waiting.append(result if isinstance(result, Tensor) else result[0])
                if not together:
                    waiting.pop().backward()
            for loss in waiting:
                loss.backward()
    except Exception as error:
        text = str(error) if "modified by an inplace" in str(error) else ""
        for k in written_initializers(graph):
            if str(list(graph.initializers[k].shape)) in text:
                raise CaptureError(
                    f"{name} writes into '{k}' in the forward while the backward of the micro-batch before "
                    "still needs what was there, as a pipeline has several in flight: compute with "
                    f"{k}.clone()."
                ) from error
        raise CaptureError(
            f"{name} cannot be computed with two micro-batches in flight, as a pipeline has them"
            f"{where_of(error)}: {line_of(error)}; usually a tensor that a backward needs is written in "
            "the forward."
        ) from error
    return [t for tensor in ours.values() for t in (tensor.detach(), tensor.grad)]
