"""What every dataset builder returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

__all__ = ["Data", "Samples"]


class Samples(Protocol):
    """A sized, indexable collection of (image (channels, height, width), class index) pairs."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[Tensor, ...]: ...


@dataclass(frozen=True)
class Data:
    """The two halves of a dataset."""

    name: str
    train: Samples
    test: Samples
    num_classes: int
    classes: Sequence[str]  # one readable name per class index

    def summary(self) -> str:
        return f"{self.name}: {len(self.train)} train, {len(self.test)} test, {self.num_classes} classes"
