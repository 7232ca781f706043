"""The constrained optimisation of the NetSplit thesis, section 5.2.2, as a PICOS model over groups.

    minimise makespan                                                                     (5-11)
    start_fp(i) = 0 of entry nodes,  start_bp(i) = end_fp(i) of exit nodes                (5-12)
    end(i) = start(i) + seconds(i), substituted rather than kept as a variable            (5-13)
    makespan >= end_bp(i), of entry nodes: all others end before one of them              (5-14)
    sum_p place(g,p) = 1, place binary, shared by the nodes of a group g                  (5-15)
    start_fp(j) >= end_fp(i) + commu,  start_bp(i) >= end_bp(j) + commu  of edge (i,j)    (5-16)
    capacity(p) >= alpha * weights + (in_flight + 1) * held variables                     (5-18)

How the two non-linear parts are made linear, both exactly:

- (5-16) multiplies place(a,p) by place(b,q). `both(a,b,p,q)` takes its place for each pair of groups
  with an edge between them, whichever way it points, with
  ``sum_q both(a,b,p,q) = place(a,p)`` and ``sum_p both(a,b,p,q) = place(b,q)``. With binary `place`
  only the product solves these rows, and their relaxation is tighter than the usual
  ``both >= place + place - 1``. Edges inside a group cost nothing and need no row of `both`.
- (5-18) takes a maximum over R(k). `held(c,p) >= place(g,p)` for the groups g of class c, where
  variables that touch the same groups form one class; memory only ever pushes `held` down.
  A device which could hold the whole model needs no row.

Where devices differ in kind, seconds(i) is ``sum_p place(g,p) * seconds(i, kind of p)``. Activations
take the link from i's device to j's, gradients (as many bytes) the link back. Times are scaled so
that the best single device takes 1000 (less where another device or a link is over a thousand times
slower), capacities to 1000 each, so that the tolerances of the engines mean the same for every problem.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import picos

from netsplit.partition.base import Problem
from netsplit.partition.engines.rows import Rows, Term
from netsplit.partition.methods.thesis.thesis_times import message_bytes, thesis_times

__all__ = ["Formulation"]

_SCALE = 1000.0


class Formulation:
    """(5-11)..(5-18) for one problem and one grouping of its nodes."""

    passes = 2  # forward and backward

    def __init__(
        self, problem: Problem, groups: tuple[tuple[str, ...], ...], margin: Mapping[str, int] | None = None
    ) -> None:
        """`margin`: bytes by which the capacity of a device is lowered, by device name."""
        self.problem, self.groups, self.margin = problem, groups, margin or {}
        self.devices = problem.cluster.devices
        self.group_of = {name: g for g, group in enumerate(groups) for name in group}
        self.index = problem.graph.position
        self.nbytes = message_bytes(problem.graph)
        crossing = {self._pair(u, v) for u, v in self.nbytes} - {(g, g) for g in range(len(groups))}
        self.pairs = {pair: n for n, pair in enumerate(sorted(crossing))}
        self.unit_s = self._time_unit()

    def build(self) -> picos.Problem:
        """The model; `place` is its only integer part."""
        full = self._full_devices()
        classes = self._variable_classes() if full else {}
        shared = [groups for groups in classes if len(groups) > 1]
        variables = self._variables(len(shared) * len(full))
        model = picos.Problem(name="NetSplit (5-11)..(5-18)")
        model.minimize = variables["makespan"]
        self._start_rows().attach(model, variables, equal=True)
        self._makespan_rows().attach(model, variables)
        self._one_device_rows().attach(model, variables, equal=True)
        self._edge_rows().attach(model, variables)
        self._product_rows().attach(model, variables, equal=True)
        self._memory_rows(full, classes, shared).attach(model, variables)
        return model

    def decode(self, place: list[float]) -> dict[str, str]:
        """Node name to device name, of the values of `place`."""
        m = len(self.devices)
        rows = [place[g * m : (g + 1) * m] for g in range(len(self.groups))]
        chosen = [self.devices[row.index(max(row))].name for row in rows]
        return {name: chosen[g] for name, g in self.group_of.items()}

    def _variables(self, held: int) -> dict[str, Any]:
        n, m = len(self.index), len(self.devices)
        lengths = {"start_fp": n, "start_bp": n, "both": len(self.pairs) * m * m, "held": held, "makespan": 1}
        variables: dict[str, Any] = {
            name: picos.RealVariable(name, length, lower=0) for name, length in lengths.items() if length
        }
        variables["place"] = picos.BinaryVariable("place", len(self.groups) * m)
        return variables

    def _start_rows(self) -> Rows:
        """(5-12)."""
        rows, graph = Rows(), self.problem.graph
        for name in graph.entry_nodes:
            rows.add([("start_fp", self.index[name], 1.0)])
        for name in graph.exit_nodes:
            i = self.index[name]
            terms, constant = self._seconds(name, "forward_s", -1.0)
            rows.add([("start_bp", i, 1.0), ("start_fp", i, -1.0), *terms], -constant)
        return rows

    def _makespan_rows(self) -> Rows:
        """(5-14)."""
        rows = Rows()
        for name in self.problem.graph.entry_nodes:
            terms, constant = self._seconds(name, "backward_s", 1.0)
            rows.add([("start_bp", self.index[name], 1.0), ("makespan", 0, -1.0), *terms], -constant)
        return rows

    def _one_device_rows(self) -> Rows:
        """(5-15)."""
        rows, m = Rows(), len(self.devices)
        for g in range(len(self.groups)):
            rows.add((("place", g * m + p, 1.0) for p in range(m)), 1.0)
        return rows

    def _edge_rows(self) -> Rows:
        """(5-16): one row forward and one backward of every edge."""
        rows = Rows()
        for (u, v), nbytes in self.nbytes.items():
            passes = (u, v, "start_fp", "forward_s"), (v, u, "start_bp", "backward_s")
            for source, target, start, field in passes[: self.passes]:
                terms, constant = self._seconds(source, field, 1.0)
                order = [(start, self.index[source], 1.0), (start, self.index[target], -1.0)]
                rows.add([*order, *terms, *self._commu(source, target, nbytes)], -constant)
        return rows

    def _product_rows(self) -> Rows:
        """The rows that make `both` the product of two `place`."""
        rows, m = Rows(), len(self.devices)
        for (a, b), n in self.pairs.items():
            for p in range(m):
                along = (("both", (n * m + p) * m + q, 1.0) for q in range(m))
                rows.add([*along, ("place", a * m + p, -1.0)])
                across = (("both", (n * m + q) * m + p, 1.0) for q in range(m))
                rows.add([*across, ("place", b * m + p, -1.0)])
        return rows

    def _memory_rows(
        self, full: list[int], classes: dict[tuple[int, ...], int], shared: list[tuple[int, ...]]
    ) -> Rows:
        """(5-18) for the devices `full`, which cannot hold the whole model."""
        rows, m = Rows(), len(self.devices)
        states = self.problem.memory_model.state_bytes
        own = [sum(states[name] for name in group) for group in self.groups]
        for groups, nbytes in classes.items():
            if len(groups) == 1:
                own[groups[0]] += nbytes
        for slot, p in enumerate(full):
            capacity = self._capacity(p)
            per_byte = _SCALE / max(capacity, 1)
            held = [(c * len(full) + slot, groups) for c, groups in enumerate(shared)]
            kept: list[Term] = [("place", g * m + p, own[g] * per_byte) for g in range(len(own)) if own[g]]
            kept += [("held", element, classes[groups] * per_byte) for element, groups in held]
            rows.add(kept, capacity * per_byte)
            for element, groups in held:
                for g in groups:
                    rows.add([("place", g * m + p, 1.0), ("held", element, -1.0)])
        return rows

    def _variable_classes(self) -> dict[tuple[int, ...], int]:
        """Sets of groups to the bytes of the variables that touch just these groups."""
        memory = self.problem.memory_model
        classes: dict[tuple[int, ...], int] = {}
        for k, nbytes in memory.variable_bytes.items():
            touched = tuple(sorted({self.group_of[name] for name in memory.holders[k]}))
            if touched and nbytes:
                classes[touched] = classes.get(touched, 0) + nbytes
        return classes

    def _full_devices(self) -> list[int]:
        required = self.problem.memory_model.total_bytes
        return [p for p in range(len(self.devices)) if self._capacity(p) < required]

    def _capacity(self, p: int) -> int:
        return self.devices[p].capacity_bytes - self.margin.get(self.devices[p].name, 0)

    def _time_unit(self) -> float:
        """Seconds of one unit of model time; no coefficient is above a million units."""
        cluster, names = self.problem.cluster, self.index
        alone = [thesis_times(self.problem, dict.fromkeys(names, d.name)).makespan for d in self.devices]
        most = max(self.nbytes.values(), default=0)
        slowest = max((link.seconds(most) for link in cluster.links.values()), default=0.0)
        return max(min(alone) / _SCALE, max(*alone, slowest) / _SCALE**2) or 1.0

    def _pair(self, u: str, v: str) -> tuple[int, int]:
        a, b = self.group_of[u], self.group_of[v]
        return (a, b) if a <= b else (b, a)

    def _seconds(self, name: str, field: str, sign: float) -> tuple[Iterable[Term], float]:
        """Scaled seconds of a node as terms of `place` and a constant."""
        kinds = self.problem.costs.devices
        by_device = [sign * getattr(kinds[d.kind].nodes[name], field) / self.unit_s for d in self.devices]
        if min(by_device) == max(by_device):
            return (), by_device[0]
        first = self.group_of[name] * len(self.devices)
        return [("place", first + p, value) for p, value in enumerate(by_device)], 0.0

    def _commu(self, source: str, target: str, nbytes: int) -> Iterator[Term]:
        """Scaled seconds of the message from the device of `source` to that of `target`."""
        pair = self._pair(source, target)
        if pair[0] == pair[1]:
            return
        n, m, cluster = self.pairs[pair], len(self.devices), self.problem.cluster
        flipped = self.group_of[source] != pair[0]
        for p, a in enumerate(self.devices):
            for q, b in enumerate(self.devices):
                ends = (b.name, a.name) if flipped else (a.name, b.name)
                seconds = cluster.transfer_seconds(nbytes, *ends)
                if seconds:
                    yield "both", (n * m + p) * m + q, seconds / self.unit_s
