"""A graph as a line: its atoms in topological order, where it may be cut, and what runs of them cost.

Index letters: `a` atom, `c` cut (the first is before all atoms, the last after all), `q` device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeVar

import numpy as np

from netsplit.graph.quotient import atoms_of
from netsplit.partition.base import Problem
from netsplit.partition.common.instance import Floats, Instance, Ints
from netsplit.profile.memory import lifetimes_model, node_state_bytes

__all__ = ["NodeLine", "Runs"]

MOST_CUTS = 160
Runs = Literal["forward_s", "seconds", "state_bytes", "trained_bytes", "saved_bytes"]
"""What runs from one cut to another are asked for."""
Number = TypeVar("Number", Floats, Ints)


@dataclass(frozen=True, eq=False)
class NodeLine:
    """What lies before each cut; a run's share is a difference. One micro-batch; shapes C cuts, D devices."""

    atoms: tuple[tuple[str, ...], ...]  # [A]
    places: Ints  # [C] atoms before the cut
    forward_s: Floats  # [C, D]
    backward_s: Floats  # [C, D]
    state_bytes: Ints  # [C] parameters with gradients and moments
    trained_bytes: Ints  # [C] parameters that the optimiser changes
    saved_bytes: Ints  # [C] kept from forward to backward
    sent_bytes: Ints  # [C] that cross the cut, forward
    returned_bytes: Ints  # [C] gradients that cross it back

    @classmethod
    def of(cls, problem: Problem, most: int = MOST_CUTS) -> NodeLine:
        """The graph's line, with at most that many cuts: of cuts near one another, the one least crosses."""
        graph, instance = problem.graph, Instance.of(problem)
        atoms = atoms_of(graph)
        first = {name: a for a, atom in enumerate(atoms) for name in atom}
        atom_of = np.array([first[name] for name in instance.names], np.int64)
        states = node_state_bytes(graph, problem.costs.device_alpha)
        sent, returned = _crossing(instance, atom_of, len(atoms))
        forward_s = _until(_by_atom(instance.forward_s, atom_of, len(atoms)))
        backward_s = _until(_by_atom(instance.backward_s, atom_of, len(atoms)))
        places = _chosen((forward_s + backward_s).mean(axis=1), sent + returned, most)
        held = np.array([sum(states[name] for name in atom) for atom in atoms], np.int64)
        trained = _by_atom(instance.trainable_bytes[:, None], atom_of, len(atoms))[:, 0]
        return cls(
            atoms=atoms,
            places=places,
            forward_s=forward_s[places],
            backward_s=backward_s[places],
            state_bytes=_until(held)[places],
            trained_bytes=_until(trained.astype(np.int64))[places],
            saved_bytes=_until(_saved(problem, first, len(atoms)))[places],
            sent_bytes=sent[places],
            returned_bytes=returned[places],
        )

    @cached_property
    def seconds(self) -> Floats:
        """[C, D]"""
        return self.forward_s + self.backward_s

    @cached_property
    def _tables(self) -> dict[tuple[Runs, int], Floats]:
        return {}

    def between(self, what: Runs, q: int = 0) -> Floats:
        """[C, C] what lies between two cuts, on device q where devices differ; made once."""
        if (what, q) not in self._tables:
            until = getattr(self, what)
            until = until if until.ndim == 1 else until[:, q]
            self._tables[what, q] = np.asarray(until[None, :] - until[:, None], float)
        return self._tables[what, q]

    def nodes(self, begin: int, end: int) -> tuple[str, ...]:
        """Of the run between two cuts."""
        run = self.atoms[int(self.places[begin]) : int(self.places[end])]
        return tuple(name for atom in run for name in atom)


def _until(values: Number) -> Number:
    """[A + 1, ...] sums of all before each place."""
    first = np.zeros((1, *values.shape[1:]), values.dtype)
    return np.concatenate([first, np.cumsum(values, axis=0)])


def _by_atom(values: Floats | Ints, atom_of: Ints, count: int) -> Floats:
    sums = np.zeros((count, values.shape[1]))
    np.add.at(sums, atom_of, values)
    return sums


def _saved(problem: Problem, atom_of: Mapping[str, int], count: int) -> Ints:
    """[A] what autograd keeps of each atom's nodes; a storage counts where it is first held."""
    graph, saved = problem.graph, np.zeros(count, np.int64)
    model, frozen = lifetimes_model(graph, 0, 1), node_state_bytes(graph, 0)
    for name, nbytes in model.state_bytes.items():
        saved[atom_of[name]] += nbytes - frozen[name]
    for k, nbytes in model.variable_bytes.items():
        if nbytes and model.holders[k]:
            saved[atom_of[model.holders[k][0]]] += nbytes
    return saved


def _crossing(instance: Instance, atom_of: Ints, count: int) -> tuple[Ints, Ints]:
    """[A + 1] bytes that are made on one side of a place and read on the other, and those whose gradients
    come back. What is read before it is made goes back to an atom whose first node is earlier, as with tied
    weights."""
    sent, returned = np.zeros(count + 2, np.int64), np.zeros(count + 2, np.int64)
    for u, v in enumerate(instance.producer):
        places = atom_of[[v, *instance.consumers[u]]]
        first, last = int(places.min()), int(places.max())
        if last > first:  # open at places first + 1 .. last
            for total, counts in ((sent, True), (returned, bool(instance.requires_backward[u]))):
                total[first + 1] += instance.nbytes[u] * counts
                total[last + 1] -= instance.nbytes[u] * counts
    return np.cumsum(sent)[: count + 1], np.cumsum(returned)[: count + 1]


def _chosen(seconds: Floats, crossing: Ints, most: int) -> Ints:
    """Places of cuts: both ends, and of every stretch of equal seconds the one that least crosses."""
    inner = np.arange(1, len(seconds) - 1)
    if len(inner) > most - 2:
        total = float(seconds[-1]) or 1.0
        stretch = np.minimum((seconds[inner] / total * (most - 2)).astype(np.int64), most - 3)
        order = np.lexsort((inner, crossing[inner], stretch))
        keep = np.flatnonzero(np.diff(stretch[order], prepend=-1))
        inner = np.sort(inner[order][keep])
    return np.concatenate([[0], inner, [len(seconds) - 1]]).astype(np.int64)
