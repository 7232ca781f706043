"""Epochs over a dataset, with what is worth recording of them."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field, replace
from typing import Protocol

from netsplit.data.dataset import Data
from netsplit.data.loader import batches
from netsplit.parallel import Metric, ParallelModel, correct
from netsplit.simulate.timeline import Timeline

__all__ = ["Epoch", "History", "Iteration", "Observer", "fit"]

# The first iteration warms up, the next is metered for bytes (which slows it), and some after it are
# recorded event by event, of which the most typical one is kept.
_METERED, _RECORDED = 1, range(2, 22)


@dataclass(frozen=True)
class Iteration:
    """One optimiser step; `timed` is False where metering made its seconds meaningless."""

    step: int  # over all epochs
    epoch: int
    loss: float
    seconds: float
    timed: bool = True


@dataclass(frozen=True)
class Epoch:
    """One pass over the training half; seconds without the evaluation."""

    index: int
    train_loss: float
    test_accuracy: float
    seconds: float


@dataclass
class History:
    """A finished training."""

    batch_size: int
    iterations: list[Iteration] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    recorded: list[Timeline] = field(default_factory=list)
    peak_bytes: dict[str, int] = field(default_factory=dict)

    @property
    def iteration_s(self) -> float:
        """Median seconds of an iteration, warm-up and metered iterations left out where others exist."""
        timed = [it.seconds for it in self.iterations if it.timed]
        return statistics.median(timed[1:] or timed or [it.seconds for it in self.iterations])

    @property
    def throughput(self) -> float:
        """Samples per second at the median iteration."""
        return self.batch_size / self.iteration_s

    @property
    def measured(self) -> Timeline | None:
        """The recorded iteration nearest to the median, with its own seconds and the metered bytes."""
        if not self.recorded:
            return None
        typical = min(self.recorded, key=lambda timeline: abs(timeline.iteration_s - self.iteration_s))
        return replace(typical, peak_bytes=self.peak_bytes)

    @property
    def typical(self) -> Timeline:
        """What a run is measured by: the median seconds and the metered bytes."""
        return Timeline((), self.iteration_s, self.peak_bytes)


class Observer(Protocol):
    """Told what happens while it happens."""

    def iteration(self, done: Iteration) -> None: ...

    def epoch(self, done: Epoch) -> None: ...


def fit(
    model: ParallelModel,
    data: Data,
    *,
    epochs: int,
    seed: int = 0,
    observer: Observer | None = None,
    metric: Metric = correct,
) -> History:
    """Train, and evaluate after every epoch.

    Batches are the model's own size, in an order that depends on `seed` and the epoch alone; the
    samples left over by whole batches sit out that epoch.

    Raises:
        ConfigError: the training half is smaller than one batch.
        WorkerError: a worker died, raised or hung.
    """
    history = History(model.batch_size)
    for index in range(epochs):
        start = time.perf_counter()
        for inputs, targets in batches(data.train, model.batch_size, epoch=index, seed=seed):
            done = _iterate(model, history, index, inputs, targets)
            history.iterations.append(done)
            if observer is not None:
                observer.iteration(done)
        seconds = time.perf_counter() - start
        losses = [it.loss for it in history.iterations if it.epoch == index]
        tests = batches(data.test, model.batch_size, shuffle=False, drop_last=False)
        done_epoch = Epoch(index, statistics.fmean(losses), model.evaluate(tests, metric), seconds)
        history.epochs.append(done_epoch)
        if observer is not None:
            observer.epoch(done_epoch)
    return history


def _iterate(
    model: ParallelModel, history: History, epoch: int, inputs: object, targets: object
) -> Iteration:
    step = len(history.iterations)
    start = time.perf_counter()
    if step == _METERED:
        loss, timeline = model.measure_batch(inputs, targets, bytes_too=True)
        history.peak_bytes = timeline.peak_bytes
    elif step in _RECORDED:
        loss, timeline = model.measure_batch(inputs, targets)
        history.recorded.append(timeline)
    else:
        loss = model.train_batch(inputs, targets)
    return Iteration(step, epoch, loss, time.perf_counter() - start, timed=step != _METERED)
