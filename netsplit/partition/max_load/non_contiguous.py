"""`max_load` without contiguity: annealing for the answer, what one device can do alone for the bound."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from netsplit.interrupts import interruptible
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
_SHORT = 6  # runs of annealing before a bound is looked for
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
    """Short annealing, the bounds, and then annealing as long as the time lasts or the gap is open; see
    `max_load.solve_max_load`."""
    deadline = time.perf_counter() + 0.95 * time_limit_s
    split = SliceGraph(instance, seed)
    split.steps(_ORDERS, deadline)
    where = _packed(instance, deadline, seed) if split.where is None else split.where
    best, bound = _Best(instance, where), 0.0
    for turn in _annealed(instance, best, seed, deadline):
        if turn == _SHORT:
            bound = proven_bound(instance, best.value, deadline, gap, best.offer)
        if turn >= _SHORT and best.value - bound <= gap * best.value:
            break
    return answer_of(instance, best.where, bound, gap, "annealing")


def proven_bound(
    instance: Instance,
    value: float,
    deadline: float,
    gap: float,
    offer: Callable[[Ints], object] = lambda _: None,
) -> float:
    """A lower bound of the max load of any placement, where one of `value` seconds is known: of what costs
    little, then of what costs more, until it is within `gap`. A placement that is come across is offered."""
    model = Hypergraph.of(instance)
    if not model.count:
        return 0.0
    now = time.perf_counter()
    bound = max(sharing_bound(model), core_bound(model, now + 0.1 * (deadline - now)))
    if value - bound > gap * value and model.count * model.devices <= _SMALL:
        left_s = 0.4 * (deadline - time.perf_counter())
        least, where = solve_small(model, value * (1 + 1e-6), left_s, instance.problem.seed)
        bound = max(bound, least)
        if where is not None:
            offer(model.nodes(where))
    return bound


class _Best:
    """The best answer so far."""

    def __init__(self, instance: Instance, where: Ints) -> None:
        self.instance, self.where, self.value = instance, where, float("inf")
        self.offer(where)

    def offer(self, where: Ints) -> None:
        value = float(self.instance.loads(where).max(initial=0.0))
        if value < self.value and self.instance.fits(where):
            self.value, self.where = value, where


def _annealed(instance: Instance, best: _Best, seed: int, deadline: float) -> Iterator[int]:
    """Anneal from the best, cold and hot, and from nothing, with more and more steps; how often it has."""
    draw, model, halt = random.Random(seed), Hypergraph.of(instance), np.zeros(1, np.int64)
    annealer, rate = LoadAnnealer(instance, model), 5e5
    for turn in count():
        left = deadline - time.perf_counter()
        if left <= 0:
            return
        if turn % 3 == 1:
            scattered = [draw.choice(np.flatnonzero(row).tolist()) for row in model.allowed]
            where, hot = np.array(scattered, np.int64), 0.02
        else:
            where, hot = model.groups(best.where), 0.003 if turn % 3 else 0.02
        steps = max(1000, int((0.4 if turn >= _SHORT else 0.05) * rate * left))
        steps = min(steps, 40_000_000, 100_000 if turn < 3 else 1_000_000 if turn < _SHORT else steps)
        run = partial(annealer.run, where, steps, draw.getrandbits(31), hot=hot, halt=halt)
        begun = time.perf_counter()
        improved, _ = interruptible(run, lambda: halt.fill(1))
        rate = 0.5 * rate + 0.5 * steps / max(time.perf_counter() - begun, 1e-6) if turn else rate
        best.offer(model.nodes(improved))
        yield turn + 1


def _packed(instance: Instance, deadline: float, seed: int) -> Ints:
    """[n] any placement that meets the memory, by CP-SAT."""
    model = Hypergraph.of(instance)
    limit_s = max(0.1, 0.5 * (deadline - time.perf_counter()))
    where = _placement_model(model).solve(limit_s, seed).where
    if where is None:
        raise infeasible(instance.problem, "max_load")
    return model.nodes(where)
