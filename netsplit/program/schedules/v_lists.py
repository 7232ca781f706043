"""The published orders of a V of 2p segments on p devices, one list a device."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from netsplit.program.schedules.base import Compute, Phase

__all__ = ["dualpipe_v_lists", "zb_v_lists"]


@dataclass
class _Lane:
    """One device's list; every phase of a segment goes through the micro-batches in turn."""

    there: int  # its segment on the way there
    back: int  # and on the way back
    tasks: list[Compute] = field(default_factory=list)
    count: Counter[tuple[Phase, int]] = field(default_factory=Counter)
    put_off: deque[tuple[int, int]] = field(default_factory=deque)  # weights: segment, micro-batch

    def forward(self, s: int) -> None:
        self._next("forward", s)

    def whole(self, s: int) -> None:
        self._next("backward", s)

    def input(self, s: int) -> None:
        self.put_off.append((s, self._next("input", s)))

    def weight(self, s: int | None = None) -> None:
        """What was put off first, of one segment or of both."""
        each = next(each for each in self.put_off if s is None or each[0] == s)
        self.put_off.remove(each)
        self.tasks.append(("weight", *each))

    def both_parts(self, s: int) -> None:
        self.input(s)
        self.weight(s)

    def begun(self, s: int) -> int:
        """Forwards of a segment so far."""
        return self.count["forward", s]

    def _next(self, phase: Phase, s: int) -> int:
        way: Phase = "forward" if phase == "forward" else "backward"
        i = self.count[way, s]
        self.count[way, s] += 1
        self.tasks.append((phase, s, i))
        return i


def _lanes(devices: int) -> list[_Lane]:
    return [_Lane(r, 2 * devices - 1 - r) for r in range(devices)]


def zb_v_lists(devices: int, microbatches: int) -> list[list[Compute]]:
    """ZB-V on a V; needs 2p - 1 micro-batches.

    Warm-up, until the first weight gradient on every device of the same number kept; then forward, input and
    weight of either segment in turn; at the end inputs first, which puts off weights for the time of waiting.
    """
    lanes = _lanes(devices)
    for rank, lane in enumerate(lanes):
        for _ in range(2 * (devices - rank) - 1):
            lane.forward(lane.there)
        for _ in range(rank):
            lane.forward(lane.back)
            lane.forward(lane.there)
        for _ in range(devices - rank):
            lane.forward(lane.back)
            lane.both_parts(lane.back)
        while lane.begun(lane.back) < microbatches:
            if lane.begun(lane.there) < microbatches:
                lane.forward(lane.there)
            lane.both_parts(lane.there)
            lane.forward(lane.back)
            lane.both_parts(lane.back)
        for _ in range(rank):
            lane.input(lane.there)
            lane.input(lane.back)
        for _ in range(devices - rank):
            lane.input(lane.there)
            lane.weight(lane.there)
        for s in sorted((s for s, _ in lane.put_off), reverse=True):
            lane.weight(s)
    return [lane.tasks for lane in lanes]


def dualpipe_v_lists(devices: int, microbatches: int) -> list[list[Compute]]:
    """DualPipe-V on a V; needs 2p micro-batches.

    Of the 2 (r + 1) backwards after the last forward, in which device r alternates between its segments, the
    second half puts the weights off.
    """
    lanes = _lanes(devices)
    for rank, lane in enumerate(lanes):
        behind = devices - rank - 1
        for _ in range(2 * behind):
            lane.forward(lane.there)
        for _ in range(rank + 1):
            lane.forward(lane.there)
            lane.forward(lane.back)
        for _ in range(behind):
            lane.both_parts(lane.back)
            lane.forward(lane.back)
        while lane.begun(lane.back) < microbatches:
            if lane.begun(lane.there) < microbatches:
                lane.forward(lane.there)
            lane.whole(lane.back)
            lane.forward(lane.back)
            lane.whole(lane.there)
        for number in range(2 * (rank + 1)):
            s = lane.there if number % 2 else lane.back
            if number <= rank:
                lane.whole(s)
            else:
                lane.input(s)
        for _ in range(behind):
            lane.weight()
            lane.input(lane.there)
        while lane.put_off:
            lane.weight()
    return [lane.tasks for lane in lanes]
