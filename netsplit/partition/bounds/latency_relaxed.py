"""The relaxation R of `latency_bounds` as a CP-SAT model."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from netsplit.partition.bounds.dominators import dominated_sets
from netsplit.partition.bounds.latency_diagram import check_clock
from netsplit.partition.common.instance import Ints
from netsplit.partition.common.interruptible import cp_sat_solver, interruptible
from netsplit.partition.common.step_graph import Edge, StepGraph

__all__ = ["Relaxed", "RelaxedModel"]


@dataclass(frozen=True, eq=False)
class Relaxed:
    """R's bound, and the best placement it came across (it fits; its R value may be below any schedule)."""

    bound_s: float
    where: Ints | None
    notes: dict[str, Any] = field(default_factory=dict)


class RelaxedModel:
    """Variables: x[g,d]; for pairs of groups with an edge y[g,h,p,q]; a start for every task.

    Raises:
        OutOfTime: the model is not built by `deadline`. Of the windows between a join and its dominator,
            which only tighten it, there are then as many as half of the time was enough for.
    """

    def __init__(
        self,
        graph: StepGraph,
        group_of: Ints,
        shut: dict[Edge, Any],
        most_s: float,
        ticks: int,
        least_s: float = 0.0,
        deadline: float = math.inf,
    ) -> None:
        from ortools.sat.python import cp_model

        self.graph, self.instance, self.group_of = graph, graph.instance, group_of
        self.devices = range(len(self.instance.devices))
        self.deadline, began = deadline, time.perf_counter()
        self.model: Any = cp_model.CpModel()
        self.tick_s, self.ticks = (most_s / ticks if most_s > 1e-200 else 1.0), ticks + 1
        least = min(int(least_s / self.tick_s), self.ticks)
        self.end = self.model.new_int_var(least, self.ticks, "end")
        count = int(group_of.max()) + 1
        self.x = [[self.model.new_bool_var("") for _ in self.devices] for _ in range(count)]
        for row in self.x:
            self.model.add_exactly_one(row)
        self.pair: dict[tuple[int, int], Any] = {}
        self._memory()
        self._pairs(shut)
        self._times()
        self._windows(began + 0.5 * (deadline - began))
        self.model.minimize(self.end)

    def _whole(self, seconds: Any) -> Ints:
        return np.floor(np.minimum(np.asarray(seconds) / self.tick_s, 2.0**40)).astype(np.int64)

    def _memory(self) -> None:
        instance, model = self.instance, self.model
        state = np.bincount(self.group_of, weights=instance.state_bytes).astype(np.int64).tolist()
        held: dict[tuple[int, ...], int] = {}
        for h in range(len(instance.held_bytes)):
            groups = tuple(sorted(set(self.group_of[instance.holders[h]].tolist())))
            held[groups] = held.get(groups, 0) + int(instance.held_bytes[h])
        for groups in [key for key in held if len(key) == 1]:
            state[groups[0]] += held.pop(groups)
        for d in self.devices:
            terms = [self.x[g][d] * nbytes for g, nbytes in enumerate(state) if nbytes]
            for groups, nbytes in held.items():
                if nbytes and groups:
                    present = model.new_bool_var("")
                    model.add_max_equality(present, [self.x[g][d] for g in groups])
                    terms.append(present * nbytes)
            model.add(sum(terms) <= int(instance.capacity[d]))

    def _pairs(self, shut: dict[Edge, Any]) -> None:
        """y[p][q]: group g on p and h on q; zero where an edge between them cannot lie so."""
        closed: dict[tuple[int, int], Any] = {}
        for edge, table in shut.items():
            key = int(self.group_of[edge.source]), int(self.group_of[edge.target])
            if key[0] != key[1]:
                if key[0] > key[1]:
                    key, table = key[::-1], table.T
                closed[key] = closed.get(key, False) | table
        for (g, h), table in closed.items():
            check_clock(self.deadline)
            y = [[self.model.new_bool_var("") for _ in self.devices] for _ in self.devices]
            for p in self.devices:
                self.model.add(sum(y[p]) == self.x[g][p])
                self.model.add(sum(y[q][p] for q in self.devices) == self.x[h][p])
                for q in self.devices:
                    if p != q and table[p, q]:
                        self.model.add(y[p][q] == 0)
            self.pair[g, h] = y

    def _times(self) -> None:
        graph, n = self.graph, self.graph.n
        sizes = self._whole(graph.seconds)
        active = [*range(n), *(n + v for v in np.flatnonzero(self.instance.trained).tolist())]
        self.start = {
            t: self.model.new_int_var(
                int(self._whole(graph.head[t])),
                max(int(self._whole(graph.head[t])), self.ticks - int(self._whole(graph.tail[t]))),
                "",
            )
            for t in active
        }
        self.size = {
            t: sum(self.x[self.group_of[t % n]][d] * int(s) for d, s in enumerate(sizes[t]) if s)
            for t in active
        }
        for edge, (_, back) in graph.edges.items():
            check_clock(self.deadline)
            v, w = edge
            self.model.add(self.start[w] >= self.start[v] + self.size[v] + self._hop(edge, False))
            if back >= 0:
                self.model.add(
                    self.start[n + v] >= self.start[n + w] + self.size[n + w] + self._hop(edge, True)
                )
        for t in active:
            if t >= n and graph.before[t] == [t - n]:
                self.model.add(self.start[t] >= self.start[t - n] + self.size[t - n])
            if not graph.after[t]:
                self.model.add(self.end >= self.start[t] + self.size[t])

    def _hop(self, edge: Edge, backward: bool) -> Any:
        g, h = int(self.group_of[edge.source]), int(self.group_of[edge.target])
        if g == h:
            return 0
        cost = self._whole(self.graph.transfer_s(edge, backward))
        y = self.pair[min(g, h), max(g, h)]
        at = (lambda p, q: y[p][q]) if g < h else (lambda p, q: y[q][p])
        return sum(at(p, q) * int(cost[p, q]) for p in self.devices for q in self.devices if cost[p, q])

    def _windows(self, until: float) -> None:
        """The load of each device, of everything and between a join and its immediate dominator."""
        graph, n = self.graph, self.graph.n
        sizes = self._whole(graph.seconds)
        steps = self._whole(self.instance.step_s)

        def load(tasks: list[int], d: int) -> Any:
            weight: dict[int, int] = {}
            for t in tasks:
                g = int(self.group_of[t % n])
                weight[g] = weight.get(g, 0) + int(sizes[t, d])
            return sum(self.x[g][d] * w for g, w in weight.items() if w)

        for d in self.devices:
            step = sum(
                self.x[self.group_of[v]][d] * int(steps[v, d])
                for v in np.flatnonzero(self.instance.trained).tolist()
                if steps[v, d]
            )
            self.model.add(self.end >= load(list(self.start), d) + step)
        index = {t: i for i, t in enumerate(t for t in graph.order if t in self.start)}
        tasks = list(index)
        before = [sorted(index[s] for s in graph.before[t]) for t in tasks]
        for s, t, inside in dominated_sets(before, graph.fastest[tasks], until):
            if time.perf_counter() > until:
                return
            begin = 0 if s < 0 else self.start[tasks[s]] + self.size[tasks[s]]
            for d in self.devices:
                self.model.add(self.start[tasks[t]] >= begin + load([tasks[i] for i in inside], d))

    def solve(self, time_limit_s: float, seed: int, workers: int) -> Relaxed:
        from ortools.sat.python import cp_model

        solver = cp_sat_solver(max(0.01, time_limit_s), seed, workers)
        solver.parameters.relative_gap_limit = 1e-5
        self.configure(solver.parameters)
        code = interruptible(lambda: solver.solve(self.model), solver.stop_search)
        notes = {"relaxation": solver.status_name(code), "tick_s": self.tick_s}
        if code == cp_model.INFEASIBLE:
            return Relaxed(float("inf"), None, notes)
        where = None
        if code in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            at = [next(d for d in self.devices if solver.value(row[d])) for row in self.x]
            where = np.array(at, np.int64)[self.group_of]
            notes["relaxed_s"] = solver.objective_value * self.tick_s
        return Relaxed(max(0.0, solver.best_objective_bound) * self.tick_s, where, notes)

    @staticmethod
    def configure(parameters: Any) -> None:
        """Both workers prove: one branches with the whole LP, one searches for the bound."""
        parameters.linearization_level = 2
        if parameters.num_workers > 1:
            for name in ("max_lp", "lb_tree_search"):
                parameters.subsolvers.append(name)
