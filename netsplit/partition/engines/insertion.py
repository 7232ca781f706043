"""List scheduling with insertion: what `heft` and `dpos` share.

A node is two tasks, its forward and, where a gradient passes, its backward:

    f(u) ──k──► f(v)          task v < n is the forward of node v, task n + v its backward
      │           │           f(v) ──► b(v) stays on one device
      ▼           ▼           b(v) ──► b(u) carries the gradient of k back
    b(u) ◄──k── b(v)

Tasks are taken in a given order, each is started in the earliest idle slot of a device that is long
enough. The model is the scheduling literature's: a device does one task at a time, a message takes
``latency + bytes * seconds_per_byte`` and never waits for another message.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf

import numpy as np

from netsplit.partition.base import Problem
from netsplit.partition.common.capacity import fill_in_order, infeasible
from netsplit.partition.common.instance import Floats, Instance, Ints
from netsplit.partition.common.placing_clock import PlacingClock
from netsplit.partition.common.room import Room

__all__ = ["Chooser", "IdleSlots", "PartialSchedule", "StepTasks", "schedule_within_memory"]

RETRIES = 4


class IdleSlots:
    """The idle time of one device. All times in seconds from 0; the last slot never ends."""

    def __init__(self) -> None:
        self._starts: list[float] = [0.0]
        self._ends: list[float] = [inf]
        self._borders: list[float] = []  # starts and ends of what is booked

    def earliest(self, ready_s: float, seconds: float) -> float:
        """When a task that may begin at `ready_s` begins: in the first slot that is long enough for it.

        A task of 0 seconds also fits between two that follow one another without a pause.
        """
        i = bisect_right(self._ends, ready_s)
        if seconds == 0.0 and self._starts[i] > ready_s:
            return self._borders[bisect_left(self._borders, ready_s)]
        start = max(ready_s, self._starts[i])
        while start + seconds > self._ends[i]:
            i += 1
            start = self._starts[i]
        return start

    def book(self, start_s: float, seconds: float) -> float:
        """Occupy a span which `earliest` gave; returns its end."""
        end_s = start_s + seconds
        if seconds == 0.0:
            return end_s
        insort(self._borders, start_s)
        insort(self._borders, end_s)
        i = bisect_right(self._ends, start_s)
        begin, finish = self._starts[i], self._ends[i]
        assert begin <= start_s, "a task was booked where the device is busy"
        assert end_s <= finish, "a task was booked where the device is busy"
        left = [(a, b) for a, b in ((begin, start_s), (end_s, finish)) if a < b]
        self._starts[i : i + 1] = [a for a, _ in left]
        self._ends[i : i + 1] = [b for _, b in left]
        return end_s


@dataclass(frozen=True, eq=False)
class StepTasks:
    """The tasks of a problem. Shapes: n nodes, D devices, E edges; at most 2n tasks."""

    n: int
    order: Ints  # tasks, in a topological order: forwards as captured, backwards the other way round
    seconds: Floats  # [2n, D]
    source: Ints  # [E] task
    target: Ints  # [E] task
    messages: Ints  # [E] variables that target reads of source; 0 where both share a device anyway
    nbytes: Ints  # [E] bytes of these

    @classmethod
    def of(cls, instance: Instance) -> StepTasks:
        n = instance.n
        forward: dict[tuple[int, int], list[int]] = {}
        backward: dict[tuple[int, int], list[int]] = {}
        trained, requires_backward = instance.trained.tolist(), instance.requires_backward.tolist()
        producer, nbytes = instance.producer.tolist(), instance.nbytes.tolist()
        for v in range(n):
            for k in instance.reads[v].tolist():
                u = producer[k]
                forward.setdefault((u, v), []).append(nbytes[k])
                if requires_backward[k] and trained[v]:
                    backward.setdefault((n + v, n + u), []).append(nbytes[k])
        own: dict[tuple[int, int], list[int]] = {(v, n + v): [] for v in range(n) if trained[v]}
        edges = {**forward, **own, **backward}
        ends = np.array(list(edges), np.int64).reshape(-1, 2)
        return cls(
            n=n,
            order=np.array([*range(n), *(n + v for v in reversed(range(n)) if trained[v])], np.int64),
            seconds=np.concatenate([instance.forward_s, instance.backward_s]),
            source=ends[:, 0],
            target=ends[:, 1],
            messages=np.array([len(each) for each in edges.values()], np.int64),
            nbytes=np.array([sum(each) for each in edges.values()], np.int64),
        )

    def upward_ranks(self, task_s: Floats, edge_s: Floats) -> Floats:
        """[2n] seconds from the start of a task to the end of all: its own and its longest way out.

        ``rank(i) = w(i) + max over successors j of (c(i, j) + rank(j))`` (Topcuoglu et al., eq. 8).

        Args:
            task_s: [2n] the one number that stands for a task's seconds on all devices.
            edge_s: [E] the one number that stands for the seconds of an edge's messages.
        """
        into = self.feeders()
        seconds, weight = task_s.tolist(), edge_s.tolist()
        tail = [0.0] * len(seconds)
        rank = [0.0] * len(seconds)
        for t in reversed(self.order.tolist()):
            rank[t] = seconds[t] + tail[t]
            for e, u in into[t]:
                tail[u] = max(tail[u], weight[e] + rank[t])
        return np.array(rank)

    def by_rank(self, rank: Floats) -> list[int]:
        """Tasks by falling rank; equal ranks (tasks of 0 seconds) in topological order."""
        return self.order[np.argsort(-rank[self.order], kind="stable")].tolist()

    def feeders(self) -> list[list[tuple[int, int]]]:
        """[2n] -> (edge, feeding task)."""
        edges_into: list[list[tuple[int, int]]] = [[] for _ in range(2 * self.n)]
        for e, (u, t) in enumerate(zip(self.source.tolist(), self.target.tolist(), strict=True)):
            edges_into[t].append((e, u))
        return edges_into


class PartialSchedule:
    """Tasks placed and timed so far; all times in seconds."""

    def __init__(self, instance: Instance, tasks: StepTasks) -> None:
        self.instance = instance
        self.room = Room(instance, instance.capacity)
        self.where = [-1] * len(instance.atoms)  # [A] device of each atom; -1: none yet
        self.start = [0.0] * (2 * instance.n)
        self.finish = [0.0] * (2 * instance.n)
        self.placed_by = "finish time"
        self.reserved: tuple[int, ...] = ()  # atoms that were placed first, to make them fit
        self._slots = [IdleSlots() for _ in instance.devices]
        self._seconds, self._backward_s = tasks.seconds, instance.backward_s
        self._latency, self._pace = instance.latency_s, instance.seconds_per_byte
        atom_of, n = instance.atom_of.tolist(), instance.n
        messages, nbytes = tasks.messages.tolist(), tasks.nbytes.tolist()
        self._feeds = [
            [(u, atom_of[u % n], messages[e], nbytes[e]) for e, u in each] for each in tasks.feeders()
        ]

    def first_to_finish(self, v: int, devices: Ints, preferred: int = -1) -> int:
        """Where EFT = EST + w of node v's forward, with the node's own backward behind it, is least.

        Ties go to the preferred device, then to the first. No device ends before its messages have come and
        it has computed, so devices are asked for their slots by that, until no other can win.
        """
        ready = np.zeros(len(self._slots))  # [D] seconds at which all messages have come
        for u, atom, messages, nbytes in self._feeds[v]:
            q = self.where[atom]  # whose messages to itself take no time
            came = self.finish[u] + (messages * self._latency[q] + nbytes * self._pace[q])
            np.maximum(ready, came, out=ready)
        least = ready[devices] + self._seconds[v, devices] + self._backward_s[v, devices]
        best = (inf, True, -1)
        for i in np.lexsort((devices, devices != preferred, least)).tolist():
            p = int(devices[i])
            if (float(least[i]), p != preferred, p) > best:
                break
            own_s = float(self._seconds[v, p])
            finish = self._slots[p].earliest(float(ready[p]), own_s) + own_s
            best = min(best, (finish + float(self._backward_s[v, p]), p != preferred, p))
        return best[2]

    def book(self, task: int, p: int) -> None:
        """EST: the first idle slot on device p after all messages have come."""
        ready = 0.0
        for u, atom, messages, nbytes in self._feeds[task]:
            came, q = self.finish[u], self.where[atom]
            if q != p:
                came += float(messages * self._latency[q, p] + nbytes * self._pace[q, p])
            if came > ready:
                ready = came
        seconds = float(self._seconds[task, p])
        self.start[task] = self._slots[p].earliest(ready, seconds)
        self.finish[task] = self._slots[p].book(self.start[task], seconds)

    def place(self, atom: int, p: int) -> None:
        self.where[atom] = p
        self.room.take(atom, p)

    @property
    def makespan(self) -> float:
        return max(self.finish, default=0.0)

    def device_of(self) -> dict[str, str]:
        return self.instance.decode([self.where[a] for a in self.instance.atom_of.tolist()])

    def start_of(self) -> dict[str, float]:
        """Node name to the start of its forward."""
        return dict(zip(self.instance.names, self.start, strict=False))

    def notes(self) -> dict[str, int | str]:
        return {"placed_by": self.placed_by, "reserved_atoms": len(self.reserved)}


Chooser = Callable[[PartialSchedule, int, Ints], int]
"""(schedule, forward task of a node whose atom has no device yet, devices where it fits) -> device."""


def schedule_within_memory(
    problem: Problem, method: str, tasks: StepTasks, order: list[int], chooser: Callable[[], Chooser]
) -> PartialSchedule:
    """Place and time all tasks in `order`; an atom goes where its first node is chosen to go.

    A greedy choice may use up the room that a later atom needs. Then everything starts again with
    that atom placed first, on the device with the most room left, up to `RETRIES` times; in the end the
    devices are those of the fill in topological order, and only the times are decided here.

    Args:
        problem: the problem of `tasks`.
        method: its name, for the error.
        tasks: what to schedule.
        order: the tasks, each after those that feed it.
        chooser: makes a fresh `Chooser` for one run.

    Raises:
        InfeasibleError: the fill does not fit either.
        TimeLimitError: the problem's time is over.
    """
    instance = Instance.of(problem)
    reserved: list[int] = []
    clock = PlacingClock(problem, method)
    for _ in range(RETRIES + 1):
        made = PartialSchedule(instance, tasks)
        stuck = _reserve(made, reserved)
        if stuck is None:
            stuck = _run(made, order, chooser(), clock)
        if stuck is None:
            made.reserved = tuple(reserved)
            return made
        if stuck in reserved:
            break
        reserved.append(stuck)
    filled = fill_in_order(problem, instance.capacity.tolist())
    if filled is None:
        raise infeasible(problem, method)
    where = instance.encode(filled)
    made = PartialSchedule(instance, tasks)
    made.placed_by = "fill in topological order"
    for atom in range(len(instance.atoms)):
        made.place(atom, int(where[instance.atoms[atom][0]]))
    _run(made, order, chooser(), clock)
    return made


def _reserve(made: PartialSchedule, atoms: Iterable[int]) -> int | None:
    """Place atoms, the largest first, where the most bytes stay free; or the one that does not fit."""
    for atom in sorted(atoms, key=lambda atom: (-int(made.room.need[atom].max()), atom)):
        devices = made.room.devices(atom).tolist()
        if not devices:
            return atom
        left = made.room.left - made.room.need[atom]
        made.place(atom, max(devices, key=lambda p: (left[p], -p)))
    return None


def _run(made: PartialSchedule, order: list[int], choose: Chooser, clock: PlacingClock) -> int | None:
    """Place and time; the atom that fits nowhere, or None."""
    n, atom_of = made.instance.n, made.instance.atom_of.tolist()
    for task in order:
        atom = atom_of[task % n]
        if made.where[atom] < 0:
            devices = made.room.devices(atom)
            if not len(devices):
                return atom
            clock.tick()
            made.place(atom, choose(made, task, devices))
        made.book(task, made.where[atom])
    return None
