"""The order of batches depends on seed and epoch, and on nothing else."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import TensorDataset

from netsplit.data import batches
from netsplit.errors import ConfigError

NUMBERS = TensorDataset(torch.arange(10.0)[:, None], torch.arange(10))


def order(**options: int | bool) -> list[list[int]]:
    return [targets.tolist() for _, targets in batches(NUMBERS, 4, **options)]  # type: ignore[arg-type]


def test_inputs_and_targets_stay_together() -> None:
    for inputs, targets in batches(NUMBERS, 4):
        assert torch.equal(inputs[:, 0], targets.float())


def test_the_same_seed_and_epoch_give_the_same_order_whatever_the_global_generator() -> None:
    torch.manual_seed(1)
    first = order(epoch=2, seed=3)
    torch.manual_seed(2)
    assert order(epoch=2, seed=3) == first


def test_the_global_generator_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    order()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [order(epoch=epoch, seed=seed) for epoch in range(3) for seed in range(3)]
    assert len({str(one) for one in orders}) == 9


def test_without_shuffling_the_order_is_the_dataset_s() -> None:
    assert order(shuffle=False, drop_last=False) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_drop_last_gives_whole_batches_only() -> None:
    assert [len(batch) for batch in order()] == [4, 4]


@pytest.mark.parametrize("size", [0, 11])
def test_a_batch_size_that_gives_no_batch_is_refused_at_once(size: int) -> None:
    with pytest.raises(ConfigError, match=f"batch_size is {size}"):
        batches(NUMBERS, size)
