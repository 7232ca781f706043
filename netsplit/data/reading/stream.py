"""Samples that come one after another, as those of a `torch.utils.data.IterableDataset`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Self

from netsplit.data.reading.samples import Generators, generators, seed_of_sample, set_generators
from netsplit.errors import ReadError

__all__ = ["Stream"]


class Stream:
    """The first `count` samples of a stream, which begins anew with every epoch, in its own order.

    A sample that comes before the one read last begins the epoch again; those in between are read and
    dropped. What the stream draws from the global generators depends on the seed and the epoch, and on
    nothing that others draw between its samples.

    Args:
        source: told of the epoch by `set_epoch`, if it has that.
    """

    def __init__(self, source: Iterable[Any], count: int, seed: int = 0, epoch: int = 0) -> None:
        self.source, self.count, self.seed, self.epoch = source, count, seed, epoch
        self._next = 0
        self._iterator: Iterator[Any] | None = None
        self._generators: Generators | None = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int, /) -> Any:
        """Raises ReadError where the stream ends before, IndexError beyond the epoch."""
        if not 0 <= index < self.count:
            raise IndexError(index)
        before = generators()
        try:
            if self._iterator is None or index < self._next:
                self._begin()
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

    def _begin(self) -> None:
        seed_of_sample(self.seed, self.epoch)
        if hasattr(self.source, "set_epoch"):
            self.source.set_epoch(self.epoch)
        self._iterator, self._next = iter(self.source), 0

    def _forward(self, index: int) -> Any:
        assert self._iterator is not None
        sample = None
        while self._next <= index:
            try:
                sample = next(self._iterator)
            except StopIteration:
                raise ReadError(
                    f"the stream ended after {self._next} samples of epoch {self.epoch + 1}, and an epoch is "
                    f"to have {self.count}: give dataset.samples={self._next} or less."
                ) from None
            self._next += 1
        return sample
