"""Simulated annealing of a placement on the compiled training step.

A move takes a set of atoms to one device: a single atom, a cluster of
atoms that heavy edges join, or a window of the topological order; or it exchanges two devices' sets.

`Neighbourhood` has moves for searches that simulate each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

import numpy as np

from netsplit.compiled import compiled, inlined, inner
from netsplit.graph.ir import Graph
from netsplit.graph.quotient import DisjointSets, topological_priority
from netsplit.partition.common.instance import Csr, Instance, Ints, Packed
from netsplit.partition.engines.kernels import Arrays, CompiledStep, evaluate
from netsplit.placement.exchange import Exchange
from netsplit.placement.placement import Stage
from netsplit.simulate.simulator import ONE_BATCH, Turns

__all__ = ["SLIGHT", "Annealer", "Neighbourhood", "Scheduled", "clusters_of"]

PENALTY = 4.0  # on bytes too many, as a fraction of the capacity, times the start's seconds
TOO_FAR = 0.25  # of a capacity: beyond it a move is refused without an evaluation
MOST_MEMBERS = 4_000_000  # of all clusters together
MOST_CLUSTERED = 0.5  # of all work in one cluster: moving more is an exchange of devices


@dataclass(frozen=True, eq=False)
class Scheduled:
    """A placement, the order of its nodes, and what they take."""

    where: Ints  # [n]
    order: Ints  # [n]
    value_s: float
    source: str
    stages: tuple[Stage, ...] = ()  # where a stage has replicas
    exchanges: tuple[Exchange, ...] = ()  # where it was scored


class Pieces(NamedTuple):
    """What a move needs."""

    atoms: Packed  # [A] -> nodes
    clusters: Packed  # -> atoms
    holds: Packed  # [A] -> held variables that the atom touches
    state: Ints  # [A] bytes
    held: Ints  # [h] bytes
    capacity: Ints  # [D]


class Annealer:
    """Annealing runs on one instance; each run is determined by its start, length and seed.

    Minimised are the seconds of a step under the schedule of `turns`.
    """

    def __init__(self, instance: Instance, turns: Turns = ONE_BATCH) -> None:
        self.instance = instance
        self.step = CompiledStep(instance, turns)
        self.clusters = clusters_of(instance)
        self.stop = np.zeros(1, np.int64)  # set to 1 by another thread: runs end at once
        self.pieces = Pieces(
            instance.atoms.packed, self.clusters.packed, instance.held_by_atoms[1].packed,
            instance.by_atom(instance.state_bytes), instance.held_bytes, instance.capacity,
        )  # fmt: skip

    @property
    def choices(self) -> int:
        """Placements that there are, whether they fit or not."""
        return len(self.instance.devices) ** len(self.instance.atoms)

    def every(self) -> Iterator[Scheduled]:
        """All placements that fit, each in the order of its list schedule."""
        for places in product(range(len(self.instance.devices)), repeat=len(self.instance.atoms)):
            where = np.array(places, np.int64)[self.instance.atom_of]
            if self.instance.fits(where):
                value_s, order = self.step.evaluate(where)
                yield Scheduled(where, order, value_s, "annealing")

    def run(
        self, start: Ints, iterations: int, seed: int, heat: float = 0.03, cold: float = 1e-4
    ) -> Scheduled:
        """Anneal from a placement: the best seen that fits, infinite seconds where none did.

        Args:
            start: [n] device of each node; atoms whole. It need not fit.
            iterations: moves tried.
            seed: of the moves and their acceptance.
            heat: first temperature, as a fraction of the start's seconds; falls geometrically to `cold`.
        """
        atoms = self.instance.atoms
        where = np.array([start[atoms[a][0]] for a in range(len(atoms))], np.int64)
        best, value = anneal(where, iterations, seed, heat, cold, self.stop, self.pieces, self.step.arrays)
        if not np.isfinite(value):
            return Scheduled(start, self.step.evaluate(start)[1], float("inf"), "annealing")
        nodes = best[self.instance.atom_of]
        value, order = self.step.evaluate(nodes)
        return Scheduled(nodes, order, value, "annealing")


def clusters_of(instance: Instance) -> Csr:
    """[clusters] -> atoms: every set that arises when the heaviest edges between atoms are merged in turn.

    The weight of an edge is the mean seconds of its transfers; a set stops growing at half of the work. Of
    more than `MOST_MEMBERS` in all, as thousands of atoms have, those that go in.
    """
    weight: dict[tuple[int, int], float] = {}
    pairs = max(1, len(instance.devices) * (len(instance.devices) - 1))
    total_s = instance.latency_s.sum() + instance.nbytes * instance.seconds_per_byte.sum()
    mean = total_s / pairs * (1 + instance.requires_backward)
    for u in range(len(instance.producer)):
        a = int(instance.atom_of[instance.producer[u]])
        for b in {int(instance.atom_of[v]) for v in instance.consumers[u]}:
            if a != b:
                key = (min(a, b), max(a, b))
                weight[key] = weight.get(key, 0.0) + float(mean[u])
    count = len(instance.atoms)
    work = instance.by_atom((instance.forward_s + instance.backward_s).min(axis=1))
    limit = MOST_CLUSTERED * float(work.sum())
    sets = DisjointSets(count)
    members = {a: [a] for a in range(count)}
    load = {a: float(work[a]) for a in range(count)}
    rows: list[list[int]] = []
    size = 0
    for a, b in sorted(weight, key=lambda key: (-weight[key], key)):
        p, q = sets.find(a), sets.find(b)
        if p == q or load[p] + load[q] > limit:
            continue
        joined, total = members.pop(p) + members.pop(q), load.pop(p) + load.pop(q)
        root = sets.merge(p, q)
        members[root], load[root] = joined, total
        if size + len(joined) <= MOST_MEMBERS:
            rows.append(joined)
            size += len(joined)
    return Csr.of(rows or [[a] for a in range(count)])


class State(NamedTuple):
    """A placement under change, and its bytes under (5-18)."""

    where: Ints  # [A]
    nodes: Ints  # [n] the same, by node
    used: Ints  # [D] bytes
    touched: Ints  # [h, D] atoms on the device that touch the held variable


@inlined
def place(x: int, q: int, state: State, w: Pieces) -> None:
    """Take atom x to device q."""
    p = state.where[x]
    if p == q:
        return
    state.used[p] -= w.state[x]
    state.used[q] += w.state[x]
    for k in range(w.holds[x], w.holds[x + 1]):
        h = w.holds[k]
        state.touched[h, p] -= 1
        if state.touched[h, p] == 0:
            state.used[p] -= w.held[h]
        if state.touched[h, q] == 0:
            state.used[q] += w.held[h]
        state.touched[h, q] += 1
    state.where[x] = q
    for k in range(w.atoms[x], w.atoms[x + 1]):
        state.nodes[w.atoms[k]] = q


@inner
def begin(start: Ints, n: int, w: Pieces) -> State:
    devices = len(w.capacity)
    state = State(
        start.copy(), np.zeros(n, np.int64), np.zeros(devices, np.int64),
        np.zeros((len(w.held), devices), np.int64),
    )  # fmt: skip
    for x in range(len(start)):
        p = start[x]
        state.used[p] += w.state[x]
        for k in range(w.holds[x], w.holds[x + 1]):
            if state.touched[w.holds[k], p] == 0:
                state.used[p] += w.held[w.holds[k]]
            state.touched[w.holds[k], p] += 1
        for k in range(w.atoms[x], w.atoms[x + 1]):
            state.nodes[w.atoms[k]] = p
    return state


@inlined
def excess(state: State, w: Pieces) -> float:
    """Bytes too many, as a fraction of each device's capacity, summed."""
    over = 0.0
    for p in range(len(w.capacity)):
        over += max(0, state.used[p] - w.capacity[p]) / max(1, w.capacity[p])
    return over


@inlined
def draw_move(where: Ints, changed: Ints, target: Ints, w: Pieces) -> int:
    """Draw a move: fills which atoms go to which devices, and answers how many."""
    count, devices = len(where), len(w.capacity)
    draw = np.random.random()
    q = np.random.randint(devices)
    size = 0
    if draw < 0.35:  # one atom
        changed[0], target[0] = np.random.randint(count), q
        return 1 if where[changed[0]] != q else 0
    if draw < 0.75:  # a cluster, or its part on one device
        c = np.random.randint(w.clusters[0] - 1)
        home = where[w.clusters[np.random.randint(w.clusters[c], w.clusters[c + 1])]]
        whole = np.random.random() < 0.5
        for k in range(w.clusters[c], w.clusters[c + 1]):
            x = w.clusters[k]
            if where[x] != q and (whole or where[x] == home):
                changed[size], target[size] = x, q
                size += 1
        return size
    if draw < 0.95:  # the part of one device in a window of the topological order
        first = np.random.randint(count)
        length = 1 + int(count * 0.5 ** (1 + 9 * np.random.random()))
        home = where[first]
        for x in range(first, min(count, first + length)):
            if where[x] == home and home != q:
                changed[size], target[size] = x, q
                size += 1
        return size
    if draw < 0.99:  # two atoms exchange their devices
        x, y = np.random.randint(count), np.random.randint(count)
        changed[0], target[0], changed[1], target[1] = x, where[y], y, where[x]
        return 2 if where[x] != where[y] else 0
    p = np.random.randint(devices)  # two devices exchange all they hold
    for x in range(count):
        if p != q and (where[x] == p or where[x] == q):
            changed[size], target[size] = x, q if where[x] == p else p
            size += 1
    return size


@compiled
def anneal(
    start: Ints, iterations: int, seed: int, heat: float, cold: float, stop: Ints, w: Pieces, a: Arrays
) -> tuple[Ints, float]:
    """The best placement seen that fits, [A] device of each atom, and its value (infinite: none).

    Each turn: 1. draw a move; 2. make it; 3. evaluate it, unless it is far too large; 4. keep it, if value
    and temperature say so, or 5. undo it.
    """
    np.random.seed(seed)
    count, n = len(start), len(a.forward_s)
    state = begin(start, n, w)
    order = np.zeros(n, np.int64)
    value = evaluate(state.nodes, order, a)
    over = excess(state, w)
    scale = max(value, 1e-30)
    current = value + PENALTY * scale * over
    best, best_value = state.where.copy(), value if over == 0.0 else np.inf
    changed, target = np.zeros(count + 2, np.int64), np.zeros(count + 2, np.int64)
    before = np.zeros(count + 2, np.int64)
    for i in range(iterations):
        if stop[0] != 0:
            break
        # 1. draw
        size = draw_move(state.where, changed, target, w)
        if size == 0:
            continue
        # 2. move
        for k in range(size):
            before[k] = state.where[changed[k]]
            place(changed[k], target[k], state, w)
        # 3. evaluate
        over = excess(state, w)
        trial = np.inf
        if over < TOO_FAR:
            value = evaluate(state.nodes, order, a)
            trial = value + PENALTY * scale * over
        temperature = scale * heat * (cold / heat) ** (i / iterations)
        if trial <= current or np.random.random() < np.exp((current - trial) / temperature):
            # 4. keep
            current = trial
            if over == 0.0 and value < best_value:
                best_value = value
                for v in range(len(best)):
                    best[v] = state.where[v]
        else:
            # 5. undo
            for k in range(size):
                place(changed[k], before[k], state, w)
    return best, best_value


TRIES, TRIES_A_NODE = 400, 20  # moves in vain, one after another, at most, before a climb ends
SLIGHT = 1e-9  # relative: a difference by rounding

ORDER = 0.5  # of moves change the order alone
KEPT = 0.5  # of moves that change devices keep the order


@dataclass
class Neighbourhood:
    """Moves of a placement: a set of atoms to another device, or one node to an earlier or later place.

    A list schedule's order is one of many, and segments end where the order crosses devices: under several
    micro-batches another order of the same placement may be much shorter.

    Args:
        clusters: -> atoms, which go together.
        listed: the order of a placement's list schedule.
    """

    graph: Graph
    instance: Instance
    clusters: Csr
    listed: Callable[[Ints], Ints]
    seed: int
    draw: np.random.Generator = field(init=False)
    position: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.draw = np.random.default_rng(self.seed % 2**63)
        self.position = {name: v for v, name in enumerate(self.instance.names)}

    def climb(
        self, current: Scheduled, tried: Callable[[Ints, Ints], Scheduled], timely: Callable[[], bool]
    ) -> None:
        """Moves from there as long as one of so many gains.

        Args:
            tried: gives what a placement and its order are worth, and keeps the best.
            timely: whether there is time for one more.
        """
        in_vain = 0
        most = min(TRIES, TRIES_A_NODE * len(self.instance.names))
        while in_vain < most and timely():
            in_vain += 1
            moved = self.next_to(current.where, current.order)
            if moved is None:
                continue
            trial = tried(*moved)
            in_vain = 0 if trial.value_s < (1 - SLIGHT) * current.value_s else in_vain
            current = trial if trial.value_s <= current.value_s else current

    def next_to(self, where: Ints, order: Ints) -> tuple[Ints, Ints] | None:
        """[n] devices and [n] nodes by priority; None where the move that was drawn changes nothing, or does
        not fit."""
        if self.draw.random() < ORDER:
            other = self._reordered(order)
            return None if np.array_equal(other, order) else (where, other)
        atoms = self.clusters[int(self.draw.integers(len(self.clusters)))]
        moved = where.copy()
        moved[np.isin(self.instance.atom_of, atoms)] = int(self.draw.integers(len(self.instance.devices)))
        if np.array_equal(moved, where) or not self.instance.fits(moved):
            return None
        return moved, order if self.draw.random() < KEPT else self.listed(moved)

    def _reordered(self, order: Ints) -> Ints:
        """With a node at another place between the last that it reads from and the first that reads it."""
        names, rank = self.instance.names, np.argsort(order)
        name = names[int(self.draw.integers(len(names)))]
        ahead = [rank[self.position[u]] for u in self.graph.predecessors[name]]
        behind = [rank[self.position[u]] for u in self.graph.successors[name]]
        place = int(self.draw.integers(max(ahead, default=-1) + 1, min(behind, default=len(names))))
        key = {v: float(rank[q]) for v, q in self.position.items()}
        key[name] = place + (0.5 if place > key[name] else -0.5 if place < key[name] else 0.0)
        taken = topological_priority(self.graph, key)
        return np.array(sorted(self.position.values(), key=lambda q: taken[names[q]]), np.int64)
