"""Least seconds through a section of the folded graph, where a device does one thing at a time.

    s on p ──► section: device of every node, one order on each device ──► t on q

The step's backwards run in the reverse of the forwards' order. So a path of edges and of neighbours on one
device is one there and back, its seconds add up, and forward and backward of a node are one interval of a
schedule: its length is at most that of both ways together. Small sections are solved by CP-SAT, whose bound
counts where it is not done in time. Bytes are left out.

Own construction.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from netsplit.partition.bounds.latency_fold import Folded
from netsplit.partition.bounds.latency_sections import Section, lies_between
from netsplit.partition.common.instance import Floats
from netsplit.partition.common.interruptible import cp_sat_solver, interruptible

__all__ = ["branching", "exclusive_seconds", "shortest_ways"]

_FEWEST = 3  # nodes beside the target: of fewer the diagram is exact
_TICKS = 10**6  # of the most that an iteration may take
_LIMITS_S = (1.0, 4.0, 16.0)  # for one section with its ends on two devices; again for those left open


def exclusive_seconds(
    folded: Folded,
    sections: Sequence[Section],
    least: list[Floats],
    most_s: float,
    deadline: float,
    alike: Sequence[int],
) -> list[Floats]:
    """[sections][D, D] by the devices of source and target: no step of less seconds in a better answer.

    Where a shortest way through all sections passes, there is solved first.

    Args:
        least: the same, as it is known; inf: no better answer has such a step.
        most_s: of a known answer: what takes as long is of no use.
        alike: [D] number of the set of devices that may change places.
    """
    least = [each.copy() for each in least]
    kinds: dict[tuple[int, int, bool], list[tuple[int, int]]] = {}
    for p, q in np.ndindex(len(alike), len(alike)):
        kinds.setdefault((alike[p], alike[q], p == q), []).append((p, q))
    tries = {
        (k, each[0]): 0 for k, section in enumerate(sections) if branching(section) for each in kinds.values()
    }
    while tries and folded.mirrored and time.perf_counter() < deadline:
        ways = shortest_ways(least)
        k, ends = min(tries, key=lambda each: (round(float(ways[each[0]][each[1]] / most_s), 9), tries[each]))
        if ways[k][ends] >= most_s:
            tries = {each: n for each, n in tries.items() if ways[each[0]][each[1]] < most_s}
            continue
        limit_s = min(_LIMITS_S[tries[k, ends]], deadline - time.perf_counter())
        seconds, done = SectionSchedule(folded, sections[k], *ends, most_s).least_s(limit_s)
        for p, q in next(each for each in kinds.values() if each[0] == ends):
            least[k][p, q] = max(least[k][p, q], seconds)
        tries[k, ends] += 1
        if done or tries[k, ends] == len(_LIMITS_S):
            del tries[k, ends]
    return least


def branching(section: Section) -> bool:
    """Whether it lies between two nodes, and has too much in it for its diagram."""
    return section.source >= 0 and section.target >= 0 and len(section.nodes) > _FEWEST


def shortest_ways(least: list[Floats]) -> list[Floats]:
    """[sections][D, D] least seconds of a way through all sections that takes this step."""
    devices = len(least[0])
    before = [np.concatenate([[0.0], np.full(devices - 1, np.inf)])]
    for each in least:
        before.append((before[-1][:, None] + each).min(axis=0))
    ahead = [np.zeros(devices)]
    for each in reversed(least):
        ahead.append((each + ahead[-1][None, :]).min(axis=1))
    ahead.reverse()
    return [before[k][:, None] + each + ahead[k + 1][None, :] for k, each in enumerate(least)]


class SectionSchedule:
    """Nodes between s on p and t on q, each an interval on the device that it is on."""

    def __init__(self, folded: Folded, section: Section, p: int, q: int, most_s: float) -> None:
        from ortools.sat.python import cp_model

        self.model: Any = cp_model.CpModel()
        self.tick_s = most_s / _TICKS
        self.folded, self.section, self.p, self.q = folded, section, p, q
        self.devices = range(len(folded.capacity))
        own = folded.forward_s[section.target] + folded.backward_s[section.target]
        self.target_s = float(own[q])
        self.nodes = _core(folded, section)
        self.end = self.model.new_int_var(0, _TICKS, "end")
        self.x = {v: [self.model.new_bool_var("") for _ in self.devices] for v in self.nodes}
        self.start = {v: self.model.new_int_var(0, _TICKS, "") for v in self.nodes}
        self._intervals()
        self._arcs()
        self.model.add(self.end <= self._on_one())
        self.model.minimize(self.end)

    def _ticks(self, seconds: Floats) -> Any:
        return np.floor(np.minimum(seconds / self.tick_s, 4.0 * _TICKS)).astype(np.int64)

    def _intervals(self) -> None:
        folded, model = self.folded, self.model
        size = {v: self._ticks(folded.forward_s[v] + folded.backward_s[v]).tolist() for v in self.nodes}
        self.after: dict[int, Any] = {}
        for v in self.nodes:
            model.add_exactly_one(self.x[v])
            self.after[v] = self.start[v] + sum(self.x[v][d] * size[v][d] for d in self.devices)
            model.add(self.end >= self.after[v])
        for d in self.devices:
            intervals = [
                model.new_optional_fixed_size_interval_var(self.start[v], size[v][d], self.x[v][d], "")
                for v in self.nodes
                if size[v][d]
            ]
            model.add_no_overlap(intervals)
            model.add(self.end >= sum(self.x[v][d] * size[v][d] for v in self.nodes))

    def _arcs(self) -> None:
        section = self.section
        for v in (*self.nodes, section.target):
            for arc in self.folded.arcs[v]:
                u, hop = arc.source, self._ticks(arc.seconds)
                if u == section.source and v == section.target:
                    self.model.add(self.end >= int(hop[self.p, self.q]))
                elif u == section.source:
                    self.model.add(
                        self.start[v] >= sum(self.x[v][d] * int(hop[self.p, d]) for d in self.devices)
                    )
                elif u in self.x and v == section.target:
                    self.model.add(
                        self.end
                        >= self.after[u] + sum(self.x[u][d] * int(hop[d, self.q]) for d in self.devices)
                    )
                elif u in self.x:
                    self.model.add(self.start[v] >= self.after[u] + self._hop(u, v, hop))

    def _hop(self, u: int, v: int, hop: Any) -> Any:
        model, terms = self.model, []
        pairs = [[model.new_bool_var("") for _ in self.devices] for _ in self.devices]
        for d in self.devices:
            model.add(sum(pairs[d]) == self.x[u][d])
            model.add(sum(pairs[e][d] for e in self.devices) == self.x[v][d])
            terms += [pairs[d][e] * int(hop[d, e]) for e in self.devices if hop[d, e]]
        return sum(terms)

    def _on_one(self) -> int:
        """Ticks of all nodes on one device, the best for it: the search knows no more than that at first."""
        folded, section = self.folded, self.section
        serial = self._ticks(folded.forward_s[self.nodes] + folded.backward_s[self.nodes]).sum(axis=0)
        come, go = np.zeros_like(serial), np.zeros_like(serial)
        for v in (*self.nodes, section.target):
            for arc in folded.arcs[v]:
                if arc.source == section.source:
                    come = np.maximum(come, self._ticks(arc.seconds)[self.p])
                if v == section.target and arc.source in self.x:
                    go = np.maximum(go, self._ticks(arc.seconds)[:, self.q])
                if v == section.target and arc.source == section.source:
                    serial = np.maximum(serial, self._ticks(arc.seconds)[self.p, self.q])
        return int(min((come + serial + go).min(), _TICKS))

    def least_s(self, limit_s: float) -> tuple[float, bool]:
        """Seconds that no step beats, and whether they are the least there are."""
        from ortools.sat.python import cp_model

        solver = cp_sat_solver(limit_s, 0, 1)
        solver.parameters.linearization_level = (
            0  # orders are what is hard here, of which relaxations know little
        )
        code = interruptible(lambda: solver.solve(self.model), solver.stop_search)
        if code == cp_model.INFEASIBLE:
            return float("inf"), True
        seconds = max(0.0, solver.best_objective_bound) * self.tick_s + self.target_s
        return seconds, code == cp_model.OPTIMAL


def _core(folded: Folded, section: Section) -> list[int]:
    """The nodes between the section's ends there and back; forward only where none has a backward."""
    inner = [v for v in section.nodes if v != section.target]
    if not folded.backed[inner].any():
        return [v for v in inner if lies_between(folded, section, v)[0]]
    return [v for v in inner if folded.backed[v] and all(lies_between(folded, section, v))]
