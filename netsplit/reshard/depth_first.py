"""Depth-first search with pruning over senders and orders (AlpaComm, section 3.2).

Tasks are placed by the seconds at which they start, so that each schedule is met once. A branch ends where

    what a NIC has done and must still do       the sum over its tasks that are left (AlpaComm, equation 4)
    what all senders have done and must do      together, over their number

is not below the best schedule that is known, or where the same NICs were as free with the same tasks left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from netsplit.reshard.host_schedule import HostSchedule, HostTask, timed

__all__ = ["depth_first"]

_NODES = 20_000
_BELOW = 1.0 - 1e-9


def depth_first(tasks: Sequence[HostTask], known: HostSchedule, most_nodes: int = _NODES) -> HostSchedule:
    """The best schedule, proven; or the best within so many nodes, never longer than the known one."""
    if not tasks:
        return replace(known, proven=True)
    return _OrderSearch(tasks, known, most_nodes).run()


@dataclass
class _Partial:
    """A partial schedule, and the ways on that are not yet tried."""

    left: int  # bits of tasks
    free: tuple[float, ...]  # of every NIC, sending ones first
    start: float
    place: tuple[int, int]  # the last task and its sender
    ways: Iterator[tuple[float, int, int]] = field(default_factory=lambda: iter(()))


class _OrderSearch:
    def __init__(self, tasks: Sequence[HostTask], known: HostSchedule, most_nodes: int) -> None:
        self.tasks, self.best, self.most_nodes = tasks, known, most_nodes
        senders = sorted({host for task in tasks for host in task.senders})
        receivers = sorted({host for task in tasks for host in task.receivers})
        self.outs = len(senders)
        self.senders = [[senders.index(host) for host in task.senders] for task in tasks]
        self.receivers = [[self.outs + receivers.index(host) for host in task.receivers] for task in tasks]
        self.least = [min(task.seconds) for task in tasks]
        self.nics = self.outs + len(receivers)
        self.alike = [tasks.index(task) for task in tasks]
        self.visited: set[tuple[int, tuple[float, ...], float, int]] = set()

    def run(self) -> HostSchedule:
        root = _Partial((1 << len(self.tasks)) - 1, (0.0,) * self.nics, 0.0, (-1, 0))
        at_least = self._at_least(root.left, root.free)
        root.ways = self._ways(root)
        stack = [root]
        nodes = 0
        while stack and self.best.seconds * _BELOW > at_least:
            way = next(stack[-1].ways, None)
            if way is None:
                stack.pop()
                continue
            if nodes == self.most_nodes:
                return self.best
            nodes += 1
            child = self._child(stack[-1], *way)
            if not child.left:
                places = [node.place for node in [*stack[1:], child]]
                self._take(places)
            elif self._may_be_better(child):
                child.ways = self._ways(child)
                stack.append(child)
        return replace(self.best, proven=True)

    def _ways(self, node: _Partial) -> Iterator[tuple[float, int, int]]:
        """(start, task, sender) in the order of trial: soonest first, then longest."""
        ways = []
        offered = set()
        for i in range(len(self.tasks)):
            if not node.left >> i & 1 or self.alike[i] in offered:
                continue
            offered.add(self.alike[i])
            into = max((node.free[nic] for nic in self.receivers[i]), default=0.0)
            for s, nic in enumerate(self.senders[i]):
                start = max(into, node.free[nic], node.start)
                if (start, i) > (node.start, node.place[0]):
                    ways.append((start, i, s))
        return iter(sorted(ways, key=lambda way: (way[0], -self.tasks[way[1]].seconds[way[2]], way[1:])))

    def _child(self, node: _Partial, start: float, i: int, s: int) -> _Partial:
        end = start + self.tasks[i].seconds[s]
        held = {self.senders[i][s], *self.receivers[i]}
        free = tuple(end if nic in held else max(at, start) for nic, at in enumerate(node.free))
        return _Partial(node.left & ~(1 << i), free, start, (i, s))

    def _at_least(self, left: int, free: Sequence[float]) -> float:
        """The earliest end of what is left on the NICs."""
        busy = list(free)
        sending = sum(free[: self.outs])
        for i, seconds in enumerate(self.least):
            if left >> i & 1:
                sending += seconds
                for nic in self.receivers[i]:
                    busy[nic] += seconds
                if len(self.senders[i]) == 1:
                    busy[self.senders[i][0]] += seconds
        return max(*busy, sending / self.outs)

    def _may_be_better(self, node: _Partial) -> bool:
        if self._at_least(node.left, node.free) >= self.best.seconds * _BELOW:
            return False
        key = node.left, node.free, node.start, node.place[0]
        if key in self.visited:
            return False
        self.visited.add(key)
        return True

    def _take(self, places: Sequence[tuple[int, int]]) -> None:
        chosen = [0] * len(self.tasks)
        for i, s in places:
            chosen[i] = s
        schedule = timed(self.tasks, [i for i, _ in places], chosen)
        if schedule.seconds < self.best.seconds:
            self.best = schedule
