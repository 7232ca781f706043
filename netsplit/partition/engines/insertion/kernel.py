"""Compiled: tasks of a list are placed and timed one after another.

order ─► task ─► has its node a device?  ─── no ──► of a path: on its device; else where it ends first
                            │ yes                                 │
                            ▼                                     ▼
          the first slot after all messages have come  ◄──── room taken
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from netsplit.partition.common.instance import Floats, Ints, Packed
from netsplit.partition.engines.compiled import compiled, inner
from netsplit.partition.engines.insertion.room import RoomArrays, take_room
from netsplit.partition.engines.insertion.slots import Slots, book_slot, earliest_slot

__all__ = ["ASK", "ON", "STUCK", "ListState", "TaskArrays", "place_and_time"]

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
