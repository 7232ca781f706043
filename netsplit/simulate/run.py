"""The predicting interpreter: the instructions the runtime executes, in time instead of tensors.

    device p   ──Send──► ┐                      ┌─► arrived ──► the Forward or Backward that waits, on q
                         ├─► ready ──► link p→q ┤
    device q   ──Recv──► ┘   (a heap, by time)  └─► free for the next

A device does one computation at a time; sending and receiving do not occupy it. A transfer occupies its
directed link, and between hosts their NICs (`NicQueues`). It is ready when both ends have come to it
(rendezvous, as gloo and NCCL have it), and what it hands on has come to its sender; where it goes in chunks,
each is a transfer of its own. A link takes transfers in the order in which they become ready, ties by tag. A
sum over devices is ready when all of them have come to it, and occupies the links of its ring.

Where computations neither slow one another nor are slowed by transfers, an end is known as soon as its
beginning is, and every device runs ahead until it waits. Otherwise see `contention`.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from netsplit.cluster.cluster import Cluster
from netsplit.errors import ConfigError
from netsplit.profile.costs import Costs
from netsplit.program.check import check_progress
from netsplit.program.instructions import Collective, Program, Recv, Send
from netsplit.simulate.tasks import (
    Key,
    Message,
    ProgramTasks,
    Task,
    missing_link,
    reduce_bytes,
    reduce_seconds,
    times_round,
)  # fmt: skip
from netsplit.simulate.timeline import Event

__all__ = ["DeviceClock", "Run"]

_Ready: TypeAlias = tuple[float, int, Send | Collective, Recv | None]
"""Since when, tag (of a chunk its own), and what."""


@dataclass(eq=False)
class DeviceClock:
    """How far a device has come."""

    name: str
    tasks: list[Task]
    at: int = 0
    clock: float = 0.0
    missing: int = 0  # of what the task it stands at waits for
    sends: list[Send] = field(default_factory=list)
    sums: list[Collective] = field(default_factory=list)


class Run:
    """One simulated iteration; `events` and the devices' clocks are its result."""

    def __init__(self, program: Program, cluster: Cluster, costs: Costs) -> None:
        self.program = program
        self.cluster = cluster
        self.links = cluster.links
        tasks = ProgramTasks(program, cluster, costs)
        self.devices = {name: DeviceClock(name, tasks.of[name]) for name in program.devices}
        self.events: list[Event] = []
        self.met: dict[int, list[tuple[float, Message]]] = {}  # tag -> who came so far, and when
        self.ready: list[_Ready] = []
        self.link_free: dict[tuple[str, str], float] = {}
        self.nics = NicQueues(cluster)
        self.arrived: dict[Key, tuple[float, Message]] = {}
        self.ended: dict[int, float] = {}  # tag -> when the transfer ended
        self.waiting: dict[Key, DeviceClock] = {}
        self.handed_on = tasks.handed_on
        self.sizes: dict[int, tuple[int, ...]] = {}  # tag of a Send -> bytes of its messages
        self.held_back: dict[Key, list[_Ready]] = {}  # what has met, and goes once this has arrived

    def run(self) -> None:
        for device in self.devices.values():
            self.advance(device)
        self.proceed()
        self.finish()

    def proceed(self) -> None:
        """Until nothing happens any more."""
        while self.ready:
            self.transfer()

    def advance(self, device: DeviceClock) -> None:
        """Go on until the device waits for a transfer whose end is not known yet."""
        tasks = device.tasks
        while device.at < len(tasks):
            task = tasks[device.at]
            if task.keys:
                absent = [key for key in task.keys if key not in self.arrived]
                if absent:
                    device.missing = len(absent)
                    self.waiting.update(dict.fromkeys(absent, device))
                    return
            device.clock += task.overhead_s
            for key in task.keys:
                self._wait(device, *self.arrived[key])
            device.at += 1
            if task.message is not None:
                self._meet(device, task.message)
            elif not self.compute(device, task):
                return

    def compute(self, device: DeviceClock, task: Task) -> bool:
        """Whether the device may go on at once."""
        start = device.clock
        device.clock = start + task.seconds
        assert task.kind is not None
        self.events.append(Event(device.name, task.kind, task.name, task.microbatch, start, device.clock))
        return True

    def transfer(self) -> None:
        """Let the transfer that became ready first have its link, or wait for it on its way to another host.

        Whatever becomes ready later in this loop does so through a transfer that ended later: no
        transfer is overtaken by one that the heap does not know yet.
        """
        ready, tag, first, recv = heapq.heappop(self.ready)
        if isinstance(first, Collective):
            self._sum(ready, tag, first)
            return
        assert recv is not None
        link = (recv.peer, first.peer)
        if link not in self.links:
            raise ConfigError(missing_link(*link))
        chunk, sizes = tag - first.tag, self.sizes[first.tag]
        nbytes = sizes[chunk]
        start = max(ready, self.link_free.get(link, 0.0))
        if self._put_off([link], start, (ready, tag, first, recv)):
            return
        end = start + self.links[link].seconds(nbytes)
        self.nics.hold([link], start, nbytes)
        self.link_free[link] = self.ended[first.tag] = end
        name = f"gradient of {first.source}" if first.gradient else first.source
        self.events.append(Event(link[0], "send", name, first.microbatch, start, end, link[1], nbytes))
        self.moving(link, start, end, nbytes)
        key = recv.variable, recv.microbatch, recv.gradient
        if len(sizes) > 1:
            self._arrive((*key, chunk), end, recv)
        if chunk == len(sizes) - 1:  # they end in their order: each waits for the link
            self._arrive(key, end, recv)

    def moving(self, ends: tuple[str, ...], start: float, end: float, nbytes: float) -> None:
        """Called when bytes are known to move, for what they do to computations of the devices `ends`."""

    def finish(self) -> None:
        """Every device waits for the last of its sends, as the executor does."""
        if self.met or any(device.at < len(device.tasks) for device in self.devices.values()):
            check_progress(self.program)
            raise AssertionError("the simulator stands still in a program that was proved to complete")
        for device in self.devices.values():
            begun: list[Message] = [*device.sends, *device.sums]
            for message in begun:
                self._wait(device, self.ended[message.tag], message)

    def _put_off(self, links: list[tuple[str, str]], start: float, waits: _Ready) -> bool:
        """Whether what was ready waits for a link or a NIC on its way to another host: then it comes again
        when that is free, and whatever can begin before goes first."""
        free_at = self.nics.free_at(links)
        if free_at is None or (start := max(start, free_at)) <= waits[0]:
            return False
        heapq.heappush(self.ready, (start, *waits[1:]))
        return True

    def _sum(self, ready: float, tag: int, reduce: Collective) -> None:
        ring = self.cluster.ring(reduce.devices)
        seconds = reduce_seconds(self.program, self.cluster, reduce)
        start = max([ready, *(self.link_free.get(link, 0.0) for link in ring)])
        if self._put_off(ring, start, (ready, tag, reduce, None)):
            return
        end = self.ended[reduce.tag] = start + seconds
        self.link_free.update(dict.fromkeys(ring, end))
        nbytes = reduce_bytes(self.program, reduce)
        moved = times_round(reduce) * (len(ring) - 1) / len(ring) * nbytes if ring else 0.0
        self.nics.hold(ring, start, moved)
        for name in reduce.devices:
            self.events.append(Event(name, "reduce", str(reduce), -1, start, end, nbytes=nbytes))
        self.moving(reduce.devices, start, end, 2 * moved)
        for name in reduce.devices:
            self._arrive((reduce.tag, name), end, reduce)

    def _arrive(self, key: Key, end: float, message: Message) -> None:
        self.arrived[key] = (end, message)
        for ready, tag, first, recv in self.held_back.pop(key, ()):
            self._begin_once_there((max(ready, end), tag, first, recv))
        device = self.waiting.pop(key, None)
        if device is not None:
            device.missing -= 1
            if device.missing == 0:
                self.advance(device)

    def _meet(self, device: DeviceClock, ins: Message) -> None:
        if isinstance(ins, Send):
            device.sends.append(ins)
        elif isinstance(ins, Collective):
            device.sums.append(ins)
        came = self.met.setdefault(ins.tag, [])
        came.append((device.clock, ins))
        if len(came) < (len(ins.devices) if isinstance(ins, Collective) else 2):
            return
        del self.met[ins.tag]
        ready = max(clock for clock, _ in came)
        first, recv = came[0][1], came[-1][1]
        if isinstance(first, Recv):
            first, recv = recv, first
        assert not isinstance(first, Recv)
        if isinstance(first, Collective) or not isinstance(recv, Recv):
            heapq.heappush(self.ready, (ready, ins.tag, first, None))
            return
        sizes = self.sizes[ins.tag] = self.program.sizes(first)
        for chunk in range(len(sizes)):
            self._begin_once_there((ready, ins.tag + chunk, first, recv))

    def _begin_once_there(self, waits: _Ready) -> None:
        """Let it take its turn, once all that it hands on has come to its sender."""
        ready, tag, first, recv = waits
        whole = isinstance(first, Collective) or len(self.sizes[first.tag]) == 1
        for own in self.handed_on.get(first.tag, ()):
            key = own if whole else (*own, tag - first.tag)
            if key not in self.arrived:
                self.held_back.setdefault(key, []).append(waits)
                return
            ready = max(ready, self.arrived[key][0])
        heapq.heappush(self.ready, (ready, tag, first, recv))

    def _wait(self, device: DeviceClock, end: float, message: Message) -> None:
        if end > device.clock:
            if isinstance(message, Collective):
                name, i, peer = str(message), -1, ", ".join(message.devices)
            else:
                name, i, peer = message.what, message.microbatch, message.peer
            self.events.append(Event(device.name, "wait", name, i, device.clock, end, peer))
            device.clock = end


class NicQueues:
    """When each direction of each NIC is free: it takes one transfer at a time.

    host A   d0 ──┐             ┌──► d4   host B       d0→d4  ▒▒▒▒▒▒▒▒ready first
             d1 ──┴─out─────in──┴──► d5                d1→d5          ▒▒▒▒▒▒▒▒

    Of several transfers that could begin, the first by tag does. It holds its NICs for its bytes: not for
    the link's latency. One that waits for a NIC keeps no other from those that are free.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.free: dict[tuple[str, str], float] = {}

    def free_at(self, links: Sequence[tuple[str, str]]) -> float | None:
        """When all NICs are free that these links go through; None: they go through none."""
        if not self.cluster.nics:
            return None
        ways = [nic for link in links for nic, _ in self.cluster.way(*link)]
        return max((self.free.get(nic, 0.0) for nic in ways), default=None)

    def hold(self, links: Sequence[tuple[str, str]], start: float, nbytes: float) -> None:
        """From its start on, for the bytes that go over each of the links; which leave a host once."""
        if self.cluster.nics:
            for link in links:
                for nic, pace in self.cluster.way(*link):
                    self.free[nic] = start + nbytes * pace
