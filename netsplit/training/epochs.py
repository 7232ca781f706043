"""Epochs over a dataset, recorded, and resumed after an interruption.

┌─► batches of the epoch, those seen already skipped ─► step ─► checkpoint, if due ─┐
│   evaluate ─► epoch recorded ─► checkpoint, if due                               │
└─ workers restarted, newest checkpoint loaded ◄────────────── a worker fails ◄────┘
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from netsplit.data.dataset import Data
from netsplit.data.reading.loader import BatchPlace, batches
from netsplit.data.reading.samples import Stream
from netsplit.errors import ConfigError, NetSplitError, ReadError, WorkerError
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.feeds import UnlikeBatch
from netsplit.training.checkpoints import Checkpoints
from netsplit.training.feeding import Feeding
from netsplit.training.history import Epoch, History, Iteration, Observer, Position
from netsplit.training.metrics import (
    AUTO,
    Metric,
    as_metric,
    chosen_metric,
    correct,
    name_of_metric,
)
from netsplit.training.parallel import ParallelModel

__all__ = ["RESTARTS", "Epoch", "History", "Iteration", "Observer", "fit"]

log = logging.getLogger(__name__)

RESTARTS = 3
"""Restarts of workers in a row without a new checkpoint."""

# The first iteration warms up, the next is metered for bytes (which slows it), and some after it are
# recorded event by event, of which the most typical one is kept.
_METERED, _RECORDED = 1, range(2, 22)

Restart = Callable[[], DistributedRuntime]


def fit(
    model: ParallelModel,
    data: Data,
    *,
    epochs: int,
    seed: int = 0,
    observer: Observer | None = None,
    metric: Any = correct,
    accumulate: int = 1,
    drop_last: bool = False,
    checkpoints: Checkpoints | None = None,
    restart: Restart | None = None,
) -> History:
    """Train, evaluate after every epoch, then step an epoch-wise scheduler.

    Batches are the model's own size, in an order that depends on `seed` and the epoch alone; the last
    of an epoch may be smaller. With `checkpoints`, training begins at the newest of them.

    Args:
        metric: computed on the test half after every epoch, as in `ParallelModel.evaluate`; "auto" is the
            data's own, or mse for a regression; None skips the test half.
        accumulate: batches per optimiser step, with equal weights of samples; fewer at an epoch's end.
        drop_last: skip an epoch's samples that do not fill a batch.
        checkpoints: where training is saved and resumed from.
        restart: puts the plan on new workers after a failure; training then resumes from the newest
            checkpoint, or the beginning.

    Raises:
        ConfigError: `data` is no Data, `accumulate` is below 1, there is no whole batch under `drop_last`,
            the scheduler has fewer steps than the training, or the checkpoint is of another model or order.
        NetSplitError: a checkpoint cannot be written, or an epoch's last batch cannot be trained (raised
            before the first step, except for streams).
        ReadError: a sample cannot be read; the model is unchanged.
        WorkerError: a worker died, raised or hung; with `restart`, more than `RESTARTS` times in a row.
    """
    if not isinstance(data, Data):
        raise ConfigError(f"data is a {type(data).__name__}: give netsplit.data.Data (docs/data.md).")
    if accumulate < 1:
        raise ConfigError(f"accumulate is {accumulate}: give at least 1.")
    is_open = isinstance(metric, str) and metric == AUTO
    measure = chosen_metric(AUTO, data, model.programs.captures.loss) if is_open else as_metric(metric)
    training = _EpochLoop(model, data, epochs, seed, observer, measure, accumulate, drop_last, checkpoints)
    training.check_length()
    training.begin()
    try:
        while True:
            try:
                training.run()
                return training.history
            except WorkerError as error:
                if restart is None:
                    raise
                training.recover(error, restart)
    finally:
        training.end()


@contextmanager
def _naming_last_batch(samples: int) -> Iterator[None]:
    """Says of what cannot be trained within that it is an epoch's last batch, which can be left out."""
    try:
        yield
    except (WorkerError, ReadError, UnlikeBatch):
        raise
    except NetSplitError as error:
        reason = str(error).rstrip(".")
        raise NetSplitError(
            f"an epoch's last batch has {samples} samples: {reason}; drop_last=true skips it."
        ) from error


@dataclass(eq=False)
class _EpochLoop:
    model: ParallelModel
    data: Data
    epochs: int
    seed: int
    observer: Observer | None
    metric: Metric | None
    accumulate: int
    drop_last: bool
    checkpoints: Checkpoints | None

    def __post_init__(self) -> None:
        data, size = self.data, self.model.batch_size
        self.loading: dict[str, Any] = {"workers": data.workers, "prefetch": data.prefetch}
        self.feeding = Feeding(self.model, data, self.seed, self.drop_last)
        self.history = History(size)
        self.position = Position()
        self.random = torch.get_rng_state()
        self.reported = Position(epoch=0, step=0)  # what the observer knows already
        self.since_start = 0  # iterations on these workers
        self.plan = self.model.plan  # whose timelines are recorded, even if it changes
        self.failures = 0  # since the last checkpoint

    def begin(self) -> None:
        newest = self.checkpoints.newest if self.checkpoints is not None else None
        if newest is None:
            return
        self._load(newest)
        log.info("Resuming from %s: %s.", newest, self.position)
        if self.position.epoch >= self.epochs:
            log.warning(
                "Nothing is trained: checkpoint '%s' already has %d epochs, and epochs is %d. The results "
                "are the checkpoint's; raise epochs to train further.",
                newest,
                self.position.epoch,
                self.epochs,
            )
        if self.observer is not None:
            for done in self.history.epochs:
                self.observer.epoch(done)
        self.reported = self.position

    def run(self) -> None:
        self._make_last_program()
        while self.position.epoch < self.epochs:
            for done in self._steps():
                self.history.iterations.append(done)
                self._tell_iteration(done)
                if self.position.samples < self._samples and self._due_after_step():
                    self._save()
            self._end_epoch()
        self.model.runtime.finish()  # here, where it can be recovered from

    def end(self) -> None:
        self._tell_adaptation(None, None)  # later batches belong to no steps
        self.feeding.close()

    def recover(self, error: WorkerError, restart: Restart) -> None:
        """Restart the workers and load the newest checkpoint."""
        while True:
            self.failures += 1
            if self.failures > RESTARTS:
                raise error
            try:
                reason = str(error).rstrip(".")
                log.warning("%s: restarting the workers (%d of %d).", reason, self.failures, RESTARTS)
                self.model.runtime = restart()
                self.since_start = 0
                newest = self.checkpoints.newest if self.checkpoints is not None else None
                if newest is None:
                    self.position = Position()
                    self.history.restore(History(self.model.batch_size).stored())
                    torch.set_rng_state(self.random)
                else:
                    self._load(newest)
                log.info("Resuming from %s: %s.", newest or "the beginning", self.position)
            except WorkerError as again:
                error = again
            else:
                return

    @property
    def _steps_left(self) -> int:
        step = self.accumulate * self.model.batch_size
        epochs = self.epochs - self.position.epoch
        return epochs * math.ceil(self._samples / step) - math.ceil(self.position.samples / step)

    @property
    def _samples(self) -> int:
        count = len(self.data.train)
        return count - count % self.model.batch_size if self.drop_last else count

    def check_length(self) -> None:
        """Refuse a scheduler that ends before the training does."""
        self.model.check_length(
            self.epochs, math.ceil(self._samples / (self.accumulate * self.model.batch_size))
        )

    def _due_after_step(self) -> bool:
        return self.checkpoints is not None and self.checkpoints.due_after_step(self.position.step)

    def _steps(self) -> Iterator[Iteration]:
        count, size = self._samples, self.model.batch_size
        epoch, samples = self.position.epoch, self.position.samples
        while samples < count:
            self._tell_adaptation(self.position.step, self._steps_left - 1)
            total = min(self.accumulate * size, count - samples)
            start, made_s = time.perf_counter(), self.model.made_s
            loss, timed = self._step(BatchPlace(epoch, samples, total))
            seconds = time.perf_counter() - start - (self.model.made_s - made_s)
            samples += total
            done = Iteration(self.position.step, epoch, loss, seconds, timed, total, self.model.stepped_rates)
            self.position = self.position.after(total, None if self._is_left_out(loss) else loss, seconds)
            self.since_start += 1
            yield done

    def _step(self, step: BatchPlace) -> tuple[float, bool]:
        """Train one optimiser step; the mean loss, and whether its seconds count."""
        loss, timed, size = 0.0, True, self.model.batch_size
        for start in range(0, step.count, size):
            place = BatchPlace(step.epoch, step.start + start, min(size, step.count - start))
            fraction, last = place.count / step.count, start + size >= step.count
            train = partial(self._trained, place.count, fraction, last)
            part_loss, metered = self.feeding.fed(place, train)
            if self._is_left_out(part_loss):
                self.model.drop_gradients()
                return math.nan, False
            loss += fraction * part_loss
            timed = timed and not metered
        return loss, timed

    def _is_left_out(self, loss: float) -> bool:
        return self.model.on_nonfinite == "skip" and not math.isfinite(loss)

    def _trained(
        self, samples: int, fraction: float, last: bool, inputs: Any, targets: Any
    ) -> tuple[float, bool]:
        """A batch's loss, and whether it was metered for bytes."""
        number = self.since_start
        if samples < self.model.batch_size:
            with _naming_last_batch(samples):
                return self.model.train_batch(inputs, targets, fraction=fraction, step=True), False
        if not last or number not in (_METERED, *_RECORDED):
            return self.model.train_batch(inputs, targets, fraction=fraction, step=last), False
        metered, plan = number == _METERED, self.model.plan
        loss, timeline = self.model.measure_batch(inputs, targets, metered, fraction=fraction, step=last)
        if self._is_left_out(loss):
            return loss, False
        if plan is not self.plan:  # as after a restart with another plan
            return loss, metered
        if metered:
            self.history.peak_bytes = timeline.peak_bytes
        else:
            self.history.recorded.append(timeline)
        return loss, metered

    def _make_last_program(self) -> None:
        """Compile a smaller last batch's program early, to refuse it early; not for streams."""
        rest = self._samples % self.model.batch_size
        done = self.position.epoch >= self.epochs
        if not rest or done or isinstance(self.data.train, Stream):
            return
        try:
            pair = self.feeding.once.batch(BatchPlace(self.position.epoch, self._samples - rest, rest))
        except ReadError:  # raised when that batch is due
            return
        with _naming_last_batch(rest):
            self.model.make_program(*pair)

    def _score(self) -> float | None:
        if self.metric is None or not len(self.data.test):
            return None
        data, size = self.data.test, self.model.batch_size
        return self.model.evaluate(
            batches(data, size, shuffle=False, drop_last=False, **self.loading), self.metric
        )

    def _end_epoch(self) -> None:
        position = self.position
        name = "" if self.metric is None else name_of_metric(self.metric)
        done = Epoch(position.epoch, position.mean_loss, self._score(), position.seconds, name)
        self.history.epochs.append(done)
        self.model.end_epoch(done.train_loss)
        self.position = position.next_epoch()
        if done.index >= self.reported.epoch:
            self.reported = Position(epoch=done.index + 1, step=self.reported.step)
            if self.observer is not None:
                self.observer.epoch(done)
        last = self.position.epoch >= self.epochs
        due = self.checkpoints is not None and self.checkpoints.due_after_epoch(self.position.epoch, last)
        if due or self._due_after_step():
            self._save()

    def _tell_adaptation(self, before: int | None, left: int | None) -> None:
        adaptation = getattr(self.model, "adaptation", None)
        if adaptation is not None:
            adaptation.before, adaptation.left = before, left

    def _tell_iteration(self, done: Iteration) -> None:
        """Tell observers once, however often the iteration was repeated."""
        if done.step < self.reported.step:
            return
        self.reported = Position(epoch=self.reported.epoch, step=done.step + 1)
        if self.observer is not None:
            self.observer.iteration(done)

    def _save(self) -> None:
        assert self.checkpoints is not None
        order = {"seed": self.seed, "train_samples": len(self.data.train)}
        extra = {**asdict(self.position), "order": order, "history": self.history.stored()}
        self.checkpoints.save(self.model, self.position.step, extra)
        self.failures = 0

    def _load(self, folder: Path) -> None:
        extra = self.model.load_checkpoint(folder)
        try:
            order, stored = extra.pop("order"), extra.pop("history")
            self.position = Position(**extra)
            self.history.restore(stored)
        except (TypeError, KeyError, ValueError, AttributeError, IndexError) as error:
            raise ConfigError(
                f"checkpoint '{folder}' does not record how far training went: use one that `fit` or a "
                "command saved."
            ) from error
        expected = {"seed": self.seed, "train_samples": len(self.data.train)}
        wrong = [key for key, value in expected.items() if order.get(key) != value]
        if self.position.samples and wrong:
            raise ConfigError(
                f"checkpoint '{folder}' was saved within an epoch with {wrong[0]} {order.get(wrong[0])}, "
                f"but this training has {expected[wrong[0]]}: give the same."
            )
