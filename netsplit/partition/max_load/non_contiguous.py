"""`max_load` without contiguity: annealing for the answer, what one device can do alone for the bound."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from netsplit.partition.common.instance import Floats, Instance, Ints
from netsplit.partition.engines.mixed_integer import highs
from netsplit.partition.engines.placement_model import PlacementModel
from netsplit.partition.engines.rows import Rows
from netsplit.partition.max_load.annealing import LoadAnnealer
from netsplit.partition.max_load.chains import SliceGraph
from netsplit.partition.max_load.model import Hypergraph, answer_of
from netsplit.partition.partitioner import Choice, infeasible

if TYPE_CHECKING:
    import highspy

__all__ = ["proven_bound", "solve_non_contiguous"]

_UNITS = 1e8  # integer units in the known value: seconds are rounded down, so that the bound holds
_GROUPS = 200  # that `core_bound` looks at
_ROUNDING = 1e-7  # relative: what the solvers' own tolerances may have moved a value by
_ORDERS = 4  # whose best contiguous split is the start
_SMALL = 300  # (group, device) pairs that CP-SAT is asked to close


def _placement_model(model: Hypergraph) -> PlacementModel:
    """Every group on a device that may have it, within the memory."""
    held = {tuple(model.held[h].tolist()): int(size) for h, size in enumerate(model.held_bytes)}
    made = PlacementModel(model.state.tolist(), held, model.capacity)
    for g, d in np.argwhere(~model.allowed).tolist():
        made.model.add(made.place[g][d] == 0)
    return made


def solve_small(model: Hypergraph, value: float, time_limit_s: float, seed: int) -> tuple[float, Ints | None]:
    """A lower bound of the max load (at most `value`, seconds of a known answer), and a placement [G]."""
    unit = value / _UNITS
    made = _placement_model(model)
    cp, x = made.model, made.place
    most = cp.new_int_var(0, int(_UNITS), "")
    for d in made.devices:
        terms = [int(model.weight[g, d] / unit) * x[g][d] for g in range(model.count) if model.allowed[g, d]]
        for e in np.flatnonzero(model.hop[:, d] > 0).tolist():
            cut = made.literal()
            first, *rest = model.pins[e].tolist()
            for g in rest:
                cp.add_bool_or(cut, x[first][d], x[g][d].negated())
                cp.add_bool_or(cut, x[first][d].negated(), x[g][d])
            terms.append(int(model.hop[e, d] / unit) * cut)
        cp.add(sum(terms) <= most)
    cp.minimize(most)
    solved = made.solve(time_limit_s, seed)
    return value if solved.infeasible else max(0.0, min(value, solved.bound * unit)), solved.where


class _LoneDevice:
    """The groups that one device may have: x [G] from 0 to 1, and the cut of every net, in HiGHS."""

    def __init__(self, model: Hypergraph, device: int) -> None:
        rows, load = Rows(), model.weight[:, device].tolist()
        for e in np.flatnonzero(model.hop[:, device] > 0).tolist():
            pins, k, hop_s = model.pins[e].tolist(), len(load), float(model.hop[e, device])
            if len(pins) > 2:  # any pin here, minus all pins here
                load += [hop_s, -hop_s]
                for v in pins:
                    rows.add([(v, 1.0), (k, -1.0)])
                    rows.add([(k + 1, 1.0), (v, -1.0)])
            else:
                load.append(hop_s)
                for a, b in (pins, pins[::-1]):
                    rows.add([(a, 1.0), (b, -1.0), (k, -1.0)])
        self._upper = np.ones(len(load))
        self._upper[: model.count] = model.allowed[:, device]
        self._highs = _loaded(rows, self._upper, load)

    def least_with(self, group: int) -> float:
        """The least load of a device that has a group. Of the linear relaxation, which is integral; less what
        the solver's tolerance may have added."""
        if not self._upper[group]:
            return float("inf")
        self._highs.changeColBounds(group, 1.0, 1.0)
        self._highs.run()
        value = float(self._highs.getInfo().objective_function_value)
        self._highs.changeColBounds(group, 0.0, 1.0)
        return value * (1 - _ROUNDING)


def sharing_bound(model: Hypergraph) -> float:
    """Every group divided at will and nothing paid for cuts: a small linear programme over the classes."""
    classes = model.classes
    first = [same[0] for same in classes]
    g, c = model.count, len(classes)
    rows = Rows()
    rows.add_block(np.arange(g * c).reshape(g, c), 1.0, 1.0, equal=True)
    for k, (device, same) in enumerate(zip(first, classes, strict=True)):
        weight = np.where(model.allowed[:, device], model.weight[:, device], 0.0).tolist()
        rows.add([*((v * c + k, own) for v, own in enumerate(weight)), (g * c, -float(len(same)))])
    upper = np.append(model.allowed[:, first].ravel().astype(float), np.inf)
    solver = _loaded(rows, upper, np.append(np.zeros(g * c), 1.0))
    solver.run()
    return float(solver.getInfo().objective_function_value) * (1 - _ROUNDING)


def core_bound(model: Hypergraph, deadline: float) -> float:
    """The largest, over the groups of most seconds, of the least load of a device that has the group."""
    first = [same[0] for same in model.classes]
    devices = [_LoneDevice(model, d) for d in first]
    reach = np.array([sum(model.hop[e].max() for e in model.nets_of[g]) for g in range(model.count)])
    own = np.where(model.allowed, model.weight, np.inf).min(axis=1)
    bound = 0.0
    for g in np.argsort(-(own + reach), kind="stable")[:_GROUPS].tolist():
        if time.perf_counter() > deadline:
            break
        least = float("inf")
        for device in devices:
            least = min(least, device.least_with(g))
            if least <= bound:
                break
        bound = max(bound, least)
    return bound


def _loaded(rows: Rows, upper: Floats, cost: ArrayLike) -> highspy.Highs:
    """HiGHS with a linear programme over columns of 0 or more."""
    solver, none = highs(np.inf, 0.0, 0), np.zeros(len(upper))
    rows.model(none, upper, cost, none).pass_to(solver)
    return solver


def solve_non_contiguous(instance: Instance, time_limit_s: float, seed: int, gap: float) -> Choice:
    """See `max_load.solve_max_load`."""
    started = time.perf_counter()
    deadline = started + 0.95 * time_limit_s
    split = SliceGraph(instance, seed)
    split.steps(_ORDERS, deadline)
    start = _packed(instance, deadline, seed) if split.where is None else split.where
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
    return answer_of(instance, incumbent.where, incumbent.bound, gap, "annealing")


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
    model = Hypergraph.of(instance)
    annealer = LoadAnnealer.of(model)
    rate = 5e5
    turn = 0
    while not incumbent.stop.is_set() and time.perf_counter() < deadline:
        if turn % 3 == 1:
            scattered = [draw.choice(np.flatnonzero(row).tolist()) for row in model.allowed]
            where, hot = np.array(scattered, np.int64), 0.02
        else:
            where, hot = model.groups(incumbent.where), 0.003 if turn % 3 else 0.02
        left = deadline - time.perf_counter()
        budget = max(1000, int((0.4 if turn >= 6 else 0.05) * rate * left))
        budget = min(budget, 40_000_000, 100_000 if turn < 3 else 1_000_000 if turn < 6 else budget)
        begun = time.perf_counter()
        improved, _ = annealer.run(where, budget, draw.getrandbits(31), hot=hot, halt=incumbent.halt)
        rate = 0.5 * rate + 0.5 * budget / max(time.perf_counter() - begun, 1e-6) if turn else rate
        incumbent.offer(model.nodes(improved))
        turn += 1
        incumbent.runs = turn


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
    incumbent.raise_bound(core_bound(full, min(deadline, time.perf_counter() + 0.1 * span)))
    if incumbent.gap > gap and full.count * full.devices <= _SMALL and incumbent.value > 0:
        left_s = min(0.3 * span, deadline - time.perf_counter())
        bound, where = solve_small(full, incumbent.value * (1 + 1e-6), left_s, instance.problem.seed)
        incumbent.raise_bound(bound)
        if where is not None:
            incumbent.offer(full.nodes(where))


def _packed(instance: Instance, deadline: float, seed: int) -> Ints:
    """[n] any placement that meets the memory, by CP-SAT."""
    model = Hypergraph.of(instance)
    limit_s = max(0.1, 0.5 * (deadline - time.perf_counter()))
    where = _placement_model(model).solve(limit_s, seed).where
    if where is None:
        raise infeasible(instance.problem, "max_load")
    return model.nodes(where)
