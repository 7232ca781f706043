"""A heap for compiled functions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from netsplit.compiled import Floats, Ints, inlined, inner

__all__ = ["Heap", "heap_of", "pop", "push"]


class Heap(NamedTuple):
    """The least time first, then the least key."""

    size: Ints  # [1]
    time: Floats
    key: Ints
    what: Ints


@inner
def heap_of(size: int) -> Heap:
    ints = np.empty((2, size), np.int64)
    return Heap(np.zeros(1, np.int64), np.empty(size), ints[0], ints[1])


@inlined
def push(heap: Heap, time: float, key: int, what: int) -> None:
    i = heap.size[0]
    heap.size[0] = i + 1
    while i > 0:
        up = (i - 1) // 2
        if not (time < heap.time[up] or (time == heap.time[up] and key < heap.key[up])):
            break
        heap.time[i], heap.key[i], heap.what[i] = heap.time[up], heap.key[up], heap.what[up]
        i = up
    heap.time[i], heap.key[i], heap.what[i] = time, key, what


@inlined
def pop(heap: Heap) -> int:
    top, size = heap.what[0], heap.size[0] - 1
    heap.size[0] = size
    time, key, what = heap.time[size], heap.key[size], heap.what[size]
    i = 0
    while 2 * i + 1 < size:
        low = 2 * i + 1
        if low + 1 < size and (
            heap.time[low + 1] < heap.time[low]
            or (heap.time[low + 1] == heap.time[low] and heap.key[low + 1] < heap.key[low])
        ):
            low += 1
        if time < heap.time[low] or (time == heap.time[low] and key < heap.key[low]):
            break
        heap.time[i], heap.key[i], heap.what[i] = heap.time[low], heap.key[low], heap.what[low]
        i = low
    if size > 0:
        heap.time[i], heap.key[i], heap.what[i] = time, key, what
    return top
