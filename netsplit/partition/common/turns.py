"""Which of several unlike devices takes which micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace

__all__ = ["turns_for"]


def turns_for(seconds: Sequence[float], microbatches: int) -> tuple[int, ...]:
    """`Stage.turns` by which the last of the devices is done as early as can be.

    Every micro-batch goes to the device that is done with it first. That is exact for equal jobs on unlike
    machines: where T is the least possible end, each machine has floor(T / seconds) places for jobs within
    it, together enough for all, so that while jobs are left a place is, too (Q | p_j = 1 | C_max in the
    notation of Graham et al., 1979). A device so slow that the others are done without it gets no turn: a
    stage is then made of the others.

    Args:
        seconds: [D] of one micro-batch on each device; above zero.
        microbatches: of a full batch.
    """
    ends = [(each, place) for place, each in enumerate(seconds)]
    heapify(ends)
    counts, turns = [0] * len(ends), []
    for _ in range(microbatches):
        _, place = ends[0]
        turns.append(place)
        counts[place] += 1
        heapreplace(ends, ((counts[place] + 1) * seconds[place], place))
    return tuple(turns)
