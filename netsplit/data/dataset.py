"""What every dataset builder returns, and repeatable randomness: a sample depends only on named numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, Self, runtime_checkable

import numpy as np
import torch
from torch.utils._pytree import tree_map
from torch.utils.data import default_collate

from netsplit.data.keys import ReadBy, at_least

__all__ = [
    "IGNORED", "Data", "Drawable", "Drawn", "Generated", "MetricName", "Samples", "generator_of", "limited",
]  # fmt: skip

MetricName = Literal["accuracy", "mean_iou", "perplexity"]
IGNORED = -100
"""The target of pixels and tokens that loss and accuracy ignore, as `CrossEntropyLoss` does by default."""


class Samples(Protocol):
    """A sized, indexable collection of (input, target) pairs.

    In the datasets here, inputs are float images (channels, height, width) or int64 tokens (length,); targets
    are an int64 class, or one for every pixel (height, width) or token (length,), or `IGNORED`.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[Any, ...]: ...


@runtime_checkable
class Drawable(Protocol):
    """Random samples, which depend only on a seed, the epoch and the index."""

    def at_epoch(self, epoch: int) -> Samples: ...


@dataclass(frozen=True)
class Data:
    """The two halves of a dataset; the test half may be empty.

    Args:
        num_classes: classes of an image or pixel, or the size of the vocabulary; 0: unknown.
        classes: one readable name per class index.
        workers: processes that load samples; 0: the reading process loads.
        prefetch: batches that each of them loads ahead.
        metric: the task's metric.
        read_by: who reads the training half: workers, each its own samples; controller: the training process,
            which sends them; auto: workers if that is safe (docs/data.md).
    """

    name: str
    train: Samples
    test: Samples
    num_classes: int
    classes: Sequence[str]
    workers: int = 0
    prefetch: int = 2
    metric: MetricName = "accuracy"
    read_by: ReadBy = "auto"

    def shapes(self, count: int) -> tuple[Any, Any]:
        """A batch (inputs, targets) of `count` samples on the meta device."""
        sample = self.train[0]
        batch = default_collate([tuple(part for part in sample if part is not None)])
        parts = tree_map(lambda t: torch.empty((count, *t.shape[1:]), dtype=t.dtype, device="meta"), batch)
        return parts[0], parts[1] if sample[1] is not None else None

    def read(self, read_by: ReadBy | None, workers: int | None, prefetch: int | None) -> Self:
        """The data with other reading options; None keeps one."""
        changes = {"read_by": read_by, "workers": workers, "prefetch": prefetch}
        return replace(self, **{key: value for key, value in changes.items() if value is not None})  # type: ignore[arg-type]

    def summary(self) -> str:
        """'digits, 1437 training and 360 test samples, 10 classes'."""
        classes = f", {self.num_classes} classes" if self.num_classes else ""
        return f"{self.name}, {len(self.train)} training and {len(self.test)} test samples{classes}"


class Source(Protocol):
    """The raw items of samples, such as pictures."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def generator_of(*key: int) -> np.random.Generator:
    """The generator of a tuple of numbers from 0 on, the same in every process."""
    return np.random.default_rng(key)


def limited(count: int, limit: int | None, seed: int) -> np.ndarray:
    """At most `limit` indices below `count`, ascending and drawn by `seed`; (n,) int64."""
    at_least(1, limit=limit)
    at_least(0, seed=seed)
    if limit is None or limit >= count:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).permutation(count)[:limit])


@dataclass(frozen=True)
class Drawn:
    """`change(item, generator)` of every item of `source`: augmented, masked or just made a tensor.

    The generator is that of (seed, epoch, index), so the loading process and order make no difference.
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
