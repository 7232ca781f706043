"""`pesto_full`: Pesto with non-overlap, congestion and coarsening, for any number of devices.

Source: Hafeez et al., Towards optimal placement and scheduling of DNN operations with Pesto, Middleware
2021, for two devices; for K devices the form of Moirai (arXiv 2312.04025), with the same symbols: tasks i, j;
communication operations q, r; devices k.

    minimise Cmax
    Cmax >= C_i,  C_i = S_i + sum_k p_ik x_ik,  S_j >= C_i of every edge inside a class
    sum_k x_ik = 1, x binary; one x for all tasks of a class
    u_q,k,l = x_ik x_jl of q = (i, j),  C_q = S_q + sum_{k != l} p_q,k,l u_q,k,l,  S_q >= C_i,  S_j >= C_q
    non-overlap: of the tasks on a device k one at a time
    congestion: of the messages on a directed link k -> l one at a time
    bytes on k under (5-18) <= capacity of k

The papers have rows with a big M for every pair; the solver has intervals of which no two overlap. The rows
of u are ``sum_l u_q,k,l = x_ik`` and ``sum_k u_q,k,l = x_jl``. Seconds are rounded down to ticks: no schedule
is longer in ticks than it is in seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from itertools import islice, permutations
from typing import Any, TypeAlias

import numpy as np

from netsplit.partition.base import Problem
from netsplit.partition.common.instance import Floats, Instance, Ints, interchangeable_devices
from netsplit.partition.engines.placement_model import PlacementModel, Solved
from netsplit.partition.methods.pesto.tasks import CoarseSchedule, CoarseTasks, coarsen
from netsplit.partition.partitioner import Choice, Partitioner, infeasible
from netsplit.placement.placement import Status

__all__ = ["PestoFull"]

_TRIALS = 600  # schedules that the search for a starting solution may compute
_ORDERS = 24  # of the devices, among the starting placements
_VERTICES_A_DEVICE = 4  # of the largest device, at least, so that merged vertices can be packed
_MOST_INTERVALS = 200_000  # of tasks on devices and messages on links, in a model: some gigabyte
_TICKS = 2_000_000  # of the known schedule

_Span: TypeAlias = tuple[Any, int, Any]
"""Start, ticks, and the literal that says whether it is there."""


@dataclass(frozen=True)
class PestoFull(Partitioner):
    """The placement and order of coarsened tasks with the least makespan of one training step.

    Each vertex of the coarsened graph has a forward task and, where a gradient passes, a backward task with
    one placement for both. As in Pesto every edge of the coarsened graph is a transfer of its own: a tensor
    with two readers is sent twice.

    CP-SAT starts from the best of the contiguous splits, improved by moving one vertex at a time. The
    report's objective is the makespan in seconds; status, bound and gap are with respect to the coarsened
    graph. Status "limit": nothing better than that start was found in time. As the clock stops the solver,
    another run may find another answer, unless it is "optimal".
    """

    target: int = 60  # vertices at which coarsening stops
    time_limit_s: float = 60.0
    gap: float = 1e-3  # relative distance of objective and bound at which the search may stop
    solve: bool = True  # False: the start is the answer

    name = "pesto_full"
    optimises = "makespan of one training step on the coarsened graph, exclusive devices and links"

    def __post_init__(self) -> None:
        self.require("target", self.target >= 1, "1 vertex or more")
        self.require_time_limit()
        self.require("gap", 0 <= self.gap < 1, "a fraction from 0 to below 1, such as 0.001")
        self.require("solve", isinstance(self.solve, bool), "true or false")

    def choose(self, problem: Problem) -> Choice:
        limit_s = self.time_limit_s if problem.time_limit_s is None else problem.time_limit_s
        deadline = time.perf_counter() + limit_s
        instance = Instance.of(problem)
        tasks, known = self._start(instance, deadline)
        status, bound_s, schedule = self._improve(tasks, known, deadline)
        notes = {"vertices": len(tasks.coarse.vertices), "start_objective": known.makespan}
        return Choice(
            instance.decode(tasks.nodes_at(schedule.where)),
            _node_keys(tasks, schedule),
            status=status,
            engine="" if status == "heuristic" else f"cp-sat {version('ortools')}",
            objective_s=schedule.makespan,
            bound_s=bound_s,
            notes=notes,
        )

    def _start(self, instance: Instance, deadline: float) -> tuple[CoarseTasks, CoarseSchedule]:
        """Coarsened tasks and a schedule of them that fits; the target is doubled until one is found."""
        target, limit = self.target, int(instance.capacity.max()) // _VERTICES_A_DEVICE
        while True:
            tasks = CoarseTasks.of(instance, coarsen(instance, target, limit))
            placements = list(_contiguous(tasks))
            if not placements:
                packed = _packing(tasks, deadline - time.perf_counter())
                placements = [] if packed is None else [packed]
            if placements:
                return tasks, _descend(tasks, placements, deadline)
            if target >= instance.n:
                break
            target *= 2
        raise infeasible(instance.problem, self.name)

    def _improve(
        self, tasks: CoarseTasks, known: CoarseSchedule, deadline: float
    ) -> tuple[Status, float, CoarseSchedule]:
        """The solver's answer, where it is better than the known schedule; its status, and a bound [s]."""
        lower_s, devices = _least_makespan(tasks), len(tasks.instance.devices)
        if known.makespan - lower_s <= self.gap * known.makespan:
            return "optimal", lower_s, known
        if not self.solve or (tasks.count + len(tasks.messages) * devices) * devices > _MOST_INTERVALS:
            return "heuristic", lower_s, known
        model, left_s = PestoModel(tasks, known), deadline - time.perf_counter()
        solved = model.solve(left_s, tasks.instance.problem.seed, gap=self.gap)
        bound_s = max(lower_s, solved.bound * model.tick_s)
        if solved.where is None:
            return "limit", bound_s, known
        schedule = tasks.schedule(solved.where.tolist(), model.order(solved))
        better = schedule.makespan < known.makespan * (1 - 1e-9)
        status: Status = "optimal" if solved.optimal else "feasible" if better else "limit"
        return status, bound_s, schedule if better else known


def _least_makespan(tasks: CoarseTasks) -> float:
    """No schedule is shorter: the longest path, and the work on the devices if it were divisible."""
    path = max((s + rest for s, rest in zip(tasks.least_s, tasks.tail_s, strict=True)), default=0.0)
    return max(path, sum(tasks.least_s) / len(tasks.instance.devices))


def _node_keys(tasks: CoarseTasks, schedule: CoarseSchedule) -> dict[str, float]:
    """When each node's forward starts: in its vertex, one node runs after another."""
    instance, keys = tasks.instance, {}
    for vertex, nodes in enumerate(tasks.coarse.vertices):
        k, at = schedule.where[tasks.coarse.class_of[vertex]], schedule.start[vertex]
        for v in nodes:
            keys[instance.names[v]] = at
            at += float(instance.forward_s[v, k])
    return keys


def _contiguous(tasks: CoarseTasks) -> Iterator[tuple[int, ...]]:
    """Placements that fit, each device running a stretch of the classes in topological order. On every number
    of devices, in many orders of them: stretches of equal seconds, and devices filled one after another up to
    their capacity."""
    instance, coarse = tasks.instance, tasks.coarse
    memory = instance.problem.memory_model
    loads = [memory.load([instance.names[v] for v in members]) for members in coarse.classes]
    seconds = np.zeros((len(coarse.classes), len(instance.devices)))
    np.add.at(seconds, list(tasks.class_of), tasks.seconds)
    yielded: set[tuple[int, ...]] = set()
    for order in islice(permutations(range(len(instance.devices))), _ORDERS):
        tried = [_equal_split(seconds, order[:count]) for count in range(1, len(order) + 1)]
        filled: list[int] = []
        held, p = memory.load(()), 0
        for load in loads:
            while p < len(order) and memory.union_bytes(held, load) > instance.capacity[order[p]]:
                held, p = memory.load(()), p + 1
            if p == len(order):
                break
            held = memory.union(held, load)
            filled.append(order[p])
        else:
            tried.append(tuple(filled))
        for where in tried:
            if where not in yielded and instance.fits(tasks.nodes_at(where)):
                yield where
            yielded.add(where)


def _equal_split(seconds: Floats, order: Sequence[int]) -> tuple[int, ...]:
    """Classes in topological order on these devices, with about equal seconds each."""
    work = seconds[:, list(order)].mean(axis=1)
    middle = (np.cumsum(work) - work / 2) / (work.sum() or 1.0)
    return tuple(order[min(int(each * len(order)), len(order) - 1)] for each in middle)


def _descend(tasks: CoarseTasks, placements: list[tuple[int, ...]], deadline: float) -> CoarseSchedule:
    """The best of the placements, then of those with one class moved, until none is better."""
    best = tasks.schedule(placements[0])
    for where in placements[1:]:
        if time.perf_counter() > deadline:
            return best
        best = min(best, tasks.schedule(where), key=lambda schedule: schedule.makespan)
    trials, improved = 0, True
    while improved:
        improved = False
        for g in range(len(tasks.coarse.classes)):
            for k in range(len(tasks.instance.devices)):
                if best.where[g] == k:
                    continue
                where = (*best.where[:g], k, *best.where[g + 1 :])
                trials += 1
                if trials > _TRIALS or time.perf_counter() > deadline:
                    return best
                trial = tasks.schedule(where)
                if trial.makespan < best.makespan * (1 - 1e-9) and tasks.instance.fits(tasks.nodes_at(where)):
                    best, improved = trial, True
    return best


def _packing(tasks: CoarseTasks, time_limit_s: float) -> tuple[int, ...] | None:
    """Any placement of the classes that fits."""
    model = PlacementModel(*tasks.class_bytes, tasks.instance.capacity)
    where = model.solve(time_limit_s, tasks.instance.problem.seed).where
    return None if where is None else tuple(where.tolist())


class PestoModel(PlacementModel):
    """Minimises the makespan; `known` is a schedule to begin with, than which none is longer."""

    def __init__(self, tasks: CoarseTasks, known: CoarseSchedule) -> None:
        instance = tasks.instance
        super().__init__(*tasks.class_bytes, instance.capacity, interchangeable_devices(instance))
        self.tasks, self.tick_s = tasks, known.makespan / _TICKS or 1.0
        self.seconds, self.message_s = self._ticks(tasks.seconds), self._ticks(tasks.message_s)
        self._product = cache(self._new_product)
        self.end = self._time()
        self.start, self.ends = self._tasks()
        self.sent, self.came = self._messages()
        for t, end in enumerate(self.ends):
            if not tasks.after[t]:
                self.model.add(self.end >= end)
        for s, t in tasks.local:
            self.model.add(self.start[t] >= self.ends[s])
        self.model.minimize(self.end)
        self.hint_places(list(known.where))
        starts = self._ticks(np.array([*known.start, *known.sent])).tolist()
        for variable, ticks in zip([*self.start, *self.sent], starts, strict=True):
            self.model.add_hint(variable, ticks)

    def order(self, solved: Solved) -> list[float]:
        """[T + Q] the middle of each operation: the order in which devices and links serve. Not the start,
        which what takes no time may have in common with what follows it."""
        spans = zip([*self.start, *self.sent], [*self.ends, *self.came], strict=True)
        return [(solved.solver.value(start) + solved.solver.value(end)) / 2 for start, end in spans]

    def _ticks(self, seconds: Floats) -> Ints:
        return np.floor(np.minimum(seconds / self.tick_s, 2.0 * _TICKS)).astype(np.int64)

    def _time(self) -> Any:
        return self.model.new_int_var(0, _TICKS + 1, "")

    def _u(self, a: int, b: int) -> list[Any]:
        """x_ak x_bl of two classes, [K, K]."""
        return self._product(a, b) if a < b else [*zip(*self._product(b, a), strict=True)]

    def _new_product(self, a: int, b: int) -> list[Any]:
        made = [[self.literal() for _ in self.devices] for _ in self.devices]
        for g, sums in ((a, made), (b, zip(*made, strict=True))):
            for x, own in zip(self.place[g], sums, strict=True):
                self.model.add(sum(own) == x)
        return made

    def _tasks(self) -> tuple[list[Any], list[Any]]:
        """Starts and ends; on each device one at a time."""
        start, ends, on = [], [], dict[object, list[_Span]]()
        for seconds, g in zip(self.seconds.tolist(), self.tasks.class_of, strict=True):
            begin = self._time()
            start.append(begin)
            ends.append(self._ended(begin, seconds, self.place[g], on, self.devices))
        self._one_at_a_time(on)
        return start, ends

    def _messages(self) -> tuple[list[Any], list[Any]]:
        """When each is sent and has come; on each directed link one at a time."""
        sent, came, on = [], [], dict[object, list[_Span]]()
        ways = [(k, m) for k in self.devices for m in self.devices if k != m]
        for (s, t), (a, b), seconds in zip(self.tasks.messages, self.tasks.ends, self.message_s, strict=True):
            begin, u = self._time(), self._u(a, b)
            end = self._ended(
                begin, [int(seconds[way]) for way in ways], [u[k][m] for k, m in ways], on, ways
            )
            self.model.add(begin >= self.ends[s])
            self.model.add(self.start[t] >= end)
            sent.append(begin)
            came.append(end)
        self._one_at_a_time(on)
        return sent, came

    def _ended(
        self,
        start: Any,
        ticks: Sequence[int],
        literals: Sequence[Any],
        on: dict[object, list[_Span]],
        resources: Iterable[object],
    ) -> Any:
        """The end of what takes so long on each resource, if it is there; `on` gets it."""
        for resource, size, literal in zip(resources, ticks, literals, strict=True):
            on.setdefault(resource, []).append((start, size, literal))
        return start + sum(size * literal for size, literal in zip(ticks, literals, strict=True))

    def _one_at_a_time(self, on: dict[object, list[_Span]]) -> None:
        """On each resource; and all that it does is within the makespan."""
        for spans in on.values():
            self.model.add_no_overlap(
                self.model.new_optional_fixed_size_interval_var(*span, "") for span in spans
            )
            self.model.add(sum(size * literal for _, size, literal in spans) <= self.end)
