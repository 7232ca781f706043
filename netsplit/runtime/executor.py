"""One device's part of a program, executed.

    feeds ─► values[k, i] ─► Forward ─► values of outputs ─► Send
             leaves[s, i] ◄─┘               │
    Send ◄─ grads[k, i] ◄─── Backward ◄─────┘ grads of outputs ◄─ Recv

A segment reads detached inputs as autograd leaves, so it has its own autograd graph; the program hands
gradients from segment to segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward

from netsplit.graph.deferral.deferred import WeightGradients
from netsplit.graph.operators import autocast_of
from netsplit.graph.random_draws import DrawKey, drawing
from netsplit.graph.remembered import KeptResults, remembering
from netsplit.program.instructions import (
    Backward,
    Forward,
    Gather,
    Instruction,
    Recv,
    Reduce,
    Scatter,
    Send,
    Step,
)
from netsplit.runtime.faults import Inspection, may_be_unlike, require_as_captured
from netsplit.runtime.handing_on import HandingOn
from netsplit.runtime.offload import SavedTensors
from netsplit.runtime.pieces import DevicePieces, Piece
from netsplit.runtime.values import (
    Absent,
    Before,
    Context,
    IterationValues,
    Key,
    backwards_of,
    last_read,
    readers_of,
    versions_of,
)
from netsplit.simulate.timeline import EventKind

__all__ = ["Executor"]


@dataclass(eq=False)
class Executor(HandingOn):
    """Executes one device's list of instructions of a whole program.

    Args:
        timeout_s: longest wait for one transfer before `WorkerError` names it.
        backend: of `torch.compile` for segments; None: they are not compiled.
        offload: what autograd saves within segments goes to the host's memory until their backwards.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        program, device = self.program, self.device
        self.pieces = DevicePieces(
            program, device, self.segments, self.share.tensors, self.torch_device, self.backend,
            self.offload and program.training,
        )  # fmt: skip
        self.readers = readers_of(program, device, self.segments)
        self.backwards = backwards_of(program, device, self.segments)
        self.pools_taken = program.pools_taken(device)
        self.places = {
            (s, k): last_read(program, segment, k)
            for s, segment in self.segments.items()
            for k in segment.inputs
        }
        self.names = {s: f"segment {s}" for s in self.segments}
        self.unlike = {s: may_be_unlike(program.graph, each.outputs) for s, each in self.segments.items()}
        self.returning = {
            s: [(k, *each) for k in segment.outputs for each in self.copies[k]]
            for s, segment in self.segments.items()
        }  # (output, its copy elsewhere, where that is last read)
        self.outputs = frozenset(program.graph.output_variables)
        variables = program.graph.variables
        self.wanting = frozenset(k for k in variables if program.training and variables[k].requires_grad)
        self.steps = any(isinstance(ins, Step) for ins in self.instructions)
        self.order = [place for place, name in enumerate(program.order) if name == device]
        self.computing = program.computing(device) if program.steps_last else len(self.instructions)
        self.written = self.pieces.written
        self.before: Before | None = None
        self.inspection: Inspection | None = None  # looks at every result
        self.versions = versions_of(self.instructions, self.share.parameters, self.pieces.trains)
        self.key = DrawKey()
        self.prepared = -1

    def run(
        self,
        feeds: list[dict[str, Tensor]],
        fractions: Sequence[float] | None = None,
        step: bool = True,
        key: DrawKey | None = None,
    ) -> dict[Key, Tensor]:
        with self.grad_mode():
            self.begin(feeds, fractions, step, key)
            for index in range(len(self.instructions)):
                self.execute(index)
            return self.finish()

    def grad_mode(self) -> AbstractContextManager[None]:
        return torch.set_grad_enabled(self.program.training)

    def begin(
        self,
        feeds: list[dict[str, Tensor]],
        fractions: Sequence[float] | None = None,
        step: bool = True,
        key: DrawKey | None = None,
        absent: Absent = frozenset(),
    ) -> None:
        """Start an iteration.

        Args:
            feeds: `feeds[i]` holds the input variables of micro-batch i read here.
            fractions: of each micro-batch's loss in what is minimised; all the same by default.
            step: False only adds up gradients.
            absent: what an earlier attempt at this iteration found.
        """
        moved = [{k: t.to(self.torch_device) for k, t in feed.items()} for feed in feeds]
        if fractions is None:
            fractions = [1.0 if self.program.asynchronous else 1.0 / len(feeds)] * len(feeds)
        self.state = IterationValues(moved, list(fractions), dict(self.readers), absent=absent)
        self.key = key or DrawKey()
        self.stepping = step
        self.summing = None
        self.prepared = -1
        self.separate.clear()
        if self.program.steps_last:
            self.before = Before.of(self.share, self.written, self.program.training)
        if self.versions is not None:
            self.versions.begin()
        self.recorder.begin()

    def execute(self, index: int) -> None:
        instruction = self.instructions[index]
        self.recorder.at(index)
        getattr(self, _METHODS[type(instruction)])(instruction)
        if (sliced := self.share.sliced) is not None:
            for b in self.let_go_at.get(index, ()):
                sliced.let_go(self.program.bundles[b].names)
        self.let_go(instruction)

    def finish(self) -> dict[Key, Tensor]:
        """Wait for the last sends; graph outputs made on this device, by micro-batch."""
        self.await_sends()
        self.meet()
        for b in list(self.gathering):
            self.gathered(b, self.gathering[b][0])
        self.settle()
        outputs = self.state.outputs
        self.state, self.before = IterationValues([]), None
        if self.program.training and self.stepping:
            self.share.idle = not self.steps
            if self.share.idle:
                self.share.step_optimizer()
            self.share.after_iteration()
        self.fresh = False
        self.recorder.end()
        return outputs

    def meet(self) -> None:
        """End what others compute with, or wait for before they compute more."""
        for b in list(self.gathering):
            if self.program.bundles[b].level == "parameters":
                begun, handle = self.gathering.pop(b)
                self.wait(begun, begun, handle)
        if self.summing is not None and isinstance(self.summing[0], Scatter):
            self.finish_sum(self.summing[0])

    def abandon(self) -> None:
        """Forget an iteration in which no device has stepped; buffers and gradients are as before it."""
        self.state, self.summing = IterationValues([]), None
        self.gathering.clear()
        if self.share.sliced is not None:
            self.share.sliced.let_go(sorted(self.share.sliced.let_go_of))
        if self.before is not None:
            self.before.restore(self.share)
            self.before = None

    def _forward(self, ins: Forward) -> None:
        s, i = ins.segment, ins.microbatch
        self.put_together(ins)
        piece = self.pieces.piece(s, i)
        piece.run = piece.usual if self.inspection is None else self.inspection.watching(piece.module, i)
        values = {k: self._value(k, i, ins) for k in piece.segment.inputs}
        weights = self._bind(piece, ins.version)
        with self._span("forward", ins):
            if ins.recompute:
                remembers = KeptResults() if piece.keeps else None
                modes = autocast_of(self.program.graph, self.torch_device), self._drawing(piece, i)
                with modes[0], modes[1], remembering(remembers):
                    leaves = {k: self._leaf(k, t) for k, t in values.items()} if piece.calls else values
                    results, buffers = piece.compute_without_keeping(leaves)
                self.state.contexts[s, i] = Context(values, {}, weights, buffers, results=remembers)
            else:
                leaves, results = self._compute(piece, i, values)
                if self.program.training:
                    differentiable = {k: t for k, t in results.items() if t.requires_grad}
                    wanting = {k: t for k, t in leaves.items() if t.requires_grad and differentiable}
                    self.state.contexts[s, i] = Context(wanting, differentiable, weights)
                    if self.unlike[s]:
                        require_as_captured(self.program.graph, self.unlike[s], differentiable)
        del values
        for k, result in results.items():
            if k in self.outputs:
                # Read after the step, and after what other micro-batches write to buffers.
                kept = result.detach()
                self.state.outputs[k, i] = kept.clone() if self.program.training else kept
            if (k, i) in self.readers:
                self.state.values[k, i] = result.detach()

    def _bind(self, piece: Piece, version: int) -> dict[str, Tensor] | None:
        if self.versions is None or not piece.trainable:
            return None
        weights = self.versions.use(version)
        piece.bind(weights)
        return weights

    def _compute(
        self, piece: Piece, i: int, values: dict[str, Tensor], buffers: dict[str, Tensor] | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        leaves = {k: self._leaf(k, value) for k, value in values.items()}
        if not (self.offload or piece.draws or self.program.graph.autocast):
            return leaves, piece.compute(leaves) if buffers is None else piece.again(leaves, buffers)
        saving = self._saving(piece, leaves, buffers)
        with (
            autocast_of(self.program.graph, self.torch_device),
            self._drawing(piece, i),
            nullcontext() if saving is None else saving.hooks(),
        ):
            results = piece.compute(leaves) if buffers is None else piece.again(leaves, buffers)
        if saving is not None:
            saving.settle(results.values())
        return leaves, results

    def _saving(
        self, piece: Piece, leaves: dict[str, Tensor], buffers: dict[str, Tensor] | None
    ) -> SavedTensors | None:
        host = self.share.host
        if not self.offload or host is None or not self.program.training:
            return None
        written = () if buffers is None else buffers.values()
        return SavedTensors(host, (*leaves.values(), *self.share.tensors.values(), *piece.bound, *written))

    def _drawing(self, piece: Piece, i: int) -> AbstractContextManager[None]:
        return drawing(self.key.at(i)) if piece.draws else nullcontext()

    def _value(self, k: str, i: int, ins: Instruction) -> Tensor:
        feed = self.state.feeds[i]
        if k in feed:
            return feed[k]
        i = self.program.sent_with(k, self.device, i)
        if self.state.held_back and (k, i, False) in self.to_hand_on:
            self.hand_on(wait=True)
        if (k, i, False) in self.state.arriving:
            recv, handle = self.state.arriving.pop((k, i, False))
            self.state.values[k, i] = self.repeated(recv, self.wait(ins, recv, handle))
        return self.state.use(k, i)

    def _leaf(self, k: str, value: Tensor) -> Tensor:
        return value.detach().requires_grad_() if k in self.wanting else value

    def _backward(self, ins: Backward) -> None:
        s, i = ins.segment, ins.microbatch
        context, piece = self.state.contexts.pop((s, i)), self.pieces.piece(s, i)
        if ins.part != "weight":
            self.put_together(ins)
        if ins.part == "weight":
            with self._span("weight", ins):
                if context.deferred is not None:
                    context.deferred.run()
        else:
            if context.buffers is not None:
                context = self._again(piece, context, ins)
            self._collect_gradients(ins)
            self._propagate(piece, context, ins)
        if self.versions is not None and context.weights is not None:
            self.versions.collect(context.weights, piece.trainable, ins.update)

    def _again(self, piece: Piece, context: Context, ins: Backward) -> Context:
        """Recompute the forward before the backward waits for gradients."""
        if context.weights is not None:
            piece.bind(context.weights)
        with self._span("recompute", ins), remembering(context.results, again=True):
            leaves, results = self._compute(piece, ins.microbatch, context.leaves, context.buffers)
        wanting = {k: t for k, t in leaves.items() if t.requires_grad}
        return Context(wanting, {k: t for k, t in results.items() if t.requires_grad}, context.weights)

    def _propagate(self, piece: Piece, context: Context, ins: Backward) -> None:
        s, i = ins.segment, ins.microbatch
        given = {k: self._seed(k, i, output) for k, output in context.outputs.items()}
        seeds = {k: seed for k, seed in given.items() if seed is not None}
        outputs = [context.outputs[k] for k in seeds]
        deferred = WeightGradients() if ins.part == "input" else None
        with self._span("backward", ins), deferred.collect() if deferred is not None else nullcontext():
            if outputs:
                _run_backward(tuple(outputs), tuple(seeds.values()))
        if s not in self.separate:
            self._separate(piece, context)
        for k, leaf in context.leaves.items():
            grad = leaf.grad
            if grad is not None:
                self.state.add_gradient(k, i, self.places[s, k], _of_its_own(grad))
                leaf.grad = None
        for k in piece.segment.inputs if self.backwards else ():
            if k in self.backwards:
                self.state.collect(k, i, self.backwards[k])
        if deferred is not None:
            self.state.contexts[s, i] = Context({}, {}, context.weights, deferred=deferred)

    def _separate(self, piece: Piece, context: Context) -> None:
        """Copy gradients that are views of what is sent or read."""
        read = {_storage(leaf.grad) for leaf in context.leaves.values() if leaf.grad is not None}
        weights = self.share.tensors if context.weights is None else context.weights
        grads = {name: weights[name].grad for name in piece.trainable}
        for name, grad in grads.items() if read else ():
            if grad is not None and grad.layout is torch.strided and _storage(grad) in read:
                weights[name].grad = grad.clone()
        if context.weights is None and all(grad is not None for grad in grads.values()):
            self.separate.add(piece.segment.index)

    def _collect_gradients(self, ins: Backward) -> None:
        i = ins.microbatch
        for k, copy, place in self.returning[ins.segment]:
            if (copy, i, True) in self.state.arriving:
                recv, handle = self.state.arriving.pop((copy, i, True))
                gradient = self.wait(ins, recv, handle)
                if (copy, i) not in self.state.absent:
                    self.state.add_gradient(k, i, place, gradient)

    def _seed(self, k: str, i: int, output: Tensor) -> Tensor | None:
        if k in self.outputs:
            return torch.full_like(output, self.state.fractions[i] * self.share.loss_factor)
        if (k, i) in self.pools_taken and (own := self.state.sum_of(k)) is not None:
            self.state.add_gradient(k, i, len(self.program.graph), own)
        return self.state.total_gradient(k, i)

    def _reduce(self, ins: Reduce) -> None:
        if not self.stepping:
            return
        with self.recorder.span("reduce", str(ins), -1, self.torch_device):
            self.finish_sum(ins)
            self._prepare(ins.number)
            self.settle()
            if ins.kind == "gradients":
                packed = self.share.packed_gradients(self.program.summed(ins.devices))
            else:
                packed = self.share.norm_terms()
            begin = partial(self.transport.reduce, packed, ins.devices, ins.tag)
            self.summing = (ins, self._carried(ins, ins, begin))

    def _prepare(self, number: int) -> None:
        if self.versions is not None and self.prepared != number:
            self.versions.before_step(number)
            self.prepared = number

    def _step(self, ins: Step) -> None:
        if not self.stepping:
            return
        self.separate.clear()
        self._prepare(ins.number)
        terms = self.finish_sum(ins)
        with self.recorder.span("step", str(ins), -1, self.torch_device):
            self.share.step(ins.fraction, terms)
        if self.versions is not None:
            self.versions.after_step()

    def _span(self, kind: EventKind, ins: Forward | Backward) -> AbstractContextManager[None]:
        return self.recorder.span(kind, self.names[ins.segment], ins.microbatch, self.torch_device)


_METHODS: dict[type[Instruction], str] = {
    Forward: "_forward", Backward: "_backward", Send: "send", Recv: "receive", Reduce: "_reduce",
    Step: "_step", Gather: "gather", Scatter: "scatter",
}  # fmt: skip
"""Instruction -> method that executes it."""


def _run_backward(outputs: tuple[Tensor, ...], gradients: tuple[Tensor, ...]) -> None:
    """`torch.autograd.backward` without its checks in Python; the engine checks gradients itself."""
    _engine_run_backward(outputs, gradients, False, False, (), allow_unreachable=True, accumulate_grad=True)


def _of_its_own(gradient: Tensor) -> Tensor:
    """Copy a view of a larger tensor, which would stay as long as the gradient waits."""
    dense = gradient.layout is torch.strided and gradient.device.type != "meta"
    return gradient.clone() if dense and gradient.untyped_storage().nbytes() > gradient.nbytes else gradient


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
