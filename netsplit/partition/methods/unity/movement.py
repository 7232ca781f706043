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
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from netsplit.layout import Layout, Mesh
from netsplit.partition.methods.unity.choices import Machines
from netsplit.partition.methods.unity.layout_seconds import PASSES, Packed, seconds_of_layouts
from netsplit.profile.costs import Costs
from netsplit.rewrite.tasks import SLICED_BYTES

__all__ = ["Movement", "distinct_layouts", "key_of"]

Numbers: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
Runs: TypeAlias = tuple[tuple[int, int], ...]
Devices: TypeAlias = tuple[int, ...]


def key_of(layout: Layout) -> tuple[object, ...]:
    """Two layouts with the same are the same."""
    mesh = layout.mesh.devices, layout.mesh.shape
    sizes = tuple(sorted(layout.sizes.items())), tuple(sorted(layout.blocks.items()))
    return (*mesh, layout.spec, layout.partial, *sizes)


def distinct_layouts(layouts: Sequence[Layout]) -> tuple[list[Layout], list[int]]:
    """The first of each that are the same, and for each of all which of these it is."""
    numbers: dict[object, int] = {}
    first, of = list[Layout](), list[int]()
    for layout in layouts:
        key = key_of(layout)
        if key not in numbers:
            numbers[key] = len(first)
            first.append(layout)
        of.append(numbers[key])
    return first, of


@dataclass(frozen=True, eq=False)
class _HeldPieces:
    """A tensor in a layout: per dimension the piece of every device, and all pieces; terms have one."""

    devices: Numbers
    numbers: Numbers  # [devices, dimensions]
    pieces: Numbers  # of each dimension
    counts: Numbers  # of runs, of all pieces of all dimensions
    runs: Numbers  # [runs, 2]
    region: Numbers  # which of the regions every device has
    elements: Numbers
    group: Numbers  # which of the pairs of a region and a host every device has

    @property
    def alone(self) -> bool:
        """Whether no two devices have the same."""
        return int(self.region.max()) + 1 == len(self.devices)


@dataclass(eq=False)
class Movement:
    """Seconds and bytes of what moves among the devices of a cluster, by their numbers."""

    machines: Machines
    costs: Costs
    known: dict[object, tuple[Floats, Floats]] = field(default_factory=dict)
    pieces: dict[object, _HeldPieces] = field(default_factory=dict)
    cuts: dict[object, tuple[tuple[Runs, ...], Numbers, Numbers]] = field(default_factory=dict)
    rings: dict[Devices, tuple[Floats, Floats, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        cluster = self.machines.cluster
        self.latency, self.pace = map(np.ascontiguousarray, cluster.link_costs)
        self.host = np.array(self.machines.hosts)
        rates = []
        for device in cluster.devices:
            own, nic = self.costs.of(device.kind), cluster.nic(device.name)
            launch_s = 0.0 if own.rates is None else own.rates.launch_s
            nic_rates = (nic.out_s_per_byte, nic.in_s_per_byte) if nic is not None else (0.0, 0.0)
            calls = own.message_overhead_s, own.instruction_s
            rates.append((own.accumulate_s_per_byte / PASSES, launch_s, *calls, *nic_rates))
        self.rates = np.array(rates)

    def seconds(
        self,
        sources: Sequence[Layout],
        targets: Sequence[Layout],
        shape: tuple[int, ...],
        itemsize: int,
        back: bool,
    ) -> Floats:
        """[sources, targets] seconds of all that moves; `back`: a gradient comes back, too."""
        of, to = [tuple(map(key_of, each)) for each in (sources, targets)]
        key = of, to, shape, itemsize
        if key not in self.known:
            there, returned = self._both(sources, targets, shape, itemsize)
            same = np.array([[one == other for other in to] for one in of])
            same &= np.array([not each.partial for each in sources])[:, None]
            self.known[key] = np.where(same, 0.0, there), np.where(same, 0.0, there + returned)
        return self.known[key][back]

    def copies(
        self, sources: Sequence[Layout], targets: Sequence[Layout], shape: tuple[int, ...], itemsize: int
    ) -> Floats:
        """[sources, targets, devices] bytes of what each device gets to read, and has not as it was made."""
        got, has = (np.zeros((len(each), len(self.host))) for each in (targets, sources))
        for row, layout in zip(got, targets, strict=True):
            held = self._of(layout, shape)
            row[held.devices] = held.elements * itemsize
        for row, layout in zip(has, sources, strict=True):
            held = self._of(layout, shape)
            row[held.devices] = (held.elements == prod(shape)) & (not layout.partial)
        same = np.array([[key_of(one) == key_of(other) for other in targets] for one in sources])
        copies: Floats = got * (1 - has[:, None]) * ~same[:, :, None]
        return copies

    def _both(
        self, sources: Sequence[Layout], targets: Sequence[Layout], shape: tuple[int, ...], itemsize: int
    ) -> tuple[Floats, Floats]:
        """There and back. Terms that several want are added first, in slices, or on one device."""
        wanted = [self._of(each, shape) for each in targets]
        made = [self._of(each, shape) for each in sources]
        partial = np.array([bool(each.partial) for each in sources])
        direct = self._moved(made, partial, wanted, itemsize)
        several = np.array([not each.alone for each in wanted])
        rows = [i for i, each in enumerate(sources) if each.partial]
        if not rows or not several.any():
            return direct
        slices = [self._of(_added(sources[i], shape, itemsize), shape) for i in rows]
        then = self._moved(slices, np.zeros(len(rows), bool), wanted, itemsize)
        for n, i in enumerate(rows):
            first = self._moved([made[i]], partial[i : i + 1], [slices[n]], itemsize)
            for total, one, other in zip(direct, first, then, strict=True):
                total[i] = np.where(several, one[0, 0] + other[n], total[i])
        return direct

    def _moved(
        self, made: Sequence[_HeldPieces], partial: Bools, wanted: Sequence[_HeldPieces], itemsize: int
    ) -> tuple[Floats, Floats]:
        there, back = np.empty((2, len(made), len(wanted)))
        clusters = self.host, self.latency, self.pace, self.rates
        seconds_of_layouts(_packed(made), partial, _packed(wanted), itemsize, *clusters, there, back)
        return there, back

    def _of(self, layout: Layout, shape: tuple[int, ...]) -> _HeldPieces:
        key = (*key_of(layout), shape)
        if key not in self.pieces:
            self.pieces[key] = self._pieces(layout, shape)
        return self.pieces[key]

    def _pieces(self, layout: Layout, shape: tuple[int, ...]) -> _HeldPieces:
        devices: tuple[Any, ...] = layout.mesh.devices  # numbers
        every = np.arange(len(devices)).reshape(layout.mesh.shape)
        numbers, pieces, runs = np.zeros((len(devices), len(shape)), np.int64), [], list[Runs]()
        region, elements = np.zeros(len(devices), np.int64), np.ones(len(devices), np.int64)
        for d, (size, axes) in enumerate(zip(shape, layout.axes, strict=True)):
            cut = [(layout.mesh.shape[m], layout.sizes.get(m), layout.blocks.get(m, 1)) for m in axes]
            key = size, axes, every.ndim, tuple(cut)
            if key not in self.cuts:
                where = every[tuple(slice(None if m in axes else 1) for m in range(every.ndim))]
                own = [tuple(layout.runs(devices[i], shape)[d]) for i in where.flat]
                there = {piece: i for i, piece in enumerate(dict.fromkeys(own))}
                at = np.array([there[piece] for piece in own]).reshape(where.shape)
                held = np.array([sum(high - low for low, high in piece) for piece in there])
                self.cuts[key] = tuple(there), at, held
            own_runs, at, held = self.cuts[key]
            numbers[:, d] = np.broadcast_to(at, every.shape).ravel()
            region = region * len(own_runs) + numbers[:, d]
            elements *= held[numbers[:, d]]
            pieces.append(len(own_runs))
            runs += own_runs
        _, region = np.unique(region, return_inverse=True)
        where = np.array(devices, np.int64)
        _, group = np.unique(region * len(self.host) + self.host[where], return_inverse=True)
        counts = np.array([len(each) for each in runs], np.int64)
        ends = np.array([run for each in runs for run in each], np.int64).reshape(-1, 2)
        return _HeldPieces(where, numbers, np.array(pieces, np.int64), counts, ends, region, elements, group)

    def ring_seconds(self, devices: Devices, nbytes: int, rings: int, steps: int) -> float:
        """Seconds of so many rings at once, queued at NICs; with a part of the latency of all `steps`."""
        if len(devices) < 2:
            return 0.0
        if devices not in self.rings:
            cluster = self.machines.cluster
            pairs = cluster.ring([cluster.devices[p].name for p in devices])
            links = [cluster.links[pair] for pair in pairs]
            latency, pace = np.array([(each.latency_s, each.seconds_per_byte) for each in links]).T
            queued = max((pace for pair in pairs for _, pace in cluster.way(*pair)), default=0.0)
            self.rings[devices] = latency, pace, queued
        latency, pace, queued = self.rings[devices]
        times = 2 * (len(devices) - 1)
        alone = times * float(latency.max())
        busy = times * float((latency + nbytes / len(devices) * pace).max()) - alone
        return max(busy, rings * times / len(devices) * queued * nbytes) + alone / steps


def _packed(every: Sequence[_HeldPieces]) -> Packed:
    """One after another, and where each begins: its devices, and its pieces by dimension."""
    devices = np.cumsum([0, *(len(each.devices) for each in every)])
    pieces = np.cumsum([0, *(n for each in every for n in each.pieces)])
    runs = np.cumsum([0, *(n for each in every for n in each.counts)])
    names = ("devices", "numbers", "runs", "region", "elements", "group")
    p, n, ends, region, held, group = (np.concatenate([getattr(e, name) for e in every]) for name in names)
    return devices, pieces, runs, p, n, ends, region, held, group


def _added(source: Layout, shape: tuple[int, ...], itemsize: int) -> Layout:
    """Where the terms are added, as they are lowered: a slice on each device that had a term; or, where
    slices would be small or no dimension is long enough, all on the first of these devices."""
    mesh, partial = source.mesh, source.partial
    terms = prod(mesh.shape[axis] for axis in partial)
    cut = [prod(mesh.shape[axis] for axis in axes) for axes in source.axes]
    dim = next((d for d, n in enumerate(shape) if n // cut[d] >= terms), None)
    if dim is None or prod(shape) * itemsize / len(mesh.devices) < SLICED_BYTES:
        kept = [p for p, place in mesh.places.items() if not any(place[axis] for axis in partial)]
        one = tuple(1 if axis in partial else n for axis, n in enumerate(mesh.shape))
        return replace(source, mesh=Mesh(tuple(kept), one), partial=())
    axes = ["".join(map(str, own)) for own in source.axes]
    axes[dim] += "".join(map(str, partial))
    return replace(source, spec="".join(f"S{own}" if own else "R" for own in axes), partial=())
