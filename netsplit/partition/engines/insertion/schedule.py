"""Tasks are taken in a given order, each is started in the earliest idle slot that is long enough.

The model is the scheduling literature's: a device does one task at a time, a message takes
``latency + bytes * seconds_per_byte`` and never waits for another message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from netsplit.compiled import compiled, inner
from netsplit.errors import TimeLimitError
from netsplit.partition.base import Problem
from netsplit.partition.common.instance import Floats, Instance, Ints, Packed
from netsplit.partition.engines.insertion.tasks import Room, RoomArrays, StepTasks, take_room
from netsplit.partition.partitioner import fill_in_order, infeasible

__all__ = [
    "Chooser",
    "PartialSchedule",
    "PlacingClock",
    "book_slot",
    "earliest_slot",
    "schedule_placed",
    "schedule_within_memory",
    "slots_of",
]


_SHORTEST_S = 2.0  # below it a limit is for methods that search
_LOOKS = 64  # nodes between two looks at the time
RETRIES = 4
_AT_ONCE = 1024  # tasks between two looks at the time


class PlacingClock:
    """The time limit of methods that decide node by node and have no answer until all are placed."""

    def __init__(self, problem: Problem, method: str) -> None:
        self.method, self.nodes, self.placed = method, len(problem.graph), 0
        self.limit_s = problem.time_limit_s and max(problem.time_limit_s, _SHORTEST_S)
        self.began = time.perf_counter()

    def tick(self, nodes: int = 1) -> None:
        """Count so many nodes more.

        Raises:
            TimeLimitError: the time is over.
        """
        looks = self.placed // _LOOKS
        self.placed += nodes
        if self.limit_s is None or self.placed // _LOOKS == looks:
            return
        if time.perf_counter() > self.began + self.limit_s:
            raise TimeLimitError(
                f"{self.method} placed only {self.placed} of {self.nodes} nodes in {self.limit_s:g} s: give "
                "it more time, or use auto, which keeps its time limit."
            )


class Slots(NamedTuple):
    """Slots of every device; all times in seconds from 0, ascending. The last slot never ends."""

    idle: Ints  # [D] slots
    starts: Floats  # [D, most slots]
    ends: Floats  # [D, most slots]
    booked: Ints  # [D] of `borders`
    borders: Floats  # [D, most borders] starts and ends of what is booked


def slots_of(devices: int, tasks: int) -> Slots:
    """Idle throughout, with room for so many tasks on each."""
    starts, ends = np.empty((2, devices, tasks + 1))
    starts[:, 0], ends[:, 0] = 0.0, np.inf
    nothing = np.zeros(devices, np.int64)
    return Slots(nothing + 1, starts, ends, nothing, np.empty((devices, 2 * tasks)))


@compiled
def earliest_slot(slots: Slots, p: int, ready_s: float, seconds: float) -> float:
    """When a task that may begin at `ready_s` begins: in the first slot that is long enough for it.

    A task of 0 seconds also fits between two that follow one another without a pause.
    """
    i = _first_above(slots.ends, p, slots.idle[p], ready_s)
    if seconds == 0.0 and slots.starts[p, i] > ready_s:
        return float(slots.borders[p, _first_from(slots.borders, p, slots.booked[p], ready_s)])
    start = max(ready_s, slots.starts[p, i])
    while start + seconds > slots.ends[p, i]:
        i += 1
        start = slots.starts[p, i]
    return float(start)


@compiled
def book_slot(slots: Slots, p: int, start_s: float, seconds: float) -> float:
    """Occupy a span which `earliest_slot` gave; returns its end."""
    end_s = start_s + seconds
    if seconds == 0.0:
        return end_s
    for border in (start_s, end_s):
        _insert(
            slots.borders, p, _first_above(slots.borders, p, slots.booked[p], border), slots.booked, border
        )
    i = _first_above(slots.ends, p, slots.idle[p], start_s)
    begin, finish = slots.starts[p, i], slots.ends[p, i]
    assert begin <= start_s  # else the device is busy
    assert end_s <= finish
    before, behind = begin < start_s, end_s < finish
    if before and behind:
        slots.ends[p, i] = start_s
        _insert(slots.starts, p, i + 1, slots.idle, end_s)
        slots.idle[p] -= 1
        _insert(slots.ends, p, i + 1, slots.idle, finish)
    elif before:
        slots.ends[p, i] = start_s
    elif behind:
        slots.starts[p, i] = end_s
    else:
        slots.idle[p] -= 1
        for j in range(i, slots.idle[p]):
            slots.starts[p, j], slots.ends[p, j] = slots.starts[p, j + 1], slots.ends[p, j + 1]
    return end_s


@inner
def _insert(rows: Floats, p: int, i: int, count: Ints, value: float) -> None:
    """Before the i-th of the row, which has one more then."""
    for j in range(count[p], i, -1):
        rows[p, j] = rows[p, j - 1]
    rows[p, i] = value
    count[p] += 1


@inner
def _first_above(rows: Floats, p: int, count: int, value: float) -> int:
    """The first of the row's that is greater."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if value < rows[p, middle]:
            high = middle
        else:
            low = middle + 1
    return low


@inner
def _first_from(rows: Floats, p: int, count: int, value: float) -> int:
    """The first of the row's that is as great, or greater."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if rows[p, middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


ON, ASK, STUCK = range(3)
"""All tasks that were asked for are timed; a node of the path needs another device; a node fits nowhere."""


class TaskArrays(NamedTuple):
    """Tasks and devices. Shapes as `StepTasks` has them."""

    seconds: Floats  # [2n, D]
    backward_s: Floats  # [n, D]
    feeding: Packed  # [2n] -> edges
    source: Ints  # [E]
    messages: Ints  # [E]
    nbytes: Ints  # [E]
    atom_of: Ints  # [n]
    latency_s: Floats  # [D, D]
    seconds_per_byte: Floats  # [D, D]


class ListState(NamedTuple):
    """What was placed and timed so far."""

    where: Ints  # [A] device of each atom; -1: none yet
    start: Floats  # [2n] seconds
    finish: Floats  # [2n] seconds
    room: RoomArrays
    slots: Slots


@compiled
def place_and_time(
    tasks: TaskArrays,
    state: ListState,
    order: Ints,
    begin: int,
    end: int,
    on_path: NDArray[np.bool_],
    device: int,
) -> tuple[int, int, int]:
    """The tasks ``order[begin:end]``, as far as that goes.

    Args:
        on_path: [n] nodes that go to `device`, as long as they fit there.
        device: that of the path; -1: none yet.

    Returns:
        The first place that was not done, how many nodes got a device, and why it ends: `ON`, `ASK`, `STUCK`.
    """
    n, ready, placed = len(tasks.atom_of), np.zeros(len(tasks.latency_s)), 0
    for i in range(begin, end):
        task = order[i]
        atom = tasks.atom_of[task % n]
        if state.where[atom] < 0:
            if task < n and on_path[task]:
                if device < 0 or state.room.need[atom, device] > state.room.left[device]:
                    fits = _first_to_finish(tasks, state, task, device, ready) >= 0
                    return i, placed, ASK if fits else STUCK
                p = device
            else:
                p = _first_to_finish(tasks, state, task, device, ready)
                if p < 0:
                    return i, placed, STUCK
            state.where[atom] = p
            take_room(state.room, atom, p)
            placed += 1
        _book(tasks, state, task, state.where[atom])
    return end, placed, ON


@inner
def _first_to_finish(tasks: TaskArrays, state: ListState, v: int, preferred: int, ready: Floats) -> int:
    """Where EFT = EST + w of node v's forward, with the node's own backward behind it, is least; -1: nowhere.

    Ties go to the preferred device, then to the first. No device ends before its messages have come and
    it has computed: one that cannot win so is not asked for its slots.

    Args:
        ready: [D] scratch.
    """
    feeding, atom = tasks.feeding, tasks.atom_of[v]
    for p in range(len(ready)):
        ready[p] = 0.0
    for j in range(feeding[v], feeding[v + 1]):
        e = feeding[j]
        u = tasks.source[e]
        q = state.where[tasks.atom_of[u % len(tasks.atom_of)]]  # whose messages to itself take no time
        for p in range(len(ready)):
            ready[p] = max(ready[p], state.finish[u] + _message_s(tasks, e, q, p))
    best, least_s = -1, np.inf
    for p in range(len(ready)):
        if state.room.need[atom, p] > state.room.left[p]:
            continue
        seconds, backward_s = tasks.seconds[v, p], tasks.backward_s[v, p]
        if best >= 0 and ready[p] + seconds + backward_s > least_s:
            continue
        end_s = earliest_slot(state.slots, p, ready[p], seconds) + seconds + backward_s
        if best < 0 or end_s < least_s or (end_s == least_s and p == preferred):
            best, least_s = p, end_s
    return best


@inner
def _book(tasks: TaskArrays, state: ListState, task: int, p: int) -> None:
    """EST: the first idle slot on device p after all messages have come."""
    feeding, ready_s = tasks.feeding, 0.0
    for j in range(feeding[task], feeding[task + 1]):
        e = feeding[j]
        u = tasks.source[e]
        q = state.where[tasks.atom_of[u % len(tasks.atom_of)]]
        came_s = state.finish[u]
        if q != p:
            came_s += _message_s(tasks, e, q, p)
        ready_s = max(ready_s, came_s)
    seconds = tasks.seconds[task, p]
    state.start[task] = earliest_slot(state.slots, p, ready_s, seconds)
    state.finish[task] = book_slot(state.slots, p, state.start[task], seconds)


@inner
def _message_s(tasks: TaskArrays, e: int, q: int, p: int) -> float:
    """Seconds of an edge's messages from q to p."""
    return float(tasks.messages[e] * tasks.latency_s[q, p] + tasks.nbytes[e] * tasks.seconds_per_byte[q, p])


class PartialSchedule:
    """Tasks placed and timed so far; all times in seconds."""

    def __init__(self, instance: Instance, tasks: StepTasks) -> None:
        self.instance = instance
        self.room = Room(instance, instance.capacity)
        self.where = np.full(len(instance.atoms), -1)  # [A] device of each atom; -1: none yet
        self.start, self.finish = np.zeros(2 * instance.n), np.zeros(2 * instance.n)
        self.placed_by = "finish time"
        self.reserved: tuple[int, ...] = ()  # atoms that were placed first, to make them fit
        self._tasks = TaskArrays(
            tasks.seconds, instance.backward_s, tasks.feeding, tasks.source, tasks.messages, tasks.nbytes,
            instance.atom_of, instance.latency_s, instance.seconds_per_byte,
        )  # fmt: skip
        slots = slots_of(len(instance.devices), len(tasks.order))
        self._state = ListState(self.where, self.start, self.finish, self.room.arrays, slots)

    def run(
        self, order: Ints, path: Sequence[int], choose: Chooser | None, clock: PlacingClock
    ) -> int | None:
        """Place and time, the nodes of a path on the device that is chosen for it, and where they do not fit
        there on the next; the atom that fits nowhere, or None."""
        on_path = np.zeros(self.instance.n, bool)
        on_path[list(path)] = True
        done, placed, device = 0, 0, -1
        while done < len(order):
            clock.tick(placed)
            end = min(done + _AT_ONCE, len(order))
            done, placed, why = place_and_time(self._tasks, self._state, order, done, end, on_path, device)
            if why == STUCK:
                return int(self.instance.atom_of[order[done] % self.instance.n])
            if why == ASK:
                v = int(order[done])
                assert choose is not None, "only a path's nodes have their device chosen"
                device = choose(self, v, self.room.devices(int(self.instance.atom_of[v])))
        return None

    def place(self, atom: int, p: int) -> None:
        self.where[atom] = p
        self.room.take(atom, p)

    @property
    def makespan(self) -> float:
        return float(self.finish.max(initial=0.0))

    def device_of(self) -> dict[str, str]:
        return self.instance.decode(self.where[self.instance.atom_of])

    def start_of(self) -> dict[str, float]:
        """Node name to the start of its forward."""
        return dict(zip(self.instance.names, self.start.tolist(), strict=False))

    def notes(self) -> dict[str, int | str]:
        return {"placed_by": self.placed_by, "reserved_atoms": len(self.reserved)}


Chooser = Callable[[PartialSchedule, int, Ints], int]
"""(schedule, node of the path without a device, devices where it fits) -> that of the path from here on."""


def schedule_within_memory(
    problem: Problem,
    method: str,
    tasks: StepTasks,
    order: Ints,
    path: Sequence[int] = (),
    choose: Chooser | None = None,
) -> PartialSchedule:
    """Place and time all tasks in `order`; an atom goes where its first node is chosen to go.

    Nodes off the path go where they finish first. A greedy choice may use up the room that a later atom
    needs. Then everything starts again with that atom placed first, on the device with the most room left, up
    to `RETRIES` times; in the end the devices are those of the fill in topological order, and only the times
    are decided here.

    Args:
        problem: the problem of `tasks`.
        method: its name, for the error.
        tasks: what to schedule.
        order: the tasks, each after those that feed it.
        path: nodes that `choose` finds a device for.

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
            stuck = made.run(order, path, choose, clock)
        if stuck is None:
            made.reserved = tuple(reserved)
            return made
        if stuck in reserved:
            break
        reserved.append(stuck)
    filled = fill_in_order(problem, instance.capacity.tolist())
    if filled is None:
        raise infeasible(problem, method)
    return schedule_placed(problem, method, tasks, order, filled, "fill in topological order")


def schedule_placed(
    problem: Problem,
    method: str,
    tasks: StepTasks,
    order: Ints,
    device_of: Mapping[str, str],
    placed_by: str,
) -> PartialSchedule:
    """Time all tasks in `order` on devices that are decided, whether they have room or not."""
    instance = Instance.of(problem)
    where = instance.encode(device_of)
    made = PartialSchedule(instance, tasks)
    made.placed_by = placed_by
    for atom in range(len(instance.atoms)):
        made.place(atom, int(where[instance.atoms[atom][0]]))
    made.run(order, (), None, PlacingClock(problem, method))
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
