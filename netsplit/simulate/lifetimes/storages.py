"""Live memory of a device: storages, gradients, older weights."""

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
    """Bytes of a device: at their peak, on its host, and in the course of an iteration."""

    device: str
    index: int  # instruction at the peak; -1: before the first
    peak_bytes: int
    host_bytes: int = 0  # peak of offloaded bytes
    course: tuple[tuple[int, int], ...] = ()
    """Peak bytes within every instruction, and bytes after it."""


class Storages:
    """Bytes alive, and their peak; each storage counts once."""

    def __init__(self, versions: Versions, nbytes: int) -> None:
        self.users: Counter[Key] = Counter()
        self.size: dict[Key, int] = {}
        self.versions = versions
        self.nbytes = nbytes  # alive, but for older weights
        self.at = self.peak_at = -1  # the instruction
        self.peak = self.most = self.now = 0  # so far; within this instruction, and last

    def see(self, more: int = 0) -> None:
        """Note a peak: the bytes alive, and that many more."""
        self.now = self.nbytes + self.versions.nbytes + more
        self.most = max(self.most, self.now)
        if self.now > self.peak:
            self.peak, self.peak_at = self.now, self.at

    def hold(self, key: Key, nbytes: int) -> None:
        if not self.users[key]:
            self.size[key] = nbytes
            self.nbytes += nbytes
        self.users[key] += 1

    def release(self, key: Key) -> None:
        self.users[key] -= 1
        if not self.users[key]:
            self.nbytes -= self.size.pop(key)


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
        self.arriving[ins.variable, ins.microbatch] = self._new(ins.source, ins.microbatch)

    def sent(self, ins: Send) -> Key:
        """The gradient to send: the sum of own and received ones."""
        i = ins.microbatch
        for copy, j, _ in self.program.handed_on(ins, self.device):
            self.parts.setdefault((ins.variable, i), []).append(self.arriving.pop((copy, j)))
        if ins.variable in self.program.lasting and (own := self.sums.pop(ins.variable, None)):
            self.parts.setdefault((ins.variable, i), []).append(own)
        return self._total(ins.variable, i) or self._new(ins.variable, i)

    def _collect(self, shape: SegmentMemory, i: int) -> None:
        for k in shape.segment.outputs:
            for copy in self.program.graph.variables[k].consumers:
                key = self.arriving.pop((copy, i), None)
                if key is not None:
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

    def _new(self, k: str, i: int) -> Key:
        self.number += 1
        key = (k, i, self.number)
        self.storages.hold(key, self.sizes.bytes_of(k, i))
        return key
