"""How much slower computations are while other devices of the same host compute too.

rank 0  ──walk──          ──walk──
rank 1            wait    ──walk──        contention = together / alone, walks in turn
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import psutil

from netsplit.profile.compute import Profiler

__all__ = ["contention_of"]


def contention_of(
    profiler: Profiler, first: bool, sharers: int, barrier: Callable[[], None], rounds: int = 4
) -> float:
    """The factor, at least 1; to be called by all devices of one kind on a host at once.

    Devices with a processor each are timed as their operators are, by the processor time they get: what
    they share is memory and caches. More devices than processors take turns on them, which only the wall
    clock shows.

    Args:
        profiler: of the same graph on all of them.
        first: this is the one that is timed; the others give 1.
        sharers: how many devices call this.
        barrier: returns when all of them have called it.
    """
    turns = sharers > (psutil.cpu_count() or 1)
    ratios = []
    for turn in range(1 + rounds):
        barrier()
        alone = _seconds(profiler, turns) if first else 0.0
        barrier()
        together = _seconds(profiler, turns)
        barrier()
        if first and turn:
            ratios.append(together / alone)
    return max(median(ratios), 1.0) if first else 1.0


def _seconds(profiler: Profiler, wall: bool) -> float:
    start = time.perf_counter()
    seconds = profiler.walk_seconds()
    return time.perf_counter() - start if wall else seconds
