"""What the controller knows of a batch that it does not read, and what workers must know to read it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from netsplit.data.dataset import Samples
from netsplit.data.reading.reader import BatchPlace
from netsplit.errors import NetSplitError
from netsplit.graph.batches.batch import Batch

__all__ = ["SharedSamples", "UnlikeBatch", "UnreadBatch"]


class UnlikeBatch(NetSplitError):
    """A batch of another kind than the workers were told, or that some cannot read; nothing was computed."""


@dataclass(frozen=True)
class UnreadBatch:
    """A batch by its place.

    Args:
        key: of `Batch`: what it is known to be like.
        here: reads it in this process.
    """

    place: BatchPlace
    key: Hashable
    here: Callable[[], Batch]

    @property
    def samples(self) -> int:
        return self.place.count


@dataclass(frozen=True)
class SharedSamples:
    """A dataset as workers are given it, with all that its order and its batches depend on.

    Args:
        workers: processes that load samples, of each worker; 0: the worker does.
        prefetch: batches that each of them loads ahead.
        key: of `Batch`: what its batches are like.
        dims: of `Batch`.
    """

    samples: Samples
    batch_size: int
    seed: int
    drop_last: bool
    workers: int
    prefetch: int
    key: Hashable
    dims: tuple[int | None, ...]
