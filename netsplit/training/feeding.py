"""Feeding batches: the workers read them, or this process reads and sends them.

place ──► known to be read alike by the workers? ──yes──► UnreadBatch: they are told the place
                                  └──no──► read here ──► tensors; of every kind the first, which is captured
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from netsplit.data.dataset import Data
from netsplit.data.reading.loader import BatchPlace, Loader, Reader, digest_of, probed
from netsplit.data.reading.samples import Stream
from netsplit.errors import ConfigError
from netsplit.graph.batches.batch import Batch
from netsplit.runtime.feeds import (
    SharedSamples,
    UnlikeBatch,
    UnreadBatch,
    drop_samples,
    fed_devices,
    give_samples,
    packed_samples,
)
from netsplit.training.parallel import ParallelModel

__all__ = ["MOST_SENT", "Feeding"]

log = logging.getLogger(__name__)

MOST_SENT = 64 * 2**20
"""Largest pickled dataset that workers get a copy of by default."""

T = TypeVar("T")


class Feeding:
    """The training half of a dataset, batch by batch. Raises ConfigError if there is no batch."""

    def __init__(self, model: ParallelModel, data: Data, seed: int, drop_last: bool) -> None:
        self.model = model
        self.data = data
        self.options: dict[str, Any] = {"seed": seed, "drop_last": drop_last}
        size = model.batch_size
        self.reader = Reader(
            Loader(data.train, size, workers=data.workers, prefetch=data.prefetch, **self.options)
        )
        self.once = Reader(Loader(data.train, size, **self.options))  # of single batches, without processes
        # Stand-ins for a ParallelModel have no workers.
        self.by_workers = data.read_by != "controller" and isinstance(model, ParallelModel)
        self.kind: Batch | None = None  # the first batch, as an example of the others
        self.kinds: set[tuple[Hashable, int]] = set()  # of batches that were read here, by key and samples
        self.given: Any = None  # the runtime whose workers have the dataset
        self.packed: bytes | None = None

    def fed(self, place: BatchPlace, train: Callable[[Any, Any], T]) -> T:
        """The result of `train` on the batch, given as tensors, or as an `UnreadBatch` and None."""
        unread = self._unread(place)
        if unread is not None:
            try:
                return train(unread, None)
            except UnlikeBatch as error:
                self._leave_to_controller(str(error))
        pair = (self.once if self.by_workers else self.reader).batch(place)
        done = train(*pair)
        if self.by_workers:
            batch = self.model.programs.batch(*pair)
            self.kinds.add((batch.key, batch.samples))
            self.kind = self.kind or batch.rows(0, 0)
        return done

    def close(self) -> None:
        self.reader.close()
        runtime, self.given = self.given, None
        if runtime is not None and runtime.pool.connections:
            runtime.readers = frozenset()
            runtime.pool.call(drop_samples)

    def _unread(self, place: BatchPlace) -> UnreadBatch | None:
        kind = self.kind
        if not self.by_workers or kind is None or (kind.key, place.count) not in self.kinds:
            return None
        runtime = self.model.runtime
        read = self.given is runtime and runtime.readers >= fed_devices(
            runtime.program
        )  # else the plan changed
        if not read and not self._give(kind, place):
            return None
        return UnreadBatch(place, kind.key, lambda: self.model.programs.batch(*self.once.batch(place)))

    def _give(self, kind: Batch, place: BatchPlace) -> bool:
        runtime = self.model.runtime
        needless = None
        if isinstance(self.data.train, Stream) and self.data.read_by != "workers":
            needless = "every worker would read the whole stream"
        reason = needless or self._cannot_be_given(kind) or self._read_alike(place)
        if reason is None:
            self.given = runtime
            runtime.readers = fed_devices(runtime.program)
            log.debug("Workers read their own batches of %s.", self.data.name)
            return True
        if self.data.read_by == "workers":
            raise ConfigError(f"dataset.read_by is workers, but {reason}: give controller or auto.")
        self._leave_to_controller(reason, logging.INFO if needless else logging.WARNING)
        return False

    def _cannot_be_given(self, kind: Batch) -> str | None:
        if any(dim != 0 for dim in kind.dims):
            return "some tensors of a batch do not have one row for each sample"
        data, size = self.data, self.model.batch_size
        shared = SharedSamples(
            data.train, size, workers=data.workers, prefetch=data.prefetch, key=kind.key, dims=kind.dims,
            **self.options,
        )  # fmt: skip
        try:
            self.packed = self.packed or packed_samples(shared)
        except Exception as error:  # whatever its code raises
            reason = " ".join(str(error).split()).rstrip(".")
            return f"the dataset cannot be sent to workers ({type(error).__name__}: {reason})"
        return None

    def _read_alike(self, place: BatchPlace) -> str | None:
        """Why workers cannot read it; None if they read the same samples each time."""
        assert self.packed is not None
        nbytes = len(self.packed)
        if nbytes > MOST_SENT and self.data.read_by != "workers":
            return f"every worker would hold a copy of its {nbytes / 2**20:.0f} MiB"
        expected = digest_of(self.once.batch(place, probed(place)))
        self.once.close()  # so that it reads the samples again
        if digest_of(self.once.batch(place, probed(place))) != expected:
            return "samples differ when they are read again, although every generator is seeded"
        runtime = self.model.runtime
        for worker, (digest, why) in give_samples(runtime.pool, runtime.program, self.packed, place).items():
            if why:
                return f"worker {worker} cannot read it ({why})"
            if digest != expected:
                return f"worker {worker} reads different samples from the training process"
        return None

    def _leave_to_controller(self, reason: str, level: int = logging.WARNING) -> None:
        self.by_workers = False
        log.log(
            level, "The training process reads %s for the workers: %s", self.data.name, reason.rstrip(".")
        )
        self.close()
