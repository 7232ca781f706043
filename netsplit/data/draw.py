"""Chance that can be repeated: what is drawn for a sample depends on named numbers only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np

__all__ = ["Drawn", "Generated", "Source", "generator_of", "limited"]


class Source(Protocol):
    """What samples are made from: pictures of any form, say."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def generator_of(*key: int) -> np.random.Generator:
    """A generator of its own for every tuple of numbers from 0 on, the same one in every process."""
    return np.random.default_rng(key)


def limited(count: int, limit: int | None, seed: int) -> np.ndarray:
    """At most `limit` indices below `count`, ascending and drawn by `seed`; (n,) int64."""
    if limit is None or limit >= count:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).permutation(count)[:limit])


@dataclass(frozen=True)
class Drawn:
    """`change(item, generator)` of every item of `source`: augmented, masked or merely made a tensor.

    The generator is that of (seed, epoch, index), so that neither the order in which samples are loaded, nor
    the process that loads them, nor those loaded before make a difference.
    """

    source: Source
    change: Callable[[Any, np.random.Generator], tuple[Any, ...]]
    seed: int = 0
    epoch: int = 0

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int, /) -> tuple[Any, ...]:
        return self.change(self.source[index], generator_of(self.seed, self.epoch, index))

    def at_epoch(self, epoch: int) -> Self:
        return replace(self, epoch=epoch)


@dataclass(frozen=True)
class Generated:
    """`make(generator)` for every index; the generator is that of (seed, half, index), in every epoch."""

    make: Callable[[np.random.Generator], tuple[Any, ...]]
    count: int
    seed: int
    half: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int, /) -> tuple[Any, ...]:
        if not 0 <= index < self.count:
            raise IndexError(index)
        return self.make(generator_of(self.seed, self.half, index))
