"""Pesto's mixed-integer model for K devices, over the tasks of a coarsened training step.

Sources: Hafeez et al., Pesto (Middleware 2021), for two devices; for K devices the form of Moirai (arXiv
2312.04025), with the same symbols: tasks i, j; communication operations q, r; devices k.

    minimise Cmax
    Cmax >= C_i,  C_i = S_i + sum_k p_ik x_ik,  S_j >= C_i of every edge inside a class
    sum_k x_ik = 1, x binary; one x for all tasks of a class
    u_q,k,l = x_ik x_jl of q = (i, j),  C_q = S_q + sum_{k != l} p_q,k,l u_q,k,l,  S_q >= C_i,  S_j >= C_q
    non-overlap, of tasks i, j without a path between them:
        S_i >= C_j - M delta_ij - M (1 - same_ij),       S_j >= C_i - M (1 - delta_ij) - M (1 - same_ij)
    congestion, of messages q, r where neither must precede the other, on one directed link k -> l:
        S_q >= C_r - M delta_qr - M (1 - same_qr),       S_r >= C_q - M (1 - delta_qr) - M (1 - same_qr)
    bytes on k under (5-18) <= capacity of k

Written more tightly, with the same integer solutions:

- u has the rows ``sum_l u_q,k,l = x_ik`` and ``sum_k u_q,k,l = x_jl`` in place of u >= x + x - 1; Pesto's
  z_q is ``1 - sum_k u_q,k,k``. Messages between the same two classes share it.
- same_ij >= x_ik + x_jk - 1 for every k (for neighbours it is ``sum_k u_q,k,k``), so that each pair has
  two rows with a big M rather than two for every device; likewise same_qr with u.
- every M is its own: the latest end of the one less the earliest start of the other, where the latest
  times count back from the makespan of a known schedule (the papers: 100000). Pairs whose windows do
  not meet need no rows.
- two rows that follow: Cmax is at least the load of every device and of every directed link.

Times are scaled so that the known schedule takes 1000, capacities to 1000 each. What takes more than
twice that schedule counts as twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, islice

import numpy as np

from netsplit.partition.common.instance import interchangeable
from netsplit.partition.engines.mixed_integer import MOST_BYTES, engine_bytes, solve
from netsplit.partition.engines.rows import Outcome, Rows, Term
from netsplit.partition.methods.pesto.tasks import CoarseSchedule, CoarseTasks

__all__ = ["Mip", "PestoRows"]


@dataclass
class Mip:
    """A mixed-integer linear model that grows by columns and rows."""

    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    start: list[float] = field(default_factory=list)  # a feasible value of every column
    rows: Rows = field(default_factory=Rows)
    objective: int | None = None  # the column to minimise

    def column(self, start: float, upper: float = 1.0, lower: float = 0.0, integer: bool = False) -> int:
        self.lower.append(lower)
        self.upper.append(upper)
        self.integer.append(integer)
        self.start.append(start)
        return len(self.lower) - 1

    def at_most(self, terms: Iterable[Term], limit: float, equal: bool = False) -> None:
        """``sum of terms <= limit``, or ``=``; terms of one column are added up."""
        summed: dict[int, float] = {}
        for column, value in terms:
            summed[column] = summed.get(column, 0.0) + value
        self.rows.add(summed.items(), limit, equal=equal)

    def solve(
        self, time_limit_s: float, gap: float, seed: int, *, engine: str = "highs", with_start: bool = True
    ) -> Outcome:
        """Raises ConfigError: `engine` cannot take the model."""
        cost = np.zeros(len(self.lower))
        if self.objective is not None:
            cost[self.objective] = 1.0
        model = self.rows.model(self.lower, self.upper, cost, self.integer)
        start = self.start if with_start else None
        return solve(model, engine=engine, time_limit_s=time_limit_s, gap=gap, seed=seed, start=start)


_SCALE = 1000.0

Fact = tuple[list[Term], float]  # an expression: terms and a constant


class PestoRows:
    """The model's columns and rows; `known` is a schedule that its rows allow."""

    def __init__(
        self, tasks: CoarseTasks, known: CoarseSchedule, margin: Mapping[int, int] | None = None
    ) -> None:
        """`margin`: bytes by which the capacity of a device is lowered."""
        self.tasks, self.mip, self.margin = tasks, Mip(), margin or {}
        self.devices = range(len(tasks.instance.devices))
        self.unit_s = known.makespan / _SCALE or 1.0
        self.alike = not self.margin and _all_alike(tasks)
        self.known = _relabelled(known) if self.alike else known
        self.seconds, self.message_s = (
            np.minimum(seconds / self.unit_s, 2 * _SCALE) for seconds in (tasks.seconds, tasks.message_s)
        )
        self._class_pairs: dict[tuple[int, int], int] = {}
        self._same: dict[tuple[int, ...], Fact] = {}
        self._place_columns()

    def build(self, most_pairs: int) -> Mip | None:
        """The whole model; None if more than `most_pairs` orders would be open, or memory is not enough."""
        self._windows()
        self._overlaps = list(islice(self._overlapping(), most_pairs + 1))
        self._disputes = list(islice(self._disputing(), most_pairs + 1))
        if self.orders > most_pairs:
            return None
        self._time_columns()
        if engine_bytes(self.most_coefficients()) > MOST_BYTES:
            return None
        self._precedence_rows()
        self._overlap_rows()
        self._congestion_rows()
        self._load_rows()
        self.memory_rows()
        return self.mip

    @property
    def orders(self) -> int:
        """Pairs of tasks or of messages whose order is to be decided."""
        return len(self._overlaps) + len(self._disputes)

    def most_coefficients(self) -> int:
        """No model of these tasks has more."""
        tasks, width = self.tasks, len(self.devices)
        messages, area = len(tasks.messages), width**2
        orders = len(self._overlaps) * (5 * width + 10) + len(self._disputes) * (5 * area + 2 * width + 10)
        products = len(set(tasks.ends)) * 2 * width * (width + 1)
        before = (tasks.count + len(tasks.local) + 2 * messages) * (width + 2) + messages * area
        loads = width * (tasks.count + 1) + area * (messages + 1)
        shared = sum(1 + 2 * len(classes) for classes in self._class_bytes[1])
        places = width * (2 * len(tasks.coarse.classes) + shared)
        return orders + products + before + loads + places

    def places(self, values: list[float]) -> tuple[int, ...]:
        """Device of every class."""
        width = len(self.devices)
        choices = np.array(values[: width * len(self.tasks.coarse.classes)]).reshape(-1, width)
        return tuple(int(k) for k in choices.argmax(axis=1))

    def order(self, values: list[float]) -> list[float]:
        """[T + Q] the middle of each operation: the order in which devices and links serve.

        Not the start, which what takes no time may share with what follows it.
        """
        tasks = [values[column] + _value(self._end(t), values) for t, column in enumerate(self.start)]
        messages = []
        for q, (s, _) in enumerate(self.tasks.messages):
            sent = values[self.sent[q]] if q in self.sent else _value(self._end(s), values)
            messages.append(sent + _value(self._arrival(q), values))
        return [twice / 2 for twice in tasks + messages]

    @cached_property
    def _class_bytes(self) -> tuple[list[int], dict[tuple[int, ...], int]]:
        """Bytes of each class alone, and of the variables that just these classes touch."""
        return self.tasks.instance.bytes_of_groups(self.tasks.nodes_at(range(len(self.tasks.coarse.classes))))

    def memory_rows(self) -> None:
        """(5-18) for the devices which cannot hold everything."""
        instance = self.tasks.instance
        own, shared = self._class_bytes
        total = sum(own) + sum(shared.values())
        for k in self.devices:
            capacity = int(instance.capacity[k]) - self.margin.get(k, 0)
            if total <= capacity:
                continue
            scale = _SCALE / max(capacity, 1)
            most = 2 * max(capacity, 1)  # what exceeds a capacity alone is excluded by this much too
            sizes = [min(size, most) for size in own]
            terms: list[Term] = [(self._x(g, k), size * scale) for g, size in enumerate(sizes) if size]
            for classes, nbytes in shared.items():
                size = min(nbytes, most)
                held = self.mip.column(float(any(self.known.where[g] == k for g in classes)))
                terms.append((held, size * scale))
                for g in classes:
                    self.mip.at_most([(self._x(g, k), 1.0), (held, -1.0)], 0.0)
            self.mip.at_most(terms, capacity * scale)

    def _x(self, g: int, k: int) -> int:
        return g * len(self.devices) + k

    def _place_columns(self) -> None:
        """x, with the first classes kept off later devices where all devices are alike."""
        for g, at in enumerate(self.known.where):
            for k in self.devices:
                self.mip.column(float(at == k), upper=0.0 if self.alike and k > g else 1.0, integer=True)
            self.mip.at_most(((self._x(g, k), 1.0) for k in self.devices), 1.0, equal=True)

    def _windows(self) -> None:
        """When each task may start, if no schedule is longer than the known one."""
        tasks, unit = self.tasks, self.unit_s
        end = _SCALE * (1 + 1e-9)
        heads = [head / unit for head in tasks.head_s]
        self.latest = [
            end - (tail + least) / unit for tail, least in zip(tasks.tail_s, tasks.least_s, strict=True)
        ]
        self.earliest = [min(a, b) for a, b in zip(heads, self.latest, strict=True)]
        self.least = [least / unit for least in tasks.least_s]

    def _time_columns(self) -> None:
        unit = self.unit_s
        self.start = [
            self.mip.column(s / unit, lower=a, upper=b)
            for s, a, b in zip(self.known.start, self.earliest, self.latest, strict=True)
        ]
        self.makespan = self.mip.objective = self.mip.column(_SCALE, upper=_SCALE * (1 + 1e-9))
        disputed = {q for pair in self._disputes for q in pair}
        self.sent = {
            q: self.mip.column(self.known.sent[q] / unit, lower=self._window(q)[0], upper=self._window(q)[1])
            for q in sorted(disputed)
        }

    def _window(self, q: int) -> tuple[float, float]:
        """Earliest start and latest end of a message."""
        s, t = self.tasks.messages[q]
        return self.earliest[s] + self.least[s], max(self.latest[t], self.earliest[s] + self.least[s])

    def _disputing(self) -> Iterator[tuple[int, int]]:
        """Pairs of messages that may want one link at one time."""
        tasks = self.tasks
        for q, r in combinations(range(len(tasks.messages)), 2):
            (a, b), (c, d) = tasks.ends[q], tasks.ends[r]
            if (
                (a, b) != (d, c)
                and not tasks.messages_ordered(q, r)
                and _meet(self._window(q), self._window(r))
            ):
                yield q, r

    def _task_window(self, t: int) -> tuple[float, float]:
        """Earliest start and latest end of a task."""
        return self.earliest[t], self.latest[t] + self.least[t]

    def _overlapping(self) -> Iterator[tuple[int, int]]:
        """Pairs of tasks that may want one device at one time."""
        for i, j in combinations(range(self.tasks.count), 2):
            if _meet(self._task_window(i), self._task_window(j)) and not self.tasks.ordered(i, j):
                yield i, j

    def _precedence_rows(self) -> None:
        tasks = self.tasks
        for t in range(tasks.count):
            if not tasks.after[t]:
                self._before(self._end(t), self.makespan)
        for s, t in tasks.local:
            self._before(self._end(s), self.start[t])
        for q, (s, t) in enumerate(tasks.messages):
            if q in self.sent:
                self._before(self._end(s), self.sent[q])
            self._before(self._arrival(q), self.start[t])

    def _overlap_rows(self) -> None:
        for i, j in self._overlaps:
            columns, ends = (self.start[i], self.start[j]), (self._end(i), self._end(j))
            same = self._same_device(self.tasks.class_of[i], self.tasks.class_of[j])
            self._exclusive(columns, ends, [self._task_window(i), self._task_window(j)], same)

    def _congestion_rows(self) -> None:
        for q, r in self._disputes:
            columns, window = (self.sent[q], self.sent[r]), [self._window(q), self._window(r)]
            self._exclusive(columns, (self._arrival(q), self._arrival(r)), window, self._same_link(q, r))

    def _exclusive(
        self, start: tuple[int, int], end: tuple[Fact, Fact], window: list[tuple[float, float]], same: Fact
    ) -> None:
        """One before the other where `same` is 1; `delta` is 1 if the first comes first."""
        known = self.mip.start
        first = _value(end[0], known) <= known[start[1]] + 1e-9
        delta = self.mip.column(float(first), integer=True)
        for before, after, one in ((1, 0, False), (0, 1, True)):
            big = max(0.0, window[before][1] - window[after][0])
            # end - start <= big * (1 - same) + big * (delta, or 1 - delta)
            terms = [*end[before][0], (start[after], -1.0)]
            terms += [(column, big * value) for column, value in same[0]]
            terms.append((delta, big if one else -big))
            limit = big * (1.0 - same[1]) + (big if one else 0.0)
            self.mip.at_most(terms, limit - end[before][1])

    def _load_rows(self) -> None:
        """The makespan is at least what one device computes, and what one directed link carries."""
        tasks = self.tasks
        for k in self.devices:
            terms = [(self._x(g, k), self.seconds[t, k]) for t, g in enumerate(tasks.class_of)]
            self.mip.at_most([*terms, (self.makespan, -1.0)], 0.0)
            for other in self.devices:
                if other != k and tasks.messages:
                    sent = [
                        (self._u(a, b, k, other), self.message_s[q, k, other])
                        for q, (a, b) in enumerate(tasks.ends)
                    ]
                    self.mip.at_most([*sent, (self.makespan, -1.0)], 0.0)

    def _before(self, end: Fact, column: int) -> None:
        self.mip.at_most([*end[0], (column, -1.0)], -end[1])

    def _end(self, t: int) -> Fact:
        """C_i."""
        seconds = self.seconds[t]
        if seconds.min() == seconds.max():
            return [(self.start[t], 1.0)], float(seconds[0])
        g = self.tasks.class_of[t]
        return [(self.start[t], 1.0), *((self._x(g, k), float(seconds[k])) for k in self.devices)], 0.0

    def _arrival(self, q: int) -> Fact:
        """C_q; of a message that no other can delay, C_i + its seconds."""
        terms, constant = (
            ([(self.sent[q], 1.0)], 0.0) if q in self.sent else self._end(self.tasks.messages[q][0])
        )
        a, b = self.tasks.ends[q]
        seconds = self.message_s[q]
        lengths = [
            (self._u(a, b, k, m), float(seconds[k, m])) for k in self.devices for m in self.devices if k != m
        ]
        return [*terms, *lengths], constant

    def _u(self, a: int, b: int, k: int, m: int) -> int:
        """The column of x_ak x_bm; made, with its rows, at the first use of the two classes."""
        if a > b:
            a, b, k, m = b, a, m, k
        width = len(self.devices)
        if (a, b) not in self._class_pairs:
            at = self.known.where[a], self.known.where[b]
            columns = [self.mip.column(float(at == (p, q))) for p in self.devices for q in self.devices]
            self._class_pairs[a, b] = first = columns[0]
            for p in self.devices:
                along = [(first + p * width + q, 1.0) for q in self.devices]
                self.mip.at_most([*along, (self._x(a, p), -1.0)], 0.0, equal=True)
                across = [(first + q * width + p, 1.0) for q in self.devices]
                self.mip.at_most([*across, (self._x(b, p), -1.0)], 0.0, equal=True)
        return self._class_pairs[a, b] + k * width + m

    def _same_device(self, a: int, b: int) -> Fact:
        """1 where two classes share a device."""
        a, b = min(a, b), max(a, b)
        if a == b:
            return [], 1.0
        if (a, b) in self._class_pairs:
            return [(self._u(a, b, k, k), 1.0) for k in self.devices], 0.0
        if (a, b) not in self._same:
            same = self.mip.column(float(self.known.where[a] == self.known.where[b]))
            for k in self.devices:
                self.mip.at_most([(self._x(a, k), 1.0), (self._x(b, k), 1.0), (same, -1.0)], 1.0)
            self._same[a, b] = [(same, 1.0)], 0.0
        return self._same[a, b]

    def _same_link(self, q: int, r: int) -> Fact:
        """1 where two messages take one directed link."""
        (a, b), (c, d) = sorted((self.tasks.ends[q], self.tasks.ends[r]))
        ways = [(k, m) for k in self.devices for m in self.devices if k != m]
        if (a, b) == (c, d):
            return [(self._u(a, b, k, m), 1.0) for k, m in ways], 0.0
        if (a, b, c, d) not in self._same:
            at = self.known.where
            same = self.mip.column(float((at[a], at[b]) == (at[c], at[d]) and at[a] != at[b]))
            for k, m in ways:
                both = [(self._u(a, b, k, m), 1.0), (self._u(c, d, k, m), 1.0), (same, -1.0)]
                self.mip.at_most(both, 1.0)
            self._same[a, b, c, d] = [(same, 1.0)], 0.0
        return self._same[a, b, c, d]


def _meet(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Whether two windows of (earliest start, latest end) have more than an end in common."""
    return one[1] > other[0] and other[1] > one[0]


def _value(fact: Fact, values: list[float]) -> float:
    return fact[1] + sum(value * values[column] for column, value in fact[0])


def _all_alike(tasks: CoarseTasks) -> bool:
    """Whether any two devices may be exchanged."""
    instance = tasks.instance
    own = [(int(c), tasks.seconds[:, p].tobytes()) for p, c in enumerate(instance.capacity)]
    return len(interchangeable(own, (instance.latency_s, instance.seconds_per_byte))) == 1


def _relabelled(known: CoarseSchedule) -> CoarseSchedule:
    """The same schedule with devices numbered by their first class."""
    number: dict[int, int] = {}
    where = tuple(number.setdefault(k, len(number)) for k in known.where)
    return CoarseSchedule(where, known.start, known.sent, known.makespan)
