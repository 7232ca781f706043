"""Who sends which unit task between hosts, and in which order: ways to choose (AlpaComm, section 3.2).

A unit task holds the NIC of its sender's host in the one direction, and those of its receivers' hosts in the
other, from its start to its end; it starts when those before it, on any of its NICs, have ended.

Depth first, tasks are placed by their start, so that each schedule is met once. A branch ends where a lower
bound is not below the best known schedule, or where the same NICs were as free with the same tasks left:

    what a NIC has done and must still do       the sum over its tasks that are left (AlpaComm, equation 4)
    what all senders have done and must do      together, over their number
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = [
    "ORDERS", "HostSchedule", "HostTask", "depth_first", "greedy", "naive", "size_only", "timed",
]  # fmt: skip

_ROUNDS = 8
_DRAWS = 16
_LOOKS = 200_000  # at a task, by the depth-first search
_NODES = 20_000
_BELOW = 1.0 - 1e-9


@dataclass(frozen=True)
class HostTask:
    """A unit task between hosts, none of which is both sender and receiver; `seconds` with each sender."""

    senders: tuple[str, ...]
    seconds: tuple[float, ...]
    receivers: tuple[str, ...]


@dataclass(frozen=True)
class HostSchedule:
    """An answer: `order` of the tasks; of each its sender's index and its start; seconds until all have
    ended."""

    order: tuple[int, ...]
    chosen: tuple[int, ...]
    starts: tuple[float, ...]
    seconds: float


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


def greedy(tasks: Sequence[HostTask], seed: int) -> HostSchedule:
    """Sets of tasks that share no NIC, one after another, each the largest of some drawn ones.

    Never longer than `naive` and `size_only`, with which it begins. Makes a few whole schedules.
    """
    best = min(naive(tasks), size_only(tasks), key=lambda each: each.seconds)
    drawn = random.Random(seed)
    least_s = busiest_nic_s(tasks)
    for _ in range(_ROUNDS):
        if best.seconds <= least_s:
            break
        left: dict[HostTask, list[int]] = {}
        for i in reversed(range(len(tasks))):
            left.setdefault(tasks[i], []).append(i)
        order: list[int] = []
        chosen = [0] * len(tasks)
        load: dict[str, float] = {}
        while left:
            sets = (_disjoint(left, load, drawn) for _ in range(_DRAWS if len(left) > 1 else 1))
            largest = max(sets, key=lambda each: sum(1 + len(task.receivers) for task in each))
            for task, s in sorted(largest.items(), key=lambda each: -each[0].seconds[each[1]]):
                i = left[task].pop()
                if not left[task]:
                    del left[task]
                order.append(i)
                chosen[i] = s
                load[task.senders[s]] = load.get(task.senders[s], 0.0) + task.seconds[s]
        schedule = timed(tasks, order, chosen)
        if schedule.seconds < best.seconds:
            best = schedule
    return best


def _disjoint(
    left: Mapping[HostTask, Sequence[int]], load: Mapping[str, float], drawn: random.Random
) -> dict[HostTask, int]:
    """Task -> index of its sender: tasks that share no NIC, in random order, those with many equals
    sooner."""
    sending: set[str] = set()
    receiving: set[str] = set()
    fitting: dict[HostTask, int] = {}
    for task in sorted(left, key=lambda task: drawn.expovariate(len(left[task]))):
        free = [s for s, host in enumerate(task.senders) if host not in sending]
        if not free or not receiving.isdisjoint(task.receivers):
            continue
        s = min(free, key=lambda s: (load.get(task.senders[s], 0.0) + task.seconds[s], drawn.random()))
        fitting[task] = s
        sending.add(task.senders[s])
        receiving.update(task.receivers)
    return fitting


def depth_first(tasks: Sequence[HostTask], known: HostSchedule, most_nodes: int = _NODES) -> HostSchedule:
    """The best schedule, or the best found within `most_nodes`; never longer than the known one."""
    return _OrderSearch(tasks, known, most_nodes).run() if tasks else known


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
                break
            nodes += 1
            child = self._child(stack[-1], *way)
            if not child.left:
                places = [node.place for node in [*stack[1:], child]]
                self._take(places)
            elif self._may_be_better(child):
                child.ways = self._ways(child)
                stack.append(child)
        return self.best

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
        """A lower bound of when the NICs end what is left."""
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


def _searched(tasks: Sequence[HostTask], seed: int) -> HostSchedule:
    return depth_first(tasks, greedy(tasks, seed), most_nodes=_LOOKS // max(len(tasks), 10))


Chooser: TypeAlias = Callable[[Sequence[HostTask], int], HostSchedule]
"""From tasks and a seed to a schedule."""
ORDERS: dict[str, Chooser] = {
    "naive": lambda tasks, seed: naive(tasks),
    "size_only": lambda tasks, seed: size_only(tasks),
    "greedy": greedy,
    "depth_first": _searched,
}
