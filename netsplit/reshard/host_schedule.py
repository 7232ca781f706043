"""Who sends which unit task, and in which order: between hosts alone (AlpaComm, equations 1 to 3).

A unit task holds the NIC of its sender's host in the one direction, and those of its receivers' hosts in the
other, from its start to its end. A schedule is an order and a sender of every task; each starts when those
before it, on any of its NICs, have ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["HostSchedule", "HostTask", "busiest_nic_s", "naive", "size_only", "timed"]


@dataclass(frozen=True)
class HostTask:
    """A unit task between hosts, none of which is both sender and receiver; `seconds` with each sender."""

    senders: tuple[str, ...]
    seconds: tuple[float, ...]
    receivers: tuple[str, ...]


@dataclass(frozen=True)
class HostSchedule:
    """An answer: `order` of the tasks; the index of each one's sender, and its start; seconds until all have
    ended. `proven`: no schedule of these tasks is shorter."""

    order: tuple[int, ...]
    chosen: tuple[int, ...]
    starts: tuple[float, ...]
    seconds: float
    proven: bool = False


def timed(tasks: Sequence[HostTask], order: Sequence[int], chosen: Sequence[int]) -> HostSchedule:
    """The schedule of an order and its senders."""
    out: dict[str, float] = {}
    into: dict[str, float] = {}
    starts = [0.0] * len(tasks)
    last = 0.0
    for i in order:
        task = tasks[i]
        sender = task.senders[chosen[i]]
        start = max([out.get(sender, 0.0), *(into.get(host, 0.0) for host in task.receivers)])
        end = start + task.seconds[chosen[i]]
        out[sender] = end
        into.update(dict.fromkeys(task.receivers, end))
        starts[i], last = start, max(last, end)
    return HostSchedule(tuple(order), tuple(chosen), tuple(starts), last)


def busiest_nic_s(tasks: Sequence[HostTask]) -> float:
    """A lower bound of seconds: of each receiving NIC, and of all senders together."""
    into: dict[str, float] = {}
    for task in tasks:
        for host in task.receivers:
            into[host] = into.get(host, 0.0) + min(task.seconds)
    senders = {host for task in tasks for host in task.senders}
    together = sum(min(task.seconds) for task in tasks) / max(len(senders), 1)
    return max([together, *into.values()])


def naive(tasks: Sequence[HostTask]) -> HostSchedule:
    """The first host that has it sends each task; tasks in their own order."""
    return timed(tasks, range(len(tasks)), [0] * len(tasks))


def size_only(tasks: Sequence[HostTask]) -> HostSchedule:
    """Longest first, each from the host that has least to send so far; started in their own order."""
    load: dict[str, float] = {}
    chosen = [0] * len(tasks)
    for i in sorted(range(len(tasks)), key=lambda i: -min(tasks[i].seconds)):
        task = tasks[i]
        chosen[i] = min(
            range(len(task.senders)), key=lambda s: load.get(task.senders[s], 0.0) + task.seconds[s]
        )
        sender = task.senders[chosen[i]]
        load[sender] = load.get(sender, 0.0) + task.seconds[chosen[i]]
    return timed(tasks, range(len(tasks)), chosen)
