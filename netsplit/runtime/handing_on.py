"""What a device sends and receives, gathers and sums with others, while it executes a program.

Recv ─► arriving[k, i] ─► who waits for it             Send ─► sending[tag] ─► over: forgotten
              └─► held back: a Send that hands it on goes when that is there
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from netsplit.errors import WorkerError
from netsplit.graph.ir import Graph, Variable
from netsplit.program.instructions import (
    Backward,
    Collective,
    Forward,
    Gather,
    Instruction,
    Program,
    Recv,
    Reduce,
    Scatter,
    Send,
    Step,
)
from netsplit.program.transfers import bundles_used
from netsplit.runtime.faults import one_line
from netsplit.runtime.recorder import TimelineRecorder
from netsplit.runtime.share import Share
from netsplit.runtime.transport.handle import (
    COMPILING_S,
    Handle,
    Ordered,
    Transport,
    TransportLost,
    TransportTimeout,
    dense,
)
from netsplit.runtime.values import HeldBack, IterationValues, places_of_copies, sum_of, way_of

__all__ = ["HandingOn"]

T = TypeVar("T")

LOOK_S = 50e-6  # between looks at what a GPU waits for


@dataclass(eq=False)
class HandingOn:
    """The transfers and collectives of an `Executor`."""

    program: Program
    device: str
    share: Share
    transport: Transport
    torch_device: torch.device
    timeout_s: float = 60.0
    backend: str | None = None
    offload: bool = False

    def __post_init__(self) -> None:
        program, device = self.program, self.device
        self.recorder = TimelineRecorder(device)
        self.on_cuda = self.torch_device.type == "cuda"
        self.instructions = program.instructions[device]
        self.segments = {s.index: s for s in program.segments if device in (s.replicas or (s.device,))}
        self.copies = places_of_copies(program, self.segments)
        sends = (ins for ins in self.instructions if isinstance(ins, Send))
        self.handed_on = {ins.tag: keys for ins in sends if (keys := program.handed_on(ins, device))}
        self.to_hand_on = {key for keys in self.handed_on.values() for key in keys}
        self.state = IterationValues([])
        self.stepping = True
        self.separate: set[int] = set()  # segments whose parameters have gradients of their own
        self.summing: tuple[Reduce | Scatter, Handle] | None = None
        self.gathering: dict[int, tuple[Gather, Handle]] = {}  # by their bundle
        self.reading, self.let_go_at = bundles_used(program, device)
        self.fresh = self.backend is not None  # some device still compiles segments

    def send(self, ins: Send) -> None:
        if keys := self.handed_on.get(ins.tag):
            self.state.held_back.append(HeldBack(ins, keys))
            self.hand_on()
            return
        held_back = self.state.held_back
        if held_back and self.on_cuda and any(held.send.peer == ins.peer for held in held_back):
            self.hand_on(wait=True)  # NCCL follows the order at both ends
        self._send(ins)

    def hand_on(self, wait: bool = False) -> None:
        """Send held-back values that have come; with `wait` all of them.

        What another device needs for this was asked for before, in the program's one order.
        """
        held_back, arriving = self.state.held_back, self.state.arriving
        while True:
            waiting: set[str] = set()  # peers with an earlier send held back
            for held in tuple(held_back):
                coming = [key for key in held.keys if key in arriving]
                over = [arriving[key][1].done() for key in coming]
                if held.send.peer in waiting or not all(over):
                    waiting.add(held.send.peer)
                    continue
                for key in coming:
                    self._take(held.send, *key)
                self._send(held.send)
                held_back.remove(held)
            if not wait or not held_back:
                return
            first = held_back[0]
            self._take(first.send, *next(key for key in first.keys if key in arriving))

    def _take(self, ins: Send, k: str, i: int, gradient: bool) -> None:
        recv, handle = self.state.arriving.pop((k, i, gradient))
        tensor = self._waited(ins, recv, handle.wait)
        self._unfinished(ins, recv, handle)
        if not gradient:
            self.state.values[k, i] = self.repeated(recv, tensor)
        elif (k, i) not in self.state.absent:
            self.state.add_gradient(ins.variable, ins.microbatch, dict(self.copies[ins.variable])[k], tensor)

    def _gradients(self, ins: Send) -> list[Tensor]:
        """Terms of the gradient to send, the last reader's first."""
        if ins.variable in self.program.lasting and (own := self.state.sum_of(ins.variable)) is not None:
            self.state.add_gradient(ins.variable, ins.microbatch, len(self.program.graph), own)
        return self.state.gradients(ins.variable, ins.microbatch)

    def _send(self, ins: Send) -> None:
        i = ins.microbatch
        if ins.gradient:
            total = sum_of(self._gradients(ins))
            if total is None:
                self.state.nothing.add((ins.variable, i))
            tensor = self.empty_like(ins.variable, i).zero_() if total is None else total
        else:
            tensor = self.state.use(ins.read, self.program.sent_with(ins.read, self.device, i))
        self.carry(ins, tensor)

    def carry(self, ins: Send, tensor: Tensor) -> None:
        variable = self._variable(ins)
        self.recorder.sending(ins, variable.nbytes)
        begin = partial(self.transport.send, dense(tensor, variable.order), ins.peer, ins.tag, True)
        self.state.sending[ins.tag] = (ins, self._carried(ins, ins, begin))

    def receive(self, ins: Recv) -> None:
        key, order = (ins.variable, ins.microbatch, ins.gradient), self._variable(ins).order
        buffer = dense(self.empty_like(ins.source, ins.microbatch), order)
        begin = partial(self.transport.receive, buffer, ins.peer, ins.tag, key in self.to_hand_on)
        handle = self._carried(ins, ins, begin)
        self.state.arriving[key] = (ins, Ordered(handle, order) if order else handle)

    def _variable(self, ins: Send | Recv) -> Variable:
        return self._graph(ins.microbatch).variables[ins.source]

    def await_sends(self) -> None:
        self.hand_on(wait=True)
        for send, handle in self.state.sending.values():
            self.wait(send, send, handle)

    @property
    def limit_s(self) -> float:
        return max(self.timeout_s, COMPILING_S) if self.fresh else self.timeout_s

    def wait(self, ins: Instruction, transfer: Send | Recv | Collective, handle: Handle) -> Tensor:
        if self.state.held_back:
            self.hand_on(wait=not handle.done())
        tensor = self._waited(ins, transfer, handle.wait)
        self._unfinished(ins, transfer, handle)
        return tensor

    def _unfinished(self, ins: Instruction, transfer: Send | Recv | Collective, handle: Handle) -> None:
        """Note what the GPU's stream waits for while the host goes on."""
        if self.on_cuda and not handle.done():
            self.state.unfinished.append((ins, transfer, handle))

    def settle(self) -> None:
        """Wait for all messages the GPU's stream waits for; raises WorkerError if one is late."""
        for ins, transfer, handle in self.state.unfinished:
            self._waited(ins, transfer, partial(_until_done, handle))
        self.state.unfinished.clear()

    def _waited(self, ins: Instruction, transfer: Send | Recv | Collective, wait: Callable[[float], T]) -> T:
        recorder, start_s = self.recorder, time.perf_counter()
        recorder.waits(transfer.tag)
        tensor = self._carried(ins, transfer, partial(wait, self.limit_s))
        recorder.waits(-1)
        if recorder.recording:
            what = str(transfer) if isinstance(transfer, Collective) else transfer.what
            i = -1 if isinstance(transfer, Collective) else transfer.microbatch
            recorder.waited(start_s, what, i, _peer(transfer))
        return tensor

    def repeated(self, recv: Recv, tensor: Tensor) -> Tensor:
        """What has come, as it repeats itself where it was made."""
        variable = self._variable(recv)
        if not variable.repeated:
            return tensor
        for d in variable.repeated:
            tensor = tensor.narrow(d, 0, 1)
        return tensor.expand(variable.shape)

    def _carried(self, ins: Instruction, transfer: Send | Recv | Collective, operation: Callable[[], T]) -> T:
        try:
            return operation()
        except TransportTimeout as error:
            raise WorkerError(
                f"device {self.device} waited {self.limit_s:g} s at the {ins} for {way_of(transfer)}"
            ) from error
        except TransportLost as error:
            raise WorkerError(
                f"device {self.device} lost {_peer(transfer)} at the {ins}, waiting for {way_of(transfer)} "
                f"({one_line(error).partition(': ')[2]})"
            ) from error

    def put_together(self, ins: Forward | Backward) -> None:
        """Wait until the parameters it needs are gathered."""
        for b in self.reading.get(ins.segment, ()):
            if b in self.gathering:
                self.gathered(b, ins)

    def gathered(self, b: int, ins: Instruction) -> None:
        begun, handle = self.gathering.pop(b)
        rows = self.wait(ins, begun, handle)
        assert self.share.sliced is not None
        self.share.sliced.unpack(rows, self.program.bundles[b].names, begun.devices)

    def gather(self, ins: Gather) -> None:
        bundle = self.program.bundles[ins.bundle]
        if self.program.training and not self.stepping and bundle.level != "parameters":
            return  # nothing has changed
        last = bundle.level != "parameters"  # one by one, as whole parameters exist already
        for b in [b for b in self.gathering if last or b == ins.bundle]:
            self.gathered(b, ins)
        assert self.share.sliced is not None
        packed = self.share.sliced.packed(bundle.names, ins.devices)
        begin = partial(self.transport.gather, packed, ins.devices, ins.tag)
        self.gathering[ins.bundle] = ins, self._carried(ins, ins, begin)

    def scatter(self, ins: Scatter) -> None:
        bundle = self.program.bundles[ins.bundle]
        with self.recorder.span("reduce", str(ins), -1, self.torch_device):
            self.finish_sum(ins)
            assert self.share.sliced is not None
            packed = self.share.sliced.packed_gradients(bundle.names, ins.devices)
            self.separate.difference_update(bundle.segments or self.separate.copy())
            begin = partial(self.transport.scatter, packed, ins.devices, ins.tag)
            self.summing = (ins, self._carried(ins, ins, begin))

    def await_collectives(self) -> None:
        begun = list(self.gathering.values()) + ([] if self.summing is None else [self.summing])
        for ins, handle in begun:
            self.wait(ins, ins, handle)

    def finish_sum(self, ins: Reduce | Scatter | Step) -> Tensor | None:
        """Wait for the sum under way; returns the norm's terms, if it is the norm's."""
        if self.summing is None:
            return None
        begun, handle = self.summing
        self.summing = None
        total = self.wait(ins, begun, handle)
        self.settle()
        del handle  # and what it received
        if isinstance(begun, Scatter):
            assert self.share.sliced is not None
            self.share.sliced.unpack_gradients(total, self.program.bundles[begun.bundle].names)
            return None
        if begun.kind == "norm":
            return total
        self.share.unpack_gradients(total, self.program.summed(begun.devices))
        return None

    def let_go(self, ins: Instruction) -> None:
        """Forget sends that are over, oldest first, unless this was a transfer itself."""
        self.transport.proceed()
        if self.state.held_back:
            self.hand_on()
        sending = self.state.sending
        if isinstance(ins, Send | Recv):
            return
        while sending and sending[tag := next(iter(sending))][1].done():
            del sending[tag]

    def empty_like(self, k: str, i: int) -> Tensor:
        variable = self._graph(i).variables[k]
        dtype = getattr(torch, variable.dtype)
        return torch.empty_strided(variable.shape, variable.strides, dtype=dtype, device=self.torch_device)

    def _graph(self, i: int) -> Graph:
        tail = self.program.tail
        return self.program.graph if tail is None or i < self.program.microbatches - 1 else tail


def _peer(transfer: Send | Recv | Collective) -> str:
    return ", ".join(transfer.devices) if isinstance(transfer, Collective) else transfer.peer


def _until_done(handle: Handle, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not handle.done():
        if time.monotonic() > deadline:
            raise TransportTimeout(f"not finished within {timeout_s:g} s")
        time.sleep(LOOK_S)
