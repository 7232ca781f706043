"""`netsplit.training.fit` with a model that only pretends: no worker, no waiting."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from netsplit.data import Data
from netsplit.errors import ConfigError
from netsplit.parallel import ParallelModel
from netsplit.simulate.timeline import Timeline
from netsplit.training import Epoch, History, Iteration, fit

BATCH, SAMPLES, TEST = 4, 30, 9  # seven whole batches an epoch, two samples left over


class Pretender:
    """Losses count 0, 1, 2, …; remembers which samples it was given and how."""

    batch_size = BATCH

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.seen: list[list[int]] = []
        self.evaluated: list[list[int]] = []

    def train_batch(self, inputs: Tensor, targets: Tensor) -> float:
        return self._step("plain", inputs)

    def measure_batch(
        self, inputs: Tensor, targets: Tensor, bytes_too: bool = False
    ) -> tuple[float, Timeline]:
        loss = self._step("bytes" if bytes_too else "events", inputs)
        return loss, Timeline((), loss, {"cpu:0": 7} if bytes_too else {})

    def evaluate(self, batches: Iterable[tuple[Tensor, Tensor]], metric: Any) -> float:
        self.evaluated.append([int(i) for inputs, _ in batches for i in inputs])
        return 0.25 * len(self.evaluated)

    def _step(self, kind: str, inputs: Tensor) -> float:
        self.calls.append(kind)
        self.seen.append(inputs.tolist())
        return float(len(self.calls) - 1)


class Listener:
    def __init__(self) -> None:
        self.told: list[Iteration | Epoch] = []

    def iteration(self, done: Iteration) -> None:
        self.told.append(done)

    def epoch(self, done: Epoch) -> None:
        self.told.append(done)


def data(train: int = SAMPLES) -> Data:
    def half(size: int) -> TensorDataset:
        return TensorDataset(torch.arange(size), torch.zeros(size))

    return Data("numbers", half(train), half(TEST), num_classes=1, classes=("0",))


def fitted(epochs: int = 2, seed: int = 0, observer: Listener | None = None) -> tuple[Pretender, History]:
    model = Pretender()
    history = fit(cast(ParallelModel, model), data(), epochs=epochs, seed=seed, observer=observer)
    return model, history


def history_of(seconds: list[float], timed: list[bool]) -> History:
    pairs = enumerate(zip(seconds, timed, strict=True))
    return History(BATCH, [Iteration(step, 0, 1.0, s, timed=t) for step, (s, t) in pairs])


def test_an_epoch_is_every_whole_batch_once_and_then_the_test_half() -> None:
    model, history = fitted()
    assert len(history.iterations) == 2 * (SAMPLES // BATCH)
    for epoch in range(2):
        drawn = [i for batch in model.seen[7 * epoch : 7 * epoch + 7] for i in batch]
        assert len(set(drawn)) == len(drawn) == 28
    assert model.evaluated == [list(range(TEST))] * 2
    assert [epoch.test_accuracy for epoch in history.epochs] == [0.25, 0.5]


def test_the_loss_of_an_epoch_is_the_mean_of_its_iterations() -> None:
    _, history = fitted()
    assert [epoch.train_loss for epoch in history.epochs] == [3.0, 10.0]
    assert [it.loss for it in history.iterations] == list(range(14))


def test_batches_depend_on_seed_and_epoch_alone() -> None:
    assert fitted()[0].seen == fitted()[0].seen
    assert fitted(seed=1)[0].seen != fitted()[0].seen
    seen = fitted()[0].seen
    assert seen[:7] != seen[7:]


def test_an_observer_is_told_everything_in_the_order_it_happens() -> None:
    listener = Listener()
    _, history = fitted(observer=listener)
    first, second = history.iterations[:7], history.iterations[7:]
    assert listener.told == [*first, history.epochs[0], *second, history.epochs[1]]
    assert [it.step for it in history.iterations] == list(range(14))
    assert [it.epoch for it in history.iterations] == [0] * 7 + [1] * 7


def test_the_second_iteration_is_metered_and_the_next_twenty_are_recorded() -> None:
    model, history = fitted(epochs=4)
    assert model.calls == ["plain", "bytes", *["events"] * 20, *["plain"] * 6]
    assert [it.timed for it in history.iterations] == [True, False] + [True] * 26
    assert history.peak_bytes == {"cpu:0": 7}
    assert len(history.recorded) == 20


def test_the_median_leaves_out_warm_up_and_metered_iterations() -> None:
    history = history_of([9.0, 99.0, 1.0, 3.0, 2.0], [True, False, True, True, True])
    assert history.iteration_s == statistics.median([1.0, 3.0, 2.0])
    assert history.throughput == BATCH / 2.0


@pytest.mark.parametrize(
    ("seconds", "timed", "median"),
    [([9.0], [True], 9.0), ([9.0, 99.0], [True, False], 9.0), ([99.0], [False], 99.0)],
)
def test_a_training_too_short_to_leave_any_out_has_a_median(
    seconds: list[float], timed: list[bool], median: float
) -> None:
    assert history_of(seconds, timed).iteration_s == median


def test_the_measured_timeline_is_the_recorded_one_nearest_to_the_median() -> None:
    history = history_of([9.0, 1.0, 2.0, 3.0], [True] * 4)
    history.peak_bytes = {"cpu:0": 5}
    history.recorded = [Timeline((), 1.0, {}), Timeline((), 2.2, {}), Timeline((), 8.0, {})]
    measured = history.measured
    assert measured is not None
    assert (measured.iteration_s, measured.peak_bytes) == (2.2, {"cpu:0": 5})


def test_a_training_of_two_iterations_has_no_measured_timeline() -> None:
    assert history_of([1.0, 1.0], [True, False]).measured is None


def test_a_training_half_smaller_than_a_batch_is_refused() -> None:
    with pytest.raises(ConfigError, match="batch_size is 4, but the dataset has 3 samples"):
        fit(cast(ParallelModel, Pretender()), data(train=3), epochs=1)
