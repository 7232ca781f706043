"""Seconds of moving a tensor from one layout to another, and of its gradient back.

    pieces that are there ──► what each device lacks, from the nearest that has it ──► the slowest link or NIC
    terms of a sum        ──► slices, one on each device that has a term ──► as any other pieces

As graphs are lowered (`rewrite.holdings`, `rewrite.sums`): what several devices of a host want of another's
comes to it once. Compiled for all of some layouts and all of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from netsplit.compiled import Floats, Ints, compiled, inner
from netsplit.layout import Layout, Mesh
from netsplit.partition.methods.unity.choices import Machines
from netsplit.profile.costs import Costs
from netsplit.rewrite.tasks import SLICED_BYTES

__all__ = ["PASSES", "Movement", "Packed", "distinct_layouts", "key_of", "seconds_of_layouts"]

PASSES = 3.0  # of an addition over its bytes, as `DeviceCosts.accumulate_s_per_byte` has them

Bools: TypeAlias = NDArray[np.bool_]
Runs: TypeAlias = tuple[tuple[int, int], ...]
Devices: TypeAlias = tuple[int, ...]
Packed: TypeAlias = tuple[Ints, Ints, Ints, Ints, Ints, Ints, Ints, Ints, Ints]
"""Layouts: where the devices, the pieces by dimension and the runs of each begin; numbers of all devices,
[devices, dimensions] pieces, [runs, 2] ends, and of all devices regions, elements, and pairs of region and
host."""


@inner
def _common(runs: Ints, a0: int, a1: int, other: Ints, b0: int, b1: int) -> tuple[int, int]:
    """Elements that two pieces have in common along a dimension, and in how many runs."""
    same, length = a1 - a0 == b1 - b0, 0
    for x in range(a0, a1):
        length += runs[x, 1] - runs[x, 0]
        same = same and (runs[x, 0] == other[b0 + x - a0, 0] and runs[x, 1] == other[b0 + x - a0, 1])
    if same:
        return length, 1
    length, count = 0, 0
    for x in range(a0, a1):
        for y in range(b0, b1):
            n = min(runs[x, 1], other[y, 1]) - max(runs[x, 0], other[y, 0])
            if n > 0:
                length += n
                count += 1
    return length, count


@inner
def _overlaps(a: Packed, m: int, b: Packed, n: int, lengths: Ints, counts: Ints) -> tuple[int, int]:
    """Elements that both have [dimension that is cut, pieces of one, pieces of the other], and in how many
    boxes; and those of the dimensions that neither cuts."""
    dimensions, length, count = a[4].shape[1], 1, 1
    for d in range(dimensions):
        x0, x1 = a[1][m * dimensions + d], a[1][m * dimensions + d + 1]
        y0, y1 = b[1][n * dimensions + d], b[1][n * dimensions + d + 1]
        for x in range(x0, x1):
            for y in range(y0, y1):
                own, boxes = _common(a[5], a[2][x], a[2][x + 1], b[5], b[2][y], b[2][y + 1])
                if x1 - x0 == 1 and y1 - y0 == 1:
                    length, count = length * own, count * boxes
                else:
                    lengths[d, x - x0, y - y0], counts[d, x - x0, y - y0] = own, boxes
    return length, count


@inner
def _nearest(p: Ints, holders: Ints, t: int, j: int, host: Ints) -> int:
    """The nearest device with a piece that a reader wants, and not for all the same one."""
    best, least, begin = -1, 3 * len(p), j % len(p)
    for i in holders:
        near = 0 if p[i] == t else 1 if host[p[i]] == host[t] else 2
        cost = near * len(p) + i - begin + (len(p) if i < begin else 0)
        if cost < least:
            best, least = i, cost
    return best


@compiled
def seconds_of_layouts(
    a: Packed,
    partial: NDArray[np.bool_],
    b: Packed,
    itemsize: int,
    host: Ints,
    latency: Floats,
    pace: Floats,
    rates: Floats,
    there: Floats,
    back: Floats,
) -> None:
    """Cutting, links and NICs at once, and then adding or putting together on each device.

    Of a gradient: as much moves, and where several readers had one piece, theirs are added. Of hosts: each
    region comes once into each host, and is handed on there.

    Args:
        a, b: layouts.
        partial: of `a`, whether it is terms, which are added where they are wanted.
        host: of each device.
        latency, pace: [devices, devices] seconds, and seconds per byte.
        rates: [devices, 6] seconds per byte of adding, of a launch, a message, an instruction, and per byte
            out of a NIC and into it.
        there, back: [a, b] seconds; written.
    """
    hosts, devices, dimensions = host.max() + 1, len(host), a[4].shape[1]
    busy, out, into = np.empty(devices), np.empty(hosts), np.empty(hosts)
    needed, first = np.empty((2, devices, devices), np.int64)
    lengths, counts = np.empty((2, dimensions, devices, devices), np.int64)
    amount, most, several, count = np.empty((4, devices), np.int64)
    cuts = np.empty(dimensions, np.int64)
    for m in range(len(a[0]) - 1):
        own = slice(a[0][m], a[0][m + 1])
        p, at, region, held = a[3][own], a[4][own], a[6][own], a[7][own]
        order = np.argsort(region, kind="mergesort")
        begins = np.searchsorted(region[order], np.arange(region.max() + 2))
        sources = len(p) if partial[m] else len(begins) - 1
        for n in range(len(b[0]) - 1):
            other = slice(b[0][n], b[0][n + 1])
            q, to, group = b[3][other], b[4][other], b[8][other]
            each, each_count = _overlaps(a, m, b, n, lengths, counts)
            cut_here = 0
            for d in range(dimensions):
                x, y = m * dimensions + d, n * dimensions + d
                if a[1][x + 1] - a[1][x] > 1 or b[1][y + 1] - b[1][y] > 1:
                    cuts[cut_here] = d
                    cut_here += 1
            busy[:], out[:], into[:] = 0, 0, 0
            amount[: len(q)], most[: len(q)], several[: len(q)], count[: len(q)] = 0, 0, 0, 0
            first[: len(begins), : len(q)] = -1
            longest, handed, wait, cut, cut_back, far = 0.0, 0.0, 0.0, 0.0, 0.0, False
            for source in range(sources):
                i = source if partial[m] else order[begins[source]]
                r, readers = region[i], 0
                holders = order[begins[r] : begins[r + 1]]
                for j in range(len(q)):
                    nbytes, number = each * itemsize, each_count
                    for c in range(cut_here):
                        d = cuts[c]
                        nbytes *= lengths[d, at[i, d], to[j, d]]
                        number *= counts[d, at[i, d], to[j, d]]
                    needed[source, j] = nbytes
                    if not nbytes:
                        continue
                    t = q[j]
                    if not partial[m] and len(holders) > 1:
                        i = _nearest(p, holders, t, j, host)
                    s = p[i]
                    if nbytes < held[i] * itemsize:
                        cut = max(cut, rates[s, 1])
                        cut_back = max(cut_back, rates[s, 1] + PASSES * rates[s, 0] * held[i] * itemsize)
                    readers += 1
                    count[j] += number
                    amount[j] += nbytes
                    most[j] = max(most[j], nbytes)
                    if s == t:
                        continue
                    if host[s] != host[t]:
                        far = True
                        there_first = first[r, group[j]]
                        if there_first >= 0:
                            if there_first != t:
                                seconds = latency[there_first, t] + nbytes * pace[there_first, t]
                                handed = max(handed, seconds + 2 * rates[t, 2])
                            continue
                        first[r, group[j]] = t
                        out[host[s]] += nbytes * rates[s, 4]
                        into[host[t]] += nbytes * rates[t, 5]
                        wait = max(wait, latency[s, t])
                    longest = max(longest, number * latency[s, t] + nbytes * pace[s, t])
                    busy[s] += number
                    busy[t] += number
                if readers > 1 and not partial[m]:
                    for j in range(len(q)):
                        several[j] += needed[source, j]
            if far:
                longest = max(longest, wait + max(out.max(), into.max()))
            messages = 0.0
            for t in range(devices):
                messages = max(messages, busy[t] * rates[t, 2])
            longest += handed + messages
            ends, ends_back = 0.0, 0.0
            for j in range(len(q)):
                t = q[j]
                if partial[m]:
                    launches = max(count[j] - 1, 0) * (rates[t, 1] + rates[t, 3])
                    added = (amount[j] - most[j]) * PASSES * rates[t, 0] if count[j] > 1 else 0.0
                    ends, ends_back = max(ends, launches + added), max(ends_back, launches)
                else:
                    joined = rates[t, 1] + 2 * rates[t, 0] * amount[j] if count[j] > 1 else 0.0
                    ends = max(ends, joined)
                    ends_back = max(ends_back, joined + PASSES * rates[t, 0] * several[j])
            there[m, n] = longest + cut + ends
            back[m, n] = longest + cut_back + ends_back


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

    devices: Ints
    numbers: Ints  # [devices, dimensions]
    pieces: Ints  # of each dimension
    counts: Ints  # of runs, of all pieces of all dimensions
    runs: Ints  # [runs, 2]
    region: Ints  # which of the regions every device has
    elements: Ints
    group: Ints  # which of the pairs of a region and a host every device has

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
    cuts: dict[object, tuple[tuple[Runs, ...], Ints, Ints]] = field(default_factory=dict)
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
