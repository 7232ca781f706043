"""Batches for the cases: eight samples by default, every seed other ones, in the default dtype."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["images", "pairs", "regression", "sequences", "tokens", "vectors"]

Batch = tuple[Tensor, Tensor]


def vectors(features: int = 6, classes: int = 5, size: int = 8) -> Callable[[int], Batch]:
    """Normal vectors (size, features) with a class each."""
    return _classified((features,), classes, size)


def images(channels: int = 3, side: int = 8, classes: int = 5, size: int = 8) -> Callable[[int], Batch]:
    """Pictures (size, channels, side, side) with a class each."""
    return _classified((channels, side, side), classes, size)


def sequences(length: int = 5, features: int = 6, classes: int = 5, size: int = 8) -> Callable[[int], Batch]:
    """Sequences (size, length, features) with a class each."""
    return _classified((length, features), classes, size)


def tokens(length: int = 5, words: int = 11, classes: int = 5, size: int = 8) -> Callable[[int], Batch]:
    """Word numbers (size, length) with a class each."""

    def batch(seed: int) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randint(0, words, (size, length), generator=generator)
        return inputs, torch.randint(0, classes, (size,), generator=generator)

    return batch


def regression(features: int = 6, outputs: int = 1, size: int = 8) -> Callable[[int], Batch]:
    """Normal vectors (size, features) with normal targets (size, outputs)."""

    def batch(seed: int) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(size, features, generator=generator)
        return inputs, torch.randn(size, outputs, generator=generator)

    return batch


def pairs(features: int = 6, size: int = 8) -> Callable[[int], tuple[tuple[Tensor, Tensor], None]]:
    """Two views of the same samples, and no targets."""

    def batch(seed: int) -> tuple[tuple[Tensor, Tensor], None]:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(size, features, generator=generator)
        return (x, x + 0.1 * torch.randn(size, features, generator=generator)), None

    return batch


def _classified(shape: tuple[int, ...], classes: int, size: int) -> Callable[[int], Batch]:
    def batch(seed: int) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(size, *shape, generator=generator)
        return inputs, torch.randint(0, classes, (size,), generator=generator)

    return batch
