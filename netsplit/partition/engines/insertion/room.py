"""What is left of devices' capacities under (5-18) while atoms are placed one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from netsplit.compiled import compiled
from netsplit.partition.common.instance import Csr, Instance, Ints, Packed

__all__ = ["Room", "RoomArrays", "take_room"]


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
    """States and variables stay, a received copy counts, an atom is taken whole.

    Args:
        capacity: [D] bytes.
    """

    def __init__(self, instance: Instance, capacity: Ints) -> None:
        count, held = len(instance.atoms), len(instance.held_bytes)
        holder = np.repeat(np.arange(held), np.diff(instance.holders.starts))
        pairs = np.unique(holder * count + instance.atom_of[instance.holders.items])
        k, atom = np.divmod(pairs, max(count, 1))
        state = np.zeros(count, np.int64)
        np.add.at(state, instance.atom_of, instance.state_bytes)
        own = state.copy()
        np.add.at(own, atom, instance.held_bytes[k])
        by_atom = np.argsort(atom, kind="stable")
        self.arrays = RoomArrays(
            capacity.copy(),
            np.repeat(own[:, None], len(capacity), axis=1),
            instance.held_bytes,
            np.zeros((held, len(capacity)), bool),
            state,
            _grouped(k, atom, held),
            _grouped(atom[by_atom], k[by_atom], count),
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


def _grouped(row: Ints, item: Ints, rows: int) -> Packed:
    """Of pairs by ascending row."""
    return Csr(np.searchsorted(row, np.arange(rows + 1)).astype(np.int64), item.astype(np.int64)).packed


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
