"""Gradients of variables on one device: what waits to be summed, what came from others, and what lasts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from netsplit.program.instructions import Backward, Program, Recv, Send
from netsplit.simulate.lifetimes.segment import OfSizes, SegmentMemory
from netsplit.simulate.lifetimes.storages import AliveBytes, Key

__all__ = ["VariableGradients"]


class VariableGradients:
    """They lie in the storages that `alive` sees, which notes what sums take on top."""

    def __init__(
        self,
        program: Program,
        device: str,
        shapes: Mapping[int, SegmentMemory],
        sizes: OfSizes,
        alive: AliveBytes,
    ) -> None:
        self.program, self.device, self.sizes = program, device, sizes
        self.alive, self.storages = alive, alive.storages
        self.parts: dict[tuple[str, int], list[Key]] = {}  # waiting to be summed
        self.backwards = _count_backwards(program, device, shapes)
        self.pools_taken = program.pools_taken(device)
        self.to_come: dict[tuple[str, int], int] = {}  # backwards, of what lasts or is pooled (`Program`)
        self.lasting: dict[
            str, tuple[Key, bool]
        ] = {}  # sums over micro-batches; True: in a storage of their own
        self.arriving: dict[tuple[str, int], Key] = {}  # from other devices
        self.number = 0

    def seeds(self, shape: SegmentMemory, i: int) -> dict[str, Key]:
        """Of a segment's outputs, each summed: what its backward begins with."""
        self._collect(shape, i)
        return {k: key for k in shape.requires_backward if (key := self._seed(k, i)) is not None}

    def made(self, k: str, i: int) -> None:
        """By a backward here."""
        self.parts.setdefault((k, i), []).append(self._new(k, i))

    def backward_over(self, shape: SegmentMemory, i: int) -> None:
        """Of what it read, sums that last take what it made."""
        for k in shape.segment.inputs if self.backwards else ():
            if k in self.backwards:
                self._collect_lasting(k, i)

    def received(self, ins: Recv) -> None:
        self.arriving[ins.variable, ins.microbatch] = self._new(ins.source, ins.microbatch, transfer=True)

    def sent(self, ins: Send) -> Key:
        """What goes: the sum of what was made here, and of what came to be handed on."""
        i = ins.microbatch
        lasting = ins.variable in self.program.lasting
        for copy, j, _ in self.program.handed_on(ins, self.device):
            came = self.arriving.pop((copy, j))
            self.storages.move(came, to_transfer=False)
            self.parts.setdefault((ins.variable, i), []).append(came)
        if lasting and (own := self.lasting.pop(ins.variable, (None,))[0]):
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
        if (k, i) in self.pools_taken and (own := self.lasting.pop(k, (None,))[0]):
            self.parts.setdefault((k, i), []).append(own)
        return self._total(k, i)

    def _total(self, k: str, i: int) -> Key | None:
        """The sum of a variable's gradients: the only one, or a new one made while all are there."""
        parts = self.parts.pop((k, i), [])
        if len(parts) < 2:
            return parts[0] if parts else None
        total = self._new(k, i)
        self.alive.see(self.sizes.bytes_of(k, i) if len(parts) > 2 else 0)
        for part in parts:
            self.storages.release(part)
        return total

    def _collect_lasting(self, k: str, i: int) -> None:
        """After one of the backwards of a micro-batch that read it: add its gradients to the sum once all are
        over."""
        left = self.to_come[k, i] = self.to_come.get((k, i), self.backwards[k]) - 1
        total = None if left else self._total(k, i)
        if total is None:
            return
        before, own = self.lasting.get(k, (total, False))
        if before is total or own:
            self.lasting[k] = before, own
            if before is not total:
                self.alive.see()
                self.storages.release(total)
            return
        self.lasting[k] = self._new(k, i), True
        self.alive.see()
        self.storages.release(before)
        self.storages.release(total)

    def _new(self, k: str, i: int, transfer: bool = False) -> Key:
        """A gradient of a variable."""
        self.number += 1
        key = (k, i, self.number)
        self.storages.hold(key, self.sizes.bytes_of(k, i), transfer)
        return key


def _count_backwards(program: Program, device: str, shapes: Mapping[int, SegmentMemory]) -> Counter[str]:
    """In how many backwards of a micro-batch gradients of what lasts or is pooled are made here."""
    trained = {ins.segment for ins in program.instructions[device] if isinstance(ins, Backward)}
    inputs = (k for s in trained for k in shapes[s].segment.inputs)
    summed = program.lasting | program.pooled
    return Counter(k for k in inputs if k in summed)
