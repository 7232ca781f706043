"""Predicted peak bytes of every device, from the lifetimes of tensors over its instructions.

Mirrors what the executor holds, storage by storage:

    all the time     parameters, buffers, the optimiser's moments, the batch
    Forward          its inputs; inside, what operators return until its last use
    … to Backward    what autograd saved; the segment's inputs and outputs that carry a gradient
    Backward         gradients, from operator to operator; saved tensors go as they are used
    … to Step        gradients of parameters
    Send             the tensor, until the device's next computation is over
    Recv             the buffer, from the instruction on

Views and in-place results take no bytes of their own. What an operator allocates for itself alone is
not known and not counted. Bytes are those of one iteration after the first.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from netsplit.graph.storage import storage_bytes, storage_of
from netsplit.program.instructions import Backward, Forward, Program, Recv, Send
from netsplit.simulate.segment_memory import Key, SegmentMemory

__all__ = ["MemoryProfile", "memory_profile", "predicted_peak_bytes"]


def predicted_peak_bytes(program: Program, alpha: int) -> dict[str, int]:
    """Device -> largest number of bytes alive at once in one iteration after the first.

    Args:
        alpha: bytes of training state per byte of parameter (`Costs.alpha`); 2 means no moments.
    """
    return {device: found.peak_bytes for device, found in memory_profile(program, alpha).items()}


def memory_profile(program: Program, alpha: int) -> dict[str, MemoryProfile]:
    """Device -> when its bytes peak and what they are; arguments as of `predicted_peak_bytes`."""
    own = storage_bytes(program.graph)
    return {device: _Device(program, device, alpha, own).run() for device in program.devices}


@dataclass(frozen=True)
class MemoryProfile:
    """What fills a device when its bytes peak."""

    device: str
    index: int  # of the instruction during which they peak; -1: before the first
    instruction: str
    parameter_bytes: int  # buffers too
    moment_bytes: int  # the optimiser's
    gradient_bytes: int  # of parameters
    activation_bytes: int  # the batch, values, saved tensors, gradients of variables
    transfer_bytes: int  # received and not yet read, or being sent and not otherwise held

    @property
    def peak_bytes(self) -> int:
        return sum(self._parts().values())

    def summary(self) -> str:
        """One line, in MiB."""
        listed = ", ".join(f"{name} {nbytes / 2**20:.1f}" for name, nbytes in self._parts().items())
        where = f"in the {self.instruction}" if self.index >= 0 else "at the start"
        return f"{self.device}: at most {self.peak_bytes / 2**20:.1f} MiB, {where} ({listed})"

    def _parts(self) -> dict[str, int]:
        return {
            "parameters": self.parameter_bytes,
            "moments": self.moment_bytes,
            "gradients": self.gradient_bytes,
            "activations": self.activation_bytes,
            "transfers": self.transfer_bytes,
        }


class _Storages:
    """Storages alive, each counted once however many hold it; apart those that only transfers hold."""

    def __init__(self) -> None:
        self.size: dict[Key, int] = {}
        self.users: Counter[Key] = Counter()
        self.transfers: Counter[Key] = Counter()
        self.activation_bytes = 0
        self.transfer_bytes = 0

    def hold(self, key: Key, nbytes: int, transfer: bool = False) -> None:
        self.size[key] = nbytes
        self._change(key, 1, transfer)

    def release(self, key: Key, transfer: bool = False) -> None:
        self._change(key, -1, transfer)
        if not self.users[key] and not self.transfers[key]:
            del self.size[key], self.users[key], self.transfers[key]

    def move(self, key: Key, to_transfer: bool) -> None:
        """From a user to a transfer, or back."""
        self.hold(key, self.size[key], to_transfer)
        self.release(key, not to_transfer)

    def _change(self, key: Key, by: int, transfer: bool) -> None:
        self._count(key, -1)
        (self.transfers if transfer else self.users)[key] += by
        self._count(key, 1)

    def _count(self, key: Key, sign: int) -> None:
        if self.users[key]:
            self.activation_bytes += sign * self.size[key]
        elif self.transfers[key]:
            self.transfer_bytes += sign * self.size[key]


@dataclass(frozen=True)
class _Peak:
    index: int = -1
    gradients: int = 0
    activations: int = 0
    transfers: int = 0

    @property
    def total(self) -> int:
        return self.gradients + self.activations + self.transfers


class _Device:
    def __init__(self, program: Program, device: str, alpha: int, own: dict[str, int]) -> None:
        self.program = program
        self.graph = program.graph
        self.own = own
        self.instructions = program.instructions[device]
        self.shapes = {
            s.index: SegmentMemory(program, s, own) for s in program.segments if s.device == device
        }
        held = [
            program.graph.initializers[k] for k, home in program.initializer_device.items() if home == device
        ]
        self.fixed = {
            "device": device,
            "parameter_bytes": sum(init.nbytes for init in held),
            "moment_bytes": (alpha - 2) * sum(init.nbytes for init in held if init.requires_grad),
        }
        self.fed = frozenset(program.feeds[device])
        self.feed_bytes = sum(self.graph.variables[k].nbytes for k in self.fed) * program.microbatches
        self.received = {ins.variable for ins in self.instructions if isinstance(ins, Recv)}
        self.readers = self._count_readers()
        self.left: dict[tuple[str, int], int] = {}  # forwards and sends still to come
        self.storages = _Storages()
        self.parts: dict[tuple[str, int], list[Key]] = {}  # gradients waiting to be summed
        self.arriving: dict[tuple[str, int], Key] = {}  # gradients from other devices
        self.sending: list[Key] = []
        self.with_gradient: set[str] = set()  # parameters
        self.gradient_bytes = 0
        self.number = 0
        self.at = -1
        self.peak = _Peak()

    def run(self) -> MemoryProfile:
        self._see()
        for index, ins in enumerate(self.instructions):
            self.at = index
            if isinstance(ins, Forward):
                self._forward(ins)
            elif isinstance(ins, Backward):
                self._backward(ins)
            elif isinstance(ins, Send):
                self._send(ins)
            elif isinstance(ins, Recv):
                self._receive(ins)
            else:
                self._step()
            self._see()
        at = self.peak.index
        return MemoryProfile(
            index=at,
            instruction=str(self.instructions[at]) if at >= 0 else "",
            gradient_bytes=self.peak.gradients,
            activation_bytes=self.peak.activations,
            transfer_bytes=self.peak.transfers,
            **self.fixed,  # type: ignore[arg-type]
        )

    def _see(self, activations: int = 0, gradients: int = 0) -> None:
        """Note the bytes alive, with so many more inside the computation."""
        now = _Peak(
            self.at,
            self.gradient_bytes + gradients,
            self.feed_bytes + self.storages.activation_bytes + activations,
            self.storages.transfer_bytes,
        )
        if now.total > self.peak.total:
            self.peak = now

    def _forward(self, ins: Forward) -> None:
        shape, i = self.shapes[ins.segment], ins.microbatch
        for k in shape.segment.inputs:
            self._hold(k, i)
            self._use(k, i)
        self._see(shape.forward_peak)
        for k in shape.context:
            self._hold(k, i)
        self.storages.hold(shape.kept_key(i), shape.kept_bytes)
        for k in shape.segment.outputs:
            if k in self.graph.output_variables:
                self._hold(k, i)
            if self.readers[k]:
                self.left[k, i] = self.readers[k]
                self._hold(k, i)
        for k in shape.segment.inputs:
            self._release(k, i)
        self._sent()

    def _backward(self, ins: Backward) -> None:
        shape, i = self.shapes[ins.segment], ins.microbatch
        self._collect(shape, i)
        seeds = {k: key for k in shape.carrying if (key := self._seed(k, i)) is not None}
        walk = shape.backward(frozenset(seeds), shape.parameters - self.with_gradient)
        self._see(*walk.peak)
        self.with_gradient |= walk.parameters
        self.gradient_bytes += walk.gradients
        for k in walk.leaves:
            self.parts.setdefault((k, i), []).append(self._new(k, i))
        for key in (*seeds.values(), shape.kept_key(i)):
            self.storages.release(key)
        for k in shape.context:
            self._release(k, i)
        self._sent()

    def _collect(self, shape: SegmentMemory, i: int) -> None:
        for k in shape.segment.outputs:
            for copy in self.graph.variables[k].consumers:
                key = self.arriving.pop((copy, i), None)
                if key is not None:
                    self.storages.move(key, to_transfer=False)
                    self.parts.setdefault((k, i), []).append(key)

    def _seed(self, k: str, i: int) -> Key | None:
        return self._new(k, i) if k in self.graph.output_variables else self._total(k, i)

    def _total(self, k: str, i: int) -> Key | None:
        """The sum of a variable's gradients: the only one, or a new one made while all are there."""
        parts = self.parts.pop((k, i), [])
        if len(parts) < 2:
            return parts[0] if parts else None
        total = self._new(k, i)
        self._see(self.graph.variables[k].nbytes if len(parts) > 2 else 0)
        for part in parts:
            self.storages.release(part)
        return total

    def _send(self, ins: Send) -> None:
        i = ins.microbatch
        if ins.gradient:
            key = self._total(ins.variable, i) or self._new(ins.variable, i)
            self.storages.move(key, to_transfer=True)
            self.sending.append(key)
            return
        root = storage_of(self.graph, ins.source)
        if root not in self.fed:
            self.storages.hold((root, i, 0), self.own[root], transfer=True)
            self.sending.append((root, i, 0))
        self._use(ins.source, i)

    def _receive(self, ins: Recv) -> None:
        if ins.gradient:
            self.arriving[ins.variable, ins.microbatch] = self._new(ins.source, ins.microbatch, transfer=True)
            return
        self.left[ins.variable, ins.microbatch] = self.readers[ins.variable]
        self._hold(ins.variable, ins.microbatch, transfer=True)

    def _step(self) -> None:
        self.with_gradient.clear()
        self.gradient_bytes = 0
        self._sent()

    def _sent(self) -> None:
        for key in self.sending:
            self.storages.release(key, transfer=True)
        self.sending = []

    def _hold(self, k: str, i: int, transfer: bool = False) -> None:
        root = storage_of(self.graph, k)
        if root not in self.fed:
            self.storages.hold((root, i, 0), self.own[root], transfer)

    def _release(self, k: str, i: int, transfer: bool = False) -> None:
        root = storage_of(self.graph, k)
        if root not in self.fed:
            self.storages.release((root, i, 0), transfer)

    def _use(self, k: str, i: int) -> None:
        """One reader less; after the last the executor forgets the value."""
        if k in self.fed:
            return
        self.left[k, i] -= 1
        if not self.left[k, i]:
            self._release(k, i, transfer=k in self.received)

    def _new(self, k: str, i: int, transfer: bool = False) -> Key:
        """A gradient of a variable."""
        self.number += 1
        key = (k, i, self.number)
        self.storages.hold(key, self.graph.variables[k].nbytes, transfer)
        return key

    def _count_readers(self) -> Counter[str]:
        counts = Counter(k for shape in self.shapes.values() for k in shape.segment.inputs)
        counts.update(
            ins.source
            for ins in self.instructions
            if isinstance(ins, Send) and not ins.gradient and ins.microbatch == 0
        )
        return counts
