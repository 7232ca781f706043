"""Batches by where they stand in an epoch, for whoever reads them: the training process, or a worker."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from netsplit.data.reading.loader import Loader
from netsplit.data.reading.samples import Pair

__all__ = ["BatchPlace", "Reader", "digest_of", "probed"]


@dataclass(frozen=True)
class BatchPlace:
    """A batch: so many samples of an epoch's order, from `start` on."""

    epoch: int
    start: int
    count: int


class Reader:
    """Batches of a loader by their places; its processes read those ahead that follow in the epoch."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self._ahead: Iterator[Pair] = iter(())
        self._next: tuple[int, int] | None = None  # epoch and start of what comes next
        self._rows: list[int] | None = None  # of whole batches, those that are read

    def batch(self, place: BatchPlace, rows: Sequence[int] | None = None) -> Pair:
        """Inputs and targets of a batch, or of the samples at some places in it; raises as `Loader.epoch`."""
        given = list(range(place.count)) if rows is None else list(rows)
        before = list(range(self.loader.batch_size)) if self._rows is None else self._rows
        if self._next != (place.epoch, place.start) or given != [row for row in before if row < place.count]:
            self._rows = None if rows is None else given
            self._ahead = self.loader.epoch(place.epoch, place.start, self._rows)
        self._next = None  # until it is there
        pair = next(self._ahead)
        self._next = place.epoch, place.start + place.count
        return pair

    def close(self) -> None:
        """End the loader's processes."""
        self._next, self._ahead = None, iter(())
        self.loader.close()


def probed(place: BatchPlace) -> list[int]:
    """The samples of a batch by which those who read are compared."""
    return sorted({0, place.count - 1})


def digest_of(pair: Any) -> str:
    """A digest of all values of a batch, the same in every process."""
    digest = hashlib.blake2b(digest_size=16)
    for leaf in tree_leaves(pair):
        if isinstance(leaf, Tensor):
            digest.update(f"{leaf.dtype} {tuple(leaf.shape)}".encode())
            digest.update(leaf.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            digest.update(repr(leaf).encode())
    return digest.hexdigest()
