"""A graph folded: the forward and the backward of what must share a device as one decision.

A node of the folded graph is an atom with at most one forward and one backward task that matter; an arc is
a variable between forward tasks, together with the gradient that comes back. Along a path of arcs the
seconds there and back add up, because the path exists in both directions in the graph of tasks.

Own construction. Leaving out tasks, arcs and received copies is a relaxation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from netsplit.partition.common.instance import Floats, Ints
from netsplit.partition.common.step_graph import StepGraph

__all__ = ["Arc", "Folded", "fold"]


@dataclass(frozen=True, eq=False)
class Arc:
    source: int
    seconds: Floats  # [D, D] there and back, source on p and target on q


@dataclass(frozen=True, eq=False)
class Folded:
    """N nodes in topological order, D devices. `inside`: between forward and backward, or to the end."""

    forward_s: Floats  # [N, D]
    backward_s: Floats  # [N, D]
    inside: Floats  # [N]
    own: Floats  # [N] bytes on the node's device
    arcs: list[list[Arc]]  # of each node, the arcs into it
    reads: list[list[int]]  # of each node, the held variables it receives
    held: Floats  # [U] bytes of each variable, on every device that makes or reads it
    producer: Ints  # [U]
    after: list[set[int]]  # nodes whose forward is after the node's
    around: list[set[int]]  # nodes whose backward is after the node's: those it lies inside of
    capacity: Floats  # [D]
    backed: NDArray[np.bool_]  # [N] it has a backward task
    mirrored: bool  # backwards run in the reverse order of forwards: they are no nodes of their own

    @property
    def fastest(self) -> Floats:
        """[N] least seconds, forward and backward."""
        return np.asarray((self.forward_s + self.backward_s).min(axis=1))

    @property
    def count(self) -> int:
        return len(self.own)


def fold(graph: StepGraph) -> Folded | None:
    """The folded graph; None where an atom has several forward or backward tasks, or no path joins them."""
    i, n = graph.instance, graph.n
    names = i.problem.backward_nodes
    late = np.array([name in names for name in i.names], bool)
    idle = (i.forward_s.max(axis=1, initial=0.0) <= 0) & ~i.trained
    idle &= np.diff(i.predecessors.starts) == 0
    first, second = [-1] * len(i.atoms), [-1] * len(i.atoms)
    for v in sorted(range(n), key=lambda v: (bool(idle[v]), v)):
        a = int(i.atom_of[v])
        kind = second if late[v] else first
        if kind[a] >= 0 and idle[v]:
            continue
        if kind[a] >= 0 or (late[v] and i.trained[v]):
            return None
        kind[a] = v
    later = _reachable(graph)
    atoms = sorted((a for a in range(len(i.atoms)) if first[a] >= 0), key=lambda a: first[a])
    number = {first[a]: k for k, a in enumerate(atoms)}
    heads = [first[a] for a in atoms]
    devices = len(i.devices)
    if late.any() and not any(later[first[a]] >> second[a] & 1 for a in atoms if second[a] >= 0):
        return None
    backs = []  # task of the backward, or -1
    for a in atoms:
        v, w = first[a], second[a]
        if i.trained[v]:
            backs.append(n + v if w < 0 else -1)
        else:
            backs.append(w if w >= 0 and later[v] >> w & 1 else -1)
    forward_s = i.forward_s[heads]
    backward_s = np.array([graph.seconds[t] if t >= 0 else np.zeros(devices) for t in backs])
    backward_s = backward_s.reshape(len(heads), devices)
    own = np.bincount(i.atom_of, weights=i.state_bytes, minlength=len(i.atoms))[atoms].astype(float)
    held, producer, reads = _held(graph, atoms, heads, own)
    inside = np.array([_inside(graph, v, t, later) for v, t in zip(heads, backs, strict=True)])
    after: list[set[int]] = []
    around: list[set[int]] = []
    for k, v in enumerate(heads):
        after.append({j for j, w in enumerate(heads) if later[v] >> w & 1})
        around.append(
            {j for j, t in enumerate(backs) if t >= 0 and backs[k] >= 0 and later[backs[k]] >> t & 1}
        )
    arcs = _arcs(graph, number, heads, backs)
    return Folded(
        forward_s, backward_s, inside, own, arcs, reads, held, producer, after, around,
        i.capacity.astype(float), np.array(backs, np.int64) >= 0, not late.any(),
    )  # fmt: skip


def _reachable(graph: StepGraph) -> list[int]:
    """[2n] bits of the tasks after each task."""
    after = [0] * (2 * graph.n)
    for t in reversed(graph.order):
        for s in graph.after[t]:
            after[t] |= after[s] | 1 << s
    return after


def _inside(graph: StepGraph, v: int, back: int, later: list[int]) -> float:
    """Least seconds from the end of task v to the start of task `back`, or to the end."""
    if back < 0:
        return float(graph.tail[v])
    longest = {v: 0.0}
    for t in graph.order:
        if t != v and later[v] >> t & 1 and (t == back or later[t] >> back & 1):
            longest[t] = max(
                longest[s] + (float(graph.fastest[s]) if s != v else 0.0)
                for s in graph.before[t]
                if s in longest
            )
    return float(longest[back])


def _held(
    graph: StepGraph, atoms: list[int], heads: list[int], own: NDArray[np.float64]
) -> tuple[Floats, Ints, list[list[int]]]:
    """Adds to `own` what surely lies beside a node; the variables that several nodes hold."""
    i = graph.instance
    number = {v: k for k, v in enumerate(heads)}
    of_atom = {a: k for k, a in enumerate(atoms)}
    made = {k: int(i.producer[u]) for u, k in enumerate(i.variables)}
    held: list[float] = []
    producer: list[int] = []
    reads: list[list[int]] = [[] for _ in heads]
    for h, name in enumerate(i.problem.graph.variables):
        nbytes = float(i.held_bytes[h])
        groups = sorted({of_atom[a] for a in i.atom_of[i.holders[h]].tolist() if a in of_atom})
        if not nbytes or not groups:
            continue
        maker = number.get(made.get(name, -1), -1)
        if maker < 0:
            own[groups[0]] += nbytes
            continue
        own[maker] += nbytes
        readers = [k for k in groups if k > maker]
        if readers:
            for k in readers:
                reads[k].append(len(held))
            held.append(nbytes)
            producer.append(maker)
    return np.array(held), np.array(producer, np.int64), reads


def _arcs(
    graph: StepGraph,
    number: dict[int, int],
    heads: list[int],
    backs: list[int],
) -> list[list[Arc]]:
    i, n = graph.instance, graph.n
    arcs: list[list[Arc]] = [[] for _ in heads]
    off = ~np.eye(len(i.devices), dtype=bool)

    def crossing(v: int, w: int, gradient: bool) -> Floats | None:
        common = [u for u in i.makes[v].tolist() if w in i.consumers[u]]
        if gradient:
            common = [u for u in common if i.requires_backward[u] and i.trained[w]]
        if not common:
            return None
        return np.asarray(i.transfer_s[common].max(axis=0) * off)

    for k, w in enumerate(heads):
        for v in i.predecessors[w].tolist():
            if v not in number:
                continue
            j = number[v]
            there = crossing(v, w, False)
            assert there is not None
            if backs[j] < 0:
                arcs[k].append(Arc(j, there))
                continue
            if backs[k] < 0 or (backs[k] >= n) != (backs[j] >= n):
                continue
            trained = backs[j] >= n
            back = crossing(v, w, True) if trained else crossing(backs[k], backs[j], False)
            if back is not None:
                arcs[k].append(Arc(j, there + back.T))
    return arcs
