"""`netsplit.training.epochs.fit` with a model that only pretends: no worker, no waiting."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import TensorDataset

from netsplit.data import Data
from netsplit.errors import ConfigError, NetSplitError, WorkerError
from netsplit.simulate.timeline import Timeline
from netsplit.training.checkpoints import Checkpoints, newest
from netsplit.training.epochs import RESTARTS, Epoch, History, Iteration, fit
from netsplit.training.parallel import ParallelModel
from tests.examples import tried
from tests.messages import tells

BATCH, SAMPLES, TEST = 4, 30, 9  # seven whole batches an epoch, and one of two samples


class Pretender:
    """Losses count 0, 1, 2, …; remembers which samples it was given and how."""

    batch_size = BATCH
    stepped_rates = (0.1,)
    made_s = 0.0
    plan = "the plan"
    runtime: Any = SimpleNamespace(finish=lambda: None)

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fractions: list[tuple[float, bool]] = []
        self.seen: list[list[int]] = []
        self.evaluated: list[list[int]] = []

    def check_length(self, epochs: int, steps_per_epoch: int) -> None:
        pass

    on_nonfinite = None

    def make_program(self, inputs: Tensor, targets: Tensor) -> None:
        pass

    def end_epoch(self, loss: float) -> None:
        pass

    def train_batch(
        self, inputs: Tensor, targets: Tensor, *, fraction: float = 1.0, step: bool = True
    ) -> float:
        return self._step("plain", inputs, fraction, step)

    def measure_batch(
        self,
        inputs: Tensor,
        targets: Tensor,
        bytes_too: bool = False,
        *,
        fraction: float = 1.0,
        step: bool = True,
    ) -> tuple[float, Timeline]:
        loss = self._step("bytes" if bytes_too else "events", inputs, fraction, step)
        return loss, Timeline((), loss, {"cpu:0": 7} if bytes_too else {})

    def evaluate(self, batches: Iterable[tuple[Tensor, Tensor]], metric: Any) -> float:
        self.evaluated.append([int(i) for inputs, _ in batches for i in inputs])
        return 0.25 * len(self.evaluated)

    def _step(self, kind: str, inputs: Tensor, fraction: float, step: bool) -> float:
        self.calls.append(kind)
        self.fractions.append((fraction, step))
        self.seen.append(inputs.tolist())
        return float(len(self.calls) - 1)


class Listener:
    def __init__(self) -> None:
        self.told: list[Iteration | Epoch] = []

    def iteration(self, done: Iteration) -> None:
        self.told.append(done)

    def epoch(self, done: Epoch) -> None:
        self.told.append(done)


def data() -> Data:
    halves = (TensorDataset(torch.arange(size), torch.zeros(size)) for size in (SAMPLES, TEST))
    return Data("numbers", *halves, num_classes=1, classes=("0",))


def fitted(epochs: int = 2, **options: Any) -> tuple[Pretender, History]:
    model = Pretender()
    return model, fit(cast(ParallelModel, model), data(), epochs=epochs, **options)


def test_an_epoch_is_every_sample_once_and_then_the_test_half() -> None:
    model, history = fitted()
    assert [it.samples for it in history.iterations] == 2 * [*7 * [4], 2]
    for epoch in range(2):
        drawn = [i for batch in model.seen[8 * epoch : 8 * epoch + 8] for i in batch]
        assert sorted(drawn) == list(range(SAMPLES))
    assert model.evaluated == [list(range(TEST))] * 2
    assert [epoch.score for epoch in history.epochs] == [0.25, 0.5]


def test_the_loss_of_an_epoch_is_the_mean_of_its_samples() -> None:
    _, history = fitted()
    first = (4 * sum(range(7)) + 2 * 7) / 30
    assert [epoch.train_loss for epoch in history.epochs] == pytest.approx([first, first + 8])
    assert [it.loss for it in history.iterations] == list(range(16))


def test_a_step_on_several_batches_weights_every_sample_alike() -> None:
    """Eight batches of an epoch, the last with two samples: steps on three, three, and two."""
    model, history = fitted(epochs=1, accumulate=3)
    third = pytest.approx(1 / 3)
    assert model.fractions == [
        *2 * [(third, False), (third, False), (third, True)], (pytest.approx(4 / 6), False),
        (pytest.approx(2 / 6), True),
    ]  # fmt: skip
    assert [it.samples for it in history.iterations] == [12, 12, 6]
    assert [it.loss for it in history.iterations] == pytest.approx([1.0, 4.0, (4 * 6 + 2 * 7) / 6])
    assert model.calls[5] == "bytes"  # the last batch of the second step


def test_the_second_iteration_is_metered_and_whole_ones_of_the_next_twenty_recorded() -> None:
    model, history = fitted(epochs=4)
    kinds = ["plain", "bytes", *["events"] * 20, *["plain"] * 10]
    for uneven in (7, 15, 23, 31):  # never measured
        kinds[uneven] = "plain"
    assert model.calls == kinds
    assert [it.timed for it in history.iterations] == [True, False] + [True] * 30
    assert history.peak_bytes == {"cpu:0": 7}
    assert len(history.recorded) == 18


# --- interrupted and resumed --------------------------------------------------------------------------


class Mortal(Pretender):
    """Its one weight is moved by every sample, in order; dies at the given calls of a step."""

    def __init__(self, dies_at: Iterable[int] = ()) -> None:
        super().__init__()
        self.weight = 1.0
        self.dies_at = set(dies_at)
        self.runtime: Any = SimpleNamespace(finish=lambda: None)

    def _step(self, kind: str, inputs: Tensor, fraction: float, step: bool) -> float:
        super()._step(kind, inputs, fraction, step)
        if len(self.calls) in self.dies_at:
            raise WorkerError("worker cpu:1 died at its forward.")
        for sample in inputs.tolist():
            self.weight = (1.1 * self.weight + fraction * sample) % 7.0
        return self.weight

    def save_checkpoint(self, folder: Path, extra: dict[str, Any]) -> None:
        folder.mkdir()
        (folder / ".metadata").write_text(repr(self.weight))
        (folder / "netsplit.json").write_text(json.dumps(extra))

    def load_checkpoint(self, folder: Path) -> dict[str, Any]:
        self.weight = float((folder / ".metadata").read_text())
        return dict(json.loads((folder / "netsplit.json").read_text()))

    def restart(self) -> Any:
        """New workers have the first weights."""
        self.weight = 1.0
        return self.runtime


def train_on(model: Mortal, folder: Path | None, **options: Any) -> History:
    """Three epochs of eight batches."""
    chosen: dict[str, Any] = {"epochs": 3} | options
    saving = {key: chosen.pop(key) for key in ("every_epochs", "every_iterations") if key in chosen}
    if folder is None:
        return fit(cast(ParallelModel, model), data(), **chosen)
    with Checkpoints(folder, resume=True, **saving) as checkpoints:
        return fit(cast(ParallelModel, model), data(), checkpoints=checkpoints, **chosen)


def told_alike(history: History, other: History) -> bool:
    """All but the seconds."""

    def plain(told: History) -> list[Any]:
        steps = [(it.step, it.epoch, it.loss, it.samples) for it in told.iterations]
        return [steps, [(epoch.index, epoch.train_loss, epoch.score) for epoch in told.epochs]]

    return plain(history) == plain(other)


class Even(Mortal):
    """Its accuracy depends on the weight alone."""

    def evaluate(self, batches: Iterable[tuple[Tensor, Tensor]], metric: Any) -> float:
        return self.weight


@settings(max_examples=tried(30), deadline=None)
@given(
    dies_at=st.sets(st.integers(1, 30), max_size=3),
    accumulate=st.integers(1, 3),
    every_epochs=st.sampled_from([None, 1, 2]),
    every_iterations=st.sampled_from([None, 1, 3]),
    drop_last=st.booleans(),
)
def test_a_training_whose_workers_die_ends_as_one_whose_workers_live(
    dies_at: set[int], accumulate: int, drop_last: bool, **saving: int | None
) -> None:
    """And its observer is told everything once, in order."""
    options = {"accumulate": accumulate, "drop_last": drop_last}
    quiet, whole = Even(), Listener()
    history = train_on(quiet, None, observer=whole, **options)
    model, listener = Even(dies_at), Listener()
    with tempfile.TemporaryDirectory() as folder:
        again = train_on(model, Path(folder), restart=model.restart, observer=listener, **options, **saving)
    assert model.weight == quiet.weight
    assert told_alike(again, history)
    assert [(type(each), getattr(each, "step", None)) for each in listener.told] == [
        (type(each), getattr(each, "step", None)) for each in whole.told
    ]


@settings(max_examples=tried(30), deadline=None)
@given(stops_at=st.integers(2, 24), every_iterations=st.sampled_from([1, 2, 5]), accumulate=st.integers(1, 3))
def test_a_command_started_again_ends_as_one_that_was_never_stopped(
    stops_at: int, every_iterations: int, accumulate: int
) -> None:
    quiet = Even()
    history = train_on(quiet, None, accumulate=accumulate)
    with tempfile.TemporaryDirectory() as name:
        options = {"every_iterations": every_iterations, "accumulate": accumulate}
        first, again, listener = Even({stops_at}), Even(), Listener()
        with pytest.raises(WorkerError):
            train_on(first, Path(name), **options)
        resumed = train_on(again, Path(name), observer=listener, **options)
    assert again.weight == quiet.weight
    assert len(again.seen) < len(quiet.seen) or stops_at <= every_iterations * accumulate
    assert told_alike(resumed, history)
    assert [each.index for each in listener.told if isinstance(each, Epoch)] == [0, 1, 2]


def test_a_finished_training_is_not_done_again_but_can_be_made_longer(tmp_path: Path) -> None:
    history = train_on(Even(), tmp_path)
    again = Even()
    assert told_alike(train_on(again, tmp_path), history)
    assert again.calls == []
    longer, quiet = Even(), Even()
    assert len(train_on(longer, tmp_path, epochs=5).epochs) == 5
    assert len(longer.seen) == 2 * 8
    train_on(quiet, None, epochs=5)
    assert longer.weight == quiet.weight


def test_workers_that_die_again_and_again_end_the_training_with_their_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Even(range(5, 100))
    with caplog.at_level(logging.INFO), pytest.raises(WorkerError, match="died at its forward"):
        train_on(model, tmp_path, restart=model.restart, every_iterations=2)
    assert len(model.calls) == 5 + RESTARTS
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert tells(said[0], "cpu:1", "forward", "1 of 3")
    assert len(said) == RESTARTS
    assert "Resuming from" in caplog.text
    assert tells(caplog.text, "4 iterations", "16 samples", "epoch 1")


# --- the folder ---------------------------------------------------------------------------------------


def folders(folder: Path) -> list[str]:
    return sorted(place.name for place in folder.iterdir() if place.is_dir())


def test_the_newest_are_kept_in_the_order_they_were_saved(tmp_path: Path) -> None:
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        for step in (5, 10, 7):  # a training that began again from an earlier one
            checkpoints.save(cast(Any, Even()), step, {})
        assert folders(tmp_path) == ["000002-step-10", "000003-step-7"]
        assert checkpoints.newest == tmp_path / "000003-step-7"


def test_two_trainings_do_not_share_a_folder(tmp_path: Path) -> None:
    with Checkpoints(tmp_path), pytest.raises(NetSplitError, match="is in use by another training"):
        Checkpoints(tmp_path, resume=True)
    Checkpoints(tmp_path, resume=True).close()


def test_checkpoints_of_an_earlier_training_are_not_mixed_with_a_new_one_s(tmp_path: Path) -> None:
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(cast(Any, Even()), 5, {})
    for origin in (None, tmp_path / "another"):
        with pytest.raises(ConfigError, match="resume=auto"):
            Checkpoints(tmp_path, origin=origin)


def test_an_origin_is_begun_with_until_there_is_a_checkpoint_of_one_s_own(tmp_path: Path) -> None:
    quiet, first, second = Even(), Even(), Even()
    train_on(quiet, None)
    train_on(first, tmp_path / "first", epochs=1)
    origin = newest(tmp_path / "first")
    with Checkpoints(tmp_path / "second", origin=origin) as checkpoints:
        fit(cast(ParallelModel, second), data(), epochs=3, checkpoints=checkpoints)
        assert checkpoints.newest == tmp_path / "second" / "000002-step-24"
    assert second.weight == quiet.weight
    assert len(second.seen) == 16
