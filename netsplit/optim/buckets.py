"""Buckets of parameters, stepped in turn when moments come from the host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

__all__ = ["BUCKET_BYTES", "buckets_of", "largest_bucket"]

BUCKET_BYTES = 2**25
"""Bytes of parameters in a bucket: fewer cost more calls, more take more device memory."""


class Sized(Protocol):
    """A tensor, or what describes one."""

    @property
    def nbytes(self) -> int: ...

    @property
    def requires_grad(self) -> bool: ...


T = TypeVar("T", bound=Sized)


def buckets_of(tensors: Iterable[T]) -> list[list[T]]:
    """Trained tensors in order, in buckets of at most `BUCKET_BYTES` or the largest tensor."""
    trained = [each for each in tensors if each.requires_grad]
    limit = max(BUCKET_BYTES, max((each.nbytes for each in trained), default=0))
    buckets: list[list[T]] = []
    room = 0
    for each in trained:
        if each.nbytes > room or not buckets:
            buckets.append([])
            room = limit
        buckets[-1].append(each)
        room -= each.nbytes
    return buckets


def largest_bucket(tensors: Sequence[Sized]) -> int:
    """Bytes of the parameters in the largest bucket; 0 where nothing is trained."""
    return max((sum(each.nbytes for each in bucket) for bucket in buckets_of(tensors)), default=0)
