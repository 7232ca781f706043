"""The record of a training: its position, its history, and what a checkpoint keeps of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol, Self

from netsplit.simulate.timeline import Timeline

__all__ = ["Epoch", "History", "Iteration", "Observer", "Position"]

_QUARTERED = 8  # iterations of which a quarter is left out at either end
_STORED = 100  # iterations that a checkpoint keeps: enough for the median of their seconds


@dataclass(frozen=True)
class Iteration:
    """One optimiser step; `timed` is False where metering made its seconds meaningless.

    Its seconds are without those of capturing a batch of a further kind, and so are an epoch's.
    """

    step: int  # over all epochs
    epoch: int
    loss: float  # mean of its samples
    seconds: float
    timed: bool = True
    samples: int | None = None  # None: a whole batch
    learning_rates: tuple[float, ...] = ()  # of the optimiser's groups in this step


@dataclass(frozen=True)
class Epoch:
    """One pass over the training half; seconds without the evaluation."""

    index: int
    train_loss: float  # mean of its samples
    score: float | None  # of the metric on the test half; None: there is no metric
    seconds: float
    metric: str = "accuracy"  # its name


@dataclass(frozen=True)
class Position:
    """Where a training stands between two optimiser steps."""

    epoch: int = 0
    step: int = 0  # over all epochs
    samples: int = 0  # of the present epoch's order, seen already
    loss_sum: float = 0.0  # summed over these samples without skipped ones
    left_out: int = 0  # skipped, as their loss was not finite
    seconds: float = 0.0  # of the present epoch

    def __str__(self) -> str:
        within = f", {self.samples} samples of epoch {self.epoch + 1}" if self.samples else ""
        return f"{self.epoch} epochs and {self.step} iterations done{within}"

    @property
    def mean_loss(self) -> float:
        """The mean loss over the epoch's samples so far; nan for none."""
        counted = self.samples - self.left_out
        return self.loss_sum / counted if counted else math.nan

    def after(self, samples: int, loss: float | None, seconds: float) -> Self:
        """The position after an optimiser step; a skipped batch has no loss."""
        return replace(
            self,
            step=self.step + 1,
            samples=self.samples + samples,
            loss_sum=self.loss_sum + samples * (loss or 0.0),
            left_out=self.left_out + (samples if loss is None else 0),
            seconds=self.seconds + seconds,
        )

    def next_epoch(self) -> Self:
        return replace(self, epoch=self.epoch + 1, samples=0, loss_sum=0.0, left_out=0, seconds=0.0)


@dataclass
class History:
    """A training, finished or under way."""

    batch_size: int
    iterations: list[Iteration] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    recorded: list[Timeline] = field(default_factory=list)
    peak_bytes: dict[str, int] = field(default_factory=dict)

    @property
    def iteration_s(self) -> float:
        """Median seconds of whole batches, without warm-up and metered iterations where others exist."""
        return statistics.median(self._batch_seconds())

    @property
    def spread(self) -> tuple[float, float]:
        """Samples per second of the middle half of these iterations; of all, below eight."""
        rates = sorted(self.batch_size / seconds for seconds in self._batch_seconds())
        if len(rates) < _QUARTERED:
            return rates[0], rates[-1]
        low, _, high = statistics.quantiles(rates, n=4)
        return low, high

    def _batch_seconds(self) -> list[float]:
        whole = [done for done in self.iterations if (done.samples or self.batch_size) % self.batch_size == 0]
        timed = [done for done in whole if done.timed]
        chosen = timed[1:] or timed or whole or self.iterations
        return [done.seconds * self.batch_size / (done.samples or self.batch_size) for done in chosen]

    @property
    def throughput(self) -> float:
        """Samples per second at the median iteration."""
        return self.batch_size / self.iteration_s

    @property
    def measured(self) -> Timeline | None:
        """The recorded iteration nearest to the median, with the metered bytes."""
        if not self.recorded:
            return None
        typical = min(self.recorded, key=lambda timeline: abs(timeline.iteration_s - self.iteration_s))
        return replace(typical, peak_bytes=self.peak_bytes)

    @property
    def typical(self) -> Timeline:
        """The median seconds and the metered bytes."""
        return Timeline((), self.iteration_s, self.peak_bytes)

    def stored(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON: all epochs, the last iterations."""
        return {
            "epochs": [asdict(epoch) for epoch in self.epochs],
            "iterations": [asdict(iteration) for iteration in self.iterations[-_STORED:]],
            "peak_bytes": self.peak_bytes,
        }

    def restore(self, stored: Mapping[str, Any]) -> None:
        """Restore what was stored, with earlier iterations this process remembers."""
        last = [
            Iteration(**(each | {"learning_rates": tuple(each.get("learning_rates", ()))}))
            for each in stored["iterations"]
        ]
        first = last[0].step if last else 0
        self.iterations = [it for it in self.iterations if it.step < first] + last
        self.epochs = [Epoch(**each) for each in stored["epochs"]]
        self.peak_bytes = self.peak_bytes or dict(stored["peak_bytes"])


class Observer(Protocol):
    """Notified of a training's progress; a resumed training reports earlier epochs first."""

    def iteration(self, done: Iteration) -> None: ...

    def epoch(self, done: Epoch) -> None: ...
