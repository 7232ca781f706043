"""The CP-SAT model of one iteration under `single_batch`: placement, one total order, and all times.

Variables: x[a,d] atom a on device d; pos[v] rank of node v, b[i,j] "i before j" for every pair; starts of
forwards and backwards; per (variable, destination) one transfer and one gradient. What runs when two
things want one device or one link is not free: it follows from the order, exactly as in `cp_schedule`.

Sources: METHODS.md 3.1 is our own collection; disjunctive scheduling with optional intervals after
Laborie et al., IBM ILOG CP Optimizer for scheduling, Constraints 2018; CP-SAT of OR-tools 9.15.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Any

import numpy as np

from netsplit.partition.common.instance import Instance, Ints
from netsplit.partition.common.interchangeable import interchangeable_devices
from netsplit.partition.methods.exact.cp_schedule import Durations, StartTimes, trained_readers

__all__ = ["LatencyModel", "reachable"]


def reachable(instance: Instance) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """[n, n] whether a path leads from i to j. Nodes are in topological order."""
    reach = np.zeros((instance.n, instance.n), bool)
    for v in reversed(range(instance.n)):
        for w in instance.successors[v]:
            reach[v] |= reach[w]
            reach[v, w] = True
    return reach


class LatencyModel:
    """Builds the model in ticks; `end` is what to minimise, at most `horizon`."""

    def __init__(self, instance: Instance, durations: Durations, horizon: int) -> None:
        from ortools.sat.python import cp_model

        self.instance, self.d, self.horizon = instance, durations, horizon
        self.model: Any = cp_model.CpModel()
        self.devices = range(len(instance.devices))
        self.values: list[tuple[Any, Any]] = []  # (variable, key) for hints
        self.end = self._time("end")
        self._place()
        self._order()
        self._compute()
        self._transfers()
        self._gradients()
        self._ends()
        self.model.minimize(self.end)

    def _time(self, key: Any) -> Any:
        return self._var(self.model.new_int_var(0, self.horizon, ""), key)

    def _bool(self, *key: Any) -> Any:
        return self._var(self.model.new_bool_var(""), key)

    def _var(self, variable: Any, key: Any) -> Any:
        self.values.append((variable, key))
        return variable

    def _add(self, row: Any, *literals: Any) -> None:
        """A row that holds if all the literals do."""
        self.model.add(row).only_enforce_if(*literals)

    # Which device.

    def _place(self) -> None:
        instance, model = self.instance, self.model
        atoms = [[int(v) for v in instance.atoms[a]] for a in range(len(instance.atoms))]
        place = [[self._bool("x", a, d) for d in self.devices] for a in range(len(atoms))]
        self.x = [place[a] for a in instance.atom_of]  # [n][D]
        for row in place:
            model.add_exactly_one(row)
        self._memory(place, atoms)
        self._symmetry(place)

    def _memory(self, place: list[list[Any]], atoms: list[list[int]]) -> None:
        instance, model = self.instance, self.model
        state = [int(instance.state_bytes[nodes].sum()) for nodes in atoms]
        bytes_of: dict[tuple[int, ...], int] = {}
        for h in range(len(instance.held_bytes)):
            owners = tuple(sorted({int(instance.atom_of[v]) for v in instance.holders[h]}))
            bytes_of[owners] = bytes_of.get(owners, 0) + int(instance.held_bytes[h])
        for owners in [key for key in bytes_of if len(key) == 1]:
            state[owners[0]] += bytes_of.pop(owners)
        for d in self.devices:
            terms = [place[a][d] * nbytes for a, nbytes in enumerate(state) if nbytes]
            for owners, nbytes in bytes_of.items():
                if nbytes and owners:
                    held = self._bool("held", owners, d)
                    model.add_max_equality(held, [place[a][d] for a in owners])
                    terms.append(held * nbytes)
            model.add(sum(terms) <= int(instance.capacity[d]))

    def _symmetry(self, place: list[list[Any]]) -> None:
        """Breaks symmetry: among alike devices, the next holds only atoms after the first one's first."""
        for p, q in (pair for alike in interchangeable_devices(self.instance) for pair in pairwise(alike)):
            for a, row in enumerate(place):
                self.model.add_bool_or([~row[q], *(place[b][p] for b in range(a))])

    # In which order.

    def _order(self) -> None:
        instance, model, n = self.instance, self.model, self.instance.n
        self.pos = [self._var(model.new_int_var(0, max(n - 1, 0), ""), ("pos", v)) for v in range(n)]
        reach = self.reach = reachable(instance)
        self.before: dict[tuple[int, int], Any] = {}
        true = model.new_constant(1)
        for i, j in combinations(range(n), 2):
            b = true if reach[i, j] else self._bool("before", i, j)
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
            literal = self._same[a, b] = self._bool("same", a, b)
            for d in self.devices:
                self.model.add_bool_or([~self.x[i][d], ~self.x[j][d], literal])
                self.model.add_bool_or([~self.x[i][d], self.x[j][d], ~literal])
        return self._same[a, b]

    # When.

    def _compute(self) -> None:
        instance, model = self.instance, self.model
        self.forward = [self._time(("forward", v)) for v in range(instance.n)]
        self.backward = {v: self._time(("backward", v)) for v in range(instance.n) if instance.trained[v]}
        self.forward_end = [self._ended(start, self.d.forward[v], v) for v, start in enumerate(self.forward)]
        self.backward_end = {v: self._ended(s, self.d.backward[v], v) for v, s in self.backward.items()}
        turn = [self._time(("turn", d)) for d in self.devices]  # all forwards of the device are done
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
                    for start, size in ((self.forward, self.d.forward), (self.backward, self.d.backward))
                    for v in (range(instance.n) if start is self.forward else self.backward)
                ]
            )

    def _ended(self, start: Any, sizes: Sequence[int], v: int) -> Any:
        """End of something that lasts `sizes[d]` where node v is on d."""
        return start + sum(self.x[v][d] * int(sizes[d]) for d in self.devices if sizes[d])

    def _present(self, u: int, q: int, readers: list[int], name: str) -> Any:
        """Literal: a reader is on q and the producer is not."""
        literal, home = self._bool(name, u, q), self.x[int(self.instance.producer[u])][q]
        for c in readers:
            self.model.add_bool_or([~self.x[c][q], home, literal])
        self.model.add_implication(literal, ~home)
        self.model.add_bool_or([~literal, *(self.x[c][q] for c in readers)])
        return literal

    def _transfers(self) -> None:
        instance = self.instance
        self.sent: dict[tuple[int, int], tuple[Any, Any, Any]] = {}  # (u, q) -> present, start, end
        self.busy = {(p, q): self._time(("busy", p, q)) for p in self.devices for q in self.devices if p != q}
        for u in range(len(instance.variables)):
            maker = int(instance.producer[u])
            for q in self.devices:
                readers = [int(c) for c in instance.consumers[u]]
                present, start = self._present(u, q, readers, "sent"), self._time(("send", u, q))
                end = self._ended(start, [self.d.transfer[u, p, q] * (p != q) for p in self.devices], maker)
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
        readers = {u: trained_readers(instance, u) for u in range(len(instance.variables))}
        readers = {u: consumers for u, consumers in readers.items() if consumers}
        last: dict[tuple[int, int], Any] = {}  # rank of the reader whose backward is the last
        for u, consumers in readers.items():
            maker = int(instance.producer[u])
            for q in self.devices:
                present, start = self._present(u, q, consumers, "returned"), self._time(("return", u, q))
                end = self._ended(start, [self.d.transfer[u, q, p] * (p != q) for p in self.devices], maker)
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
                first = self._bool("first", u, w, q)
                self._add(last[u, q] >= last[w, q], first, pu, pw, same)
                self._add(last[u, q] < last[w, q], ~first, pu, pw, same)
                self._add(sw >= eu, first, pu, pw, same)
                self._add(su >= ew, ~first, pu, pw, same)

    def _last(self, u: int, q: int, readers: list[int], present: Any) -> Any:
        if len(readers) == 1:
            return self.pos[readers[0]]
        rank = self._var(self.model.new_int_var(0, self.instance.n - 1, ""), ("last", u, q))
        chosen = [self._bool("chosen", u, q, c) for c in readers]
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
            sum(self.x[v][d] * int(self.d.step[v, d]) for v in range(instance.n) if self.d.step[v, d])
            for d in self.devices
        ]
        for v in range(instance.n):
            model.add(self.end >= self.forward_end[v])
        for v, end in self.backward_end.items():
            for d in self.devices:
                self._add(self.end >= end + steps[d], self.x[v][d])
        for d in self.devices:
            load = self.d.forward[:, d] + (self.d.backward[:, d] + self.d.step[:, d]) * instance.trained
            model.add(self.end >= sum(self.x[v][d] * int(s) for v, s in enumerate(load) if s))

    # A known answer as a complete hint.

    def hint(self, where: Sequence[int] | Ints, order: Sequence[int] | Ints, known: StartTimes) -> None:
        instance = self.instance
        rank = {int(v): i for i, v in enumerate(order)}
        ends = {v: known.forward[v] + self.d.forward[v, where[v]] for v in known.forward}
        atom_at = [int(where[int(instance.atoms[a][0])]) for a in range(len(instance.atoms))]

        def last(u: int, q: int) -> list[tuple[int, int]]:
            return sorted((rank[c], c) for c in trained_readers(instance, u) if where[c] == q)

        def value(key: Any) -> int:
            match key:
                case "end":
                    return int(known.end)
                case ("x", a, d):
                    return int(atom_at[a] == d)
                case ("held", owners, d):
                    return int(any(atom_at[a] == d for a in owners))
                case ("pos", v):
                    return rank[v]
                case ("before", i, j):
                    return int(rank[i] < rank[j])
                case ("same", a, b):
                    return int(atom_at[a] == atom_at[b])
                case ("forward", v):
                    return int(known.forward[v])
                case ("backward", v):
                    return int(known.backward[v])
                case ("turn", d):
                    return int(max([0, *(e for v, e in ends.items() if where[v] == d)]))
                case ("sent", u, q):
                    return int((u, q) in known.sent)
                case ("send", u, q):
                    return int(known.sent.get((u, q), 0))
                case ("busy", p, q):
                    used = [
                        s + self.d.transfer[u, p, q]
                        for (u, to), s in known.sent.items()
                        if to == q and where[instance.producer[u]] == p
                    ]
                    return int(max([0, *used]))
                case ("returned", u, q):
                    return int((u, q) in known.returned)
                case ("return", u, q):
                    return int(known.returned.get((u, q), 0))
                case ("last", u, q):
                    return (last(u, q) or [(0, 0)])[0][0]
                case ("chosen", u, q, c):
                    return int((u, q) in known.returned and last(u, q)[0][1] == c)
                case ("first", u, w, q):
                    lu, lw = last(u, q), last(w, q)
                    return int(bool(lu and lw) and lu[0][0] >= lw[0][0])
            raise AssertionError(key)

        for variable, key in self.values:
            self.model.add_hint(variable, value(key))
