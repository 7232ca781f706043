"""What a training sees of a dataset does not depend on loader processes, nor on a failure in between."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from netsplit.data import Data, text
from netsplit.errors import WorkerError
from netsplit.simulate.timeline import Timeline
from netsplit.training.epochs import fit
from netsplit.training.parallel import ParallelModel
from tests.data.folders import make_text


class Watcher:
    """Keeps the batches it is trained and evaluated with; fails once, at the batch of number `fails_at`."""

    batch_size = 3
    made_s = 0.0
    stepped_rates = (0.1,)
    plan = "the plan"
    on_nonfinite = "stop"

    def __init__(self, fails_at: int = -1) -> None:
        self.runtime: Any = None
        self.fails_at = fails_at
        self.trained: list[tuple[Tensor, Tensor]] = []
        self.tested: list[tuple[Tensor, Tensor]] = []

    def train_batch(self, inputs: Tensor, targets: Tensor, **_: object) -> float:
        if len(self.trained) == self.fails_at:
            self.fails_at = -1
            self.trained.clear()
            self.tested.clear()
            raise WorkerError("a worker died.")
        self.trained.append((inputs, targets))
        return 0.0

    def measure_batch(
        self, inputs: Tensor, targets: Tensor, bytes_too: bool = False, **_: object
    ) -> tuple[float, Timeline]:
        return self.train_batch(inputs, targets), Timeline((), 0.0, {})

    def check_length(self, epochs: int, steps_per_epoch: int) -> None:
        pass

    def make_program(self, inputs: Any, targets: Any) -> None:
        pass

    def end_epoch(self, loss: float) -> None:
        pass

    def evaluate(self, batches: Iterable[tuple[Tensor, Tensor]], metric: object) -> float:
        self.tested.extend(batches)
        return 0.0


def seen(data: Data, fails_at: int = -1) -> list[Tensor]:
    model = Watcher(fails_at)
    fit(cast(ParallelModel, model), data, epochs=3, seed=4, restart=lambda: cast(Any, None))
    return [tensor for batch in (*model.trained, *model.tested) for tensor in batch]


def test_the_same_with_processes_and_after_a_failure(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = str(make_text(tmp_path_factory.mktemp("text")))
    alone, shared = (text(24, True, root, limit=10, workers=workers) for workers in (0, 2))
    expected = seen(alone)
    assert len(expected) == 2 * 3 * (4 + 4)
    for samples in (seen(shared), seen(shared, fails_at=6), seen(alone, fails_at=5)):
        assert len(samples) == len(expected)
        assert all(torch.equal(one, other) for one, other in zip(samples, expected, strict=True))
    first, second = (torch.cat(expected[8 * epoch : 8 * epoch + 8 : 2]) for epoch in (0, 1))
    assert not torch.equal(first.sort(0).values, second.sort(0).values)  # other characters are masked
