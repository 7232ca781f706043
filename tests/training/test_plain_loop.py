"""What surrounds the captured step (sizes, settings, hooks, state) is as in a plain loop, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler as lr

import netsplit
from netsplit.partition.methods.random import Random
from netsplit.program.schedules import GPipe, Schedule
from netsplit.training.parallel import ParallelModel
from tests.nets import SGD
from tests.workers import Pools, cpu_workers, lent_to_sessions

Pair = tuple[Tensor, Tensor]
LOSS = nn.CrossEntropyLoss()


@pytest.fixture(autouse=True)
def _lent(pools: Pools, unmeasured: None) -> Iterator[None]:
    with lent_to_sessions(pools):
        yield


def net() -> nn.Module:
    torch.default_generator.manual_seed(7)
    return nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 5)).double()


def pair(seed: int, size: int = 8) -> Pair:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 12, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 5, (size,), generator=generator)


def split(model: nn.Module, loss: Any = LOSS, batch: Any = None, **options: Any) -> ParallelModel:
    given = {"schedule": GPipe(4), "optimizer": SGD, "partitioner": Random()} | options
    example = pair(0) if batch is None else batch
    return netsplit.parallelize(model, loss, example, cluster=cpu_workers(2), progress=False, **given)


def plain_step(
    model: nn.Module, optimizer: optim.Optimizer, batch: Pair, size: int = 2, loss: Any = LOSS
) -> float:
    total = 0.0
    for x, y in zip(*(t.split(size) for t in batch), strict=True):
        value = loss(model(x), y) * (len(x) / len(batch[0]))
        value.backward()
        total += float(value.detach())
    optimizer.step()
    optimizer.zero_grad()
    return total


def assert_same(parallel: ParallelModel, model: nn.Module) -> None:
    state = parallel.state_dict()
    for key, tensor in model.state_dict().items():
        torch.testing.assert_close(state[key], tensor, rtol=1e-9, atol=1e-9)


# --- sizes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["single_batch", GPipe(1)])
def test_where_the_example_is_not_cut_no_batch_is(schedule: str | Schedule) -> None:
    """A sum over a batch of twice as many samples is not the mean of two sums."""
    total, model = nn.CrossEntropyLoss(reduction="sum"), net()
    plain = optim.SGD(model.parameters(), lr=1e-3)
    optimizer = partial(optim.SGD, lr=1e-3)
    with split(net(), total, schedule=schedule, optimizer=optimizer) as parallel:
        for seed, size in enumerate((8, 4, 16, 12)):
            loss = parallel.train_batch(*pair(seed, size))
            assert loss == pytest.approx(plain_step(model, plain, pair(seed, size), size, total))
        assert_same(parallel, model)


# --- settings that are tensors ------------------------------------------------------------------------


def test_a_learning_rate_that_is_a_tensor_is_each_optimizers_own() -> None:
    """Schedulers write into it; the trial before training, and every device's, have one of their own."""
    rate, model = torch.tensor(0.05, dtype=torch.float64), net()
    plain = optim.Adam(model.parameters(), lr=rate.clone(), foreach=False)
    scheduler = lr.ExponentialLR(plain, gamma=0.5)
    factory = partial(optim.Adam, lr=rate, foreach=False)
    with split(net(), optimizer=factory, scheduler=partial(lr.ExponentialLR, gamma=0.5)) as parallel:
        assert float(rate) == 0.05
        for seed in range(3):
            assert parallel.train_batch(*pair(seed)) == pytest.approx(plain_step(model, plain, pair(seed)))
            scheduler.step()
        assert_same(parallel, model)
