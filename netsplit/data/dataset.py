"""What every dataset builder returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

__all__ = ["IGNORED", "Data", "Drawable", "Samples"]

IGNORED = -100
"""The target of what does not count: `CrossEntropyLoss`'s own default, and what accuracy leaves out."""


class Samples(Protocol):
    """A sized, indexable collection of (input, target) pairs.

    Of the datasets here inputs are float images (channels, height, width) or int64 tokens (length,);
    targets are an int64 class, or a class for every pixel (height, width) or every token (length,), `IGNORED`
    where there is none.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[Any, ...]: ...


@runtime_checkable
class Drawable(Protocol):
    """Samples that chance changes: they depend on a seed, the epoch and the index, and on nothing else."""

    def at_epoch(self, epoch: int) -> Samples: ...


@dataclass(frozen=True)
class Data:
    """The two halves of a dataset."""

    name: str
    train: Samples
    test: Samples
    num_classes: int  # what a model scores: classes of an image or pixel, or the size of the vocabulary
    classes: Sequence[str]  # one readable name per class index
    workers: int = 0  # processes that load samples; 0: the training process does
    prefetch: int = 2  # batches that each of them loads ahead
    metric: Literal["accuracy", "mean_iou", "perplexity"] = "accuracy"  # what the task is judged by

    def shapes(self, count: int) -> tuple[Tensor, Tensor]:
        """A batch (inputs, targets) of so many samples, on the meta device: no values."""
        inputs, targets = (
            torch.empty((count, *each.shape), dtype=each.dtype, device="meta")
            for each in map(torch.as_tensor, self.train[0])
        )
        return inputs, targets

    def summary(self) -> str:
        return f"{self.name}: {len(self.train)} train, {len(self.test)} test, {self.num_classes} classes"
