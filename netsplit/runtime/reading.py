"""Batches that workers read themselves: they are given the dataset, then told where each batch stands."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
from torch import Tensor

from netsplit.data.dataset import Samples
from netsplit.data.reading.loader import BatchPlace, Loader, Reader, digest_of, probed
from netsplit.errors import NetSplitError, ReadError
from netsplit.graph.batches.batch import Batch
from netsplit.graph.surroundings.surroundings import by_value, carried_modules
from netsplit.program.instructions import Program
from netsplit.runtime.faults.failure import AS_BEFORE, BatchFailure, one_line
from netsplit.runtime.feeds import own_parts, own_rows, own_samples, shared_microbatches, split_batch
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.runtime.workers.worker import Worker

__all__ = [
    "SharedSamples", "UnlikeBatch", "UnreadBatch", "drop_samples", "fed_devices", "give_samples",
    "input_tensors", "packed_samples", "parts_read", "read_ahead", "require_alike", "require_read",
]  # fmt: skip


class UnlikeBatch(NetSplitError):
    """A batch of another kind than the workers were told, or that some cannot read; nothing was computed."""


@dataclass(frozen=True)
class UnreadBatch:
    """A batch by its place; `key` (of `Batch`) says what it is like, `here` reads it in this process."""

    place: BatchPlace
    key: Hashable
    here: Callable[[], Batch]

    @property
    def samples(self) -> int:
        return self.place.count


def input_tensors(program: Program, batch: Batch | UnreadBatch) -> list[dict[str, Tensor]]:
    """What a program is fed of a batch, read in this process."""
    return split_batch(program, batch.here() if isinstance(batch, UnreadBatch) else batch)


@dataclass(frozen=True)
class SharedSamples:
    """A dataset as workers are given it, with all that its order and its batches depend on.

    `workers` processes of each worker load samples, 0: itself; `key` and `dims` are of its batches."""

    samples: Samples
    batch_size: int
    seed: int
    drop_last: bool
    workers: int
    prefetch: int
    key: Hashable
    dims: tuple[int | None, ...]


_SAMPLES, _READER, _READ = "samples", "reader", "read"


def take_samples(worker: Worker, packed: bytes, probe: BatchPlace) -> tuple[str, str]:
    """Have a dataset, to read it from now on; the digest of a batch of it, or why that cannot be had."""
    drop_samples(worker)
    try:
        shared: SharedSamples = cloudpickle.loads(packed)
        options: dict[str, Any] = {"seed": shared.seed, "drop_last": shared.drop_last}
        alone = Reader(Loader(shared.samples, shared.batch_size, **options))
        digest = digest_of(alone.batch(probe, probed(probe)))
        loader = Loader(
            shared.samples, shared.batch_size, workers=shared.workers, prefetch=shared.prefetch, **options
        )
    except NetSplitError as error:
        return "", str(error).rstrip(".")
    except Exception as error:  # whatever its code raises where it is rebuilt
        return "", one_line(error)
    worker.memory[_SAMPLES], worker.memory[_READER] = shared, Reader(loader)
    return digest, ""


def drop_samples(worker: Worker) -> None:
    """Forget the dataset, and end the processes that load it."""
    worker.memory.pop(_SAMPLES, None)
    worker.memory.pop(_READ, None)
    reader: Reader | None = worker.memory.pop(_READER, None)
    if reader is not None:
        reader.close()


def read_ahead(worker: Worker, number: int, place: BatchPlace) -> BatchFailure | dict[int, str]:
    """Read a batch before it is trained; digests of the micro-batches that other devices read, too."""
    program, device = worker.memory["programs"][number].program, worker.device.name
    read = _read(worker, program, place)
    if isinstance(read, BatchFailure):
        return read
    if read is None:
        return {}
    worker.memory[_READ] = place, own_parts(program, device, read)
    samples = own_samples(program, device, read)
    own = [i for i in shared_microbatches(program) if program.fed(device, i)]
    return {i: digest_of(samples[i].tensors) for i in own}


def parts_read(worker: Worker, program: Program, place: BatchPlace) -> list[dict[str, Tensor]] | BatchFailure:
    """What this device is fed of every micro-batch of a batch, read here; or why it cannot be."""
    device = worker.device.name
    kept, parts = worker.memory.pop(_READ, (None, []))
    if kept == place:
        return parts
    read = _read(worker, program, place)
    if isinstance(read, BatchFailure):
        return read
    return [{} for _ in range(program.microbatches)] if read is None else own_parts(program, device, read)


def _read(worker: Worker, program: Program, place: BatchPlace) -> Batch | BatchFailure | None:
    """The samples that this device is fed of; None where there are none."""
    device = worker.device.name
    rows = own_rows(program, device)
    if not rows:
        return None
    reader: Reader | None = worker.memory.get(_READER)
    if reader is None:
        return BatchFailure(device, "has no dataset", -1, "", unlike=True)
    shared: SharedSamples = worker.memory[_SAMPLES]
    try:
        inputs, targets = reader.batch(place, rows)
        batch = _batch(inputs, targets, shared)
    except NetSplitError as error:
        reason = str(error).rstrip(".")
        return BatchFailure(
            device, f"cannot read its batch: {reason}", -1, traceback.format_exc(), unread=True
        )
    if batch is None or batch.samples != len(rows):
        return BatchFailure(
            device, "read a batch with other shapes or dtypes than expected", -1, "", unlike=True
        )
    return batch


def _batch(inputs: object, targets: object, shared: SharedSamples) -> Batch | None:
    """None where it is not like the batches that the controller told of."""
    try:
        batch = Batch.of(inputs, targets, shared.dims)
        return batch if batch.key == shared.key else None
    except NetSplitError:
        return None


def fed_devices(program: Program) -> frozenset[str]:
    """The devices that read of a batch."""
    every = range(program.microbatches)
    return frozenset(name for name in program.devices if any(program.fed(name, i) for i in every))


def packed_samples(shared: SharedSamples) -> bytes:
    """A dataset for other processes, its code as it is in this one.

    Raises:
        Exception: of any kind, as the dataset's code raises it; it cannot be pickled.
    """
    with by_value(carried_modules([shared.samples])):
        packed: bytes = cloudpickle.dumps(shared)
    return packed


def give_samples(
    pool: WorkerPool, program: Program, packed: bytes, probe: BatchPlace
) -> dict[str, tuple[str, str]]:
    """Have the workers of `fed_devices` read a dataset themselves.

    Args:
        probe: a batch that each reads at once.

    Returns:
        Of each such worker, in words, the digest of that batch, or "" and why it cannot read.
    """
    fed = fed_devices(program)
    ranks = [rank for rank, name in enumerate(program.devices) if name in fed]
    return {pool.who(rank): pool.call_one(rank, take_samples, packed, probe) for rank in ranks}


def require_alike(pool: WorkerPool, digests: Sequence[Mapping[int, str]]) -> None:
    """Check micro-batches that several workers read: no input may be trained with another draw's target.

    Raises:
        UnlikeBatch: two have read different samples; nothing was computed.
    """
    first: dict[int, tuple[int, str]] = {}
    for rank, own in enumerate(digests):
        for i, digest in own.items():
            other, expected = first.setdefault(i, (rank, digest))
            if expected != digest:
                raise UnlikeBatch(
                    f"workers {pool.who(other)} and {pool.who(rank)} read different samples of micro-batch "
                    f"{i}: the dataset changed, or uses a random generator of its own."
                )


def require_read(pool: WorkerPool, parts: Iterable[Any]) -> None:
    """Check that each worker could read its part of a batch.

    Raises:
        ReadError: one could not read it, which has taken nothing from the model.
        UnlikeBatch: one has read another kind than it was told.
    """
    failures = [(rank, part) for rank, part in enumerate(parts) if isinstance(part, BatchFailure)]
    for rank, each in failures:
        if each.unread:
            raise ReadError(f"worker {pool.who(rank)} {each.reason}: {AS_BEFORE}.")
    for rank, each in failures:
        if each.unlike:
            raise UnlikeBatch(f"worker {pool.who(rank)} {each.reason}.")
