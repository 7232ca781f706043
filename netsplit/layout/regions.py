"""Regions of tensors: of every dimension, runs of indices.

    [q0 q1 k0 k1 v0 v1]   part 0 of 2, of three blocks:  runs 0..1, 2..3, 4..5  of the dimension

A tensor may be looked at in two sizes at once: as it was when its operators were cut, and as it is now, with
fewer samples. An index then is both numbers in one (`both`): what begins, ends, lies within another or comes
first is decided by the former, and nodes get sizes by the latter, so that they are the same nodes in either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, product
from math import prod
from typing import TypeAlias

__all__ = [
    "Misfit",
    "Region",
    "Runs",
    "as_boxes",
    "blocks_of",
    "both",
    "checked_run",
    "compared",
    "cut_evenly",
    "elements",
    "grid",
    "length_of",
    "now",
    "overlap",
    "through",
    "whole_region",
    "within",
]

_BITS = 40

Runs: TypeAlias = tuple[tuple[int, int], ...]
Region: TypeAlias = tuple[Runs, ...]
"""Runs along every dimension, in order; a tensor of the region has them one behind another."""


class Misfit(Exception):
    """What is cut in one place at the one size is cut in two at the other."""


def both(compared: int, now: int) -> int:
    """An index in two sizes; sums and differences of such are such."""
    return compared << _BITS | now


def now(index: int) -> int:
    return index & ((1 << _BITS) - 1)


def compared(index: int) -> int:
    return index >> _BITS


def whole_region(shape: Sequence[int], before: Sequence[int] | None = None) -> Region:
    """All of a tensor; `before`: its shape when it was cut."""
    return tuple(((0, both(b, a)),) for a, b in zip(shape, before or shape, strict=True))


def length_of(runs: Runs) -> int:
    return sum(b - a for a, b in runs)


def elements(region: Region) -> int:
    """The number of elements."""
    return prod(compared(length_of(runs)) for runs in region)


def blocks_of(start: int, size: int, block: int, count: int) -> Runs:
    """The same of each of so many blocks that follow one another."""
    return _merged((b * block + start, b * block + start + size) for b in range(count))


def through(runs: Runs, local: Runs) -> Runs:
    """Where runs of a tensor lie in the one that it is a region of."""
    parts = []
    for start, stop in local:
        at = 0
        for a, b in runs:
            low, high = max(start, at), min(stop, at + b - a)
            if low < high:
                parts.append(checked_run(a + low - at, a + high - at))
            at += b - a
    return _merged(parts)


def within(inner: Region, outer: Region) -> Region | None:
    """Where a region lies in the tensor of another; None: some of it does not."""
    dims = []
    for wanted, held in zip(inner, outer, strict=True):
        pairs = overlap(wanted, held)
        if sum(compared(size) for _, _, size in pairs) != compared(length_of(wanted)):
            return None
        dims.append(_merged((at, at + size) for _, at, size in pairs))
    return tuple(dims)


def overlap(wanted: Runs, held: Runs) -> list[tuple[int, int, int]]:
    """What two have in common: where it begins in the tensor of the one, and of the other, and its size."""
    if wanted == held:
        return [(0, 0, length_of(wanted))]
    pairs: list[tuple[int, int, int]] = []
    start = 0
    for a, b in wanted:
        at = 0
        for c, d in held:
            low, high = max(a, c), min(b, d)
            if low < high:
                checked_run(low, high)
                pairs.append((start + low - a, at + low - c, high - low))
            at += d - c
        start += b - a
    merged: list[tuple[int, int, int]] = []
    for first, second, size in sorted(pairs):
        if merged and merged[-1][0] + merged[-1][2] == first and merged[-1][1] + merged[-1][2] == second:
            merged[-1] = (*merged[-1][:2], merged[-1][2] + size)
        else:
            merged.append((first, second, size))
    return merged


def as_boxes(region: Region) -> list[Region]:
    """One for each combination of runs."""
    return [tuple((run,) for run in each) for each in product(*region)]


def grid(full: Region, others: Iterable[Region]) -> list[Region]:
    """A box cut wherever one of the others begins or ends: the boxes, in order."""
    every = list(others)
    dims = []
    for d, ((low, high),) in enumerate(full):
        ends = {end for each in every for run in each[d] for end in run if low < end < high}
        dims.append([checked_run(*run) for run in pairwise([low, *sorted(ends), high])])
    return [tuple((run,) for run in each) for each in product(*dims)]


def cut_evenly(box: Region, parts: int) -> list[Region]:
    """Slices along its first dimension that is long enough, else its longest."""
    lengths = [compared(length_of(runs)) for runs in box]
    dim = next((d for d, n in enumerate(lengths) if n >= 4 * parts), -1)
    if dim < 0:
        dim = max(range(len(box)), key=lambda d: lengths[d], default=-1)
    parts = min(parts, lengths[dim]) if box else 1
    if parts < 2:
        return [box]
    ((low, high),) = box[dim]
    size, own = compared(high - low), now(high - low)
    ends = [low + both(size * i // parts, (2 * own * i + parts) // (2 * parts)) for i in range(parts + 1)]
    return [(*box[:dim], (run,), *box[dim + 1 :]) for run in pairwise(ends)]


def _merged(runs: Iterable[tuple[int, int]]) -> Runs:
    return tuple(_joined(runs))


def _joined(runs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    last: tuple[int, int] | None = None
    for start, stop in runs:
        if last is not None and last[1] == start:
            last = last[0], stop
            continue
        if last is not None:
            yield last
        last = start, stop
    if last is not None:
        yield last


def checked_run(start: int, stop: int) -> tuple[int, int]:
    """Raises `Misfit`: it has elements at one of the sizes that it should not have."""
    if compared(start) >= compared(stop) or now(start) > now(stop):
        raise Misfit
    return start, stop
