"""What is left of devices' capacities under (5-18) while atoms are placed one by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from netsplit.partition.common.instance import Csr, Instance, Ints

__all__ = ["Room"]


class Room:
    """States and variables stay, a received copy counts, an atom is taken whole.

    Args:
        capacity: [D] bytes.
    """

    def __init__(self, instance: Instance, capacity: Ints) -> None:
        self.left = capacity.copy()  # [D] bytes
        self.need = np.zeros((len(instance.atoms), len(capacity)), np.int64)  # [A, D] that an atom would add
        self._bytes = instance.held_bytes
        self._present = np.zeros((len(self._bytes), len(capacity)), bool)
        holders = (instance.holders[k] for k in range(len(self._bytes)))
        self._atoms_at = Csr.of([np.unique(instance.atom_of[nodes]).tolist() for nodes in holders])
        self._state = np.zeros(len(instance.atoms), np.int64)
        np.add.at(self._state, instance.atom_of, instance.state_bytes)
        self.need += self._state[:, None]
        touched: list[list[int]] = [[] for _ in range(len(instance.atoms))]
        for k, nbytes in enumerate(self._bytes):
            self.need[self._atoms_at[k]] += nbytes
            for a in self._atoms_at[k].tolist():
                touched[a].append(k)
        self._touched = [np.array(each, np.int64) for each in touched]

    def devices(self, atom: int) -> Ints:
        """Devices on which the atom fits, ascending."""
        return np.flatnonzero(self.need[atom] <= self.left)

    def take(self, atom: int, p: int) -> None:
        self.left[p] -= self.need[atom, p]
        for k in self._touched[atom]:
            if not self._present[k, p]:
                self._present[k, p] = True
                self.need[self._atoms_at[k], p] -= self._bytes[k]

    def run_length(self, atoms: Sequence[int], p: int) -> int:
        """How many of these atoms, from the first on, fit on a device together."""
        present, left = self._present[:, p].copy(), int(self.left[p])
        for count, atom in enumerate(atoms):
            touched = self._touched[atom]
            left -= int(self._state[atom] + self._bytes[touched] @ ~present[touched])
            if left < 0:
                return count
            present[touched] = True
        return len(atoms)
