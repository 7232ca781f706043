"""One device's part in a resharding: what it receives, sends, passes on and keeps.

    plan.hops, in the one order that all devices see        on every device
      0  a → b  chunk 0                                       1. be ready for all that will come
      1  b → c  chunk 0   after 0                             2. send in the plan's order, each as soon as
      2  a → b  chunk 1                                          what it passes on is there
      3  b → c  chunk 1   after 2                             3. put what came, and what it keeps, in place

A device waits only for hops before its own in that order, so there is no circle. Chunk 1 is on its way to b
while b passes on chunk 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from netsplit.errors import ReshardError, WorkerError
from netsplit.reshard import Box, DeviceName, Hop, ReshardPlan
from netsplit.runtime.transport.handle import Handle, Transport, TransportLost, TransportTimeout

__all__ = ["reshard_piece"]

_FIRST_TAG = 1 << 24  # between two devices, several at a time


def reshard_piece(
    plan: ReshardPlan,
    own: DeviceName,
    piece: Tensor | None,
    transport: Transport,
    kind: Tensor,
    timeout_s: float,
    in_order: bool = False,
) -> Tensor | None:
    """The device's new piece, bit for bit; None outside the destination. All devices call it.

    Args:
        piece: what `own` has of the tensor; None where it is not of the source.
        kind: any tensor of the dtype and on the device of what comes.
        in_order: receive in the plan's order too, for NCCL without a group for each direction of a pair.

    Raises:
        ReshardError: the piece is not of the size that the layout says.
        WorkerError: who waited for what, and from whom.
    """
    return _PieceMover(plan, own, piece, transport, kind, timeout_s, in_order).carried_out()


@dataclass
class _PieceMover:
    plan: ReshardPlan
    own: DeviceName
    piece: Tensor | None
    transport: Transport
    kind: Tensor
    timeout_s: float
    in_order: bool
    flat: dict[int, Tensor] = field(default_factory=dict)  # task -> its old or received elements
    coming: dict[int, tuple[Tensor, Handle]] = field(default_factory=dict)  # by hop
    held: Box | None = field(init=False)
    needed: Box | None = field(init=False)
    new: Tensor | None = field(init=False)

    def carried_out(self) -> Tensor | None:
        plan, own = self.plan, self.own
        self.held = _box_of(plan.source.mesh.devices, own, plan.source.regions(plan.shape))
        self.needed = _box_of(plan.destination.mesh.devices, own, plan.destination.regions(plan.shape))
        if self.held is not None:
            self._check_piece(self.held)
        self.new = None if self.needed is None else self.kind.new_empty(_sizes(self.needed))
        mine = [(i, hop) for i, hop in enumerate(plan.hops) if own in (hop.source, hop.destination)]
        if not self.in_order:
            mine.sort(key=lambda each: each[1].source == own)  # what comes first, both in the plan's order
        sent = []
        for index, hop in mine:
            if hop.source == own:
                sent.append(self._send(index, hop))
            else:
                self._expect(index, hop)
        self._keep()
        for index in list(self.coming):
            self._arrive(index)
        self._place()
        for hop, handle in sent:
            self._wait(handle, hop)
        return self.new

    def _expect(self, index: int, hop: Hop) -> None:
        if hop.task not in self.flat:
            self.flat[hop.task] = self._room(hop.task)
        chunk = self.flat[hop.task][hop.start : hop.stop]
        self.coming[index] = chunk, self.transport.receive(chunk, str(hop.source), _FIRST_TAG + index)

    def _send(self, index: int, hop: Hop) -> tuple[Hop, Handle]:
        for before in hop.after:
            self._arrive(before)
        chunk = self._elements(hop.task)[hop.start : hop.stop]
        return hop, self.transport.send(chunk, str(hop.destination), _FIRST_TAG + index, False)

    def _arrive(self, index: int) -> None:
        if (coming := self.coming.pop(index, None)) is not None:
            chunk, handle = coming
            tensor = self._wait(handle, self.plan.hops[index])
            if tensor is not chunk:
                chunk.copy_(tensor)

    def _wait(self, handle: Handle, hop: Hop) -> Tensor:
        try:
            return handle.wait(self.timeout_s)
        except (TransportTimeout, TransportLost) as error:
            plan = self.plan
            sends = hop.source == self.own
            other = f"to {hop.destination}" if sends else f"from {hop.source}"
            why = "lost it" if isinstance(error, TransportLost) else f"waited {self.timeout_s:g} s"
            reason = " ".join(str(error).split()).rstrip(".")
            raise WorkerError(
                f"device {self.own} {why} {'sending' if sends else 'receiving'} elements {hop.start} to "
                f"{hop.stop} of slice {plan.tasks[hop.task].region} {other}, in the resharding of "
                f"{plan.source.spec} to {plan.destination.spec}: {reason}."
            ) from error

    def _room(self, task: int) -> Tensor:
        """A buffer for an incoming slice: its place in the new piece, if that is contiguous."""
        region = self.plan.tasks[task].region
        if self.new is not None and self.needed is not None and _inside(region, self.needed):
            place = self.new[_slices(region, self.needed)]
            if place.is_contiguous():
                return place.view(-1)
        return self.kind.new_empty(self.plan.tasks[task].elements)

    def _elements(self, task: int) -> Tensor:
        if task not in self.flat:
            assert self.piece is not None
            assert self.held is not None
            self.flat[task] = self.piece[_slices(self.plan.tasks[task].region, self.held)].reshape(-1)
        return self.flat[task]

    def _keep(self) -> None:
        for task in self.plan.tasks:
            if self.own in task.keepers:
                assert self.piece is not None
                assert self.held is not None
                self._at(task.region).copy_(self.piece[_slices(task.region, self.held)])

    def _place(self) -> None:
        for index, task in enumerate(self.plan.tasks):
            if self.own in task.receivers:
                place = self._at(task.region)
                if place.data_ptr() != self.flat[index].data_ptr():
                    place.copy_(self.flat[index].view(place.shape))

    def _at(self, region: Box) -> Tensor:
        assert self.new is not None
        assert self.needed is not None
        return self.new[_slices(region, self.needed)]

    def _check_piece(self, held: Box) -> None:
        shape = None if self.piece is None else tuple(self.piece.shape)
        if shape != _sizes(held):
            raise ReshardError(
                f"device {self.own} has a piece of shape {shape}, but {self.plan.source.spec} on a mesh of "
                f"shape {self.plan.source.mesh.shape} gives it {_sizes(held)} of {self.plan.shape}."
            )


def _box_of(devices: tuple[DeviceName, ...], own: DeviceName, boxes: dict[DeviceName, Box]) -> Box | None:
    return boxes[own] if own in devices else None


def _sizes(box: Box) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box)


def _inside(inner: Box, outer: Box) -> bool:
    return all(a <= start and stop <= b for (start, stop), (a, b) in zip(inner, outer, strict=True))


def _slices(region: Box, within: Box) -> tuple[slice, ...]:
    return tuple(slice(start - a, stop - a) for (start, stop), (a, _) in zip(region, within, strict=True))
