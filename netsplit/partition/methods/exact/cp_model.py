"""The CP-SAT model of one iteration under `single_batch`: placement, one total order, and all times.

Variables: x[a,d] atom a on device d; pos[v] rank of node v, b[i,j] "i before j" for every pair; starts of
forwards and backwards; per (variable, destination) one transfer and one gradient. What runs when two
things want one device or one link follows from the order: every device works off its nodes in it, then the
backwards of its trained nodes in the reverse; a link serves transfers as the computations that make them
end, and of one computation the variable with the lower index first.

Sources: METHODS.md 3.1 is our own collection; disjunctive scheduling with optional intervals after
Laborie et al., IBM ILOG CP Optimizer for scheduling, Constraints 2018; CP-SAT of OR-tools 9.15.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from netsplit.partition.common.instance import Floats, Instance, Ints, interchangeable_devices
from netsplit.partition.engines.placement_model import PlacementModel

__all__ = ["LatencyModel", "reachable"]


def reachable(instance: Instance) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """[n, n] whether a path leads from i to j. Nodes are in topological order."""
    reach = np.zeros((instance.n, instance.n), bool)
    for v in reversed(range(instance.n)):
        for w in instance.successors[v]:
            reach[v] |= reach[w]
            reach[v, w] = True
    return reach


class LatencyModel(PlacementModel):
    """Builds the model in ticks; `end` is what to minimise, at most `horizon`.

    Seconds are rounded down, so that no schedule is longer in ticks than it is in seconds.
    """

    def __init__(self, instance: Instance, tick_s: float, horizon: int) -> None:
        def ticks(seconds: Floats) -> Ints:
            return np.floor(np.minimum(seconds / tick_s, 2.0**40)).astype(np.int64)

        self.instance, self.horizon = instance, horizon
        self.forward_ticks, self.backward_ticks = ticks(instance.forward_s), ticks(instance.backward_s)
        self.transfer_ticks, self.step_ticks = ticks(instance.transfer_s), ticks(instance.step_s)
        own, shared = instance.bytes_of_groups(instance.atom_of)
        super().__init__(own, shared, instance.capacity, interchangeable_devices(instance))
        self.x = [self.place[a] for a in instance.atom_of]  # [n][D]
        self.end = self._time()
        self._order()
        self._compute()
        self._transfers()
        self._gradients()
        self._ends()
        self.model.minimize(self.end)

    def _time(self) -> Any:
        return self.model.new_int_var(0, self.horizon, "")

    def _add(self, row: Any, *literals: Any) -> None:
        """A row that holds if all the literals do."""
        self.model.add(row).only_enforce_if(*literals)

    # In which order.

    def _order(self) -> None:
        instance, model, n = self.instance, self.model, self.instance.n
        self.pos = [model.new_int_var(0, max(n - 1, 0), "") for v in range(n)]
        reach = self.reach = reachable(instance)
        self.before: dict[tuple[int, int], Any] = {}
        true = model.new_constant(1)
        for i, j in combinations(range(n), 2):
            b = true if reach[i, j] else self.literal()
            self.before[i, j], self.before[j, i] = b, ~b
            self._add(self.pos[i] < self.pos[j], b)
            if not reach[i, j]:
                self._add(self.pos[j] < self.pos[i], ~b)
        model.add_all_different(self.pos)
        first: dict[int, int] = {}
        counts: dict[int, int] = {}
        for v, unit in enumerate(instance.unit_of):
            if unit in first:
                counts[unit] += 1
                model.add(self.pos[v] == self.pos[first[unit]] + counts[unit])
            else:
                first[unit], counts[unit] = v, 0
        self._same: dict[tuple[int, int], Any] = {}
        self._true = true

    def same(self, i: int, j: int) -> Any:
        """Literal that holds where two nodes share a device (and may hold only there)."""
        a, b = sorted((int(self.instance.atom_of[i]), int(self.instance.atom_of[j])))
        if a == b:
            return self._true
        if (a, b) not in self._same:
            literal = self._same[a, b] = self.literal()
            for d in self.devices:
                self.model.add_bool_or([~self.x[i][d], ~self.x[j][d], literal])
                self.model.add_bool_or([~self.x[i][d], self.x[j][d], ~literal])
        return self._same[a, b]

    # When.

    def _compute(self) -> None:
        instance, model = self.instance, self.model
        self.forward = [self._time() for v in range(instance.n)]
        self.backward = {v: self._time() for v in range(instance.n) if instance.trained[v]}
        self.forward_end = [
            self._ended(start, self.forward_ticks[v], v) for v, start in enumerate(self.forward)
        ]
        self.backward_end = {v: self._ended(s, self.backward_ticks[v], v) for v, s in self.backward.items()}
        turn = [self._time() for d in self.devices]  # all forwards of the device are done
        for v in range(instance.n):
            for d in self.devices:
                self._add(turn[d] >= self.forward_end[v], self.x[v][d])
                if v in self.backward:
                    self._add(self.backward[v] >= turn[d], self.x[v][d])
            if v in self.backward:
                model.add(self.backward[v] >= self.forward_end[v])
            for w in (int(w) for w in instance.successors[v]):
                model.add(self.forward[w] >= self.forward_end[v])
        for (i, j), b in self.before.items():
            if not self.reach[i, j] and not self.reach[j, i]:
                self._add(self.forward[j] >= self.forward_end[i], b, self.same(i, j))
            if i in self.backward and j in self.backward:
                self._add(self.backward[i] >= self.backward_end[j], b, self.same(i, j))
        for d in self.devices:
            model.add_no_overlap(
                [
                    model.new_optional_fixed_size_interval_var(start[v], int(size[v, d]), self.x[v][d], "")
                    for start, size in (
                        (self.forward, self.forward_ticks),
                        (self.backward, self.backward_ticks),
                    )
                    for v in (range(instance.n) if start is self.forward else self.backward)
                ]
            )

    def _ended(self, start: Any, sizes: Sequence[int] | Ints, v: int) -> Any:
        """End of something that lasts `sizes[d]` where node v is on d."""
        return start + sum(self.x[v][d] * int(sizes[d]) for d in self.devices if sizes[d])

    def _present(self, u: int, q: int, readers: list[int]) -> Any:
        """Literal: a reader is on q and the producer is not."""
        literal, home = self.literal(), self.x[int(self.instance.producer[u])][q]
        for c in readers:
            self.model.add_bool_or([~self.x[c][q], home, literal])
        self.model.add_implication(literal, ~home)
        self.model.add_bool_or([~literal, *(self.x[c][q] for c in readers)])
        return literal

    def _transfers(self) -> None:
        instance = self.instance
        self.sent: dict[tuple[int, int], tuple[Any, Any, Any]] = {}  # (u, q) -> present, start, end
        self.busy = {(p, q): self._time() for p in self.devices for q in self.devices if p != q}
        for u in range(len(instance.variables)):
            maker = int(instance.producer[u])
            for q in self.devices:
                readers = [int(c) for c in instance.consumers[u]]
                present, start = self._present(u, q, readers), self._time()
                end = self._ended(start, self.transfer_ticks[u, :, q], maker)
                self.sent[u, q] = present, start, end
                self._add(start >= self.forward_end[maker], present)
                for c in readers:
                    self._add(self.forward[c] >= end, present, self.x[c][q])
                for p in self.devices:
                    if p != q:
                        self._add(self.busy[p, q] >= end, present, self.x[maker][p])
        for u, w in combinations(range(len(instance.variables)), 2):
            i, j = int(instance.producer[u]), int(instance.producer[w])
            for q in self.devices:
                (pu, su, eu), (pw, sw, ew) = self.sent[u, q], self.sent[w, q]
                if i == j:
                    self._add(sw >= eu, pu, pw)
                    continue
                self._add(sw >= eu, pu, pw, self.same(i, j), self.before[i, j])
                self._add(su >= ew, pu, pw, self.same(i, j), self.before[j, i])

    def _gradients(self) -> None:
        instance = self.instance
        self.returned: dict[tuple[int, int], tuple[Any, Any, Any]] = {}
        back = np.flatnonzero(instance.requires_backward).tolist()
        readers = {u: [c for c in instance.consumers[u].tolist() if instance.trained[c]] for u in back}
        readers = {u: consumers for u, consumers in readers.items() if consumers}
        last: dict[tuple[int, int], Any] = {}  # rank of the reader whose backward is the last
        for u, consumers in readers.items():
            maker = int(instance.producer[u])
            for q in self.devices:
                present, start = self._present(u, q, consumers), self._time()
                end = self._ended(start, self.transfer_ticks[u, q], maker)
                self.returned[u, q] = present, start, end
                self._add(self.backward[maker] >= end, present)
                for c in consumers:
                    self._add(start >= self.backward_end[c], present, self.x[c][q])
                for p in self.devices:
                    if p != q:
                        self._add(start >= self.busy[q, p], present, self.x[maker][p])
                last[u, q] = self._last(u, q, consumers, present)
        for u, w in combinations(readers, 2):
            i, j = int(instance.producer[u]), int(instance.producer[w])
            for q in self.devices:
                (pu, su, eu), (pw, sw, ew) = self.returned[u, q], self.returned[w, q]
                same = self.same(i, j)
                first = self.literal()
                self._add(last[u, q] >= last[w, q], first, pu, pw, same)
                self._add(last[u, q] < last[w, q], ~first, pu, pw, same)
                self._add(sw >= eu, first, pu, pw, same)
                self._add(su >= ew, ~first, pu, pw, same)

    def _last(self, u: int, q: int, readers: list[int], present: Any) -> Any:
        if len(readers) == 1:
            return self.pos[readers[0]]
        rank = self.model.new_int_var(0, self.instance.n - 1, "")
        chosen = [self.literal() for c in readers]
        self.model.add(sum(chosen) == present)
        for c, literal in zip(readers, chosen, strict=True):
            self._add(rank == self.pos[c], literal)
            self.model.add_implication(literal, self.x[c][q])
            self._add(rank <= self.pos[c], self.x[c][q], present)
        return rank

    def _ends(self) -> None:
        """The end of everything, and rows that follow from the others but bound it sooner."""
        instance, model = self.instance, self.model
        steps = [
            sum(self.x[v][d] * int(self.step_ticks[v, d]) for v in range(instance.n) if self.step_ticks[v, d])
            for d in self.devices
        ]
        for v in range(instance.n):
            model.add(self.end >= self.forward_end[v])
        for v, end in self.backward_end.items():
            for d in self.devices:
                self._add(self.end >= end + steps[d], self.x[v][d])
        for d in self.devices:
            load = (
                self.forward_ticks[:, d]
                + (self.backward_ticks[:, d] + self.step_ticks[:, d]) * instance.trained
            )
            model.add(self.end >= sum(self.x[v][d] * int(s) for v, s in enumerate(load) if s))

    def hint(self, where: Sequence[int] | Ints, order: Sequence[int] | Ints) -> None:
        """A known placement and order to begin with; the solver finds the times that they have."""
        rank = np.argsort(order).tolist()
        self.hint_places([int(where[self.instance.atoms[a][0]]) for a in range(len(self.place))])
        for v, pos in enumerate(self.pos):
            self.model.add_hint(pos, rank[v])
        for i, j in combinations(range(len(rank)), 2):
            if not self.reach[i, j]:
                self.model.add_hint(self.before[i, j], rank[i] < rank[j])
