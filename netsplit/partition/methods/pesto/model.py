"""Pesto's model for K devices, over the tasks of a coarsened training step, for CP-SAT.

Sources: Hafeez et al., Pesto (Middleware 2021), for two devices; for K devices the form of Moirai (arXiv
2312.04025), with the same symbols: tasks i, j; communication operations q, r; devices k.

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

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from netsplit.partition.common.instance import Floats, Ints, interchangeable_devices
from netsplit.partition.engines.placement_model import PlacementModel, Solved
from netsplit.partition.methods.pesto.tasks import CoarseSchedule, CoarseTasks

__all__ = ["PestoModel"]

_TICKS = 2_000_000  # of the known schedule

_Span: TypeAlias = tuple[Any, int, Any]
"""Start, ticks, and the literal that says whether it is there."""


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
