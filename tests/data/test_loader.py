"""The order of batches depends on seed and epoch, and on nothing else."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, replace
from typing import Self

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import TensorDataset

from netsplit.data import Loader, batches
from netsplit.errors import ConfigError, NetSplitError

NUMBERS = TensorDataset(torch.arange(10.0)[:, None], torch.arange(10))


def order(**options: int | bool) -> list[list[int]]:
    return [targets.tolist() for _, targets in batches(NUMBERS, 4, **options)]  # type: ignore[arg-type]


def test_the_same_seed_and_epoch_give_the_same_order_whatever_the_global_generator() -> None:
    torch.manual_seed(1)
    first = order(epoch=2, seed=3)
    torch.manual_seed(2)
    assert order(epoch=2, seed=3) == first


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [order(epoch=epoch, seed=seed) for epoch in range(3) for seed in range(3)]
    assert len({str(one) for one in orders}) == 9


@dataclass(frozen=True)
class Told:
    """Samples that say their index, their epoch and the process that loaded them; some cannot be loaded."""

    count: int = 10
    epoch: int = 0
    bad: int = -1

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int, /) -> tuple[Tensor, Tensor]:
        if index == self.bad:
            raise ConfigError(f"sample {index} is bad.")
        if index == self.bad - 1:
            raise KeyError(index)
        if index == self.bad - 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.tensor([index, self.epoch]), torch.tensor(os.getpid())

    def at_epoch(self, epoch: int) -> Self:
        return replace(self, epoch=epoch)


def indices(loader: Loader, epoch: int, skip: int = 0) -> list[list[list[int]]]:
    return [inputs.tolist() for inputs, _ in loader.epoch(epoch, skip)]


@settings(max_examples=5, deadline=None)
@given(
    workers=st.integers(1, 2),
    size=st.integers(1, 4),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    seed=st.integers(0, 9),
    asked=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=4
    ),
)
def test_processes_give_what_one_process_gives(
    workers: int, size: int, shuffle: bool, drop_last: bool, seed: int, asked: list[tuple[int, int, int]]
) -> None:
    """Epochs in any order, from any sample on, broken off anywhere."""
    shared, alone = (
        Loader(Told(), size, seed=seed, shuffle=shuffle, drop_last=drop_last, workers=count, prefetch=1)
        for count in (workers, 0)
    )
    for epoch, skip, taken in asked:
        for (batch, _), (wanted, _), _ in zip(
            shared.epoch(epoch, skip), alone.epoch(epoch, skip), range(taken), strict=False
        ):
            assert torch.equal(batch, wanted)
        assert indices(shared, epoch, skip) == indices(alone, epoch, skip)


def test_an_epoch_is_told_to_samples_that_want_it_and_every_sample_comes_once() -> None:
    for workers in (0, 2):
        rows = [
            row for batch in indices(Loader(Told(), 3, drop_last=False, workers=workers), 4) for row in batch
        ]
        assert sorted(rows) == [[index, 4] for index in range(10)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_that_cannot_be_loaded_gives_the_same_sentence(workers: int) -> None:
    loader = Loader(Told(bad=3), 2, shuffle=False, workers=workers)
    with pytest.raises(ConfigError, match=r"^sample 3 is bad\.$"):
        list(loader.epoch(0, skip=3))
    with pytest.raises(
        NetSplitError, match=r"^sample 2 cannot be loaded: KeyError: 2 \(.*test_loader\.py, line \d+\)\.$"
    ):
        list(loader.epoch(0, skip=2))
    assert indices(loader, 0, skip=4) == [[[4, 0], [5, 0]], [[6, 0], [7, 0]], [[8, 0], [9, 0]]]


def test_a_process_that_dies_ends_in_a_sentence_and_is_replaced() -> None:
    loader = Loader(Told(bad=2), 1, shuffle=False, workers=1)
    with pytest.raises(
        NetSplitError, match=r"^a process that loads samples failed .*set dataset\.workers=0\.$"
    ):
        list(loader.epoch())
    assert indices(loader, 0, skip=8) == [[[8, 0]], [[9, 0]]]
