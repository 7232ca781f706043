"""Unit tasks: a slice of the tensor, who has it, who needs it (AlpaComm, appendix B.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

from netsplit.reshard.layout import Box, DeviceName, Layout, volume
from netsplit.reshard.network import Network

__all__ = ["UnitTask", "by_hosts", "divided", "inside_apart", "unit_tasks"]


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
        ReshardError: a layout is for another number of dimensions.
    """
    held, needed = source.regions(shape), destination.regions(shape)
    edges: list[set[int]] = [{0, size} for size in shape]
    for box in {*held.values(), *needed.values()}:
        for cuts, ends in zip(edges, box, strict=True):
            cuts.update(ends)
    intervals = [list(pairwise(sorted(cuts))) for cuts in edges]
    tasks = []
    for region in product(*intervals):
        senders = tuple(device for device, box in held.items() if _within(region, box))
        targets = [device for device, box in needed.items() if _within(region, box)]
        receivers = tuple(device for device in targets if device not in senders)
        keepers = tuple(device for device in targets if device in senders)
        tasks.append(UnitTask(region, senders, receivers, keepers))
    return tasks


def _within(inner: Box, outer: Box) -> bool:
    return all(a <= start and stop <= b for (start, stop), (a, b) in zip(inner, outer, strict=True))


def inside_apart(tasks: Sequence[UnitTask], network: Network) -> list[UnitTask]:
    """The same, with receivers on hosts that have the slice already as tasks of their own, one a host.

    So that nothing passes a NIC for a host that has it; the others come first, in their order.
    """
    across, inside = [], []
    for task in tasks:
        havers = by_hosts(task.senders, network)
        groups = by_hosts(task.receivers, network)
        own = {host: group for host, group in groups.items() if host in havers}
        others = tuple(device for device in task.receivers if network.host(device) not in own)
        if others or task.keepers:
            across.append(replace(task, receivers=others))
        inside += [UnitTask(task.region, havers[host], group) for host, group in own.items()]
    return across + inside


def divided(tasks: Sequence[UnitTask], network: Network) -> list[UnitTask]:
    """The same, with slices that several hosts have cut into as many, along their longest dimension."""
    pieces = []
    for task in tasks:
        lengths = [stop - start for start, stop in task.region]
        length = max(lengths, default=1)
        parts = min(len(by_hosts(task.senders, network)), length)
        if parts == 1:
            pieces.append(task)
            continue
        d = lengths.index(length)
        first = task.region[d][0]
        for i in range(parts):
            ends = first + length * i // parts, first + length * (i + 1) // parts
            pieces.append(replace(task, region=(*task.region[:d], ends, *task.region[d + 1 :])))
    return pieces


def by_hosts(devices: Sequence[DeviceName], network: Network) -> dict[str, tuple[DeviceName, ...]]:
    """Devices of each host, in their order."""
    groups: dict[str, tuple[DeviceName, ...]] = {}
    for device in devices:
        host = network.host(device)
        groups[host] = (*groups.get(host, ()), device)
    return groups
