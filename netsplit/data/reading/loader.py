"""Batches of a dataset; order and samples depend only on the seed and the epoch.

    order of (seed, epoch) ─► batches of (epoch, index) ─┬─► this process ──────┬─► (inputs, targets)
                              those skipped left out     └─► loader processes ──┘

A loader process gets the epoch with every index, so it can serve any epoch.
"""

from __future__ import annotations

import hashlib
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from netsplit.data.dataset import Samples
from netsplit.data.reading.samples import Key, KeyedSamples, Pair, Stream, collated, first_line, pair_of
from netsplit.errors import ConfigError, ReadError

__all__ = ["BatchPlace", "Loader", "Reader", "batches", "digest_of", "probed"]

EPOCHS_PER_SEED = 1_000_003  # keeps (seed, epoch) pairs apart without touching the global generator


def batches(
    dataset: Samples, batch_size: int, *, epoch: int = 0, skip: int = 0, **options: Any
) -> Iterator[Pair]:
    """One epoch of a `Loader` with these options; its processes end with the epoch.

    Args:
        skip: begin after this many samples of the order, without loading them.

    Raises:
        ConfigError: there would be no batch; raised by the call, not by the first `next`.
    """
    return Loader(dataset, batch_size, **options).epoch(epoch, skip)


@dataclass(eq=False)
class Loader:
    """Epochs of (inputs (batch_size, ...), targets (batch_size, ...)); each epoch has its own order.

    Both may be mappings and tuples of tensors, made by `torch.utils.data.default_collate`; targets that are
    None in every sample stay None.

    Args:
        drop_last: leave out the samples that do not fill a batch.
        workers: processes that load samples, until `close`; they do not change the batches. 0: this process
            loads.
        prefetch: batches that each of them loads ahead.

    Raises:
        ConfigError: there would be no batch.
    """

    dataset: Samples
    batch_size: int
    _: KW_ONLY
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = True
    workers: int = 0
    prefetch: int = 2

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ConfigError(f"batch_size is {self.batch_size}: give at least 1.")
        if len(self.dataset) < (self.batch_size if self.drop_last else 1):
            raise ConfigError(
                f"batch_size is {self.batch_size}, but the dataset has {len(self.dataset)} samples: "
                "give a smaller batch_size or a larger dataset.limit."
            )
        self.in_order = isinstance(self.dataset, Stream)  # read by at most one process
        self.workers = min(self.workers, 1) if self.in_order else self.workers
        self._keyed = KeyedSamples(self.dataset, self.seed)
        self._order = _EpochBatches(self.batch_size)
        self._pool: DataLoader[Any] | None = None
        self._turn = 0

    def epoch(self, epoch: int = 0, skip: int = 0, rows: Sequence[int] | None = None) -> Iterator[Pair]:
        """The batches of one epoch. With workers, beginning another epoch ends this one.

        Args:
            skip: begin after this many samples of the order.
            rows: places in every batch of the samples to load; None: all. A batch without any is skipped.

        Raises:
            ReadError: by `next`, if a sample cannot be loaded or a loader process died.
        """
        indices = self._indices(epoch)[skip:]
        if self.drop_last:
            indices = indices[: len(indices) - len(indices) % self.batch_size]
        order = _EpochBatches(self.batch_size, epoch, indices, rows)
        if self.workers:
            return self._shared(order)
        return (pair_of(collated(self._keyed.__getitems__(batch))) for batch in order)

    def close(self) -> None:
        """End the loader processes; they are started again when needed."""
        self._turn += 1
        self._pool = None

    def _indices(self, epoch: int) -> Tensor:
        count = len(self._keyed.samples)
        if not self.shuffle or self.in_order:
            return torch.arange(count)
        generator = torch.Generator().manual_seed((self.seed * EPOCHS_PER_SEED + epoch) % 2**63)
        torch.empty((), dtype=torch.int64).random_(generator=generator)  # as a DataLoader draws first
        return torch.randperm(count, generator=generator)

    def _shared(self, order: _EpochBatches) -> Iterator[Pair]:
        self._turn += 1
        turn = self._turn
        vars(self._order).update(vars(order))
        try:
            ahead = self._start()
            for _ in range(len(order)):
                assert turn == self._turn, "another epoch began, or the loader was closed"
                yield pair_of(next(ahead))
        except (RuntimeError, OSError, EOFError) as error:  # as DataLoader raises when a process died
            self.close()
            raise ReadError(
                f"a process that loads samples failed ({first_line(error)}): memory or /dev/shm may be "
                "full. Lower dataset.workers or dataset.prefetch, or set dataset.workers=0."
            ) from error

    def _start(self) -> Iterator[Any]:
        """Start processes on the order; forked where that is safe, so they start in milliseconds."""
        if self._pool is None:
            self._pool = DataLoader(
                cast(Any, self._keyed),
                batch_sampler=self._order,
                num_workers=self.workers,
                prefetch_factor=self.prefetch,
                persistent_workers=True,
                collate_fn=collated,
                multiprocessing_context="fork" if sys.platform == "linux" else None,
                generator=torch.Generator(),
            )
        with _own_child_handler():
            return iter(self._pool)


@dataclass
class _EpochBatches:
    """Batches of (epoch, index). A DataLoader keeps this object, so each epoch changes it in place."""

    batch_size: int
    epoch: int = 0
    indices: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    rows: Sequence[int] | None = None

    def __len__(self) -> int:
        whole, rest = divmod(len(self.indices), self.batch_size)
        return whole + bool(self._rows(rest))

    def __iter__(self) -> Iterator[list[Key]]:
        epoch, indices = self.epoch, self.indices  # fixed, as another epoch may change them
        for start in range(0, len(indices), self.batch_size):
            chunk = indices[start : start + self.batch_size].tolist()
            if rows := self._rows(len(chunk)):
                yield [(epoch, chunk[row]) for row in rows]

    def _rows(self, count: int) -> Sequence[int]:
        return range(count) if self.rows is None else [row for row in self.rows if row < count]


@contextmanager
def _own_child_handler() -> Iterator[None]:
    """Keep DataLoader's SIGCHLD handler out, as it raises anywhere in this process.

    A dead process is noticed when its batch is asked for.
    """
    before = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGCHLD, before)


@dataclass(frozen=True)
class BatchPlace:
    """A batch: `count` samples of an epoch's order, from `start` on."""

    epoch: int
    start: int
    count: int


class Reader:
    """Batches of a loader by place; its processes read ahead in the epoch."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self._ahead: Iterator[Pair] = iter(())
        self._next: tuple[int, int] | None = None  # epoch and start of what comes next
        self._rows: list[int] | None = None  # read of whole batches

    def batch(self, place: BatchPlace, rows: Sequence[int] | None = None) -> Pair:
        """Inputs and targets of a batch, or of the samples at some places in it; raises as `Loader.epoch`."""
        wanted = list(range(place.count)) if rows is None else list(rows)
        before = list(range(self.loader.batch_size)) if self._rows is None else self._rows
        if self._next != (place.epoch, place.start) or wanted != [row for row in before if row < place.count]:
            self._rows = None if rows is None else wanted
            self._ahead = self.loader.epoch(place.epoch, place.start, self._rows)
        self._next = None  # until it has arrived
        pair = next(self._ahead)
        self._next = place.epoch, place.start + place.count
        return pair

    def close(self) -> None:
        """End the loader's processes."""
        self._next, self._ahead = None, iter(())
        self.loader.close()


def probed(place: BatchPlace) -> list[int]:
    """The samples of a batch that readers are compared by."""
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
