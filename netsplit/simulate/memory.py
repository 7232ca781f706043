"""Predicted peak bytes of every device, from the lifetimes of tensors over its instructions.

Mirrors what the executor holds, storage by storage:

    all the time     parameters, buffers, the optimiser's moments, the batch
    Forward          its inputs; inside, outputs of operators until their last use
    … to Backward    what autograd saved; the segment's inputs and outputs that carry a gradient
    Backward         gradients, from operator to operator; what was saved goes as it is used
    … to Step        gradients of parameters
    Send, Recv       the tensor, until the device's next computation is over; the buffer, at once

Views and in-place results take no bytes of their own. Operators' private scratch space and a fused
optimiser's are not known and not counted. Bytes are those of one iteration after the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from netsplit.program.instructions import Backward, Forward, Program, Recv, Send

__all__ = ["MemoryProfile", "memory_profile", "predicted_peak_bytes"]

_Storage = tuple[str, str, int, int]  # what it is, whose, micro-batch, number

_SAME_GRADIENT = frozenset(
    ["add", "add_", "alias", "clone", "contiguous", "detach", "flatten", "permute", "reshape", "squeeze", "t", "transpose", "unflatten", "unsqueeze", "view"]
)
"""Operators whose backward hands on the gradient of the output itself, where sizes are equal."""
_PART_OF_GRADIENT = frozenset({"cat", "concat", "concatenate"})
"""Operators whose backward hands on views of the gradient of the output."""


def predicted_peak_bytes(program: Program, alpha: int) -> dict[str, int]:
    """Device -> largest number of bytes alive at once in one iteration after the first.

    Args:
        alpha: bytes of training state per byte of parameter (`Costs.alpha`); 2 where there are no moments.
    """
    return {name: found.peak_bytes for name, found in memory_profile(program, alpha).items()}


def memory_profile(program: Program, alpha: int) -> dict[str, MemoryProfile]:
    """Device -> when its bytes peak, and what they are; arguments as `predicted_peak_bytes`."""
    return {device: _Device(program, device, alpha).run() for device in program.devices}


@dataclass(frozen=True)
class MemoryProfile:
    """What fills a device when its bytes peak."""

    device: str
    index: int  # of the instruction during which they peak; -1: a device without instructions
    instruction: str
    parameter_bytes: int  # buffers too
    moment_bytes: int  # the optimiser's
    gradient_bytes: int  # of parameters
    activation_bytes: int  # the batch, values, saved tensors, gradients of variables
    transfer_bytes: int  # received and not yet read, or being sent and not otherwise held

    @property
    def peak_bytes(self) -> int:
        return (
            self.parameter_bytes
            + self.moment_bytes
            + self.gradient_bytes
            + self.activation_bytes
            + self.transfer_bytes
        )

    def summary(self) -> str:
        parts = {
            "parameters": self.parameter_bytes,
            "moments": self.moment_bytes,
            "gradients": self.gradient_bytes,
            "activations": self.activation_bytes,
            "transfers": self.transfer_bytes,
        }
        listed = ", ".join(f"{name} {nbytes / 2**20:.1f}" for name, nbytes in parts.items())
        where = f"in the {self.instruction}" if self.index >= 0 else "with nothing to do"
        return f"{self.device}: {self.peak_bytes / 2**20:.1f} MiB {where} ({listed})"


class _Storages:
    """Storages alive on a device: counted once, however many hold them.

    One that only transfers hold counts as "transfer", any other as "activation".
    """

    def __init__(self) -> None:
        self.size: dict[_Storage, int] = {}
        self.users: Counter[_Storage] = Counter()
        self.movers: Counter[_Storage] = Counter()
        self.bytes = {"activation": 0, "transfer": 0}

    def hold(self, key: _Storage, nbytes: int, moving: bool = False) -> None:
        self._leave(key)
        self.size[key] = nbytes
        (self.movers if moving else self.users)[key] += 1
        self._enter(key)

    def release(self, key: _Storage, moving: bool = False) -> None:
        self._leave(key)
        (self.movers if moving else self.users)[key] -= 1
        if self.users[key] + self.movers[key] == 0:
            del self.size[key], self.users[key], self.movers[key]
        self._enter(key)

    def _leave(self, key: _Storage) -> None:
        if key in self.size:
            self.bytes["activation" if self.users[key] else "transfer"] -= self.size[key]

    def _enter(self, key: _Storage) -> None:
        if key in self.size:
            self.bytes["activation" if self.users[key] else "transfer"] += self.size[key]


class _Device:
    def __init__(self, program: Program, device: str, alpha: int) -> None:
        self.program = program
        self.graph = program.graph
        self.device = device
        self.instructions = program.instructions[device]
        self.segments = {s.index: _Shape(program, s) for s in program.segments if s.device == device}
        held = [k for k, home in program.initializer_device.items() if home == device]
        initializers = [self.graph.initializers[k] for k in held]
        self.parameter_bytes = sum(init.nbytes for init in initializers)
        self.moment_bytes = (alpha - 2) * sum(init.nbytes for init in initializers if init.requires_grad)
        self.fed = set(program.feeds[device])
        self.feed_bytes = sum(self.graph.variables[k].nbytes for k in self.fed) * program.microbatches
        self.storages = _Storages()
        self.readers = self._count_readers()
        self.left: dict[tuple[str, int], int] = {}  # forwards and sends still to come
        self.parts: dict[tuple[str, int], list[_Storage]] = {}  # gradients waiting to be summed
        self.sending: list[_Storage] = []
        self.with_gradient: set[str] = set()  # parameters
        self.gradient_bytes = 0
        self.number = 0
        self.best: tuple[int, int, int, int, int] | None = None  # bytes, instruction, gradients, …

    def run(self) -> MemoryProfile:
        self._see(-1)
        for index, ins in enumerate(self.instructions):
            if isinstance(ins, Forward):
                self._forward(index, ins)
            elif isinstance(ins, Backward):
                self._backward(index, ins)
            elif isinstance(ins, Send):
                self._send(index, ins)
            elif isinstance(ins, Recv):
                self._receive(ins)
            else:
                self.with_gradient.clear()
                self.gradient_bytes = 0
                self._sent()
            self._see(index)
        assert self.best is not None
        _, index, gradients, activations, transfers = self.best
        return MemoryProfile(
            self.device,
            index,
            str(self.instructions[index]) if index >= 0 else "",
            self.parameter_bytes,
            self.moment_bytes,
            gradients,
            activations + self.feed_bytes,
            transfers,
        )

    def _see(self, index: int, activations: int = 0, gradients: int = 0) -> None:
        """Note the bytes alive now, with so many more inside a computation."""
        gradients += self.gradient_bytes
        activations += self.storages.bytes["activation"]
        transfers = self.storages.bytes["transfer"]
        total = gradients + activations + transfers
        if self.best is None or total > self.best[0] or self.best[1] < 0:
            self.best = (total, index, gradients, activations, transfers)

    def _forward(self, index: int, ins: Forward) -> None:
        shape, i = self.segments[ins.segment], ins.microbatch
        for k in shape.segment.inputs:
            self._hold(k, i)
            self._use(k, i)
        self._see(index, activations=shape.forward_peak)
        for k in shape.context:
            self._hold(k, i)
        if shape.kept_bytes:
            self.storages.hold(("kept", "", ins.segment, i), shape.kept_bytes)
        for k in shape.segment.outputs:
            if k in self.graph.output_variables:
                self._hold(k, i)
            if self.readers[k]:
                self.left[k, i] = self.readers[k]
                self._hold(k, i)
        self._see(index)
        for k in shape.segment.inputs:
            self._release(k, i)
        self._sent()

    def _backward(self, index: int, ins: Backward) -> None:
        shape, i = self.segments[ins.segment], ins.microbatch
        seeds = {k: seed for k in shape.carrying if (seed := self._seed(index, k, i)) is not None}
        walk = shape.backward(frozenset(seeds), frozenset(shape.parameters - self.with_gradient))
        self._see(index, *walk.peak)
        for k in walk.leaves:
            self.parts.setdefault((k, i), []).append(self._new(f"gradient of {k}", i, self._nbytes(k)))
        self.gradient_bytes += walk.gradient_bytes
        self.with_gradient |= walk.parameters
        self.storages_release_all(seeds.values())
        for k in shape.context:
            self._release(k, i)
        if shape.kept_bytes:
            self.storages.release(("kept", "", ins.segment, i))
        self._sent()

    def storages_release_all(self, keys: Iterable[_Storage]) -> None:
        for key in keys:
            self.storages.release(key)

    def _seed(self, index: int, k: str, i: int) -> _Storage | None:
        """The gradient that a Backward starts from at one of its outputs."""
        if k in self.graph.output_variables:
            return self._new("seed", i, self._nbytes(k))
        for copy in self.graph.variables[k].consumers:
            self.parts.setdefault((k, i), []).extend(self.parts.pop((f"{copy} received", i), []))
        return self._total(index, k, i)

    def _total(self, index: int, k: str, i: int) -> _Storage | None:
        """The sum of a variable's gradients: one that was there, or a new one while all still are."""
        parts = self.parts.pop((k, i), [])
        if len(parts) < 2:
            if parts and self.storages.movers[parts[0]]:
                self.storages.hold(parts[0], self.storages.size[parts[0]])
                self.storages.release(parts[0], moving=True)
            return parts[0] if parts else None
        total = self._new(f"gradient of {k}", i, self._nbytes(k))
        self._see(index, activations=self._nbytes(k) if len(parts) > 2 else 0)
        for part in parts:
            self.storages.release(part, moving=bool(self.storages.movers[part]))
        return total

    def _send(self, index: int, ins: Send) -> None:
        i, nbytes = ins.microbatch, self._nbytes(ins.source)
        if not ins.gradient:
            key = self._key(ins.source, i)
            self.storages.hold(key, self._nbytes(_root(self.graph, ins.source)), moving=True)
            self._use(ins.source, i)
        else:
            key = self._total(index, ins.variable, i) or self._new("zeros", i, nbytes)
            self.storages.hold(key, nbytes, moving=True)
            self.storages.release(key)
        self.sending.append(key)

    def _receive(self, ins: Recv) -> None:
        i, nbytes = ins.microbatch, self._nbytes(ins.source)
        if ins.gradient:
            key = self._new(f"gradient of {ins.source}", i, nbytes, moving=True)
            self.parts.setdefault((f"{ins.variable} received", i), []).append(key)
        else:
            self.left[ins.variable, i] = self.readers[ins.variable]
            self.storages.hold(self._key(ins.variable, i), nbytes, moving=True)

    def _sent(self) -> None:
        for key in self.sending:
            self.storages.release(key, moving=True)
        self.sending = []

    def _new(self, what: str, i: int, nbytes: int, moving: bool = False) -> _Storage:
        self.number += 1
        key = (what, "", i, self.number)
        self.storages.hold(key, nbytes, moving)
        return key
