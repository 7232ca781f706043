"""Unit tasks as hosts and their NICs carry them (AlpaComm, appendix B.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from netsplit.layout import DeviceName, UnitTask
from netsplit.reshard.network import Network

__all__ = ["by_hosts", "divided", "inside_apart"]


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
