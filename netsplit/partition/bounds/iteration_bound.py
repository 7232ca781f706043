"""A lower bound on the iteration under any schedule, of any placement, replicas included.

    critical path of a micro-batch ──┐
    work over devices, within RAM ───┼─► the greatest ──► bound
    an atom's micro-batches, whole ──┘

The work is a linear programme over the fraction of the micro-batches of each atom (a set of nodes that must
share a device) on each kind of device: replicas take micro-batches in turn, so a fraction is what they do,
and a whole one is a placement. Its rows are

    capacity    bytes that come with a node wherever it is
    work        the devices of a class do no more than their number times T
    host        of devices that slow one another: a second is one in which one computes, or several do, each
                class at its best number of them; and all classes together share the processors

Transfers, contention of links, of NICs and of copying, recomputation, and the order of tasks are
left out: they only delay.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from netsplit.partition.base import Problem
from netsplit.partition.bounds.iteration_tasks import AnySchedule, IterationTasks, least_bytes_of_atoms
from netsplit.partition.common.instance import Floats, Instance, Ints
from netsplit.partition.engines.mixed_integer import highs, run_highs
from netsplit.partition.engines.rows import Rows, Term

__all__ = ["LIMIT_S", "iteration_bound_s"]

_MOST = 40_000  # atoms times kinds of devices, beyond which the work is counted in sum
LIMIT_S = 0.7  # of linear programmes
_SAFE = 1 - 1e-7  # of what a linear programme's solver answers


def iteration_bound_s(problem: Problem, schedule: AnySchedule, limit_s: float = LIMIT_S) -> float:
    """Seconds that no iteration of the problem is below.

    Of any placement on all of the devices or some, in any order that a schedule may have, with replicas of
    all nodes but `schedule.alone`.

    Args:
        limit_s: for linear programmes, at most; 0: the work is counted in sum.
    """
    instance = Instance.of(problem)
    if not instance.n:
        return 0.0
    tasks = IterationTasks.of(instance, schedule)
    held, present = (_held(instance, each) for each in (schedule, schedule.of_one))
    alone = np.zeros(len(instance.atoms), bool)
    alone[instance.atom_of[[name in schedule.alone for name in instance.names]]] = True
    present = np.where(alone, held, present)
    work = FractionalWork(tasks, schedule, _classes(instance), held, present, alone)
    bounds = [tasks.path_s, _whole_s(work)]
    return max(*bounds, work.least_s(max(bounds), limit_s))


def _held(instance: Instance, schedule: AnySchedule) -> Floats:
    """[rows, A] bytes; no rows where the capacities are not heeded."""
    return least_bytes_of_atoms(instance, schedule) if schedule.within else np.zeros((0, len(instance.atoms)))


def _classes(instance: Instance) -> list[Ints]:
    """Devices of one kind, with the same capacity, of one host where they slow one another there."""
    contended = _contended(instance)
    sets: dict[tuple[object, ...], list[int]] = {}
    for p, device in enumerate(instance.problem.cluster.devices):
        host = int(instance.device.host[p]) if instance.device.host[p] in contended else -1
        sets.setdefault((device.kind, device.capacity_bytes, host), []).append(p)
    return [np.array(each, np.int64) for each in sets.values()]


def _contended(instance: Instance) -> set[int]:
    """Hosts whose devices slow one another."""
    return {
        int(host)
        for host in set(instance.device.host[instance.device.host >= 0].tolist())
        if (instance.device.slowdown[instance.device.host == host] > 1.0).any()
    }


@dataclass(eq=False)
class FractionalWork:
    """The linear programme. Columns: T, x [A, C], and those of hosts."""

    tasks: IterationTasks
    schedule: AnySchedule
    classes: list[Ints]
    held: Floats  # [rows, A] bytes where all micro-batches are
    present: Floats  # [rows, A] where one is at least
    alone: NDArray[np.bool_]  # [A] it has no replicas
    rows: Rows = field(default_factory=Rows)
    columns: int = field(init=False)
    fits: NDArray[np.bool_] = field(init=False)  # [A, C]

    def __post_init__(self) -> None:
        self.instance = self.tasks.instance
        self.atoms = len(self.instance.atoms)
        self.columns = 1 + self.atoms * len(self.classes)
        first = [int(each[0]) for each in self.classes]
        self.sizes = np.array([len(each) for each in self.classes])
        self.capacity = self.instance.capacity[first]
        self.work_s = self.tasks.work_s[:, self.instance.kind_of[first]]  # [3n, C]
        self.atom = self.instance.atom_of[self.tasks.node]
        self.contended = _contended(self.instance)
        self.host = self.instance.device.host[first]
        self.slowdown = self.instance.device.slowdown[first]  # [C, devices of a host + 1]
        self.overhead_s = np.array([self.instance.on[p].instruction_s for p in first])
        self.fits = np.all(self.present[:, :, None] <= self.capacity, axis=0)

    @property
    def total_s(self) -> Floats:
        """[A, C] of all tasks."""
        sums = np.zeros((self.atoms, len(self.classes)))
        np.add.at(sums, self.atom, self.work_s)
        return sums

    def least_s(self, known_s: float, limit_s: float) -> float:
        """The optimum, or what was proven of it in the time; at least `known_s`."""
        known_s = max(known_s, self._in_sum())
        if limit_s <= 0 or self.atoms * len(self.classes) > _MOST:
            return known_s
        self._add_rows()
        return max(known_s, _SAFE * self._solve(known_s, min(limit_s, LIMIT_S)))

    def _in_sum(self) -> float:
        """Every atom at the rate at which all devices together do it, at best."""
        seconds = self.total_s
        least = seconds.min(axis=1)
        timed = least > 0
        if not timed.any():
            return 0.0
        return float(
            least[timed].sum() / (self.sizes * (least[timed, None] / seconds[timed]).max(axis=0)).sum()
        )

    def _x(self, a: int, c: int) -> int:
        return 1 + a * len(self.classes) + c

    def _add_rows(self) -> None:
        kinds = range(len(self.classes))
        for a in range(self.atoms):
            self.rows.add([(self._x(a, c), 1.0) for c in kinds], 1.0, equal=True)
        for held in self.held:
            most = float(held.max(initial=0.0)) or 1.0
            for c in kinds:
                terms = [(self._x(a, c), held[a] / most) for a in np.flatnonzero(held).tolist()]
                self.rows.add(terms, float(self.sizes[c] * self.capacity[c]) / most)
        # Of each micro-batch some instruction computes a node forward, and one backward.
        v = int(np.argmax(self.instance.trained))
        passes = 1 + bool(self.instance.trained[v] and self.schedule.training)
        overhead_s = np.zeros((self.atoms, len(self.classes)))
        overhead_s[self.instance.atom_of[v]] = passes * self.schedule.microbatches * self.overhead_s
        for c, size in enumerate(self.sizes.tolist()):
            self.rows.add([(0, -float(size)), *self._terms(self.total_s + overhead_s, c)])
        self._hosts(self.total_s)

    def _hosts(self, seconds: Floats) -> None:
        """A second in which one device of a host computes does as much as its slowdown lets it; one in which
        several do, what the devices of a class, and those of all classes by weight, do at best."""
        for host in self.contended:
            of_host = np.flatnonzero(self.host == host)
            weights, together = self._together(of_host)
            shared, self.columns = self.columns, self.columns + 1
            sums: list[Term] = [(0, -1.0), (shared, 1.0)]
            all_classes: list[Term] = [(shared, -together)]
            for c, weight in zip(of_host.tolist(), weights.tolist(), strict=True):
                alone, self.columns = self.columns, self.columns + 1
                done: list[Term] = [(alone, -1.0 / float(self.slowdown[c, 1])), *self._terms(seconds, c)]
                self.rows.add([(shared, -self._several(c)), *done])
                sums.append((alone, 1.0))
                all_classes += [(column, weight * each) for column, each in done]
            if len(of_host) > 1:
                self.rows.add(all_classes)
            self.rows.add(sums)

    def _several(self, c: int) -> float:
        """Most seconds of work that a class does in one in which two devices of its host or more compute."""
        host = int((self.instance.device.host == self.host[c]).sum())
        computing = np.arange(2, host + 1)
        done = np.minimum(computing, self.sizes[c]) / self.slowdown[c, computing]
        return float(done.max(initial=0.0))

    def _together(self, of_host: Ints) -> tuple[Floats, float]:
        """A weight for each class of a host, and the most that a second of several devices does, so weighed.
        Weighed by what two that compute slow one another, devices that take turns on processors do the same
        whichever of them compute."""
        weights = self.slowdown[of_host, min(2, self.slowdown.shape[1] - 1)]
        rates = np.repeat(weights[:, None] / self.slowdown[of_host], self.sizes[of_host], axis=0)
        several = range(2, len(rates) + 1)
        return weights, max((float(np.sort(rates[:, k])[-k:].sum()) for k in several), default=0.0)

    def _terms(self, seconds: Floats, c: int) -> list[Term]:
        return [(self._x(a, c), float(seconds[a, c])) for a in np.flatnonzero(seconds[:, c]).tolist()]

    def _solve(self, least_s: float, left_s: float) -> float:
        """The programme's value; 0: not solved in time, or nothing fits at all."""
        import highspy

        upper = np.full(self.columns, np.inf)
        upper[1 : 1 + self.fits.size] = self.fits.ravel()
        lower, cost = np.zeros(self.columns), np.zeros(self.columns)
        lower[0], cost[0] = least_s, 1.0
        solver = highs(left_s, 0.0, 0)
        self.rows.model(lower, upper, cost, np.zeros(self.columns, bool)).pass_to(solver)
        run_highs(solver)
        optimal = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
        return float(solver.getInfo().objective_function_value) if optimal else 0.0


def _whole_s(work: FractionalWork) -> float:
    """An atom's micro-batches are each on one device: all on one where it has no replicas."""
    tasks, m = work.tasks, work.schedule.microbatches
    seconds = np.where(work.fits, work.total_s, np.inf) / m
    if not np.isfinite(seconds).any(axis=1).all():
        return 0.0
    begin, end = np.full(work.atoms, np.inf), np.full(work.atoms, np.inf)
    timed = tasks.work_s.max(axis=1) > 0
    np.minimum.at(begin, work.atom[timed], tasks.head_s[timed])
    np.minimum.at(end, work.atom[timed], tasks.tail_s[timed])
    outside = np.where(np.isfinite(begin), begin + end, 0.0)
    least = seconds.min(axis=1)
    pieces = np.where(work.alone, m, -(-m // int(work.sizes.sum())))
    bound_s = float((outside + least * pieces).max(initial=0.0))
    for a in np.argsort(-least)[:8].tolist():
        counts = np.arange(1, m + 1)
        ends = np.sort(
            np.concatenate([np.repeat(s * counts, k) for s, k in zip(seconds[a], work.sizes, strict=True)])
        )
        bound_s = max(bound_s, float(outside[a] + ends[m - 1]))
    return bound_s
