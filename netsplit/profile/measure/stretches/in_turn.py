"""Seconds of whole micro-batches of several sizes, measured in turn, alone and in company.

    round 1    64 samples, 32, 16, 8, 4        of each forward and backward, window by window
               64 samples, 32, 16, 8, 4        the same, while other devices of the host do the same
    round 2    64 samples, 32, 16, 8, 4
    ...

A machine whose speed changes changes it for all of them: what one size takes beside another, and in company
beside alone, is known better than what any takes. Operators are not timed alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import torch
from torch import Tensor

from netsplit.graph.ir import Graph
from netsplit.profile.costs import TurnSeconds
from netsplit.profile.measure.clock import Clock, worker_conditions
from netsplit.profile.measure.live_values import LiveValues
from netsplit.profile.measure.stretches.stretch import Stretch, windows

__all__ = ["InTurn", "SizedStep", "in_rounds"]

log = logging.getLogger(__name__)

ROUNDS = 5  # after one that is not counted
MOST = 15  # while they differ too much
FEWEST = 2
SPREAD = 0.20  # of a size's middle contention over its lower quartile, above which other work is suspected
ENOUGH_S = 8.0  # of rounds, from which none is added to the fewest

Round = Callable[[], Mapping[int, float]]


@dataclass(frozen=True)
class SizedStep:
    """A graph at one size of micro-batches, the values of its input variables, and how many of them a device
    computes before their backwards."""

    graph: Graph
    batch: tuple[Tensor, ...]
    in_flight: int = 1


class InTurn:
    """Micro-batches of several sizes on one device, ready to be timed round after round.

    Args:
        values: the initializers; read only.
        window_bytes: as of `Profiler`.
    """

    def __init__(
        self,
        steps: Sequence[SizedStep],
        values: Mapping[str, Tensor],
        torch_device: torch.device | str,
        *,
        window_bytes: int = 2**28,
    ) -> None:
        self.device = torch.device(torch_device)
        clock = Clock(self.device)
        self.walkers = [_Walker(step, values, clock, window_bytes) for step in steps]

    def round(self) -> dict[int, float]:
        """Seconds of one micro-batch, forward and backward, by its samples.

        A size for which a CUDA device has too little memory is left out, now and later.
        """
        took = {}
        with worker_conditions(self.device):
            for walker in list(self.walkers):
                size = walker.step.graph.batch_size
                try:
                    took[size] = walker.walk()
                except torch.OutOfMemoryError:
                    log.info("%s has too little memory for %d samples at once.", self.device, size)
                    self.walkers.remove(walker)
        return took


def in_rounds(
    alone: Round, company: Callable[[], Sequence[Mapping[int, float]]] | None = None
) -> TurnSeconds:
    """Medians over rounds of what `alone` takes, and of what each device takes in `company` beside that.

    A size that is missing in any round is left out. Where the rounds' contentions differ by more than
    `SPREAD`, as other programs keep the machine busy, there are more rounds; where that does not help, none.
    """
    took: list[Mapping[int, float]] = []
    beside: list[Mapping[int, float]] = []
    began = time.perf_counter()
    for done in range(1 + MOST):
        own = alone()
        several = company() if company is not None else []
        if done:
            took.append(own)
            beside.append(_ratios(own, several))
        late = time.perf_counter() - began > ENOUGH_S
        if (done >= FEWEST and late) or (done >= ROUNDS and _agree(beside)):
            break
    ratios = _medians(beside)
    if not _agree(beside):
        log.info("The slow-down between workers at each size is uncertain: the rounds differ too much.")
        ratios = {}
    return TurnSeconds(_medians(took), {n: max(ratio, 1.0) for n, ratio in ratios.items()})


def _ratios(own: Mapping[int, float], several: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Ratios of the mean of several devices to one alone, by size."""
    sizes = [n for n in own if several and all(n in each for each in several)]
    return {n: fmean(each[n] for each in several) / own[n] for n in sizes}


def _agree(rounds: Sequence[Mapping[int, float]]) -> bool:
    """Whether the middle of no size is far above its lower quartile; one disturbed round says nothing."""
    lower = len(rounds) // 4
    return all(
        ratio <= (1 + SPREAD) * sorted(each[n] for each in rounds)[lower]
        for n, ratio in _medians(rounds).items()
    )


def _medians(rounds: Sequence[Mapping[int, float]]) -> dict[int, float]:
    return {n: median(each[n] for each in rounds) for n in rounds[0] if all(n in each for each in rounds)}


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
