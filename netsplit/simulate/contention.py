"""Simulation where computations slow one another: every computation has a rate, which changes as others
begin and end.

    cpu:0   ──────────forward──────────            rate 1        alone on its host
    cpu:1            ──────backward─────────       rate 1/c      another device of the host computes too
    cpu:2               ──forward──                rate 2/3c     three compute, and there are two processors
    cpu:0→1             ▒▒▒send▒▒▒                 rate less s   copying takes the part s of both ends' time

An agenda, by time, holds when computations begin and end and when transfers do; an end moves when the rate
changes. CPU devices of one host share its memory and take turns on its processors (`DeviceCosts.slowdown`);
a device whose host is not said shares nothing.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise

from netsplit.cluster.cluster import Cluster
from netsplit.profile.costs import Costs
from netsplit.program.instructions import Program
from netsplit.simulate.run import DeviceClock, Run
from netsplit.simulate.tasks import Task
from netsplit.simulate.timeline import Event

__all__ = ["Contended", "contends"]

_END, _COPY_END, _COPY, _BEGIN = range(4)  # of what happens at one moment, in this order


def contends(cluster: Cluster, costs: Costs) -> bool:
    """Whether anything in the costs slows a computation of one of these devices."""
    slowdowns = costs.slowdowns(cluster.devices)
    return any(
        slowdowns[device.name][-1] != 1.0 or costs.of(device.kind).copy_s_per_byte > 0
        for device in cluster.devices
    )


@dataclass(eq=False)
class _ComputePace:
    """How a device's computation goes. Seconds of `left` are those it would take undisturbed."""

    slower: tuple[float, ...]  # by how many devices of its host compute
    host: str | None  # whose memory it shares
    copy_s_per_byte: float
    task: Task | None = None
    start: float = 0.0
    left: float = 0.0
    since: float = 0.0  # when `left` was so
    rate: float = 1.0
    number: int = 0  # of its ends on the agenda the last one counts
    copying: float = 0.0  # fraction of the device's time that transfers take


class Contended(Run):
    """As `Run`, and equal to it where nothing slows anything."""

    def __init__(self, program: Program, cluster: Cluster, costs: Costs) -> None:
        super().__init__(program, cluster, costs)
        slowdowns = costs.slowdowns(cluster.devices)
        self.paces = {
            device.name: _ComputePace(
                slowdowns[device.name], device.memory_host, costs.of(device.kind).copy_s_per_byte
            )
            for device in cluster.devices
        }
        self.agenda: list[tuple[float, int, int, str, float]] = []  # time, what, number, device, its fraction
        self.number = 0
        self.busy: Counter[str] = Counter()  # host -> its devices that compute
        self.steps: dict[str, set[int]] = defaultdict(set)  # of them, that slow some more than one less does
        for pace in self.paces.values():
            if pace.host is not None:
                more = enumerate(pairwise(pace.slower), 1)
                self.steps[pace.host].update(k for k, (one_less, so_many) in more if so_many != one_less)

    def proceed(self) -> None:
        while self.ready or self.agenda:
            if not self.agenda or (self.ready and self.ready[0][0] < self.agenda[0][0]):
                self.transfer()
                continue
            t, what, number, name, fraction = heapq.heappop(self.agenda)
            pace = self.paces[name]
            if what == _BEGIN:
                self._begin(name, t)
            elif what == _END:
                if number == pace.number and pace.task is not None:
                    self._end(name, t)
            else:
                pace.copying += fraction if what == _COPY else -fraction
                self._change(name, t)

    def compute(self, device: DeviceClock, task: Task) -> bool:
        self.paces[device.name].task = task
        self._note(device.clock, _BEGIN, device.name)
        return False

    def moving(self, ends: tuple[str, ...], start: float, end: float, nbytes: float) -> None:
        for name in ends:
            copying_s = self.paces[name].copy_s_per_byte * nbytes
            if copying_s > 0 and end > start:
                fraction = min(copying_s / (end - start), 1.0)
                self._note(start, _COPY, name, fraction)
                self._note(end, _COPY_END, name, fraction)

    def _note(self, t: float, what: int, name: str, fraction: float = 0.0) -> int:
        self.number += 1
        heapq.heappush(self.agenda, (t, what, self.number, name, fraction))
        return self.number

    def _begin(self, name: str, t: float) -> None:
        pace = self.paces[name]
        assert pace.task is not None
        pace.start = pace.since = t
        pace.left = pace.task.seconds
        if pace.host is not None:
            self.busy[pace.host] += 1
        pace.rate = self._rate(pace)
        self._plan_end(name)
        if pace.host is not None and self.busy[pace.host] in self.steps[pace.host]:
            self._change_others(name, pace.host, t)

    def _end(self, name: str, t: float) -> None:
        pace, device = self.paces[name], self.devices[name]
        task, pace.task = pace.task, None
        assert task is not None
        assert task.kind is not None
        device.clock = t
        self.events.append(Event(name, task.kind, task.name, task.microbatch, pace.start, t))
        pace.number = 0
        if pace.host is not None:
            self.busy[pace.host] -= 1
            if self.busy[pace.host] + 1 in self.steps[pace.host]:
                self._change_others(name, pace.host, t)
        self.advance(device)

    def _change_others(self, name: str, host: str, t: float) -> None:
        for other, pace in self.paces.items():
            if other != name and pace.host == host:
                self._change(other, t)

    def _change(self, name: str, t: float) -> None:
        """Count what was done at the old rate, and plan the end at the new one."""
        pace = self.paces[name]
        if not pace.number:
            return  # computes nothing
        rate = self._rate(pace)
        if rate != pace.rate:
            pace.left = max(pace.left - pace.rate * (t - pace.since), 0.0)
            pace.since, pace.rate = t, rate
            self._plan_end(name)

    def _rate(self, pace: _ComputePace) -> float:
        rate = min(max(1.0 - pace.copying, 0.0), 1.0)
        return rate if pace.host is None else rate / pace.slower[self.busy[pace.host]]

    def _plan_end(self, name: str) -> None:
        pace = self.paces[name]
        if pace.rate < _STANDS:  # stands still until a transfer ends
            self.number += 1
            pace.number = self.number
            return
        end = pace.since + (pace.left if pace.rate == 1.0 else pace.left / pace.rate)
        pace.number = self._note(end, _END, name)


_STANDS = 1e-9
