"""Whether a captured graph trains what the user's own model trains: both run on the same values.

    twice:  plain model ── loss, gradients, buffers ─┐
            captured graph ── the same ──────────────┴─ equal? else refused, with what differs first
            (on other weights than at first; the second time other values, buffers as the first has left them)

Two calls, since what a capture cannot see is what changes between them: counters, caches, values baked in.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import psutil
import torch
from torch import Tensor, nn

from netsplit.errors import CaptureError, NetSplitError
from netsplit.graph.batches.batch import Batch
from netsplit.graph.batches.calls import Loss
from netsplit.graph.checks.check_parts import check_parts
from netsplit.graph.checks.copies import copies, own, with_own_calls
from netsplit.graph.checks.difference import difference, has_nan, largest
from netsplit.graph.checks.in_flight import check_order, order_may_matter
from netsplit.graph.checks.plain import forward, hidden, stance, threads_for
from netsplit.graph.checks.python_state.carried import (
    Carried,
    handed_between,
    refuse_first_batch,
    set_at_first,
)
from netsplit.graph.checks.python_state.hashes import refuse_hashes
from netsplit.graph.checks.python_state.other_draws import no_other_draws
from netsplit.graph.checks.python_state.state import (
    StateSnapshot,
    bare,
    changed_state,
    memory_key,
    state_of,
)
from netsplit.graph.code_places import line_of, where_of
from netsplit.graph.ir import Graph
from netsplit.graph.module import initial_values, rebuild
from netsplit.graph.operators import written_references
from netsplit.graph.random_draws import DrawKey, run_microbatch
from netsplit.graph.recording.observe import valid_other_values
from netsplit.graph.recording.stand_ins import attribute_tensors, named_tensors
from netsplit.graph.recording.step import TrainingStep
from netsplit.graph.surroundings.keep import kept
from netsplit.tables import nbytes

__all__ = ["check_capture"]

log = logging.getLogger(__name__)

_MOST_OF_MEMORY = 0.8
_COPIES = 5  # of parameters: the captured step's, their gradients, the model's gradients, what is put back


def check_capture(model: nn.Module, loss: Loss | None, graph: Graph, batch: Batch) -> float | None:
    """Compare; the seconds it took. None: the model has no values here.

    Without the memory for that it is done module by module, which is logged with what it leaves out.

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
    room = _MOST_OF_MEMORY * psutil.virtual_memory().available
    start = time.perf_counter()
    refuse_hashes(type(model).__name__, graph)
    with threads_for(activations):
        if need > room:
            _in_parts(model, loss, batch, room - activations, need)
        else:
            _checked(model, loss, graph, batch, values)
    return time.perf_counter() - start


def _in_parts(model: nn.Module, loss: Loss | None, batch: Batch, room: float, need: int) -> None:
    def fits(module: nn.Module) -> bool:
        return _COPIES * sum(t.nbytes for t in (*module.parameters(), *module.buffers())) <= room

    def check(model: nn.Module, loss: Any, graph: Graph, batch: Batch) -> None:
        _checked(model, loss, graph, batch, initial_values(model, graph))

    count, missed = check_parts(model, loss, batch, fits, check)
    log.warning(
        "Checking %s as a whole needs %s: %d of its modules were checked one by one instead. Not checked: "
        "the loss, the code between these modules, and %d parameter%s outside them.",
        type(model).__name__, nbytes(need), count, missed, "s" * (missed != 1),
    )  # fmt: skip


def _checked(
    model: nn.Module, loss: Loss | None, graph: Graph, batch: Batch, values: Mapping[str, Tensor]
) -> None:
    with kept(model, loss):
        check = _CaptureCheck(model, loss, graph, batch, values)
        check.run()
    check.refuse_first_batch()


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
        self.states = [state_of(model, loss)]
        written = {memory_key(values[k]) for k in _written(graph) if k in values}
        self.carried = Carried(self.step, self.states[0], written)
        self.ours = {k: own(t, graph.initializers[k].requires_grad) for k, t in values.items()}

    def run(self) -> None:
        batches = (self.batch.tensors, valid_other_values(self.step, self.batch.tensors))
        for call, tensors in enumerate(batches):
            self._move_weights(call)
            early = self._before_the_model(tensors) if call == 0 else None
            with no_other_draws(self.name), self.carried.watched():
                plain = self._plain(call, tensors)
            self.states.append(state_of(self.model, self.loss))
            self._look_at_tensors(call)
            ours = self._captured(call, tensors) if early is None else early
            self._compare(call, plain, ours)
        changed = changed_state(*self.states[-2:])
        if changed:
            raise CaptureError(f"{self.name} keeps state in Python: {_state_in_python(changed)}.")
        if order_may_matter(self.graph):
            check_order(self.name, self.graph, self.real, batches)

    def _look_at_tensors(self, call: int) -> None:
        if call == 0:
            self.carried.begin(self.states[-1])
            return
        reason = self.carried.reason(self.states[-1]) or handed_between(self.graph.calls, *self.states[-2:])
        if reason is not None:
            raise CaptureError(f"{self.name} keeps state in a tensor: {reason}.")

    def refuse_first_batch(self) -> None:
        """To be called with the model as it was given; leaves it so.

        Raises:
            CaptureError: what the first batch leaves in Python decides what others compute.
        """
        suspects = set_at_first(*self.states)

        def fresh(tensors: tuple[Tensor, ...]) -> tuple[list[Tensor], StateSnapshot]:
            with kept(self.model, self.loss):
                return self._forward(0, tensors), state_of(self.model, self.loss)

        def carried(tensors: tuple[Tensor, ...]) -> tuple[list[Tensor], StateSnapshot]:
            with kept(self.model, self.loss):
                before = {k: t.detach().clone() for k, t in self.real.items()}
                buffers, followed = self._buffers(), list(attribute_tensors(self.step))
                self._forward(0, self.batch.tensors)
                self._write_back(buffers)
                for module, key, _, tensor in followed:
                    if not any(name.startswith(f"'{key}' of") for name in suspects):
                        setattr(module, key, tensor)
                for k, tensor in self.real.items():
                    tensor.data.copy_(before[k])
                return self._forward(0, tensors), state_of(self.model, self.loss)

        if suspects:
            refuse_first_batch(self.name, suspects, self.states[1], self.batch.tensors, fresh, carried)

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
            with torch.enable_grad(), stance(self.graph):
                outputs = self._forward(call, tensors)
                outputs[0].backward()
        except NetSplitError as error:
            raise CaptureError(f"{self.name} draws otherwise than what was captured: {error}") from error
        except Exception as error:
            raise CaptureError(
                f"{self.name} does not train on this batch in plain PyTorch and in micro-batches of "
                f"{self.batch.samples}{where_of(error)}: {line_of(error)}; check model, batch and the "
                "number of micro-batches."
            ) from error
        self._write_back(buffers)
        return [t.detach() for t in outputs]

    def _forward(self, call: int, tensors: tuple[Tensor, ...]) -> list[Tensor]:
        return forward(self.step, self.graph, tensors, call)

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
        made = [name for name in after if name not in before]
        if made:
            raise CaptureError(
                f"{self.name} makes the buffer '{made[0]}' in its forward: call the model once on a batch "
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
                graph = with_own_calls(self.graph)
                module = rebuild(graph, self.ours)
                result = run_microbatch(module, graph, copies(tensors), DrawKey(iteration=call))
                outputs = [result] if isinstance(result, Tensor) else list(result)
                outputs[0].backward()
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
        written = _written(self.graph)
        moving = [
            tensor
            for k, tensor in self.real.items()
            if (initializers[k].requires_grad or k in written) and k not in self.graph.constants
        ]
        return hidden(t for t in moving if self.graph.calls and (t.is_floating_point() or t.is_complex()))

    def _compare(self, call: int, plain: list[Tensor], ours: list[Tensor]) -> None:
        when = "at the first step" if call == 0 else "at a second step, of other values"
        gradients = largest(p.grad for p in self.model.parameters())
        for what, a, b in self._pairs(plain, ours):
            apart = difference(a, b, gradients if what.startswith("the gradient") else 0.0)
            if apart is None:
                continue
            if self.graph.calls and has_nan(b) and not has_nan(a):
                raise CaptureError(
                    f"{self.name} has code that stays whole ({self._whole()}) and reads parameters or "
                    "buffers it is not given (from a closure, an object, a class), which train elsewhere: "
                    "give them as arguments, or compute with them in the forward."
                )
            changed = changed_state(*self.states[-2:])
            cause = f"; {_state_in_python(changed)}" if call and changed else self._cause(call)
            raise CaptureError(
                f"{self.name} would not train as in plain PyTorch: {what} differs {when} ({apart}){cause}."
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
        """As an optimiser would, alike in both; at first too, where copies may still equal the weights."""
        generator = torch.Generator().manual_seed(2 + call)
        for k, tensor in self.real.items():
            if self.graph.initializers[k].requires_grad and tensor.is_floating_point():
                size = 0.01 * float(tensor.detach().abs().max()) if tensor.numel() else 0.0
                noise = torch.randn(tensor.shape, generator=generator) * size
                moved = tensor.detach() + noise.to(tensor.dtype).to(tensor.device)
                tensor.data.copy_(moved)
                self.ours[k].data.copy_(moved)

    def _whole(self) -> str:
        return ", ".join(sorted({call.__name__ for call in self.graph.calls.values()}))

    def _cause(self, call: int) -> str:
        """What was seen, with what to do; "" where nothing was."""
        suspects = set_at_first(*self.states) if call else []
        if suspects:
            return (
                f"; the first step sets {bare(suspects[0])}, and later ones keep it, which a captured step "
                "does not: set it before training (register_buffer)"
            )
        return f"; it has code that stays whole ({self._whole()})" if self.graph.calls else ""


def _state_in_python(changed: Sequence[str]) -> str:
    momentum = next((name for name in changed if "momentum" in name), None)
    if momentum is not None:
        return f"{momentum} is another after every step: a BatchNorm's momentum must stay the same number"
    return (
        f"{changed[0]} is another after every step, which a captured step cannot follow: keep it in a buffer "
        "(register_buffer) and compute with that tensor, or take it out of the forward"
    )


def _written(graph: Graph) -> set[str]:
    """Initializers that its nodes write."""
    return {k for node in graph for tag, k in written_references(graph, node) if tag == "init"}
