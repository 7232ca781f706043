"""One device's share of a program, executed.

    feeds ─► values[k, i] ─► Forward ─► values of outputs ─► Send
             leaves[s, i] ◄─┘               │
    Send ◄─ grads[k, i] ◄─── Backward ◄─────┘ grads of outputs ◄─ Recv

A segment reads detached copies of its inputs as autograd leaves, so each segment's autograd graph is
its own; gradients are handed from segment to segment as the program says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx

from netsplit.errors import WorkerError
from netsplit.graph.ir import TRANSFER
from netsplit.graph.module import rebuild
from netsplit.program.instructions import Backward, Forward, Instruction, Program, Recv, Segment, Send, Step
from netsplit.runtime.recorder import Recorder
from netsplit.runtime.transport import Handle, Transport, TransportLost, TransportTimeout

__all__ = ["Executor", "OptimizerFactory", "Share"]

OptimizerFactory = Callable[[Iterable[Tensor]], torch.optim.Optimizer]
Key = tuple[str, int]  # variable, micro-batch


@dataclass
class Share:
    """What a device holds between iterations: its own tensors of the model, and their optimiser."""

    tensors: dict[str, Tensor]  # initializers by the model's names
    optimizer: torch.optim.Optimizer | None

    @classmethod
    def of(
        cls,
        values: Mapping[str, Tensor],
        device: torch.device,
        optimizer: OptimizerFactory | None,
        trainable: Iterable[str] = (),
    ) -> Share:
        """Copies of `values` on `device`; those named in `trainable` become parameters."""
        tensors: dict[str, Tensor] = {}
        names = set(trainable)
        for name, value in values.items():
            copy = value.detach().clone().to(device)
            tensors[name] = torch.nn.Parameter(copy) if name in names else copy
        parameters = [tensor for tensor in tensors.values() if isinstance(tensor, torch.nn.Parameter)]
        return cls(tensors, optimizer(parameters) if optimizer is not None and parameters else None)

    def all_tensors(self) -> list[Tensor]:
        """The tensors, their gradients and the optimiser's moments."""
        found = list(self.tensors.values())
        found += [tensor.grad for tensor in self.tensors.values() if tensor.grad is not None]
        if self.optimizer is not None:
            states = self.optimizer.state.values()
            found += [value for state in states for value in state.values() if isinstance(value, Tensor)]
        return found


@dataclass
class _Context:
    """What one forward leaves for its backward."""

    leaves: dict[str, Tensor]
    outputs: dict[str, Tensor]


@dataclass
class _State:
    """Tensors alive in one iteration."""

    feeds: list[dict[str, Tensor]]
    values: dict[Key, Tensor] = field(default_factory=dict)
    readers: dict[Key, int] = field(default_factory=dict)  # forwards and sends still to come
    arriving: dict[tuple[str, int, bool], tuple[Recv, Handle]] = field(default_factory=dict)
    contexts: dict[tuple[int, int], _Context] = field(default_factory=dict)
    grads: dict[Key, list[tuple[int, Tensor]]] = field(default_factory=dict)
    sending: list[tuple[Send, Handle]] = field(default_factory=list)
    outputs: dict[Key, Tensor] = field(default_factory=dict)


class Executor:
    """Executes the instructions of one device.

    Args:
        program: the whole program; only `device`'s list is executed.
        share: the device's tensors; segments use them, Step changes them.
        transport: towards the other devices.
        timeout_s: longest wait for one transfer before `WorkerError` names it.
    """

    def __init__(
        self,
        program: Program,
        device: str,
        share: Share,
        transport: Transport,
        torch_device: torch.device,
        timeout_s: float = 60.0,
    ) -> None:
        self.program = program
        self.device = device
        self.share = share
        self.transport = transport
        self.torch_device = torch_device
        self.timeout_s = timeout_s
        self.recorder = Recorder(device)
        self.instructions = program.instructions[device]
        self.segments = {s.index: s for s in program.segments if s.device == device}
        self.modules = {index: self._module(segment) for index, segment in self.segments.items()}
        self.readers = self._count_readers()
        self.copies = self._copies()
        self.state = _State([])

    def run(self, feeds: list[dict[str, Tensor]]) -> dict[Key, Tensor]:
        """A whole iteration of this device's own list; see `begin` and `finish`."""
        self.begin(feeds)
        for index in range(len(self.instructions)):
            self.execute(index)
        return self.finish()

    def begin(self, feeds: list[dict[str, Tensor]]) -> None:
        """Start an iteration; `feeds[i]` holds the input variables of micro-batch i read here."""
        moved = [{k: t.to(self.torch_device) for k, t in feed.items()} for feed in feeds]
        self.state = _State(
            moved, readers={(k, i): n for k, n in self.readers.items() for i in range(len(feeds))}
        )
        self.recorder.begin()

    def execute(self, index: int) -> None:
        """Carry out the instruction at `index` of this device's list."""
        instruction = self.instructions[index]
        self.recorder.at(index)
        with torch.set_grad_enabled(self.program.training):
            if isinstance(instruction, Forward):
                self._forward(instruction)
            elif isinstance(instruction, Backward):
                self._backward(instruction)
            elif isinstance(instruction, Send):
                self._send(instruction)
            elif isinstance(instruction, Recv):
                self._receive(instruction)
            else:
                self._step(instruction)
        self._drop_sent()

    def finish(self) -> dict[Key, Tensor]:
        """End the iteration: wait for the last sends; the graph outputs that arose here, by micro-batch."""
        for send, handle in self.state.sending:
            self._wait(send, send, handle)
            self.recorder.sent(send.tag, handle.ended_s)
        outputs = self.state.outputs
        self.state = _State([])
        self.recorder.end()
        return outputs

    def _forward(self, ins: Forward) -> None:
        segment, i = self.segments[ins.segment], ins.microbatch
        values = {k: self._value(k, i, ins) for k in segment.inputs}
        with self.recorder.span("forward", f"segment {segment.index}", i, self.torch_device):
            leaves = {k: self._leaf(k, value) for k, value in values.items()}
            results = dict(zip(segment.outputs, self.modules[segment.index](*leaves.values()), strict=True))
        del values
        differentiable = {k: t for k, t in results.items() if t.requires_grad}
        if self.program.training and differentiable:
            wanting = {k: t for k, t in leaves.items() if t.requires_grad}
            self.state.contexts[segment.index, i] = _Context(wanting, differentiable)
        for k, result in results.items():
            if k in self.program.graph.output_variables:
                self.state.outputs[k, i] = result.detach()
            if self.readers.get(k):
                self.state.values[k, i] = result.detach()

    def _value(self, k: str, i: int, ins: Instruction) -> Tensor:
        if k in self.state.feeds[i]:
            return self.state.feeds[i][k]
        if (k, i, False) in self.state.arriving:
            recv, handle = self.state.arriving.pop((k, i, False))
            self.state.values[k, i] = self._wait(ins, recv, handle)
        return self._use(k, i)

    def _use(self, k: str, i: int) -> Tensor:
        """The value of a variable; forgotten here once the last that reads it has it."""
        self.state.readers[k, i] -= 1
        if self.state.readers[k, i]:
            return self.state.values[k, i]
        return self.state.values.pop((k, i))

    def _leaf(self, k: str, value: Tensor) -> Tensor:
        if not self.program.training or not self.program.graph.variables[k].requires_grad:
            return value
        return value.detach().requires_grad_()

    def _backward(self, ins: Backward) -> None:
        segment, i = self.segments[ins.segment], ins.microbatch
        context = self.state.contexts.pop((segment.index, i))
        self._collect_gradients(segment, i, ins)
        outputs, seeds = [], []
        for k, output in context.outputs.items():
            seed = self._seed(k, i, output)
            if seed is not None:
                outputs.append(output)
                seeds.append(seed)
        with self.recorder.span("backward", f"segment {segment.index}", i, self.torch_device):
            if outputs:
                torch.autograd.backward(outputs, seeds)
        for k, leaf in context.leaves.items():
            if leaf.grad is not None:
                self._add_gradient(k, i, self._place_of(segment, k), leaf.grad)

    def _collect_gradients(self, segment: Segment, i: int, ins: Backward) -> None:
        for k in segment.outputs:
            for copy in self.copies[k]:
                if (copy, i, True) in self.state.arriving:
                    recv, handle = self.state.arriving.pop((copy, i, True))
                    self._add_gradient(k, i, self._last_place(copy), self._wait(ins, recv, handle))

    def _seed(self, k: str, i: int, output: Tensor) -> Tensor | None:
        if k in self.program.graph.output_variables:
            return torch.full_like(output, 1.0 / self.program.microbatches)
        return self._total_gradient(k, i)

    def _total_gradient(self, k: str, i: int) -> Tensor | None:
        """Sum of a variable's gradients, the last reader's first as plain autograd has it."""
        parts = sorted(self.state.grads.pop((k, i), []), key=lambda part: -part[0])
        total: Tensor | None = None
        for _, part in parts:
            total = part if total is None else total + part
        return total

    def _add_gradient(self, k: str, i: int, place: int, grad: Tensor) -> None:
        self.state.grads.setdefault((k, i), []).append((place, grad))

    def _place_of(self, segment: Segment, k: str) -> int:
        graph = self.program.graph
        inside = set(segment.nodes)
        return max(graph.position[v] for v in graph.variables[k].consumers if v in inside)

    def _last_place(self, k: str) -> int:
        graph = self.program.graph
        return max(graph.position[v] for v in graph.variables[k].consumers)

    def _send(self, ins: Send) -> None:
        if ins.gradient:
            total = self._total_gradient(ins.variable, ins.microbatch)
            tensor = self._zeros(ins.variable) if total is None else total
        else:
            tensor = self._use(ins.source, ins.microbatch)
        self.recorder.sending(ins, tensor.numel() * tensor.element_size())
        self.state.sending.append((ins, self.transport.send(tensor, ins.peer, ins.tag)))

    def _receive(self, ins: Recv) -> None:
        variable = self.program.graph.variables[ins.source]
        handle = self.transport.receive(variable.shape, getattr(torch, variable.dtype), ins.peer, ins.tag)
        self.state.arriving[ins.variable, ins.microbatch, ins.gradient] = (ins, handle)

    def _wait(self, ins: Instruction, transfer: Send | Recv, handle: Handle) -> Tensor:
        with self.recorder.wait(transfer):
            try:
                return handle.wait(self.timeout_s)
            except TransportTimeout as error:
                raise WorkerError(
                    f"device {self.device} waited {self.timeout_s:g} s at the {ins} for {transfer.what} "
                    f"{self._direction(transfer)} {transfer.peer}"
                ) from error
            except TransportLost as error:
                raise WorkerError(
                    f"device {self.device} lost {transfer.peer} at the {ins}, waiting for {transfer.what} "
                    f"{self._direction(transfer)} it"
                ) from error

    @staticmethod
    def _direction(transfer: Send | Recv) -> str:
        return "to reach" if isinstance(transfer, Send) else "from"

    def _drop_sent(self) -> None:
        still = []
        for send, handle in self.state.sending:
            if handle.done():
                self.recorder.sent(send.tag, handle.ended_s)
            else:
                still.append((send, handle))
        self.state.sending = still

    def _step(self, ins: Step) -> None:
        with self.recorder.span("step", str(ins), -1, self.torch_device):
            if self.share.optimizer is not None:
                self.share.optimizer.step()
                self.share.optimizer.zero_grad(set_to_none=True)

    def _zeros(self, k: str) -> Tensor:
        variable = self.program.graph.variables[k]
        return torch.zeros(variable.shape, dtype=getattr(torch, variable.dtype), device=self.torch_device)

    def _module(self, segment: Segment) -> fx.GraphModule:
        return rebuild(
            self.program.graph,
            self.share.tensors,
            nodes=segment.nodes,
            inputs=segment.inputs,
            outputs=segment.outputs,
            device=self.torch_device,
        )

    def _count_readers(self) -> dict[str, int]:
        """How often a variable is read here in one micro-batch: by segments, and by sends of its value."""
        counts: dict[str, int] = {}
        for segment in self.segments.values():
            for k in segment.inputs:
                counts[k] = counts.get(k, 0) + 1
        for ins in self.instructions:
            if isinstance(ins, Send) and not ins.gradient and ins.microbatch == 0:
                counts[ins.source] = counts.get(ins.source, 0) + 1
        return counts

    def _copies(self) -> dict[str, tuple[str, ...]]:
        """Output of a segment here -> its copies "k@q" on other devices."""
        graph = self.program.graph
        return {
            k: tuple(v for v in graph.variables[k].consumers if graph.nodes[v].op == TRANSFER)
            for segment in self.segments.values()
            for k in segment.outputs
        }
