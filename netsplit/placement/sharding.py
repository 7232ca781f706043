"""States of replicas in slices, where a plan has no room for them whole; which device keeps which rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import get_args

from netsplit.graph.ir import Graph, Initializer, Region, dtype_bytes
from netsplit.placement.placement import Placement, Shard, ShardName

__all__ = [
    "PIECES", "Bundle", "Slice", "crossing_bytes", "in_slices", "largest_slices", "ranked",
    "shard_line", "sharded_levels", "slices_of",
]  # fmt: skip

PIECES = 24  # of a stage's parameters, at most: so little is whole at once
_LATER = 2.0  # times as many bytes, at most, until a narrow place is found


def sharded_levels(graph: Graph, placement: Placement) -> Iterator[Placement]:
    """The placement with the states of its replicas in slices: the optimiser's first, in the end all."""
    for level in get_args(ShardName):
        changed = in_slices(graph, placement, level)
        if changed is not placement:
            yield changed


def in_slices(graph: Graph, placement: Placement, level: ShardName) -> Placement:
    """The placement with the states in slices of all devices that hold the same parameters.

    Stages are cut into segments of few parameters where these, or their gradients, go one after another.
    Itself where no devices hold the same, or where it has slices already.
    """
    if placement.shards:
        return placement
    groups = _groups(graph, placement)
    if not groups:
        return placement
    homes = set(placement.device_of.values())
    shards = []
    for devices in groups:
        own = [p for p in devices if p in homes and level != "optimizer"]
        cuts = tuple(name for p in own for name in _narrow_places(graph, placement, p))
        shards.append(Shard(devices, level, cuts=cuts))
    return replace(placement, shards=tuple(shards))


def shard_line(placement: Placement) -> str:
    """What is in slices, in words."""
    words = {
        "optimizer": "the optimiser's states are in slices",
        "gradients": "gradients and the optimiser's states are in slices",
        "parameters": "parameters, gradients and the optimiser's states are in slices",
    }
    groups = (f"{words[each.level]} on {', '.join(each.devices)}" for each in placement.shards)
    return "; ".join(groups)


def _groups(graph: Graph, placement: Placement) -> list[tuple[str, ...]]:
    """Devices that hold the same trained parameters."""
    homes: dict[str, dict[str, None]] = {}
    for node in graph:
        for k in node.initializers:
            own = graph.initializers[k]
            if own.requires_grad:
                homes.setdefault(own.held_as, {})[placement.device_of[node.name]] = None
    replicas = placement.replicas | placement.alike
    holders = (tuple(q for p in each for q in replicas.get(p, (p,))) for each in homes.values())
    return list({frozenset(each): each for each in holders if len(each) > 1}.values())


def _narrow_places(graph: Graph, placement: Placement, home: str) -> Iterator[str]:
    """Nodes before which a device's segments end, so that each has about as many bytes of parameters: where
    the fewest bytes go from one to the next."""
    order = sorted(
        (v for v, p in placement.device_of.items() if p == home), key=placement.priority.__getitem__
    )
    new = _first_read(graph, order)
    least = max(max(new, default=0), sum(new) // PIECES)
    crossing = crossing_bytes(graph, order)
    nbytes_before, best = 0, None
    for at, nbytes in enumerate(new):
        if best is not None and (nbytes_before + nbytes > _LATER * least or at == len(order) - 1):
            yield order[best]
            nbytes_before, best = sum(new[best:at]), None
        if nbytes_before >= least and (best is None or crossing[at] < crossing[best]):
            best = at
        nbytes_before += nbytes


def _first_read(graph: Graph, order: Sequence[str]) -> list[int]:
    """Bytes of parameters that each node is the first to read."""
    known: set[str] = set()
    nbytes = []
    for name in order:
        new = {k for k in graph.nodes[name].initializers if graph.initializers[k].is_parameter} - known
        known |= new
        nbytes.append(sum(graph.initializers[k].nbytes for k in new))
    return nbytes


def crossing_bytes(graph: Graph, order: Sequence[str], but: Collection[str] = ()) -> list[int]:
    """Bytes that are made before each node, and read by it or later; `but`: of all but these variables."""
    at = {name: n for n, name in enumerate(order)}
    change = [0] * (len(order) + 1)
    for n, name in enumerate(order):
        for k in (k for k in graph.nodes[name].outputs if k not in but):
            last = max((at.get(v, -1) for v in graph.variables[k].consumers), default=-1) if k else -1
            if last > n:
                change[n + 1] += graph.variables[k].nbytes
                change[last + 1] -= graph.variables[k].nbytes
    total, crossing = 0, []
    for each in change[:-1]:
        total += each
        crossing.append(total)
    return crossing


@dataclass(frozen=True)
class Slice:
    """Rows of a parameter that a device keeps and steps on."""

    device: str
    start: int
    stop: int

    def region(self, own: Initializer) -> Region:
        """Where it lies in the model's own parameter, of which `own` may be a part."""
        whole = own.region or Region(own.name, own.shape, (0,) * len(own.shape))
        first = (whole.offsets[0] + self.start, *whole.offsets[1:]) if own.shape else ()
        return Region(whole.whole, whole.shape, first)

    def sizes(self, own: Initializer) -> tuple[int, ...]:
        return (self.stop - self.start, *own.shape[1:]) if own.shape else ()

    def named(self, own: Initializer) -> str:
        """As a part of the model's own parameter is called."""
        return self.region(own).named(self.sizes(own))

    def nbytes(self, own: Initializer) -> int:
        rows = own.shape[0] if own.shape else 1
        return own.nbytes * (self.stop - self.start) // rows


@dataclass(frozen=True)
class Bundle:
    """Parameters whose states the devices have in slices, and that are gathered and summed together."""

    devices: tuple[str, ...]
    names: tuple[str, ...]
    level: ShardName
    segments: tuple[int, ...]  # that read them; none where all go together
    trained: bool  # any of them
    nbytes: int
    whole: bool = False  # none is cut: for an optimiser that is not element-wise


def ranked(devices: Sequence[str], ranks: Sequence[str]) -> tuple[str, ...]:
    """Devices in rank order; behind them, as they are, those that these stand for (`Placement.alike`)."""
    here = [each for each in ranks if each in devices]
    return (*here, *(each for each in devices if each not in here))


def slices_of(
    initializers: Mapping[str, Initializer], bundles: Sequence[Bundle]
) -> dict[str, tuple[Slice, ...]]:
    """Slices of every parameter in a bundle, as ``torch.chunk`` makes them; whole for few rows."""
    held: Counter[str] = Counter()
    slices: dict[str, tuple[Slice, ...]] = {}
    for bundle in bundles:
        for k in bundle.names:
            if k not in initializers:  # a batch of another kind does not read it
                continue
            own = initializers[k]
            rows = own.shape[0] if own.shape else 1
            if bundle.whole or rows < len(bundle.devices):
                home = min(bundle.devices, key=lambda device: held[device])
                slices[k] = (Slice(home, 0, rows),)
            else:
                size = ceil(rows / len(bundle.devices))
                starts = range(0, rows, size)
                slices[k] = tuple(
                    Slice(device, start, min(start + size, rows))
                    for device, start in zip(bundle.devices, starts, strict=False)
                )
            held.update({each.device: each.nbytes(own) for each in slices[k]})
    return slices


def largest_slices(
    initializers: Mapping[str, Initializer], bundle: Bundle, slices: Mapping[str, Sequence[Slice]]
) -> tuple[int, int]:
    """Bytes of the device that has most of a bundle: as they are, and of gradients in float32 at least."""
    nbytes, grads = Counter[str](), Counter[str]()
    for k in bundle.names:
        own = initializers[k]
        for each in slices[k]:
            nbytes[each.device] += each.nbytes(own)
            if own.requires_grad:
                one = dtype_bytes(own.dtype)
                grads[each.device] += each.nbytes(own) * max(4, one) // one
    return max(nbytes.values()), max(grads.values(), default=0)
