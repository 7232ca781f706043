"""Seconds of whole micro-batches of several sizes, measured in turn.

    round 1    64 samples, 32, 16, 8, 4        of each forward and backward, window by window
    round 2    64 samples, 32, 16, 8, 4
    ...

A machine whose speed changes changes it for all of them: what one size takes beside another is known better
than what either takes. Operators are not timed alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from netsplit.graph.ir import Graph
from netsplit.profile.measure.clock import Clock, worker_conditions
from netsplit.profile.measure.live_values import LiveValues
from netsplit.profile.measure.stretches.stretch import Stretch, windows

__all__ = ["SizedStep", "seconds_in_turn"]

log = logging.getLogger(__name__)

ROUNDS = 5  # at most, after one that is not counted
FEWEST = 2
ENOUGH_S = 8.0  # of rounds, from which none is added to the fewest


@dataclass(frozen=True)
class SizedStep:
    """A graph at one size of micro-batches, the values of its input variables, and how many of them a device
    computes before their backwards."""

    graph: Graph
    batch: tuple[Tensor, ...]
    in_flight: int = 1


def seconds_in_turn(
    steps: Sequence[SizedStep],
    values: Mapping[str, Tensor],
    torch_device: torch.device | str,
    *,
    threads: int = 1,
    window_bytes: int = 2**28,
) -> dict[int, float]:
    """Seconds of one micro-batch, forward and backward, by its samples.

    A size for which a CUDA device has too little memory is left out.

    Args:
        values: the initializers; read only.
        threads, window_bytes: as of `Profiler`.
    """
    device = torch.device(torch_device)
    clock = Clock(device, threads)
    walkers = [_Walker(step, values, clock, window_bytes) for step in steps]
    took: dict[int, list[float]] = {}
    with worker_conditions(device, threads):
        began = time.perf_counter()
        for done in range(1 + ROUNDS):
            for walker in list(walkers):
                size = walker.step.graph.batch_size
                try:
                    seconds = walker.walk()
                except torch.OutOfMemoryError:
                    log.info("%d samples at once are too many for %s", size, device)
                    walkers.remove(walker)
                    took.pop(size, None)
                    continue
                if done:
                    took.setdefault(size, []).append(seconds)
            if done >= FEWEST and time.perf_counter() - began > ENOUGH_S:
                break
    return {size: median(each) for size, each in took.items()}


class _Walker:
    def __init__(
        self, step: SizedStep, values: Mapping[str, Tensor], clock: Clock, window_bytes: int
    ) -> None:
        self.step, self.values, self.clock = step, values, clock
        in_flight = step.in_flight
        self.stretches = [
            Stretch(step.graph, names, values, clock, in_flight)
            for names in windows(step.graph, window_bytes // in_flight)
        ]

    def walk(self) -> float:
        """Seconds of a micro-batch; what a stretch gives is what the next ones read."""
        live = LiveValues(self.step.graph, self.step.batch, self.values, self.clock.device)
        for i, stretch in enumerate(self.stretches):
            results = stretch.run(*stretch.copies(live))
            if i + 1 < len(self.stretches):
                live.hand_on(stretch.names, results)
        return sum(stretch.seconds for stretch in self.stretches) / self.step.in_flight
