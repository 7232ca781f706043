"""Batches of a dataset in an order that depends on the seed and the epoch only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from netsplit.data.dataset import Samples
from netsplit.errors import ConfigError

__all__ = ["batches"]

EPOCHS_PER_SEED = 1_000_003  # keeps (seed, epoch) pairs apart without touching the global generator


def batches(
    dataset: Samples,
    batch_size: int,
    *,
    epoch: int = 0,
    seed: int = 0,
    shuffle: bool = True,
    drop_last: bool = True,
    skip: int = 0,
) -> Iterator[tuple[Tensor, Tensor]]:
    """One epoch of (inputs (batch_size, ...), targets (batch_size,)); each epoch has its own order.

    Args:
        drop_last: leave out the samples that do not fill a batch.
        skip: begin after so many samples of the order, none of which is loaded.

    Raises:
        ConfigError: no batch at all would come out; raised by the call, not by the first `next`.
    """
    if batch_size < 1:
        raise ConfigError(f"batch_size is {batch_size}: give at least 1.")
    if len(dataset) < (batch_size if drop_last else 1):
        raise ConfigError(
            f"batch_size is {batch_size}, but the dataset has {len(dataset)} samples: "
            "give a smaller batch_size or a larger dataset.limit."
        )
    generator = torch.Generator().manual_seed(seed * EPOCHS_PER_SEED + epoch)
    torch.empty((), dtype=torch.int64).random_(generator=generator)  # as a shuffling DataLoader draws first
    count = len(dataset)
    order = torch.randperm(count, generator=generator).tolist() if shuffle else list(range(count))
    rest: Subset[Any] = Subset(cast(Any, dataset), order[skip:])
    loader: DataLoader[Any] = DataLoader(rest, batch_size, drop_last=drop_last, generator=generator)
    return ((inputs, targets) for inputs, targets in loader)
