"""Live memory of a device: storages, gradients, older weights; its contents at the peak."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from netsplit.program.instructions import Backward, Forward, Instruction, Program, Recv, Send, Step
from netsplit.simulate.lifetimes.segment import OfSizes, SegmentMemory

__all__ = ["Key", "MemoryProfile", "Storages", "VariableGradients", "Versions"]

Key = tuple[str, int, int]  # variable, micro-batch, number (0 for its value, others for gradients)


@dataclass(frozen=True)
class MemoryProfile:
    """What fills a device when its bytes peak."""

    device: str
    index: int  # instruction at the peak; -1: before the first
    instruction: str
    parameter_bytes: int  # and buffers, with copies (see `device_memory`)
    moment_bytes: int  # the optimiser's
    gradient_bytes: int  # of parameters
    activation_bytes: int  # the batch, values, saved tensors, gradients of variables
    transfer_bytes: int  # received but unread, or held only to be sent; sums under way
    version_bytes: int = 0  # older weights of micro-batches in flight
    host_bytes: int = 0  # peak of offloaded bytes
    course: tuple[tuple[int, int], ...] = ()
    """Peak bytes within every instruction, and bytes after it."""

    @property
    def peak_bytes(self) -> int:
        held = self.parameter_bytes + self.moment_bytes + self.gradient_bytes + self.activation_bytes
        return held + self.transfer_bytes + self.version_bytes


class Storages:
    """Bytes alive beside permanent ones, and their peak; each storage counts once."""

    def __init__(self, versions: Versions, feed_bytes: int) -> None:
        self.size: dict[Key, int] = {}
        self.users: dict[Key, int] = {}
        self.transfers: dict[Key, int] = {}
        self.activation_bytes, self.transfer_bytes = feed_bytes, 0
        self.versions = versions
        self.gradient_bytes = 0  # of parameters
        self.at = self.peak_at = -1  # the instruction
        self.peak = (0, 0, 0, 0, 0)  # gradients, activations, transfers, versions, moments back for a step
        self.most, self.now = 0, 0  # within this instruction, and last

    def see(self, activations: int = 0, gradients: int = 0, versions: int = 0, moments: int = 0) -> None:
        """Note a peak: the bytes alive, and that many more."""
        alive = (
            gradients + self.gradient_bytes,
            activations + self.activation_bytes,
            self.transfer_bytes,
            versions + self.versions.nbytes,
            moments,
        )
        self.now = sum(alive)
        self.most = max(self.most, self.now)
        if self.now > sum(self.peak):
            self.peak, self.peak_at = alive, self.at

    def hold(self, key: Key, nbytes: int, transfer: bool = False) -> None:
        self.size[key] = nbytes
        self._change(key, 1, transfer)

    def release(self, key: Key, transfer: bool = False) -> None:
        if not self._change(key, -1, transfer):
            del self.size[key]
            self.users.pop(key, None)
            self.transfers.pop(key, None)

    def move(self, key: Key, to_transfer: bool) -> None:
        self.hold(key, self.size[key], to_transfer)
        self.release(key, not to_transfer)

    def _change(self, key: Key, by: int, transfer: bool) -> bool:
        nbytes, users, transfers = self.size[key], self.users.get(key, 0), self.transfers.get(key, 0)
        if users:
            self.activation_bytes -= nbytes
        elif transfers:
            self.transfer_bytes -= nbytes
        if transfer:
            transfers = self.transfers[key] = transfers + by
        else:
            users = self.users[key] = users + by
        if users:
            self.activation_bytes += nbytes
        elif transfers:
            self.transfer_bytes += nbytes
        return bool(users or transfers)


@dataclass
class Versions:
    """Versions of a device's parameters in one iteration: each lives, whole, while a forward needs it."""

    several: bool  # the device steps within the iteration
    trained: frozenset[int]  # segments with parameters
    trainable_bytes: int
    left: Counter[int]  # version -> forwards of it still to come
    newest: int = 0
    nbytes: int = 0  # of the older versions alive
    used: dict[tuple[int, int], int] = field(default_factory=dict)
    """Segment and micro-batch in flight -> version."""
    bound: dict[int, int] = field(default_factory=dict)
    """Segment -> version it computed with last."""

    @classmethod
    def of(
        cls, instructions: Sequence[Instruction], shapes: Mapping[int, SegmentMemory], trainable_bytes: int
    ) -> Versions:
        several = sum(isinstance(ins, Step) for ins in instructions) > 1
        return cls(
            several,
            frozenset(s for s, shape in shapes.items() if shape.parameters),
            trainable_bytes,
            Counter(
                ins.version
                for ins in instructions
                if isinstance(ins, Forward) and shapes[ins.segment].parameters
            ),
        )

    def forward(self, ins: Forward, trained: bool) -> None:
        """`trained`: a backward will follow."""
        if self.several and ins.segment in self.trained:
            self.left[ins.version] -= 1
            self.bound[ins.segment] = ins.version
            if trained:
                self.used[ins.segment, ins.microbatch] = ins.version
            self._count()

    def recompute(self, ins: Backward) -> None:
        if (ins.segment, ins.microbatch) in self.used:
            self.bound[ins.segment] = self.used[ins.segment, ins.microbatch]
            self._count()

    def backward(self, ins: Backward) -> None:
        if self.used.pop((ins.segment, ins.microbatch), None) is not None:
            self._count()

    def stepping(self) -> int:
        """Further bytes while the optimiser steps."""
        return self.trainable_bytes if self.several else 0

    def step(self) -> None:
        if self.several:
            self.newest += 1
            self._count()

    def _count(self) -> None:
        alive = {version for version, count in self.left.items() if count > 0}
        alive.update(self.used.values(), self.bound.values())
        self.nbytes = sum(version < self.newest for version in alive) * self.trainable_bytes


class VariableGradients:
    """Gradients of variables on one device: to be summed, received, or lasting."""

    def __init__(self, program: Program, device: str, sizes: OfSizes, storages: Storages) -> None:
        self.program, self.device, self.sizes = program, device, sizes
        self.storages = storages
        self.parts: dict[tuple[str, int], list[Key]] = {}  # waiting to be summed
        self.over_all = program.lasting | program.pooled  # summed over micro-batches
        self.sums: dict[str, Key] = {}  # of those
        self.added: set[str] = set()  # of those, what has more than one term
        self.pools_taken = program.pools_taken(device)
        self.arriving: dict[tuple[str, int], Key] = {}  # from other devices
        self.number = 0

    def seeds(self, shape: SegmentMemory, i: int) -> dict[str, Key]:
        """The summed gradients of a segment's outputs, with which its backward starts."""
        self._collect(shape, i)
        return {k: key for k in shape.requires_backward if (key := self._seed(k, i)) is not None}

    def made(self, k: str, i: int) -> None:
        new = self._new(k, i)
        if k not in self.over_all:
            self.parts.setdefault((k, i), []).append(new)
        elif k not in self.sums:
            self.sums[k] = new
        else:  # the first sum is a new storage, to which others are added
            self.storages.see(0 if k in self.added else self.sizes.bytes_of(k, i))
            self.added.add(k)
            self.storages.release(new)

    def received(self, ins: Recv) -> None:
        self.arriving[ins.variable, ins.microbatch] = self._new(ins.source, ins.microbatch, transfer=True)

    def sent(self, ins: Send) -> Key:
        """The gradient to send: the sum of own and received ones."""
        i = ins.microbatch
        for copy, j, _ in self.program.handed_on(ins, self.device):
            received = self.arriving.pop((copy, j))
            self.storages.move(received, to_transfer=False)
            self.parts.setdefault((ins.variable, i), []).append(received)
        if ins.variable in self.program.lasting and (own := self.sums.pop(ins.variable, None)):
            self.parts.setdefault((ins.variable, i), []).append(own)
        key = self._total(ins.variable, i) or self._new(ins.variable, i)
        self.storages.move(key, to_transfer=True)
        return key

    def _collect(self, shape: SegmentMemory, i: int) -> None:
        for k in shape.segment.outputs:
            for copy in self.program.graph.variables[k].consumers:
                key = self.arriving.pop((copy, i), None)
                if key is not None:
                    self.storages.move(key, to_transfer=False)
                    self.parts.setdefault((k, i), []).append(key)

    def _seed(self, k: str, i: int) -> Key | None:
        if k in self.program.graph.output_variables:
            return self._new(k, i)
        if (k, i) in self.pools_taken and (own := self.sums.pop(k, None)):
            self.parts.setdefault((k, i), []).append(own)
        return self._total(k, i)

    def _total(self, k: str, i: int) -> Key | None:
        """The sum of a variable's gradients: the only one, or a new one while all are alive."""
        parts = self.parts.pop((k, i), [])
        if len(parts) < 2:
            return parts[0] if parts else None
        total = self._new(k, i)
        self.storages.see(self.sizes.bytes_of(k, i) if len(parts) > 2 else 0)
        for part in parts:
            self.storages.release(part)
        return total

    def _new(self, k: str, i: int, transfer: bool = False) -> Key:
        self.number += 1
        key = (k, i, self.number)
        self.storages.hold(key, self.sizes.bytes_of(k, i), transfer)
        return key
