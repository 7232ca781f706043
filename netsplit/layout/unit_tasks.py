"""Unit tasks: a slice of the tensor, who has it, who needs it (AlpaComm, appendix B.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from netsplit.errors import ReshardError
from netsplit.layout.layout import Box, DeviceName, Layout, volume

__all__ = ["UnitTask", "unit_tasks"]


@dataclass(frozen=True)
class UnitTask:
    """A slice that is on the same devices before, and on the same devices after.

    Args:
        region: of the tensor; never empty.
        senders: devices of the source that have it, in the order of its mesh.
        receivers: devices of the destination that need it and do not have it, in the order of its mesh.
        keepers: those of the senders that need it, too: each copies it from its old piece into its new one.
    """

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
                f"'{layout.spec}' is a partial sum along axes {list(layout.partial)} of its mesh, which is "
                "not resharded: reduce it on its own mesh first."
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
