"""Bytes of older weights: where a device steps within an iteration, micro-batches in flight keep theirs.

Step    every parameter moves to new storage; both are there while it happens
after   an older version lives, whole, while a forward of it is still to come or a segment computed with
        it last
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from netsplit.program.instructions import Backward, Forward, Instruction, Step
from netsplit.simulate.lifetimes.segment_memory import SegmentMemory

__all__ = ["Versions"]


@dataclass
class Versions:
    """The versions of a device's parameters within one iteration."""

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
        """After the whole of it, or its last part."""
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
