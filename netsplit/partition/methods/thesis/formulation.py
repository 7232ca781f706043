"""The constrained optimisation of the NetSplit thesis, section 5.2.2, over groups of nodes.

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
that the best single device takes 1000 at most, capacities to 1000 each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from netsplit.graph.ir import Graph
from netsplit.partition.base import Problem
from netsplit.partition.common.instance import Instance
from netsplit.partition.engines.rows import Floats, Indices, LinearModel, Rows, Term

__all__ = ["Formulation", "PestoFormulation", "forward_makespan", "message_bytes", "thesis_times"]


@dataclass(frozen=True)
class ThesisTimes:
    """The least solution of (5-12)..(5-16) for one placement, in seconds."""

    start_fp: dict[str, float]
    start_bp: dict[str, float]
    makespan: float


def message_bytes(graph: Graph) -> dict[tuple[str, str], int]:
    """(u, v) to the bytes that v reads of u; variables of one pair travel as one message."""
    nbytes: dict[tuple[str, str], int] = {}
    for u, v, k in graph.edges:
        nbytes[u, v] = nbytes.get((u, v), 0) + graph.variables[k].nbytes
    return nbytes


def thesis_times(problem: Problem, device_of: Mapping[str, str]) -> ThesisTimes:
    """Start every node as soon as (5-12) and (5-16) allow; nodes of one device may overlap.

    Activations travel on the link from u's to v's device, gradients of the same size on the
    link back; in the thesis both take `Commu(i, j)`, as its links are the same both ways.
    """
    graph, costs, cluster = problem.graph, problem.costs, problem.cluster
    kind_of = {device.name: device.kind for device in cluster.devices}
    nbytes = message_bytes(graph)
    start_fp, end_fp, start_bp, end_bp = (dict[str, float]() for _ in range(4))

    def message_s(u: str, v: str, source: str, target: str) -> float:
        return cluster.transfer_seconds(nbytes[u, v], device_of[source], device_of[target])

    for v in graph.nodes:
        came = (end_fp[u] + message_s(u, v, u, v) for u in graph.predecessors[v])
        start_fp[v] = max(came, default=0.0)
        end_fp[v] = start_fp[v] + costs.forward_s(v, kind_of[device_of[v]])
    for u in reversed(graph.nodes):
        came = (end_bp[v] + message_s(u, v, v, u) for v in graph.successors[u])
        start_bp[u] = max(came, default=end_fp[u])
        end_bp[u] = start_bp[u] + costs.backward_s(u, kind_of[device_of[u]])
    return ThesisTimes(start_fp, start_bp, max(end_bp.values(), default=0.0))


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
        self._lay_out()

    def _lay_out(self) -> None:
        """Number the columns."""
        n, m = len(self.index), len(self.devices)
        self.full = self._full_devices()
        instance = Instance.of(self.problem)
        group_of = np.array([self.group_of[name] for name in instance.names], np.int64)
        self.own, self.shared = instance.bytes_of_groups(group_of) if self.full else ([], {})
        self.start_fp = 0
        self.start_bp = n * (self.passes - 1)  # one pass has no backward
        self.place = n * self.passes
        self.both = self.place + len(self.groups) * m
        self.held = self.both + len(self.pairs) * m * m
        self.makespan = self.held + len(self.shared) * len(self.full)
        self.columns = self.makespan + 1

    def build(self) -> LinearModel:
        """The model; `place` is its only integer part."""
        rows = Rows()
        self._add_start_rows(rows)
        self._add_makespan_rows(rows)
        self._add_one_device_rows(rows)
        self._add_edge_rows(rows)
        self._add_product_rows(rows)
        self._add_memory_rows(rows)
        upper, cost, binary = (
            np.full(self.columns, np.inf),
            np.zeros(self.columns),
            slice(self.place, self.both),
        )
        integer = np.zeros(self.columns, bool)
        upper[binary], integer[binary] = 1.0, True
        cost[self.makespan] = 1.0
        return rows.model(np.zeros(self.columns), upper, cost, integer)

    def most_coefficients(self) -> int:
        """No model of these groups has more."""
        m, graph = len(self.devices), self.problem.graph
        crossing = sum(self.group_of[u] != self.group_of[v] for u, v in self.nbytes)
        edges = self.passes * (len(self.nbytes) * (2 + m) + crossing * m * m)
        ends = (len(graph.entry_nodes) + len(graph.exit_nodes)) * (2 + m)
        memory = len(self.full) * (len(self.groups) + sum(1 + 2 * len(each) for each in self.shared))
        return edges + ends + len(self.groups) * m + len(self.pairs) * 2 * m * (m + 1) + memory

    def decode(self, values: Floats) -> dict[str, str]:
        """Node name to device name, of the values of the columns."""
        place = values[self.place : self.both].reshape(len(self.groups), len(self.devices))
        chosen = [self.devices[int(p)].name for p in place.argmax(axis=1)]
        return {name: chosen[g] for name, g in self.group_of.items()}

    def _add_start_rows(self, rows: Rows) -> None:
        """(5-12)."""
        graph = self.problem.graph
        for name in graph.entry_nodes:
            rows.add([(self.start_fp + self.index[name], 1.0)], equal=True)
        for name in graph.exit_nodes:
            i = self.index[name]
            terms, constant = self._seconds(name, "forward_s", -1.0)
            start = [(self.start_bp + i, 1.0), (self.start_fp + i, -1.0)]
            rows.add([*start, *terms], -constant, equal=True)

    def _add_makespan_rows(self, rows: Rows) -> None:
        """(5-14)."""
        for name in self.problem.graph.entry_nodes:
            terms, constant = self._seconds(name, "backward_s", 1.0)
            order = [(self.start_bp + self.index[name], 1.0), (self.makespan, -1.0)]
            rows.add([*order, *terms], -constant)

    def _add_one_device_rows(self, rows: Rows) -> None:
        """(5-15)."""
        place = np.arange(self.place, self.both).reshape(len(self.groups), len(self.devices))
        rows.add_block(place, 1.0, 1.0, equal=True)

    def _add_edge_rows(self, rows: Rows) -> None:
        """(5-16): one row forward and one backward of every edge."""
        for (u, v), nbytes in self.nbytes.items():
            passes = (u, v, self.start_fp, "forward_s"), (v, u, self.start_bp, "backward_s")
            for source, target, start, field in passes[: self.passes]:
                terms, constant = self._seconds(source, field, 1.0)
                order = [(start + self.index[source], 1.0), (start + self.index[target], -1.0)]
                columns, values = self._commu(source, target, nbytes)
                own = [*order, *terms]
                rows.add_block(
                    np.concatenate([[column for column, _ in own], columns])[None],
                    np.concatenate([[value for _, value in own], values])[None],
                    -constant,
                )

    def _add_product_rows(self, rows: Rows) -> None:
        """The rows that make `both` the product of two `place`."""
        m = len(self.devices)
        values = np.append(np.ones(m), -1.0)
        for (a, b), n in self.pairs.items():
            both = np.arange(m * m).reshape(m, m) + self.both + n * m * m
            for block, group in ((both, a), (both.T, b)):
                place = np.arange(m)[:, None] + self.place + group * m
                rows.add_block(np.hstack([block, place]), values, equal=True)

    def _add_memory_rows(self, rows: Rows) -> None:
        """(5-18) for the devices which cannot hold the whole model."""
        m = len(self.devices)
        for slot, p in enumerate(self.full):
            capacity = self._capacity(p)
            per_byte = _SCALE / max(capacity, 1)
            first = self.held + slot
            held = [(first + c * len(self.full), groups) for c, groups in enumerate(self.shared)]
            kept: list[Term] = [
                (self.place + g * m + p, nbytes * per_byte) for g, nbytes in enumerate(self.own) if nbytes
            ]
            kept += [(column, self.shared[groups] * per_byte) for column, groups in held]
            rows.add(kept, capacity * per_byte)
            for column, groups in held:
                for g in groups:
                    rows.add([(self.place + g * m + p, 1.0), (column, -1.0)])

    def _full_devices(self) -> list[int]:
        required = self.problem.memory_model.total_bytes
        return [p for p in range(len(self.devices)) if self._capacity(p) < required]

    def _capacity(self, p: int) -> int:
        return self.devices[p].capacity_bytes - self.margin.get(self.devices[p].name, 0)

    @cached_property
    def unit_s(self) -> float:
        """Seconds of one unit of model time; no coefficient is above a million units."""
        one_of_each = {device.kind: device.name for device in self.devices}  # without transfers, alike
        alone = [
            thesis_times(self.problem, dict.fromkeys(self.index, name)).makespan
            for name in one_of_each.values()
        ]
        most = max(self.nbytes.values(), default=0)
        slowest = float(self._link_s(most).max(initial=0.0))
        return max(min(alone) / _SCALE, max(*alone, slowest) / _SCALE**2) or 1.0

    def _pair(self, u: str, v: str) -> tuple[int, int]:
        a, b = self.group_of[u], self.group_of[v]
        return (a, b) if a <= b else (b, a)

    def _seconds(self, name: str, field: str, sign: float) -> tuple[list[Term], float]:
        """Scaled seconds of a node as terms of `place` and a constant."""
        kinds = self.problem.costs.devices
        by_device = [sign * getattr(kinds[d.kind].nodes[name], field) / self.unit_s for d in self.devices]
        if min(by_device) == max(by_device):
            return [], by_device[0]
        first = self.place + self.group_of[name] * len(self.devices)
        return [(first + p, value) for p, value in enumerate(by_device)], 0.0

    def _link_s(self, nbytes: int) -> Floats:
        """[D, D] seconds of so many bytes from one device to another."""
        latency_s, seconds_per_byte = self.problem.cluster.link_costs
        return latency_s + nbytes * seconds_per_byte

    def _commu(self, source: str, target: str, nbytes: int) -> tuple[Indices, Floats]:
        """Columns and scaled seconds of the message from the device of `source` to that of `target`."""
        pair = self._pair(source, target)
        if pair[0] == pair[1]:
            return np.empty(0, np.int32), np.empty(0)
        seconds = self._link_s(nbytes)
        flipped = self.group_of[source] != pair[0]
        flat = (seconds.T if flipped else seconds).ravel()
        nonzero = np.flatnonzero(flat)
        first = self.both + self.pairs[pair] * len(self.devices) ** 2
        return (nonzero + first).astype(np.int32), flat[nonzero] / self.unit_s


class PestoFormulation(Formulation):
    """(5-11)..(5-18) less everything about the backward pass, and the memory of (5-18).

    minimise makespan                                                                      (6-2)
    start(i) = 0 of entry nodes                                                            (6-3)
    end(i) = start(i) + seconds(i),  makespan >= end(i)                                    (6-4)
    sum_p place(g,p) = 1, place binary                                                     (6-5)
    commu = sum of place(i,p) place(j,q) F(i,j,p,q),  start(j) >= end(i) + commu     (6-6), (6-7)
    """

    passes = 1  # the rows of edges are (6-6), (6-7)

    def _add_start_rows(self, rows: Rows) -> None:
        """(6-3)."""
        for name in self.problem.graph.entry_nodes:
            rows.add([(self.start_fp + self.index[name], 1.0)], equal=True)

    def _add_makespan_rows(self, rows: Rows) -> None:
        """(6-4), of exit nodes: all others end before one of them."""
        for name in self.problem.graph.exit_nodes:
            terms, constant = self._seconds(name, "forward_s", 1.0)
            order = [(self.start_fp + self.index[name], 1.0), (self.makespan, -1.0)]
            rows.add([*order, *terms], -constant)


def forward_makespan(problem: Problem, device_of: Mapping[str, str]) -> float:
    """The least solution of (6-2)..(6-7) for one placement, in seconds."""
    start = thesis_times(problem, device_of).start_fp
    kinds = {device.name: device.kind for device in problem.cluster.devices}
    return max(
        (start[v] + problem.costs.forward_s(v, kinds[device_of[v]]) for v in problem.graph.nodes), default=0.0
    )
