"""Batches that workers read themselves are those that the training process would have sent, bit for bit."""

from __future__ import annotations

import itertools
import logging
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

import netsplit
from netsplit.data import Data, batches
from netsplit.data.keys import ReadingKeys
from netsplit.data.reading.own import as_data
from netsplit.errors import ReadError
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.feeds import UnreadBatch
from netsplit.training.checkpoints import Checkpoints
from netsplit.training.epochs import fit
from netsplit.training.parallel import ParallelModel
from tests.workers import Pools, lent_to_sessions

SIZE, SAMPLES = 8, 30  # three whole batches an epoch, and one of six samples
FEEDING = "netsplit.training.feeding"
pytestmark = pytest.mark.usefixtures("unmeasured")


@dataclass
class Scenes:
    """A random cut of a picture and the same of its mask, by all three global generators."""

    count: int = SAMPLES
    bad: int = -1
    wrong: float | None = None  # in the picture of sample 20

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index == self.bad:
            raise KeyError(f"no scene {index}")
        row, column = int(torch.randint(3, ())), np.random.randint(3)
        whole = torch.arange(64.0).reshape(8, 8) + index
        cut = whole[row : row + 6, column : column + 6]
        picture = (cut + random.random()).sin().double()
        if index == 20 and self.wrong is not None:
            picture[0, 0] = self.wrong
        return picture, cut.flatten()[:4].cos().double()


class Numbers(IterableDataset[tuple[Tensor, Tensor]]):
    """A stream without end."""

    def __iter__(self) -> Any:
        for index in itertools.count():
            value = torch.rand(6, 6, dtype=torch.float64) + index % 5
            yield value, value.flatten()[:4].sin()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(36, 9)
        self.last = nn.Linear(9, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(nn.functional.dropout(torch.tanh(self.first(x.flatten(1))), 0.25, self.training))


def parallel(pools: Pools, workers: int = 2, **options: Any) -> ParallelModel:
    torch.manual_seed(5)
    example = torch.ones(SIZE, 6, 6, dtype=torch.float64), torch.ones(SIZE, 4, dtype=torch.float64)
    descent = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
    keys = {"partitioner": "balanced", "optimizer": descent, "schedule": "1f1b"} | options
    with lent_to_sessions(pools):
        return netsplit.parallelize(Net().double(), nn.MSELoss(), example, cluster=workers, **keys)


def data(made: Any, /, **keys: Any) -> Data:
    return as_data(made, "scenes", ReadingKeys(**({"seed": 3} | keys)))


@dataclass
class Spy:
    """What went over to the workers."""

    unread: int = 0
    sent: int = 0
    where: list[set[str]] = field(default_factory=list)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    seen, iterate = Spy(), DistributedRuntime._iterate

    def watched(runtime: DistributedRuntime, inputs: Any, *args: Any) -> Any:
        result = iterate(runtime, inputs, *args)
        if isinstance(inputs, UnreadBatch):
            seen.unread += 1
            seen.where.append(set(runtime.readers))
        else:
            seen.sent += 1
        return result

    monkeypatch.setattr(DistributedRuntime, "_iterate", watched)
    return seen


def trained(pools: Pools, read: Data, **options: Any) -> tuple[list[float], dict[str, Tensor]]:
    fitting = {key: options.pop(key) for key in ("epochs", "accumulate", "drop_last") if key in options}
    with parallel(pools, **options) as model:
        history = fit(model, read, seed=3, metric=None, **({"epochs": 2} | fitting))
        return [it.loss for it in history.iterations], model.state_dict()


def assert_equal(
    one: tuple[list[float], dict[str, Tensor]], two: tuple[list[float], dict[str, Tensor]]
) -> None:
    assert one[0] == two[0]
    assert all(torch.equal(tensor, two[1][key]) for key, tensor in one[1].items())


@pytest.mark.parametrize(
    "options",
    [
        {"accumulate": 2, "drop_last": True},
        {"partitioner": "ddp", "keys": {"workers": 2, "prefetch": 1}},  # each reads its own micro-batches
    ],
    ids=str,
)
def test_training_is_bit_equal_to_that_on_batches_of_the_controller(
    options: dict[str, Any], pools: Pools, spy: Spy
) -> None:
    keys = options.pop("keys", {})
    fed = trained(pools, data(Scenes(), read_by="controller"), **options)
    assert spy.unread == 0
    spy.sent = 0
    assert_equal(trained(pools, data(Scenes(), read_by="workers", **keys), **options), fed)
    whole = options.get("drop_last", False)
    assert (spy.sent, spy.unread) == ((1, 5) if whole else (2, 6))  # the first of each size is read here
    assert all(len(devices) == 2 for devices in spy.where)


def test_plain_pytorch_trains_on_the_same_batches(pools: Pools) -> None:
    """In the order and with the chance of `batches`, which is all that a plain loop needs."""
    losses, _ = trained(pools, data(Scenes()), epochs=1, schedule="single_batch", partitioner="single")
    torch.manual_seed(5)
    model = Net().double()
    example = next(batches(Scenes(), SIZE, seed=3))
    graph = netsplit.graph.capture(model, nn.MSELoss(), example)
    descent = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    plain = []
    for i, (inputs, targets) in enumerate(batches(Scenes(), SIZE, seed=3, drop_last=False)):
        if len(targets) < SIZE:
            break
        descent.zero_grad()
        with netsplit.draws(graph, 0, i):
            loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        descent.step()
        plain.append(float(loss.detach()))
    assert losses[:3] == pytest.approx(plain, abs=1e-14)


def test_a_training_resumed_within_an_epoch_goes_on_with_what_would_have_come(
    pools: Pools, tmp_path: Path, spy: Spy
) -> None:
    """Stopped by a bad sample in the third batch, gone on from the second, by another reader."""
    wanted = trained(pools, data(Scenes(), read_by="controller"))
    index = int(torch.cat([y for _, y in batches(_Indices(), SIZE, seed=3)])[2 * SIZE])
    options: dict[str, Any] = {"epochs": 2, "seed": 3, "metric": None}
    with (
        parallel(pools) as model,
        Checkpoints(tmp_path, every_iterations=1) as kept,
        pytest.raises(ReadError, match=f"no scene {index}"),
    ):
        fit(model, data(Scenes(bad=index), read_by="workers"), checkpoints=kept, **options)
    with parallel(pools) as model, Checkpoints(tmp_path, every_iterations=1, resume=True) as kept:
        history = fit(model, data(Scenes(), read_by="controller"), checkpoints=kept, **options)
        assert_equal(([it.loss for it in history.iterations], model.state_dict()), wanted)


class _Indices:
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, index


class _Counting(Scenes):
    """Another sample each time: what it draws, it draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.own = np.random.default_rng(0)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        picture, target = super().__getitem__(index)
        return picture + self.own.random(), target


@dataclass
class _Elsewhere(Scenes):
    """Its files are on the training process's machine alone."""

    home: int = field(default_factory=os.getpid)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if os.getpid() != self.home:
            raise FileNotFoundError(f"/data/{index}.png")
        return super().__getitem__(index)


@pytest.mark.parametrize(
    ("made", "facts"),
    [
        (_Counting, ["samples differ", "again"]),
        (_Elsewhere, ["worker cpu:0", "rank 0", "FileNotFoundError", ".png"]),
    ],
)
def test_what_workers_cannot_read_the_controller_reads_and_says_so_once(
    made: Callable[[], Scenes], facts: list[str], pools: Pools, caplog: pytest.LogCaptureFixture, spy: Spy
) -> None:
    with caplog.at_level(logging.WARNING, FEEDING):
        trained(pools, data(made()), epochs=1)
    assert spy.unread == 0
    (said,) = [record.getMessage() for record in caplog.records if record.name == FEEDING]
    assert all(fact in said for fact in ["The training process reads scenes", *facts])


def test_a_stream_is_read_by_whoever_is_asked_and_gives_the_same(pools: Pools, spy: Spy) -> None:
    keys: dict[str, Any] = {"samples": SAMPLES}
    here = trained(pools, data(Numbers(), **keys))
    assert spy.unread == 0  # unasked, as each worker would go through all of it
    assert_equal(trained(pools, data(Numbers(), read_by="workers", **keys)), here)
    assert spy.unread == 6
