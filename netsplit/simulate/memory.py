"""Predicted peak bytes of every device, from the lifetimes of tensors over its instructions.

Mirrors what the executor holds: its share of the model (parameters, gradients, moments, buffers), the
batch, values until their last reader, what a forward keeps for its backward, gradients until they are
used, tensors being sent until the device's next computation; and within a segment the outputs of its
operators until their last use there. Operators' private scratch space is not known and not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from netsplit.graph.ir import Graph, Node
from netsplit.program.instructions import Backward, Forward, Program, Recv, Segment, Send, Step

__all__ = ["predicted_peak_bytes"]


def predicted_peak_bytes(program: Program, alpha: int) -> dict[str, int]:
    """Device -> largest number of bytes alive at once in one iteration after the first."""
    return {device: _Device(program, device, alpha).peak() for device in program.devices}


@dataclass(frozen=True)
class _Footprint:
    """Bytes of one segment beyond what is alive when it starts."""

    forward_peak: int
    backward_peak: int
    kept: tuple[str, ...]  # storages its backward needs
    extra: int  # bytes of unnamed saved tensors
    trainable: int  # bytes of parameters that get a gradient here


class _Device:
    def __init__(self, program: Program, device: str, alpha: int) -> None:
        self.program = program
        self.graph = program.graph
        self.instructions = program.instructions[device]
        self.segments = {s.index: s for s in program.segments if s.device == device}
        self.footprints = {index: _footprint(self.graph, s) for index, s in self.segments.items()}
        held = [k for k, home in program.initializer_device.items() if home == device]
        initializers = [self.graph.initializers[k] for k in held]
        trainable = sum(init.nbytes for init in initializers if init.requires_grad)
        feeds = sum(self.graph.variables[k].nbytes for k in program.feeds[device])
        self.bytes = sum(init.nbytes for init in initializers) + (alpha - 2) * trainable
        self.bytes += feeds * program.microbatches
        self.fed = set(program.feeds[device])
        self.largest = self.bytes
        self.holders: Counter[tuple[str, int]] = Counter()  # (storage, micro-batch)
        self.readers = self._count_readers()
        self.left: dict[tuple[str, int], int] = {}
        self.gradients: dict[tuple[str, int], int] = {}  # parts waiting to be summed
        self.sending = 0
        self.with_gradient: set[int] = set()

    def peak(self) -> int:
        for ins in self.instructions:
            if isinstance(ins, Forward):
                self._forward(ins)
            elif isinstance(ins, Backward):
                self._backward(ins)
            elif isinstance(ins, Send):
                self._send(ins)
            elif isinstance(ins, Recv):
                self._receive(ins)
            elif isinstance(ins, Step):
                self._step()
        return self.largest

    def _forward(self, ins: Forward) -> None:
        segment, footprint, i = self.segments[ins.segment], self.footprints[ins.segment], ins.microbatch
        self._sent()
        self._see(footprint.forward_peak)
        if self.program.training:
            for k in footprint.kept:
                self._hold(k, i)
            self.bytes += footprint.extra
        for k in segment.outputs:
            if self.readers[k]:
                self.left[k, i] = self.readers[k]
                self._hold(_root(self.graph, k), i)
        for k in segment.inputs:
            if k not in self.fed:
                self._use(k, i)
        self._see(0)

    def _backward(self, ins: Backward) -> None:
        segment, footprint, i = self.segments[ins.segment], self.footprints[ins.segment], ins.microbatch
        self._sent()
        if segment.index not in self.with_gradient:
            self.with_gradient.add(segment.index)
            self.bytes += footprint.trainable
        self._see(footprint.backward_peak)
        for k in footprint.kept:
            self._release(k, i)
        self.bytes -= footprint.extra
        for k in segment.outputs:
            self.bytes -= self.gradients.pop((k, i), 0)
        for k in segment.inputs:
            variable = self.graph.variables[k]
            if variable.requires_grad:
                self.gradients[k, i] = self.gradients.get((k, i), 0) + variable.nbytes
                self.bytes += variable.nbytes
        self._see(0)

    def _send(self, ins: Send) -> None:
        if ins.gradient:
            self.sending += self.graph.variables[ins.source].nbytes
            self.bytes += self.graph.variables[ins.source].nbytes
            self._see(0)
            self.bytes -= self.gradients.pop((ins.variable, ins.microbatch), 0)
        else:
            self._use(ins.source, ins.microbatch)

    def _receive(self, ins: Recv) -> None:
        nbytes = self.graph.variables[ins.source].nbytes
        if ins.gradient:
            key = (ins.source, ins.microbatch)
            self.gradients[key] = self.gradients.get(key, 0) + nbytes
            self.bytes += nbytes
        else:
            self.left[ins.variable, ins.microbatch] = self.readers[ins.variable]
            self._hold(ins.variable, ins.microbatch)
        self._see(0)

    def _step(self) -> None:
        self._sent()
        self.bytes -= sum(self.footprints[s].trainable for s in self.with_gradient)
        self.with_gradient.clear()

    def _sent(self) -> None:
        self.bytes -= self.sending
        self.sending = 0

    def _see(self, more: int) -> None:
        self.largest = max(self.largest, self.bytes + more)

    def _hold(self, storage: str, i: int) -> None:
        if storage in self.fed:
            return
        if not self.holders[storage, i]:
            self.bytes += self.graph.variables[storage].nbytes
        self.holders[storage, i] += 1

    def _release(self, storage: str, i: int) -> None:
        if storage in self.fed:
            return
        self.holders[storage, i] -= 1
        if not self.holders[storage, i]:
            self.bytes -= self.graph.variables[storage].nbytes

    def _use(self, k: str, i: int) -> None:
        self.left[k, i] -= 1
        if not self.left[k, i]:
            self._release(_root(self.graph, k), i)

    def _count_readers(self) -> Counter[str]:
        counts: Counter[str] = Counter(k for s in self.segments.values() for k in s.inputs)
        counts.update(
            ins.source
            for ins in self.instructions
            if isinstance(ins, Send) and not ins.gradient and ins.microbatch == 0
        )
        return counts


def _root(graph: Graph, k: str) -> str:
    return graph.variables[k].alias_of or k


def _footprint(graph: Graph, segment: Segment) -> _Footprint:
    nodes = [graph.nodes[name] for name in segment.nodes]
    produced = {_root(graph, k) for node in nodes for k in node.outputs if k}
    outputs = {_root(graph, k) for k in segment.outputs}
    saved = {_root(graph, k) for node in nodes for k in node.saved}
    kept = tuple(sorted(saved | outputs | {_root(graph, k) for k in segment.inputs}))
    parameters = {k for node in nodes for k in node.initializers if graph.initializers[k].requires_grad}
    return _Footprint(
        forward_peak=_forward_peak(graph, nodes, produced, saved | outputs),
        backward_peak=_backward_peak(graph, nodes),
        kept=kept,
        extra=sum(node.saved_bytes for node in nodes),
        trainable=sum(graph.initializers[k].nbytes for k in parameters),
    )


def _forward_peak(graph: Graph, nodes: Iterable[Node], produced: set[str], kept: set[str]) -> int:
    last: dict[str, str] = {}
    for node in nodes:
        for k in (*node.inputs, *filter(None, node.outputs)):
            last[_root(graph, k)] = node.name
    alive: set[str] = set()
    now = peak = 0
    for node in nodes:
        for storage in {_root(graph, k) for k in node.outputs if k} - alive:
            if storage in produced:
                alive.add(storage)
                now += graph.variables[storage].nbytes
        now += node.saved_bytes
        peak = max(peak, now)
        for storage in [s for s in alive if last[s] == node.name and s not in kept]:
            alive.remove(storage)
            now -= graph.variables[storage].nbytes
    return peak


def _backward_peak(graph: Graph, nodes: list[Node]) -> int:
    """Gradients of variables and of one operator's parameters, less what the walk has already freed."""
    alive: set[str] = set()
    freed = now = peak = 0
    for node in reversed(nodes):
        wanted = [k for k in node.inputs if graph.variables[k].requires_grad]
        for k in wanted:
            if k not in alive:
                alive.add(k)
                now += graph.variables[k].nbytes
        own = sum(
            graph.initializers[k].nbytes for k in node.initializers if graph.initializers[k].requires_grad
        )
        peak = max(peak, now + own - freed)
        for k in node.outputs:
            if k in alive:
                alive.remove(k)
                now -= graph.variables[k].nbytes
        freed += node.saved_bytes
    return max(peak, 0)
