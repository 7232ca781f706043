"""Where the pieces of a tensor lie: a mesh, and a specification of S and R (AlpaComm, section 2.2); and what
one layout needs of another: unit tasks, each a slice, who has it and who needs it (appendix B.2).

    Mesh(("a", "b", "c", "d"), (2, 2))      Layout(mesh, "S0R") of [4, 4]     Layout(mesh, "S01R")

        a b    axis 0 ↓                     a, b: rows 0..2                   a: row 0    b: row 1
        c d    axis 1 →                     c, d: rows 2..4                   c: row 2    d: row 3

One letter a dimension of the tensor: R is whole everywhere, S with axes of the mesh is cut along these, the
first of them first: "S01" and "S10" give pieces to devices in another order. A cut along one axis is that of
`torch.chunk`: pieces of the size rounded up, the last ones smaller or empty; along two, each piece of the
first is cut again. An axis may have sizes of its own for its pieces; blocks, of each of which a piece has a
part (three, of queries, keys and values in one weight); or devices that hold terms of a sum.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise, product
from math import prod
from typing import TypeAlias

from netsplit.errors import ReshardError
from netsplit.layout.regions import blocks_of, both, now, through

__all__ = ["Box", "DeviceName", "Layout", "Mesh", "UnitTask", "unit_tasks", "volume"]

DeviceName: TypeAlias = int | str
"""A device of a cluster by its name, or a process of torch.distributed by its rank."""

Box: TypeAlias = tuple[tuple[int, int], ...]
"""A region of a tensor: first index and the one past the last, of every dimension."""

_LETTERS = re.compile(r"R|S[0-9]+")


def volume(box: Box) -> int:
    """Its elements; 1 of a tensor without dimensions."""
    return prod(stop - start for start, stop in box)


@dataclass(frozen=True)
class Mesh:
    """Devices as an array, in row-major order.

    Raises:
        ReshardError: not as many devices as the shape says, or one twice.
    """

    devices: tuple[DeviceName, ...]
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if prod(self.shape) != len(self.devices) or not self.devices:
            raise ReshardError(
                f"a mesh of shape {self.shape} has {len(self.devices)} devices: give {prod(self.shape)}."
            )
        if len(set(self.devices)) != len(self.devices):
            raise ReshardError(f"a mesh names a device twice: {list(self.devices)}.")

    @cached_property
    def places(self) -> dict[DeviceName, tuple[int, ...]]:
        """The index of every device along the axes, in the order of the devices."""
        return dict(zip(self.devices, product(*map(range, self.shape)), strict=True))


@dataclass(frozen=True)
class Layout:
    """A tensor's pieces on a mesh.

    Args:
        sizes: axis -> of the pieces of each block, or in their proportion, where another axis cuts the block;
            as `torch.chunk` has them, where it does not say.
        blocks: axis -> of how many; 1, where it does not say.
        partial: axes along which each device holds a term of a sum.

    Raises:
        ReshardError: a specification that is none, or that names an axis twice or one that the mesh has not.
    """

    mesh: Mesh
    spec: str
    sizes: Mapping[int, tuple[int, ...]] = field(default_factory=dict, hash=False)
    blocks: Mapping[int, int] = field(default_factory=dict, hash=False)
    partial: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if "P" in self.spec:
            raise ReshardError(
                f"'{self.spec}' has a partial sum, which no dimension has: give its axes as partial, or, to "
                "reshard it, reduce it on its own mesh first."
            )
        if "".join(_LETTERS.findall(self.spec)) != self.spec:
            raise ReshardError(
                f"'{self.spec}' is not a layout: give R, or S and axes, for each dimension, as in S01R."
            )
        named = [*(axis for axes in self.axes for axis in axes), *self.partial]
        if len(set(named)) != len(named):
            raise ReshardError(
                f"'{self.spec}' names an axis of the mesh twice: each cuts one dimension, once."
            )
        if named and max(named) >= len(self.mesh.shape):
            raise ReshardError(
                f"'{self.spec}' names axis {max(named)}, but its mesh has {len(self.mesh.shape)} axes, "
                "numbered from 0."
            )

    @cached_property
    def axes(self) -> tuple[tuple[int, ...], ...]:
        """Per dimension of the tensor the axes that cut it, the outermost first; () where it is whole."""
        return tuple(tuple(map(int, letter[1:])) for letter in _LETTERS.findall(self.spec))

    def region(self, device: DeviceName, shape: Sequence[int]) -> Box:
        """What a device of the mesh holds of a tensor of this shape.

        Raises:
            ReshardError: the specification is for another number of dimensions.
        """
        (*box,) = (runs[0] if len(runs) == 1 else None for runs in self.runs(device, shape))
        if None in box:
            raise ReshardError(f"'{device}' holds several blocks of '{self.spec}': ask for boxes.")
        return tuple(run for run in box if run is not None)

    def boxes(self, device: DeviceName, shape: Sequence[int]) -> list[Box]:
        """What a device holds of a tensor of this shape: several boxes, where it is in blocks."""
        return [tuple(box) for box in product(*self.runs(device, shape))]

    def runs(self, device: DeviceName, shape: Sequence[int]) -> list[list[tuple[int, int]]]:
        """The runs along every dimension that a device holds."""
        if len(shape) != len(self.axes):
            raise ReshardError(
                f"'{self.spec}' is for {len(self.axes)} dimensions, but the tensor has {len(shape)}."
            )
        place, every = self.mesh.places[device], []
        for size, axes in zip(shape, self.axes, strict=True):
            runs = [(0, size)]
            for axis in axes:
                runs = self._cut(runs, axis, place[axis])
            every.append(runs)
        return every

    def _cut(self, runs: list[tuple[int, int]], axis: int, index: int) -> list[tuple[int, int]]:
        """The piece of this number of what lies in runs."""
        blocks = self.blocks.get(axis, 1)
        block = sum(stop - start for start, stop in runs) // blocks
        sizes = self.sizes.get(axis)
        piece = -(-block // self.mesh.shape[axis])
        first, last = (min(piece * (index + end), block) for end in (0, 1))
        if sizes is not None:
            first, last = (sum(sizes[:end]) * block // sum(sizes) for end in (index, index + 1))
        if len(runs) == 1 and blocks == 1:
            return [(runs[0][0] + first, runs[0][0] + last)]
        own = blocks_of(both(first, first), both(last - first, last - first), both(block, block), blocks)
        within = tuple((both(start, start), both(stop, stop)) for start, stop in runs)
        return [(now(start), now(stop)) for start, stop in through(within, own)]

    def regions(self, shape: Sequence[int]) -> dict[DeviceName, Box]:
        """The regions of all its devices, in their order."""
        return {device: self.region(device, shape) for device in self.mesh.devices}


@dataclass(frozen=True)
class UnitTask:
    """A slice that is on the same devices before, and on the same devices after; never empty.

    `receivers` need it and do not have it; `keepers` are the senders that need it too."""

    region: Box
    senders: tuple[DeviceName, ...]
    receivers: tuple[DeviceName, ...]
    keepers: tuple[DeviceName, ...] = ()

    @property
    def elements(self) -> int:
        return volume(self.region)


def unit_tasks(source: Layout, destination: Layout, shape: Sequence[int]) -> list[UnitTask]:
    """All of them, in row-major order of their slices.

    A dimension is cut wherever a piece of the source or of the destination ends.

    Raises:
        ReshardError: a layout is for another number of dimensions, or has a partial sum.
    """
    for layout in (source, destination):
        if layout.partial:
            raise ReshardError(
                f"'{layout.spec}' is a partial sum along axes {list(layout.partial)} of its mesh, which "
                "cannot be resharded: reduce it on its own mesh first."
            )
    held, needed = (
        {each: own.boxes(each, shape) for each in own.mesh.devices} for own in (source, destination)
    )
    edges: list[set[int]] = [{0, size} for size in shape]
    for box in {box for boxes in (*held.values(), *needed.values()) for box in boxes}:
        for cuts, ends in zip(edges, box, strict=True):
            cuts.update(ends)
    intervals = [list(pairwise(sorted(cuts))) for cuts in edges]
    tasks = []
    for region in product(*intervals):
        senders = tuple(device for device, boxes in held.items() if _within(region, boxes))
        targets = [device for device, boxes in needed.items() if _within(region, boxes)]
        receivers = tuple(device for device in targets if device not in senders)
        keepers = tuple(device for device in targets if device in senders)
        tasks.append(UnitTask(region, senders, receivers, keepers))
    return tasks


def _within(inner: Box, boxes: Sequence[Box]) -> bool:
    """Whether it lies in one of them."""
    return any(
        all(a <= start and stop <= b for (start, stop), (a, b) in zip(inner, outer, strict=True))
        for outer in boxes
    )
