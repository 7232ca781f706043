"""Seconds of moving a tensor from one layout to another, and of its gradient back.

    pieces that are there ──► what each device lacks, from the nearest that has it ──► the slowest link or NIC
    terms of a sum        ──► slices, one on each device that has a term ──► as any other pieces

As graphs are lowered (`rewrite.holdings`, `rewrite.sums`): what several devices of a host want of another's
comes to it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from netsplit.layout import Layout, Mesh
from netsplit.partition.methods.unity.choices import Machines
from netsplit.profile.costs import Costs
from netsplit.rewrite.tasks import SLICED_BYTES

__all__ = ["Movement"]

Numbers: TypeAlias = NDArray[np.int64]
Runs: TypeAlias = tuple[tuple[int, int], ...]

PASSES = 3.0  # of a parameter's bytes, in `DeviceCosts.accumulate_s_per_byte`


@dataclass(frozen=True, eq=False)
class _HeldPieces:
    """Of a tensor in a layout: per dimension the piece of every device, and all pieces; terms have one."""

    devices: Numbers
    numbers: tuple[Numbers, ...]
    runs: tuple[tuple[Runs, ...], ...]
    region: Numbers  # of every device, which of the regions it has


@dataclass(eq=False)
class Movement:
    """Among the devices of a cluster, by their numbers."""

    machines: Machines
    costs: Costs
    known: dict[tuple[object, ...], float] = field(default_factory=dict)
    pieces: dict[tuple[Layout, tuple[int, ...], str], _HeldPieces] = field(default_factory=dict)
    overlaps: dict[tuple[tuple[Runs, ...], tuple[Runs, ...]], Numbers] = field(default_factory=dict)

    def __post_init__(self) -> None:
        cluster = self.machines.cluster
        self.latency, self.pace = cluster.link_costs
        self.host = np.array(self.machines.hosts)
        own = [self.costs.of(each.kind) for each in cluster.devices]
        self.rate = np.array([each.accumulate_s_per_byte / PASSES for each in own])
        self.message = np.array([each.message_overhead_s for each in own])
        nics = [cluster.nic(each.name) for each in cluster.devices]
        self.out = np.array([0.0 if nic is None else nic.out_s_per_byte for nic in nics])
        self.into = np.array([0.0 if nic is None else nic.in_s_per_byte for nic in nics])

    def seconds(
        self, source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int, back: bool
    ) -> float:
        """Of all that moves; `back`: a gradient comes back, too."""
        if source == target and source.sizes == target.sizes and not source.partial:
            return 0.0
        key = (
            source,
            tuple(source.sizes.items()),
            tuple(source.blocks.items()),
            target,
            tuple(target.sizes.items()),
            tuple(target.blocks.items()),
            shape,
            itemsize,
        )
        if key not in self.known:
            self.known[key] = self._there(source, target, shape, itemsize)
        return self.known[key] * (2.0 if back else 1.0)

    def _there(self, source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int) -> float:
        if not source.partial:
            return self._moved(source, target, shape, itemsize)
        terms = prod(source.mesh.shape[axis] for axis in source.partial)
        wanted = self._of(target, shape)
        alone = len(np.unique(wanted.region)) == len(wanted.devices)
        if alone:
            return self._moved(source, target, shape, itemsize)
        held = prod(shape) * itemsize * terms / len(source.mesh.devices)
        slices = _sliced(source, shape) if held >= terms * SLICED_BYTES else None
        if slices is None:
            slices = _in_one(source)
        return self._moved(source, slices, shape, itemsize) + self._moved(slices, target, shape, itemsize)

    def _moved(self, source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int) -> float:
        """Of pieces, or of terms that are added where they are wanted."""
        a, b = self._of(source, shape), self._of(target, shape)
        elements = np.ones((len(a.devices), len(b.devices)), np.int64)
        for d in range(len(shape)):
            overlap = self._overlap(a.runs[d], b.runs[d])
            elements *= overlap[a.numbers[d][:, None], b.numbers[d][None, :]]
        nbytes = elements * itemsize
        same = a.devices[:, None] == b.devices[None, :]
        near = np.where(same, 0, np.where(self.host[a.devices][:, None] == self.host[b.devices], 1, 2))
        if source.partial:
            needed = nbytes
        else:  # of devices with the same piece each reader takes the nearest, and not all the same one
            spread = (np.arange(len(a.devices))[:, None] - np.arange(len(b.devices))) % len(a.devices)
            cost = near * len(a.devices) + spread
            needed = np.zeros_like(nbytes)
            order = np.argsort(a.region, kind="stable")
            each = order.reshape(-1, np.bincount(a.region)[0])
            best = np.take_along_axis(each, cost[each].argmin(axis=1), axis=1)
            columns = np.arange(len(b.devices))[None, :]
            needed[best, columns] = nbytes[best, columns]
        return self._sent(a, b, needed, near, bool(source.partial))

    def _sent(
        self, a: _HeldPieces, b: _HeldPieces, needed: Numbers, near: NDArray[np.int64], adds: bool
    ) -> float:
        """Links and NICs at once, and then cutting, adding and putting together on each device."""
        moved = (needed > 0) & (near > 0)
        if not moved.any() and not adds and (np.count_nonzero(needed, axis=0) <= 1).all():
            return 0.0
        p, q = a.devices[:, None], b.devices[None, :]
        longest = 0.0
        if moved.any():
            inside = moved & (near == 1)
            sent = needed
            far = moved & (near == 2)
            if far.any():
                sent, nic_s = self._between(a, b, needed, far)
                longest = nic_s
                inside = inside | (sent > 0) & far
            times = np.where(inside, self.latency[p, q] + sent * self.pace[p, q], 0.0)
            longest = max(longest, float(times.max()))
            longest += float((self.message[b.devices] * np.count_nonzero(moved, axis=0)).max())
        count = np.count_nonzero(needed, axis=0)
        passes = 3.0 if adds else 2.0
        joined = np.where(count > 1, needed.sum(axis=0), 0) - (needed.max(axis=0) * (count > 1) * adds)
        readers = np.count_nonzero(needed, axis=1)
        taken = np.where(readers > 1, needed.sum(axis=1), 0) if not adds else np.zeros(len(a.devices))
        work = float((joined * passes * self.rate[b.devices]).max())
        return longest + max(work, float((taken * self.rate[a.devices]).max()))

    def _between(
        self, a: _HeldPieces, b: _HeldPieces, needed: Numbers, far: NDArray[np.bool_]
    ) -> tuple[Numbers, float]:
        """Of hosts: each region once into each host; bytes of every pair, and seconds at the slowest NIC."""
        i, j = np.nonzero(far)
        key = np.stack([a.region[i], b.region[j], self.host[b.devices[j]]])
        _, first = np.unique(key, axis=1, return_index=True)
        sent = np.where(far, 0, needed)
        sent[i[first], j[first]] = needed[i[first], j[first]]
        i, j = i[first], j[first]
        hosts = int(self.host.max()) + 1
        amount = needed[i, j].astype(float)
        out = np.bincount(self.host[a.devices[i]], amount * self.out[a.devices[i]], hosts)
        into = np.bincount(self.host[b.devices[j]], amount * self.into[b.devices[j]], hosts)
        wait = float(self.latency[a.devices[i], b.devices[j]].max())
        return sent, wait + float(max(out.max(), into.max()))

    def _overlap(self, one: tuple[Runs, ...], other: tuple[Runs, ...]) -> Numbers:
        key = one, other
        if key not in self.overlaps:
            if all(len(runs) == 1 for runs in (*one, *other)):
                x, y = np.array([runs[0] for runs in one]), np.array([runs[0] for runs in other])
                low = np.maximum(x[:, None, 0], y[None, :, 0])
                made = np.maximum(np.minimum(x[:, None, 1], y[None, :, 1]) - low, 0)
            else:
                made = np.array([[_common(x, y) for y in other] for x in one])
            self.overlaps[key] = made
        return self.overlaps[key]

    def _of(self, layout: Layout, shape: tuple[int, ...]) -> _HeldPieces:
        key = layout, shape, repr((layout.sizes, layout.blocks))
        if key not in self.pieces:
            self.pieces[key] = _pieces(layout, shape)
        return self.pieces[key]


def _pieces(layout: Layout, shape: tuple[int, ...]) -> _HeldPieces:
    devices = layout.mesh.devices
    numbers, runs = [], []
    region = np.zeros(len(devices), np.int64)
    every = [layout.runs(device, shape) for device in devices]
    for d in range(len(shape)):
        own = [tuple(each[d]) for each in every]
        there = {piece: i for i, piece in enumerate(dict.fromkeys(own))}
        numbers.append(np.array([there[piece] for piece in own], np.int64))
        runs.append(tuple(there))
        region = region * len(there) + numbers[-1]
    _, region = np.unique(region, return_inverse=True)
    return _HeldPieces(np.array(devices, np.int64), tuple(numbers), tuple(runs), region)


def _common(one: Runs, other: Runs) -> int:
    return sum(max(0, min(b, d) - max(a, c)) for a, b in one for c, d in other)


def _sliced(layout: Layout, shape: Sequence[int]) -> Layout | None:
    """With a slice of the sum on each device that had a term; None: no dimension is long enough."""
    terms = prod(layout.mesh.shape[axis] for axis in layout.partial)
    cut = [prod(layout.mesh.shape[axis] for axis in axes) for axes in layout.axes]
    dim = next((d for d, n in enumerate(shape) if n // cut[d] >= terms), None)
    if dim is None:
        return None
    axes = ["".join(map(str, own)) for own in layout.axes]
    axes[dim] += "".join(map(str, layout.partial))
    spec = "".join(f"S{own}" if own else "R" for own in axes)
    return replace(layout, spec=spec, partial=())


def _in_one(layout: Layout) -> Layout:
    """With the sum on the first of the devices that had its terms."""
    kept = [
        device
        for device, place in layout.mesh.places.items()
        if not any(place[axis] for axis in layout.partial)
    ]
    shape = tuple(1 if axis in layout.partial else n for axis, n in enumerate(layout.mesh.shape))
    return replace(layout, mesh=Mesh(tuple(kept), shape), partial=())
