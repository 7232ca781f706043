"""A dataset given to those workers whose devices are fed, and what they say where they cannot read of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import cloudpickle

from netsplit.data.reading.reader import BatchPlace
from netsplit.errors import ReadError
from netsplit.graph.surroundings.surroundings import by_value, carried_modules
from netsplit.program.instructions import Program
from netsplit.runtime.faults.failure import AS_BEFORE, BatchFailure
from netsplit.runtime.reading.worker_reading import SharedSamples, UnlikeBatch, take_samples
from netsplit.runtime.workers.pool import WorkerPool

__all__ = ["fed_devices", "give_samples", "packed_samples", "require_alike", "require_read"]


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
                    f"{i}, as a dataset does that draws from a generator of its own, or changes."
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
