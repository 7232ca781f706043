"""Samples by (epoch, index) or from a stream, and their batches; unreadable ones carry the reason."""

from __future__ import annotations

import hashlib
import random
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

from netsplit.data.dataset import Drawable, Samples
from netsplit.errors import NetSplitError, ReadError

__all__ = [
    "Key",
    "KeyedSamples",
    "Pair",
    "Stream",
    "Unreadable",
    "collated",
    "first_line",
    "pair_of",
]

Key = tuple[int, int]  # epoch, index
Pair = tuple[Any, Any]  # inputs, targets


@dataclass
class Unreadable:
    """Replaces an unreadable sample or batch, as an exception would lose its message."""

    sentence: str
    known: type[NetSplitError] = ReadError


class KeyedSamples:
    """Samples by (epoch, index).

    A user's samples draw from global generators that are seeded by (seed, epoch, index) and restored after,
    so a sample is the same wherever and however often it is read.
    """

    def __init__(self, samples: Samples, seed: int = 0) -> None:
        self.samples = samples
        self.seed = seed
        # These draw nothing; subclasses of TensorDataset may.
        self.draws = not (isinstance(samples, Drawable) or type(samples) is TensorDataset)
        self._epoch: int | None = None
        self._now = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, key: Key) -> tuple[Tensor, ...] | Unreadable:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: Sequence[Key]) -> list[Any]:
        """The samples of a batch, as a DataLoader asks for them."""
        with global_generators_kept() if self.draws else nullcontext():
            return [self._sample(*key) for key in keys]

    def _sample(self, epoch: int, index: int) -> Any:
        if epoch != self._epoch:
            at_epoch = self.samples.at_epoch(epoch) if isinstance(self.samples, Drawable) else self.samples
            self._epoch, self._now = epoch, at_epoch
        try:
            if self.draws:
                seed_of_sample(self.seed, epoch, index)
            return self._now[index]
        except NetSplitError as error:
            return Unreadable(str(error), type(error))
        except Exception as error:
            return Unreadable(f"sample {index} cannot be loaded: {_described(error)}.")


def collated(samples: list[Any]) -> Any:
    """A batch of samples, or the first unreadable one."""
    for sample in samples:
        if isinstance(sample, Unreadable):
            return sample
    if all(len(sample) == 2 and sample[1] is None for sample in samples):  # the inputs contain the targets
        inputs = collated([sample[:1] for sample in samples])
        return inputs if isinstance(inputs, Unreadable) else (inputs[0], None)
    shapes = [tuple(getattr(value, "shape", ()) for value in sample) for sample in samples]
    if len(set(shapes)) > 1:
        few = " and ".join(sorted({str([tuple(shape) for shape in each]) for each in shapes})[:2])
        return Unreadable(
            f"samples of shapes {few} do not fit into one batch: give all samples the same shape."
        )
    try:
        return default_collate(samples)
    except (RuntimeError, TypeError) as error:
        return Unreadable(f"the samples do not fit into one batch: {_described(error)}.")


def pair_of(batch: Any) -> Pair:
    """Inputs and targets from `collated`; raises if unreadable."""
    if isinstance(batch, Unreadable):
        raise batch.known(batch.sentence)
    inputs, targets = batch
    return inputs, targets


def first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "no reason given").rstrip(".")


def _described(error: Exception) -> str:
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {first_line(error)} ({at.filename}, line {at.lineno})"


Generators = tuple[Any, ...]


def seed_of_sample(*key: int) -> None:
    """Seed the global generators of Python, NumPy and torch (on the CPU) by these numbers."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=12).digest()
    random.seed(digest)
    np.random.seed(int.from_bytes(digest[:4], "little"))
    torch.default_generator.manual_seed(int.from_bytes(digest[4:], "little") >> 1)


def generators() -> Generators:
    """The states of the three generators."""
    return random.getstate(), np.random.get_state(), torch.default_generator.get_state()


def set_generators(states: Generators) -> None:
    """Restore the states of the three generators."""
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.default_generator.set_state(states[2])


@contextmanager
def global_generators_kept() -> Iterator[None]:
    """Restore the generators afterwards."""
    before = generators()
    try:
        yield
    finally:
        set_generators(before)


class Stream:
    """The first `count` samples of a stream, in order, which starts again with every epoch.

    An earlier sample than the last restarts the epoch; samples in between are dropped. What the stream draws
    from the global generators depends only on the seed and the epoch.

    Args:
        source: gets the epoch by `set_epoch`, if it has that method.
    """

    def __init__(self, source: Iterable[Any], count: int, seed: int = 0, epoch: int = 0) -> None:
        self.source, self.count, self.seed, self.epoch = source, count, seed, epoch
        self._next = 0
        self._iterator: Iterator[Any] | None = None
        self._generators: Generators | None = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int, /) -> Any:
        """Raises ReadError if the stream ends early, IndexError beyond the epoch."""
        if not 0 <= index < self.count:
            raise IndexError(index)
        before = generators()
        try:
            if self._iterator is None or index < self._next:
                seed_of_sample(self.seed, self.epoch)
                if hasattr(self.source, "set_epoch"):
                    self.source.set_epoch(self.epoch)
                self._iterator, self._next = iter(self.source), 0
            elif self._generators is not None:
                set_generators(self._generators)
            sample = self._forward(index)
            self._generators = generators()
        except BaseException:
            self._iterator = None
            raise
        finally:
            set_generators(before)
        return sample

    def at_epoch(self, epoch: int) -> Self:
        return type(self)(self.source, self.count, self.seed, epoch)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_next": 0, "_iterator": None, "_generators": None}

    def _forward(self, index: int) -> Any:
        assert self._iterator is not None
        sample = None
        while self._next <= index:
            try:
                sample = next(self._iterator)
            except StopIteration:
                raise ReadError(
                    f"the stream ended after {self._next} samples of epoch {self.epoch + 1}, but an epoch "
                    f"should have {self.count}: give dataset.samples={self._next} or less."
                ) from None
            self._next += 1
        return sample
