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

__all__ = ["Movement", "key_of"]

Numbers: TypeAlias = NDArray[np.int64]
Runs: TypeAlias = tuple[tuple[int, int], ...]

PASSES = 3.0  # of an addition over its bytes, as `DeviceCosts.accumulate_s_per_byte` has them


_Seconds: TypeAlias = tuple[float, float]
"""Of moving a tensor, and of its gradient on the way back."""


def key_of(layout: Layout) -> tuple[object, ...]:
    """Two layouts with the same are the same."""
    mesh = layout.mesh.devices, layout.mesh.shape
    sizes = tuple(sorted(layout.sizes.items())), tuple(sorted(layout.blocks.items()))
    return (*mesh, layout.spec, layout.partial, *sizes)


@dataclass(frozen=True, eq=False)
class _HeldPieces:
    """Of a tensor in a layout: per dimension the piece of every device, and all pieces; terms have one."""

    devices: Numbers
    numbers: tuple[Numbers, ...]
    runs: tuple[tuple[Runs, ...], ...]
    region: Numbers  # of every device, which of the regions it has
    elements: Numbers


@dataclass(eq=False)
class Movement:
    """Among the devices of a cluster, by their numbers."""

    machines: Machines
    costs: Costs
    known: dict[tuple[object, ...], _Seconds] = field(default_factory=dict)
    pieces: dict[tuple[object, ...], _HeldPieces] = field(default_factory=dict)
    overlaps: dict[tuple[tuple[Runs, ...], tuple[Runs, ...]], tuple[Numbers, Numbers]] = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        cluster = self.machines.cluster
        self.latency, self.pace = cluster.link_costs
        self.host = np.array(self.machines.hosts)
        own = [self.costs.of(each.kind) for each in cluster.devices]
        self.rate = np.array([each.accumulate_s_per_byte / PASSES for each in own])
        self.launch = np.array([0.0 if each.rates is None else each.rates.launch_s for each in own])
        self.message = np.array([each.message_overhead_s for each in own])
        self.instruction = np.array([each.instruction_s for each in own])
        nics = [cluster.nic(each.name) for each in cluster.devices]
        self.out = np.array([0.0 if nic is None else nic.out_s_per_byte for nic in nics])
        self.into = np.array([0.0 if nic is None else nic.in_s_per_byte for nic in nics])

    def seconds(
        self, source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int, back: bool
    ) -> float:
        """Of all that moves; `back`: a gradient comes back, too."""
        if source == target and source.sizes == target.sizes and not source.partial:
            return 0.0
        key = (*key_of(source), *key_of(target), shape, itemsize)
        if key not in self.known:
            self.known[key] = self._both(source, target, shape, itemsize)
        there, returned = self.known[key]
        return there + returned if back else there

    def _both(self, source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int) -> _Seconds:
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
        first = self._moved(source, slices, shape, itemsize)
        then = self._moved(slices, target, shape, itemsize)
        return first[0] + then[0], first[1] + then[1]

    def _moved(self, source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int) -> _Seconds:
        """Of pieces, or of terms that are added where they are wanted."""
        a, b = self._of(source, shape), self._of(target, shape)
        nbytes = np.full((len(a.devices), len(b.devices)), itemsize, np.int64)
        boxes = np.ones_like(nbytes)
        for d in range(len(shape)):
            overlap, runs = self._overlap(a.runs[d], b.runs[d])
            nbytes *= overlap[a.numbers[d][:, None], b.numbers[d][None, :]]
            boxes *= runs[a.numbers[d][:, None], b.numbers[d][None, :]]
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
        return self._sent(
            a, b, needed, boxes * (needed > 0), near, a.elements * itemsize, bool(source.partial)
        )

    def _sent(
        self,
        a: _HeldPieces,
        b: _HeldPieces,
        needed: Numbers,
        boxes: Numbers,
        near: Numbers,
        held: Numbers,
        adds: bool,
    ) -> _Seconds:
        """Cutting, links and NICs at once, and then adding or putting together on each device.

        Of a gradient: as much moves, and where several readers had one piece, theirs are added.
        """
        p, q = a.devices, b.devices
        moved = np.where(near > 0, boxes, 0)
        longest = 0.0
        if moved.any():
            direct, relayed_s, nic_s = self._between(a, b, needed, (needed > 0) & (near == 2))
            moved = np.where((near == 2) & ~direct, 0, moved)
            times = moved * self.latency[p[:, None], q] + needed * self.pace[p[:, None], q] * (moved > 0)
            longest = max(float(times.max()), nic_s) + relayed_s
            busy = np.zeros(len(self.message))
            np.add.at(busy, p, moved.sum(axis=1))
            np.add.at(busy, q, moved.sum(axis=0))
            longest += float((busy * self.message).max())
        cut = ((needed > 0) & (needed < held[:, None])).any(axis=1)
        sliced = float((cut * self.launch[p]).max())
        sliced_back = float((cut * (self.launch[p] + PASSES * self.rate[p] * held)).max())
        count = boxes.sum(axis=0)
        if adds:
            each = np.maximum(count - 1, 0) * (self.launch[q] + self.instruction[q])
            bytes_s = np.where(count > 1, needed.sum(axis=0) - needed.max(axis=0), 0) * PASSES * self.rate[q]
            return longest + sliced + float((each + bytes_s).max()), longest + sliced_back + float(each.max())
        joined = (count > 1) * (self.launch[q] + 2 * self.rate[q] * needed.sum(axis=0))
        alike = (a.region[:, None] == a.region[None, :]) @ (
            needed > 0
        )  # of each reader, which regions it reads
        several = (needed * (alike.sum(axis=1) > 1)[:, None]).sum(axis=0)
        back_s = joined + PASSES * self.rate[q] * several
        return longest + sliced + float(joined.max()), longest + sliced_back + float(back_s.max())

    def _between(
        self, a: _HeldPieces, b: _HeldPieces, needed: Numbers, far: NDArray[np.bool_]
    ) -> tuple[NDArray[np.bool_], float, float]:
        """Of hosts: each region comes once into each host. Which pairs send between hosts; seconds of handing
        on inside the hosts, and at the slowest NIC."""
        i, j = np.nonzero(far)
        if not len(i):
            return far, 0.0, 0.0
        regions, hosts = int(b.region.max()) + 1, int(self.host.max()) + 1
        key = (a.region[i] * regions + b.region[j]) * hosts + self.host[b.devices[j]]
        _, first, of = np.unique(key, return_index=True, return_inverse=True)
        to, on = b.devices[j[first]][of], b.devices[j]
        handed = (to != on) * (self.latency[to, on] + needed[i, j] * self.pace[to, on] + 2 * self.message[on])
        i, j = i[first], j[first]
        direct = np.zeros_like(far)
        direct[i, j] = True
        amount = needed[i, j].astype(float)
        out = np.bincount(self.host[a.devices[i]], amount * self.out[a.devices[i]], hosts)
        into = np.bincount(self.host[b.devices[j]], amount * self.into[b.devices[j]], hosts)
        wait = float(self.latency[a.devices[i], b.devices[j]].max())
        return direct, float(handed.max()), wait + float(max(out.max(), into.max()))

    def _overlap(self, one: tuple[Runs, ...], other: tuple[Runs, ...]) -> tuple[Numbers, Numbers]:
        """Elements that two pieces have in common along a dimension, and in how many runs."""
        key = one, other
        if key not in self.overlaps:
            if all(len(runs) == 1 for runs in (*one, *other)):
                x, y = np.array([runs[0] for runs in one]), np.array([runs[0] for runs in other])
                low = np.maximum(x[:, None, 0], y[None, :, 0])
                made = np.maximum(np.minimum(x[:, None, 1], y[None, :, 1]) - low, 0)
                self.overlaps[key] = made, (made > 0).astype(np.int64)
            else:
                both = np.array([[_common(x, y) for y in other] for x in one])
                self.overlaps[key] = both[..., 0], both[..., 1]
        return self.overlaps[key]

    def _of(self, layout: Layout, shape: tuple[int, ...]) -> _HeldPieces:
        key = (*key_of(layout), shape)
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
    held = [prod(sum(high - low for low, high in runs) for runs in each) for each in every]
    return _HeldPieces(
        np.array(devices, np.int64), tuple(numbers), tuple(runs), region, np.array(held, np.int64)
    )


def _common(one: Runs, other: Runs) -> tuple[int, int]:
    if one == other:
        return sum(b - a for a, b in one), 1
    lengths = [n for a, b in one for c, d in other if (n := min(b, d) - max(a, c)) > 0]
    return sum(lengths), len(lengths)


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
