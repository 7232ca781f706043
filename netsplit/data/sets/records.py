"""Records as recommenders and models of tables read them, drawn when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from netsplit.data.dataset import Data, readable
from netsplit.data.draw import Generated
from netsplit.data.keys import at_least
from netsplit.errors import ConfigError

__all__ = ["records"]


@readable
def records(
    numbers: Sequence[int] = (4,),
    categories: Sequence[int] = (1000, 1000, 1000, 1000),
    bag: int = 1,
    num_classes: int = 2,
    train: int = 1024,
    test: int = 256,
    limit: int | None = None,
    seed: int = 0,
) -> Data:
    """Samples drawn from (seed, half, index), of several inputs where there are several.

    Inputs: float32 of each size in `numbers`, then int64 (categories, bag), each below its own of
    `categories`. Target: a class, which shifts all numbers and is the rest of most categories; or, without
    classes, float32 (1,): the mean of the first numbers.

    Args:
        num_classes: 0: a number is to be predicted.
        train, test: samples in each half, which cost no memory.
        limit: at most so many of each half.

    Raises:
        ConfigError: no inputs, or a number that cannot be used.
    """
    at_least(1, train=train, test=test, bag=bag)
    at_least(1, numbers=min(numbers, default=1), categories=min(categories, default=1))
    at_least(0, num_classes=num_classes)
    if not numbers and (not categories or not num_classes):
        raise ConfigError("dataset.numbers is []: give the size of at least one input, as in [4].")
    make = _Records(tuple(numbers), tuple(categories), bag, num_classes)
    halves = [Generated(make, min(n, limit or n), seed, half) for half, n in enumerate((train, test))]
    return Data("records", halves[0], halves[1], num_classes, tuple(map(str, range(num_classes))))


@dataclass(frozen=True)
class _Records:
    numbers: tuple[int, ...]
    categories: tuple[int, ...]
    bag: int
    num_classes: int

    def __call__(self, rng: np.random.Generator) -> tuple[Tensor | tuple[Tensor, ...], Tensor]:
        target = int(rng.integers(max(self.num_classes, 1)))
        drawn = (rng.standard_normal(size, dtype="float32") for size in self.numbers)
        inputs = [torch.from_numpy(each + target) for each in drawn]
        wanted = torch.tensor(target) if self.num_classes else inputs[0].mean(0, keepdim=True)
        if self.categories:
            step, sizes = max(self.num_classes, 1), torch.tensor(self.categories)[:, None]
            rows = torch.from_numpy(rng.integers(2**40, size=(len(self.categories), self.bag))) % sizes
            inputs.append((rows - rows % step + target) % sizes)
        return (inputs[0] if len(inputs) == 1 else tuple(inputs)), wanted
