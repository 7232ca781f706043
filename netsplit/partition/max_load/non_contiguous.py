"""`max_load` without contiguity: annealing for the answer, columns of one device for the bound."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import numpy as np

from netsplit.partition.common.capacity import infeasible
from netsplit.partition.common.instance import Floats, Instance, Ints
from netsplit.partition.common.interruptible import cp_sat_solver, interruptible
from netsplit.partition.max_load.annealing import LoadAnnealer
from netsplit.partition.max_load.answer import MaxLoadAnswer, answer_of
from netsplit.partition.max_load.bounds import core_bound, sharing_bound
from netsplit.partition.max_load.column_generation import excluded
from netsplit.partition.max_load.contraction import contract, probe
from netsplit.partition.max_load.cp_sat import solve_small
from netsplit.partition.max_load.ideals import Order
from netsplit.partition.max_load.model import Hypergraph
from netsplit.partition.max_load.slice_graph import linear_split

__all__ = ["proven_bound", "solve_non_contiguous"]

_SMALL = 300  # (group, device) pairs that CP-SAT is asked to close
_FALLEN = 0.002  # relative: a value that much better than when a proof began wants another target
_FIRST = 0.0098  # the gap to be proven first: a little less than the 1 % that is asked of a good answer


def solve_non_contiguous(instance: Instance, time_limit_s: float, seed: int, gap: float) -> MaxLoadAnswer:
    """See `max_load.solve_max_load`."""
    started = time.perf_counter()
    deadline = started + 0.95 * time_limit_s
    start = linear_split(instance, seed, deadline)
    if start is None:
        start = _packed(instance, deadline, seed)
    incumbent = _Incumbent(instance, start)
    incumbent.searching = True
    with ThreadPoolExecutor(1) as pool:
        search = pool.submit(_search, instance, incumbent, seed, deadline)
        try:
            _prove(instance, incumbent, deadline, gap)
            if incumbent.gap > gap:
                wait([search], max(0.0, deadline - time.perf_counter()))
        finally:
            incumbent.stop.set()
            incumbent.halt[0] = 1
        search.result()
    notes = {"starts": incumbent.runs, "proofs": incumbent.proofs}
    return answer_of(instance, incumbent.where, incumbent.bound, gap, "annealing + column generation", notes)


def proven_bound(instance: Instance, value: float, deadline: float, gap: float) -> float:
    """A lower bound of the max load of any placement, for one of `value` seconds that is known."""
    incumbent = _Incumbent(instance, None)
    incumbent.value = value
    _prove(instance, incumbent, deadline, gap)
    return incumbent.bound


@dataclass
class _Incumbent:
    """The best answer and bound so far, shared by the search and the proof."""

    instance: Instance
    start: Ints | None
    stop: threading.Event = field(default_factory=threading.Event)
    bound: float = 0.0
    runs: int = 0
    searching: bool = False
    proofs: list[tuple[float, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.value = float("inf")
        self.halt = np.zeros(1, np.int64)
        self._lock = threading.Lock()
        if self.start is not None:
            self.offer(self.start)

    def offer(self, where: Ints) -> None:
        value = float(self.instance.loads(where).max(initial=0.0))
        with self._lock:
            if value < self.value and self.instance.fits(where):
                self.value, self.where = value, where

    def raise_bound(self, bound: float) -> None:
        with self._lock:
            self.bound = max(self.bound, min(bound, self.value))

    @property
    def gap(self) -> float:
        return (self.value - self.bound) / self.value if self.value > 0 else 0.0


def _search(instance: Instance, incumbent: _Incumbent, seed: int, deadline: float) -> None:
    """Annealing from the best, cold and hot, and from nothing, with more and more steps."""
    draw = random.Random(seed)
    full = Hypergraph.of(instance)
    value = float("inf")
    rate = 5e5
    annealer = LoadAnnealer.of(full)
    turn = 0
    while not incumbent.stop.is_set() and time.perf_counter() < deadline:
        if incumbent.value < 0.995 * value:
            value = incumbent.value
            annealer = LoadAnnealer.of(contract(full, value * (1 + 1e-6), deadline=deadline))
        model = annealer.model
        if not model.allowed.any(axis=1).all():
            break
        if turn % 3 == 1:
            where, hot = _scattered(model, draw), 0.02
        else:
            where = _allowed(model, model.groups(incumbent.where), draw)
            hot = 0.003 if turn % 3 else 0.02
        left = deadline - time.perf_counter()
        budget = max(1000, int((0.4 if turn >= 6 else 0.05) * rate * left))
        budget = min(budget, 40_000_000, 100_000 if turn < 3 else 1_000_000 if turn < 6 else budget)
        begun = time.perf_counter()
        improved, _ = annealer.run(where, budget, draw.getrandbits(31), hot=hot, halt=incumbent.halt)
        rate = 0.5 * rate + 0.5 * budget / max(time.perf_counter() - begun, 1e-6) if turn else rate
        incumbent.offer(model.nodes(improved))
        turn += 1
        incumbent.runs = turn


def _scattered(model: Hypergraph, draw: random.Random) -> Ints:
    return np.array([draw.choice(np.flatnonzero(row).tolist()) for row in model.allowed], np.int64)


def _allowed(model: Hypergraph, where: Ints, draw: random.Random) -> Ints:
    """The placement, with groups moved that merges have left on a device they may not be on."""
    bad = np.flatnonzero(~model.allowed[np.arange(model.count), where])
    for g in bad.tolist():
        where[g] = draw.choice(np.flatnonzero(model.allowed[g]).tolist())
    return where


def _prove(instance: Instance, incumbent: _Incumbent, deadline: float, gap: float) -> None:
    """Raises the bound, from what costs little to what costs more, until it is within `gap`."""
    full = Hypergraph.of(instance)
    if not full.count:
        return
    incumbent.raise_bound(sharing_bound(full))
    span = deadline - time.perf_counter()
    settled = time.perf_counter() + 0.08 * span
    while incumbent.searching and incumbent.runs < 6 and time.perf_counter() < settled:
        time.sleep(0.01)
    if full.devices == 1:
        incumbent.raise_bound(incumbent.value)
    core = contract(full, incumbent.value, deadline=deadline)
    incumbent.raise_bound(core_bound(core, min(deadline, time.perf_counter() + 0.1 * span)))
    if time.perf_counter() >= deadline:
        return
    small = contract(full, incumbent.value * (1 + 1e-6), deadline=deadline)
    if incumbent.gap > gap and small.count * small.devices <= _SMALL and incumbent.value > 0:
        bound, where = solve_small(small, incumbent.value * (1 + 1e-6), 0.3 * span, instance.problem.seed)
        incumbent.raise_bound(bound)
        if where is not None:
            incumbent.offer(small.nodes(where))
    prover = _TargetProver(instance, full, incumbent, deadline, gap)
    aim, most = incumbent.value * (1 - max(_FIRST, gap)), float("inf")
    while incumbent.gap > gap and time.perf_counter() < deadline:
        value = incumbent.value
        if aim > incumbent.bound and not prover.prove(aim, 0.5) and incumbent.value > value * (1 - _FALLEN):
            most = min(most, aim)
        most = min(most, incumbent.value)
        if most - incumbent.bound < 1e-4 * incumbent.value:
            return
        aim = incumbent.value * (1 - (0.9 * gap if incumbent.gap < 0.01 else max(_FIRST, 0.9 * gap)))
        if most < incumbent.value:  # halfway between what is proven and what could not be
            aim = min(aim, 0.5 * (incumbent.bound + most))


@dataclass
class _TargetProver:
    """Proofs for one target after another; columns that were found for one are tried for the next."""

    instance: Instance
    full: Hypergraph
    incumbent: _Incumbent
    deadline: float
    gap: float

    def __post_init__(self) -> None:
        self._ranks = _topological_ranks(self.instance, self.full)
        self._columns: list[tuple[int, np.ndarray]] = []
        self._prices = np.zeros(self.instance.n)  # of nodes

    def prove(self, target: float, part: float) -> bool:
        """Whether `target` is a bound; takes at most a `part` of the time left.

        Given up early where the value has fallen so far that another target is of more use.
        """
        now = time.perf_counter()
        until = now + part * (self.deadline - now)
        incumbent = self.incumbent

        fallen = incumbent.value * (1 - _FALLEN)

        def stop() -> bool:
            return incumbent.gap <= self.gap or incumbent.value <= max(target, fallen)

        model = probe(self.full, target, now + 0.1 * (until - now))
        prices: Floats = np.bincount(model.group_of, self._prices, model.count).astype(np.float64)
        bound, columns, prices = excluded(
            model, target, until, self._known(model, target), self._orders(model), prices, stop
        )
        self._prices = (prices / np.bincount(model.group_of, minlength=model.count))[model.group_of]
        done = bound >= target
        incumbent.proofs.append((target, done))
        incumbent.raise_bound(bound)
        self._columns = [(c, np.isin(model.group_of, groups)) for c, groups in columns]
        return done

    def _known(self, model: Hypergraph, target: float) -> list[tuple[int, Ints]]:
        """Columns found before that are unions of the model's groups, and within the target."""
        size = np.bincount(model.group_of, minlength=model.count)
        known = []
        for c, nodes in self._columns:
            inside = np.bincount(model.group_of, weights=nodes, minlength=model.count)
            whole = (inside == 0) | (inside == size)
            if whole.all() and model.load(inside > 0, model.classes[c][0]) <= target:
                known.append((c, np.flatnonzero(inside)))
        return known

    def _orders(self, model: Hypergraph) -> list[Ints]:
        """[G] groups by the mean rank of their nodes, for every order of the nodes."""
        nodes = np.bincount(model.group_of, minlength=model.count)
        return [
            np.argsort(np.bincount(model.group_of, weights=rank) / nodes, kind="stable").astype(np.int64)
            for rank in self._ranks
        ]


def _topological_ranks(instance: Instance, full: Hypergraph) -> list[Ints]:
    """[n] ranks of the nodes in a few topological orders of their groups."""
    model, order = Order.acyclic(instance, full)
    depth = order.depths()
    ranks = []
    for key in (list(range(model.count)), depth, [-d for d in depth]):
        rank = np.zeros(model.count, np.int64)
        rank[order.linear(key)] = np.arange(model.count)
        ranks.append(rank[model.group_of])
    return ranks


def _packed(instance: Instance, deadline: float, seed: int) -> Ints:
    """[n] any placement that meets the memory, by CP-SAT.

    Raises:
        InfeasibleError: there is none, or none was found in the time.
    """
    from ortools.sat.python import cp_model

    model = Hypergraph.of(instance)
    cp = cp_model.CpModel()
    x = [[cp.new_bool_var("") for _ in range(model.devices)] for _ in range(model.count)]
    for g, row in enumerate(x):
        cp.add_exactly_one(row)
        for d in np.flatnonzero(~model.allowed[g]).tolist():
            cp.add(row[d] == 0)
    present = [[cp.new_bool_var("") for _ in range(model.devices)] for _ in range(len(model.held))]
    for h, row in enumerate(present):
        for g in model.held[h].tolist():
            for d in range(model.devices):
                cp.add_implication(x[g][d], row[d])
    for d in range(model.devices):
        state = sum(int(model.state[g]) * x[g][d] for g in range(model.count) if model.state[g])
        held = sum(int(size) * present[h][d] for h, size in enumerate(model.held_bytes))
        cp.add(state + held <= int(model.capacity[d]))
    solver = cp_sat_solver(max(0.1, 0.5 * (deadline - time.perf_counter())), seed, 2)
    status = interruptible(lambda: solver.solve(cp), solver.stop_search)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise infeasible(instance.problem, "max_load")
    where = np.array([[solver.boolean_value(v) for v in row] for row in x]).argmax(axis=1)
    return model.nodes(where.astype(np.int64))
