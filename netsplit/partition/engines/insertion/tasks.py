"""The tasks of a training step, as the list schedulers take them, and the room that is left on devices.

A node is two tasks, its forward and, where a gradient passes, its backward:

    f(u) ──k──► f(v)          task v < n is the forward of node v, task n + v its backward
      │           │           f(v) ──► b(v) stays on one device
      ▼           ▼           b(v) ──► b(u) carries the gradient of k back
    b(u) ◄──k── b(v)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from netsplit.compiled import compiled
from netsplit.partition.common.instance import Csr, Floats, Instance, Ints, Packed

__all__ = ["Room", "RoomArrays", "StepTasks", "take_room"]


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
        n, producer, nbytes = instance.n, instance.producer, instance.nbytes
        reader = np.repeat(np.arange(n), np.diff(instance.reads.starts))
        read = instance.reads.items
        back = instance.requires_backward[read] & instance.trained[reader]
        trained = np.flatnonzero(instance.trained)
        source, target, messages, total = (
            np.concatenate(each)
            for each in zip(
                _edges(producer[read], reader, nbytes[read], n),
                (trained, n + trained, np.zeros_like(trained), np.zeros_like(trained)),
                _edges(n + reader[back], n + producer[read[back]], nbytes[read[back]], 2 * n),
                strict=True,
            )
        )
        return cls(
            n=n,
            order=np.concatenate([np.arange(n), n + trained[::-1]]),
            seconds=np.concatenate([instance.forward_s, instance.backward_s]),
            source=source,
            target=target,
            messages=messages,
            nbytes=total,
        )

    def upward_ranks(self, task_s: Floats, edge_s: Floats) -> Floats:
        """[2n] seconds from the start of a task to the end of all: its own and its longest way out.

        ``rank(i) = w(i) + max over successors j of (c(i, j) + rank(j))`` (Topcuoglu et al., eq. 8).

        Args:
            task_s: [2n] the one number that stands for a task's seconds on all devices.
            edge_s: [E] the one number that stands for the seconds of an edge's messages.
        """
        return np.asarray(_upward_ranks(self.order, self.feeding, self.source, task_s, edge_s))

    def by_rank(self, rank: Floats) -> Ints:
        """Tasks by falling rank; equal ranks (tasks of 0 seconds) in topological order."""
        return self.order[np.argsort(-rank[self.order], kind="stable")]

    @cached_property
    def feeding(self) -> Packed:
        """[2n] -> edges that lead to the task."""
        edges = np.argsort(self.target, kind="stable")
        return Csr.grouped(self.target[edges], edges, 2 * self.n).packed


def _edges(source: Ints, target: Ints, nbytes: Ints, most: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Pairs of tasks, each once: source, target, how often it was there, and bytes together."""
    pairs, edge = np.unique(source * most + target, return_inverse=True)
    total = np.zeros(len(pairs), np.int64)
    np.add.at(total, edge, nbytes)
    return pairs // most, pairs % most, np.bincount(edge, minlength=len(pairs)), total


@compiled
def _upward_ranks(order: Ints, feeding: Packed, source: Ints, task_s: Floats, edge_s: Floats) -> Floats:
    tail, rank = np.zeros(len(task_s)), np.zeros(len(task_s))
    for i in range(len(order) - 1, -1, -1):
        t = order[i]
        rank[t] = task_s[t] + tail[t]
        for j in range(feeding[t], feeding[t + 1]):
            e = feeding[j]
            tail[source[e]] = max(tail[source[e]], edge_s[e] + rank[t])
    return rank


class RoomArrays(NamedTuple):
    """For compiled functions. Shapes: A atoms, h held variables, D devices."""

    left: Ints  # [D] bytes
    need: Ints  # [A, D] bytes that an atom would add
    nbytes: Ints  # [h]
    present: NDArray[np.bool_]  # [h, D]
    state: Ints  # [A] bytes
    atoms_at: Packed  # [h] -> atoms
    touched: Packed  # [A] -> held variables


class Room:
    """What is left of devices' capacities under (5-18) while atoms are placed one by one, whole.

    States and variables stay, and a received copy counts.

    Args:
        capacity: [D] bytes.
    """

    def __init__(self, instance: Instance, capacity: Ints) -> None:
        count, held = len(instance.atoms), len(instance.held_bytes)
        atoms_at, touched = instance.held_by_atoms
        state = instance.by_atom(instance.state_bytes)
        own, atom = state.copy(), np.repeat(np.arange(count), np.diff(touched.starts))
        np.add.at(own, atom, instance.held_bytes[touched.items])
        self.arrays = RoomArrays(
            capacity.copy(),
            np.repeat(own[:, None], len(capacity), axis=1),
            instance.held_bytes,
            np.zeros((held, len(capacity)), bool),
            state,
            atoms_at.packed,
            touched.packed,
        )
        self.left, self.need = self.arrays.left, self.arrays.need

    def devices(self, atom: int) -> Ints:
        """Devices on which the atom fits, ascending."""
        return np.flatnonzero(self.need[atom] <= self.left)

    def take(self, atom: int, p: int) -> None:
        take_room(self.arrays, atom, p)

    def run_length(self, atoms: Sequence[int], p: int) -> int:
        """How many of these atoms, from the first on, fit on a device together."""
        return int(_run_length(self.arrays, np.array(atoms, np.int64), p))


@compiled
def take_room(room: RoomArrays, atom: int, p: int) -> None:
    """The atom is placed on p."""
    room.left[p] -= room.need[atom, p]
    touched, atoms_at = room.touched, room.atoms_at
    for j in range(touched[atom], touched[atom + 1]):
        k = touched[j]
        if not room.present[k, p]:
            room.present[k, p] = True
            for i in range(atoms_at[k], atoms_at[k + 1]):
                room.need[atoms_at[i], p] -= room.nbytes[k]


@compiled
def _run_length(room: RoomArrays, atoms: Ints, p: int) -> int:
    present, left, touched = room.present[:, p].copy(), room.left[p], room.touched
    for count in range(len(atoms)):
        atom = atoms[count]
        left -= room.state[atom]
        for j in range(touched[atom], touched[atom + 1]):
            k = touched[j]
            if not present[k]:
                present[k] = True
                left -= room.nbytes[k]
        if left < 0:
            return count
    return len(atoms)
