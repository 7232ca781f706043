"""Batches of a dataset, in an order and with samples that depend on the seed and the epoch only.

order of (seed, epoch) ─► batches of (epoch, index) ─┬─► this process ──────┬─► (inputs, targets)
                          those skipped left out     └─► loader processes ──┘
"""

from __future__ import annotations

import hashlib
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
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
    """One epoch of a `Loader` with these options: see there.

    Args:
        skip: begin after so many samples of the order, none of which is loaded.

    Raises:
        ConfigError: no batch at all would come out; raised by the call, not by the first `next`.
    """
    return Loader(dataset, batch_size, **options).epoch(epoch, skip)


@dataclass(eq=False)
class Loader:
    """Epochs of (inputs (batch_size, ...), targets (batch_size, ...)); each epoch has its own order.

    Both may be mappings and tuples of tensors, as `torch.utils.data.default_collate` makes them of samples;
    targets that are None in every sample are None.

    Args:
        drop_last: leave out the samples that do not fill a batch.
        workers: processes that load samples, started with each epoch. What comes out does not depend on
            them. 0: this process loads.
        prefetch: batches that each of them loads ahead.

    Raises:
        ConfigError: no batch at all would come out.
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
        self.in_order = isinstance(self.dataset, Stream)  # which one process at most reads
        self._keyed = KeyedSamples(self.dataset, self.seed)

    def epoch(self, epoch: int = 0, skip: int = 0, rows: Sequence[int] | None = None) -> Iterator[Pair]:
        """The batches of one epoch.

        Args:
            skip: begin after so many samples of the order.
            rows: which samples of every batch are loaded, by their places in it; None: all. A batch that has
                none of them does not come.

        Raises:
            ReadError: by `next`; a sample cannot be loaded, or a loader process died.
        """
        indices = self._indices(epoch)[skip:]
        if self.drop_last:
            indices = indices[: len(indices) - len(indices) % self.batch_size]
        every = (
            indices[start : start + self.batch_size] for start in range(0, len(indices), self.batch_size)
        )
        chosen = (each if rows is None else each[[row for row in rows if row < len(each)]] for each in every)
        keys = ([(epoch, index) for index in each.tolist()] for each in chosen if len(each))
        if self.workers:
            return self._loaded_by_processes(keys)
        return (pair_of(collated(self._keyed.__getitems__(each))) for each in keys)

    def _indices(self, epoch: int) -> Tensor:
        count = len(self._keyed.samples)
        if not self.shuffle or self.in_order:
            return torch.arange(count)
        generator = torch.Generator().manual_seed((self.seed * EPOCHS_PER_SEED + epoch) % 2**63)
        torch.empty((), dtype=torch.int64).random_(generator=generator)  # as a DataLoader draws first
        return torch.randperm(count, generator=generator)

    def _loaded_by_processes(self, keys: Iterator[list[Key]]) -> Iterator[Pair]:
        """Processes are forked, where that is safe, so that they begin in milliseconds."""
        try:
            loader = DataLoader(
                cast(Any, self._keyed),
                batch_sampler=cast(Any, keys),
                num_workers=1 if self.in_order else self.workers,
                prefetch_factor=self.prefetch,
                collate_fn=collated,
                multiprocessing_context="fork" if sys.platform == "linux" else None,
                generator=torch.Generator(),
            )
            with _own_child_handler():
                ahead = iter(loader)
            for batch in ahead:
                yield pair_of(batch)
        except (RuntimeError, OSError, EOFError) as error:  # DataLoader's ways to say that a process is gone
            raise ReadError(
                f"a process that loads samples failed ({first_line(error)}): memory or /dev/shm may be "
                "full. Lower dataset.workers or dataset.prefetch, or set dataset.workers=0."
            ) from error


@contextmanager
def _own_child_handler() -> Iterator[None]:
    """Keep DataLoader's SIGCHLD handler out: it raises in the midst of whatever this process does then.

    A process that died is found out about where its batch is asked for.
    """
    before = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGCHLD, before)


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
